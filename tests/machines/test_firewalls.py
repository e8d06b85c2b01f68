"""Agents that do not reach the notebook, or another one: they end with the reason, in seconds."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq

from nbddp.controller.options import PoolOptions
from nbddp.controller.state import PoolSnapshot
from nbddp.errors import PoolStartError
from nbddp.wire.invitation import Invitation
from tests.support.network_hosts import HostNetwork, NetworkHost
from tests.support.polling import poll_until
from tests.support.remote_pools import listening_pool, start
from tests.support.ssh_hosts import SshSite, python_of_hosts

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]
#: The limits are 15 s; a busy machine needs some more to begin.
ENDS_S = 60.0


@pytest.fixture
def python(tmp_path: Path) -> Iterator[Path]:
    """The Python of the hosts."""
    with python_of_hosts(tmp_path) as path:
        yield path


def test_agents_end_with_the_reason_why_they_do_not_join(
    network: HostNetwork, python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    if shutil.which("nft") is None:
        pytest.skip("nftables is not installed")
    hosts = [network.add_host(name) for name in ("n1", "n2", "n3")]
    hosts[0].drop_packets_to(network.address)
    shown: list[PoolSnapshot] = []
    with listening_pool(network.address, shown.append) as path:
        invitation = Invitation.parse(path.read_bytes())
        altered = tmp_path / "altered.json"
        other_key = zmq.curve_keypair()[0].decode()
        msgspec.structs.replace(invitation, server_key=other_key).write(altered)
        agents = [
            _agent(hosts[0], python, path),
            _agent(hosts[1], python, altered),
            _agent(hosts[2], python, altered, "--check"),
        ]
        errors = [agent.communicate(timeout=ENDS_S)[1].decode() for agent in agents]
        assert [agent.returncode for agent in agents] == [1, 1, 1]
        poll_until(lambda: "no agent has come in 15 s" in shown[-1].waits_for, ENDS_S)
    assert "n1 cannot reach the notebook at " in errors[0]
    assert "a firewall drops the packets" in errors[0]
    for error in errors[1:]:
        assert "the file is of another pool, or was altered" in error
    assert f"the hosts must reach {network.address}:" in shown[-1].waits_for
    assert "--check" in shown[-1].waits_for
    for host in hosts:
        poll_until(lambda host=host: not host.processes("nbddp"))  # type: ignore[misc]


def test_a_rank_behind_a_firewall_says_that_it_does_not_reach_the_store(site: SshSite):
    if shutil.which("nft") is None:
        pytest.skip("nftables is not installed")
    one, two = site.add_host("n1"), site.add_host("n2")
    two.drop_packets_to(one.address)
    options = PoolOptions.checked(
        1, launcher="ssh", hosts=["n1", "n2"], python=str(site.python), cwd="/"
    )
    with pytest.raises(PoolStartError) as caught:
        start(options)
    said = str(caught.value)
    assert "rank 1 on n2 could not start: ConnectionError: n2 does not reach torch's store" in said
    assert f"tcp://{one.address}:" in said
    assert "(no answer, for 20 s). Perhaps a firewall drops the packets" in said


def _agent(host: NetworkHost, python: Path, path: Path, *more: str) -> "subprocess.Popen[bytes]":
    words = [str(python), "-P", "-m", "nbddp", "agent", "--connect", str(path), *more]
    return host.start(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
