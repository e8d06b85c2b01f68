"""Pools that the notebook reaches through a login node only: `--via LOGIN`."""

import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.pool import Pool
from nbddp.controller.state import PoolSnapshot
from nbddp.errors import DeadlockError, PoolInterruptedError, PoolStartError
from nbddp.settings import Settings
from tests.support import slurm_site
from tests.support.kept_machines import take_back
from tests.support.kept_site import Scripts
from tests.support.network_hosts import HostNetwork, NetworkHost
from tests.support.polling import poll_until
from tests.support.remote_pools import DEFAULTS, start
from tests.support.slurm_hosts import SlurmHosts
from tests.support.ssh_hosts import SshSite, command, hosts_behind
from tests.support.views import RecordingView

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]
_SSH_PORT = 22


@dataclass
class Site:
    """A login node and two nodes of Slurm; this machine reaches the port of sshd only."""

    slurm: SlurmHosts
    login: NetworkHost
    nodes: list[NetworkHost]

    def options(self, n: int = 1, **more: object) -> PoolOptions:
        """Options of a pool with `n` ranks on each node."""
        python = str(self.slurm.python)
        given = {"nnodes": 2, "launcher": "slurm", "via": "login", "python": python, **more}
        return PoolOptions.checked(n, **given)

    def is_left(self) -> list[str]:
        """Jobs and processes of pools."""
        processes = [line for host in (self.login, *self.nodes) for line in host.processes("nbddp")]
        own = str(self.slurm.python.parent)  # daemons of Slurm may have it in their command line
        return [*self.slurm.jobs(), *(line for line in processes if own not in line)]


@pytest.fixture
def cluster(site: SshSite, network: HostNetwork, tmp_path: Path) -> Iterator[Site]:
    """A cluster behind its login node."""
    if reason := slurm_site.reason_to_skip():
        pytest.skip(reason)
    login = site.add_host("login")
    nodes = [network.add_host(name) for name in ("n1", "n2")]
    login.keep_apart(network.address, _SSH_PORT)
    for node in nodes:
        node.keep_apart(network.address)
    slurm = SlurmHosts(tmp_path, login, nodes, site.python)
    yield Site(slurm, login, nodes)
    slurm.close()


