"""Another user of the hosts of a pool: reads nothing, reaches nothing, disturbs nothing."""

import shutil

import pytest

from tests.support.network_hosts import NetworkHost
from tests.support.remote_pools import ssh_pool
from tests.support.ssh_hosts import SshSite

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]
_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "bash", "-c"]
#: Prints what the user could open: a process of the pool, or a file of it.
_READ_ALL = """
for file in $(ls -d /proc/[0-9]*); do
  [ "$(stat -c %u $file 2>/dev/null)" = 0 ] || continue
  grep -aq nbddp $file/cmdline 2>/dev/null || continue
  for secret in environ maps mem fd/0; do
    head -c 1 $file/$secret >/dev/null 2>&1 && echo $file/$secret
  done
done
for folder in {folders}; do ls $folder/ 2>/dev/null; done
true
"""
#: Sends garbage to the notebook's port, and prints what comes back but for the greeting of ZeroMQ.
_DIAL = """
exec 3<>/dev/tcp/{address}/{port} || exit 3
head -c 100000 /dev/urandom >&3 2>/dev/null
timeout 5 cat <&3 | tail -c +65 | wc -c
"""


def _as_nobody(host: NetworkHost, script: str) -> str:
    answer = host.run([*_NOBODY, script])
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_another_user_of_the_hosts_gets_nothing(site: SshSite):
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    one, two = site.add_host("n1"), site.add_host("n2")
    with ssh_pool(site, one, two) as pool:
        pool.run("import os, tempfile\nx = rank")
        # The user could see the processes: the test looks at something.
        assert "nbddp" in _as_nobody(
            one, "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; true"
        )
        logs = {str(info.log_path).rpartition("/")[0] for info in pool.ranks()}
        assert len(logs) == 2
        reading = _READ_ALL.format(folders=" ".join(logs))
        assert one.run(["sh", "-c", reading]).stdout  # root can
        for host in (one, two):
            assert _as_nobody(host, reading) == ""
        hub = pool._processes.hub
        port = hub._channel.port  # type: ignore[attr-defined]
        address = site.notebook_address
        for host in (one, two):
            dialling = _DIAL.format(address=address, port=port)
            assert _as_nobody(host, dialling) == "0\n"
        pool.run("y = torch.ones(1)\ndist.all_reduce(y)")
        assert pool.pull("(x, y.item())") == [(rank, 4.0) for rank in range(4)]