def test_a_pool_on_nodes_that_only_the_login_node_reaches(cluster: Site):
    pool = start(cluster.options(2, slurm="--time=5"))
    try:
        assert cluster.slurm.jobs() == [f"nbddp-{pool._processes.pool_id}"]
        pool.run("import socket\nt = torch.ones(1) * rank\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [6.0] * 4
        assert pool.pull("socket.gethostname()") == ["n1", "n1", "n2", "n2"]
        pool.push(large=b"x" * 3_000_000)
        assert pool.pull("len(large)") == [3_000_000] * 4
        with pytest.raises(DeadlockError):
            pool.run("if rank == 1:\n    dist.barrier()")
        pool.run("dist.barrier()")
        [job_end] = pool.job_ends()
        assert re.fullmatch(r"Slurm job \d+ ends in [45] min", job_end)
        secret = pool._processes.hub._channel.invitation("", [], "").secret_key  # type: ignore[attr-defined]
        for host in (cluster.login, *cluster.nodes):
            listing = host.run(["sh", "-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ"]).stdout
            assert secret not in listing
    finally:
        pool.stop()
    poll_until(lambda: not cluster.is_left())


@pytest.mark.slow  # as `test_slurm` does it without a login node
def test_a_step_through_the_login_node_takes_the_place_of_a_lost_agent(cluster: Site):
    pool = start(cluster.options(slurm="--time=5"))
    try:
        pool.run("import os\nx = rank")
        fork_server = "open(f'/proc/{os.getppid()}/stat').read()"
        agent = pool.pull(f"{fork_server}.split()[3]", ranks=1)
        cluster.nodes[1].run(["kill", "-9", agent])
        poll_until(lambda: pool.snapshot.lost_agents == {1})
        pool.restart(1)
        pool.run("t = torch.ones(1)\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [2.0] * 2
        assert pool.pull("x", ranks=0) == 0
        assert len(cluster.slurm.jobs()) == 1
    finally:
        pool.stop()
    poll_until(lambda: not cluster.is_left())


def test_a_start_that_the_user_ends_takes_the_job_out_of_the_queue(cluster: Site):
    def progress(snapshot: PoolSnapshot) -> None:
        if "PENDING (JobHeldUser)" in snapshot.waits_for:
            raise KeyboardInterrupt

    with pytest.raises(PoolInterruptedError):
        Pool(
            cluster.options(slurm="--hold"),
            DEFAULTS,
            lambda pool, run: RecordingView(),
            on_progress=progress,
        )
    poll_until(lambda: not cluster.is_left())


def test_the_end_of_the_notebook_ends_the_job_and_the_relay(cluster: Site, tmp_path: Path):
    script = tmp_path / "notebook.py"
    script.write_text(
        "import nbddp, time\n"
        "pool = nbddp.start(1, nnodes=2, launcher='slurm', via='login', "
        f"python={str(cluster.slurm.python)!r})\n"
        "print('up', flush=True)\ntime.sleep(600)\n"
    )
    notebook = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    assert notebook.stdout is not None
    assert notebook.stdout.readline() == b"up\n"
    assert cluster.login.processes("launch.relay")
    notebook.kill()
    notebook.wait()
    notebook.stdout.close()
    poll_until(lambda: not cluster.is_left())


@pytest.mark.slow
def test_a_laptop_that_goes_without_a_word_leaves_nothing_when_patience_is_over(
    cluster: Site, network: HostNetwork, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NBDDP_PATIENCE_S", "3")
    pool = start(cluster.options(), Settings.from_env())
    try:
        cluster.login.drop_packets_to(network.address)
        poll_until(lambda: not cluster.is_left())
    finally:
        pool.stop()


@pytest.mark.slow
def test_a_job_behind_the_login_node_outlives_the_notebook(
    cluster: Site, home: Path, tmp_path: Path, scripts: Scripts
):
    # What is in the home folder of the login node.
    python = command(tmp_path / "there", f"HOME={home} exec {cluster.slurm.python}")
    first, pool_id = scripts.start_counting(
        f"nnodes=2, launcher='slurm', via='login', slurm='--time=5', python={str(python)!r}"
    )
    invitation = home / ".nbddp" / f"{pool_id}.json"
    assert invitation.stat().st_mode & 0o777 == 0o600
    first.kill()
    poll_until(lambda: not cluster.login.processes("launch.relay"))
    assert cluster.slurm.jobs() == [f"nbddp-{pool_id}"]
    pool = take_back(pool_id, DEFAULTS)
    try:
        outcome = pool.rejoin()
        assert outcome is not None
        assert outcome.ranks("ok") == pool.all_ranks
        assert pool.pull("x") == [11, 12]
        pool.run("import os\ndist.barrier()")
        fork_server = "open(f'/proc/{os.getppid()}/stat').read()"
        agent = pool.pull(f"{fork_server}.split()[3]", ranks=1)
        cluster.nodes[1].run(["kill", "-9", agent])
        poll_until(lambda: pool.snapshot.lost_agents == {1}, 100.0)
        pool.restart(1)
        pool.run("dist.barrier()")
        pool.detach()
        assert not invitation.exists()
        pool = take_back(pool_id, DEFAULTS)
        assert sorted(cluster.slurm.jobs()) == [f"nbddp-{pool_id}", f"nbddp-{pool_id}-1"]
        assert pool.pull("x", ranks=0) == 11
    finally:
        pool.stop()
    poll_until(lambda: not cluster.is_left())
    assert not (home / ".nbddp").exists()


def test_hosts_that_only_the_login_node_reaches_by_ssh(
    site: SshSite, network: HostNetwork, tmp_path: Path
):
    login, nodes, python = hosts_behind(site, network, tmp_path, "n1", "n2")
    options = PoolOptions.checked(
        1, launcher="ssh", hosts=["n1", "n2"], via="login", python=str(python)
    )
    pool = start(options)
    try:
        pool.run("t = torch.ones(1)\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [2.0] * 2
    finally:
        pool.stop()
    for host in (login, *nodes):
        poll_until(lambda host=host: not host.processes("nbddp"))  # type: ignore[misc]


def test_a_login_node_that_cannot_help_is_told_with_the_next_step(
    site: SshSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    login = site.add_host("login")
    site.add_host("locked", sshd="AllowTcpForwarding no")
    bare = command(tmp_path / "bare", f"exec {sys.executable} -I -S")
    names: list[str] = []
    make = secrets.token_hex

    def recorded(size: int) -> str:
        names.append(make(size))
        return names[-1]

    monkeypatch.setattr(secrets, "token_hex", recorded)
    no_slurm = command(
        tmp_path / "no-slurm",
        f"PYTHONPATH={Path(__file__).parents[2]} PATH=/none SHELL=/none exec {sys.executable}",
    )
    for given, text in (
        ({"via": "nowhere.invalid"}, "255 and said: .*resolve.*try `ssh nowhere.invalid` in"),
        ({"via": "locked"}, "forwarding failed .*sshd of locked forwards nothing .AllowTcpForw"),
        (
            {"python": "/no/python"},
            "and said: .*No such file.*the Python of login; now it is /no/py",
        ),
        (
            {"python": str(bare)},
            "bare on login lacks nbddp. Next: if `ssh login .* says 3.*`ssh login '/.*bare -m venv "
            ".* -m pip install",
        ),
        (
            {"python": str(no_slurm)},
            "srun cannot be run: login has no srun in PATH, neither for `ssh",
        ),
        (
            {"address": login.address, "port": _SSH_PORT},
            f"cannot listen on {login.address}, port 22: Address already in use.*are those of logi",
        ),
    ):
        all_given = {"launcher": "slurm", "via": "login", "python": str(site.python), **given}
        with pytest.raises(PoolStartError, match=f"(?s){text}"):
            start(PoolOptions.checked(1, **all_given))
    poll_until(lambda: not login.processes("launch.relay"))
    assert not [name for name in names if Path(f"/tmp/nbddp-{name}.sock").exists()]


def test_srun_on_the_login_node_refuses_in_its_own_words(cluster: Site):
    with pytest.raises(
        PoolStartError, match=r"(?s)never came: srun ended .* 1 and said: .*nvalid partition"
    ):
        start(cluster.options(slurm="--partition=nowhere"))
    poll_until(lambda: not cluster.is_left())
