"""Pools whose agents reach the notebook through ssh only, and outlive notebook and tunnel."""

import os
import signal
from pathlib import Path

import pytest

from nbddp.controller.launch import lasting_ssh, ssh
from nbddp.controller.pool import taken_back
from nbddp.errors import CellError, PoolAttachError
from nbddp.settings import Settings
from nbddp.system import process_tree
from tests.support.kept_machines import known_state, take_back
from tests.support.kept_site import Scripts
from tests.support.network_hosts import NetworkHost
from tests.support.polling import poll_until
from tests.support.remote_pools import DEFAULTS, ssh_pool
from tests.support.ssh_hosts import SshSite
from tests.support.views import begin_cell

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]


def tunnel_ends(host: NetworkHost) -> list[str]:
    """The command lines of tunnels' ends there."""
    return host.processes("nbddp.agent.tunnel_end --patience")


def connections(host: NetworkHost) -> list[str]:
    """The sshd of each connection there."""
    return host.processes("sshd: root")


def tunnels() -> set[int]:
    """The ssh of each tunnel of this process."""
    children = process_tree.children_of(os.getpid())
    return {pid for pid in children if b"tunnel_end" in Path(f"/proc/{pid}/cmdline").read_bytes()}


@pytest.mark.parametrize("keep", ["5min", pytest.param(None, marks=pytest.mark.slow)])
def test_a_pool_is_let_go_and_taken_back_through_a_tunnel(
    site: SshSite, home: Path, keep: str | None
):
    one = site.add_host("n1")
    others = process_tree.children_of(os.getpid())
    with ssh_pool(site, one, n=1, tunnel=True, keep=keep) as first:
        first.run("x = rank + 10")
        assert len(tunnel_ends(one)) == (1 if keep else 0)
        first.detach()
        assert process_tree.children_of(os.getpid()) == others
        poll_until(lambda: not tunnel_ends(one) and not connections(one))
        pool = take_back(first.pool_id, DEFAULTS)
        assert len(process_tree.children_of(os.getpid()) - others) == 1  # the ssh of the tunnel
        assert pool.pull("x") == [10]
        pool.run("dist.barrier()")
        pool.stop()
    assert process_tree.children_of(os.getpid()) == others
    poll_until(lambda: not connections(one))
    assert not (home / ".nbddp").exists()


@pytest.mark.slow
def test_a_tunnel_comes_back_after_the_cable_was_out_for_longer_than_ssh_waits(
    site: SshSite, home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lasting_ssh, "PATIENCE_S", 600.0)  # the old end does not end by itself
    one = site.add_host("n1")
    settings = Settings(silent_after_s=3.0, node_timeout_s=90.0)
    with ssh_pool(site, one, n=1, settings=settings, tunnel=True, keep="5min") as pool:
        pool.run("x = rank + 10")
        (old,) = tunnel_ends(one)
        cell = begin_cell(
            pool,
            "import time\nfor number in range(400):\n    print(number)\n    time.sleep(0.05)",
        )
        poll_until(lambda: "3\n" in cell.view.text(0))
        (client,) = tunnels()
        one.set_cable(plugged=False)
        poll_until(lambda: process_tree.has_ended(client), 40.0)
        assert tunnel_ends(one) == [old]  # its sshd has not noticed, and holds the port
        one.set_cable(plugged=True)
        view = cell.join(90.0)
        assert view.error is None
        assert view.text(0) == "".join(f"{number}\n" for number in range(400))
        poll_until(lambda: len(tunnel_ends(one)) == 1)
        poll_until(lambda: not pool.snapshot.silent_nodes)
        assert pool.pull("x") == [10]
        pool.run("dist.barrier()")


@pytest.mark.slow
def test_a_notebook_that_was_killed_leaves_its_tunnels_to_the_next_one(
    site: SshSite, home: Path, scripts: Scripts
):
    hosts = site.add_host("n1"), site.add_host("n2"), site.add_host("n3")
    first, pool_id = scripts.start_counting(
        f"nnodes=2, launcher='ssh', hosts=['n1', 'n2', 'n3'], python={str(site.python)!r}, "
        "tunnel=True"
    )
    clients = process_tree.descendants_of(first.pid)
    assert len(clients) == 4  # two for each host
    first.kill()
    poll_until(lambda: all(process_tree.is_ending(pid) for pid in clients))
    for host in hosts:
        poll_until(lambda host=host: not connections(host))  # type: ignore[misc]
    pool = take_back(pool_id, Settings(node_timeout_s=8.0))
    try:
        outcome = pool.rejoin()
        assert outcome is not None
        assert outcome.ranks("ok") == pool.all_ranks
        assert pool.pull("x") == [11, 12]
        pool.run("dist.barrier()")
        hosts[1].power_off()
        with pytest.raises(CellError, match="n2"):
            pool.run("dist.barrier()")
        pool.restart(1)  # asks for an agent on the spare host, and makes a tunnel to it
        pool.run("dist.barrier()\nimport socket")
        assert pool.pull("socket.gethostname()") == ["n1", "n3"]
        assert len(tunnel_ends(hosts[2])) == 1
    finally:
        pool.stop()
    for host in (hosts[0], hosts[2]):
        poll_until(lambda host=host: not host.processes("nbddp"))  # type: ignore[misc]
        poll_until(lambda host=host: not connections(host))  # type: ignore[misc]
    assert not (home / ".nbddp").exists()


@pytest.mark.slow
def test_a_tunnel_of_a_notebook_that_crashed_frees_the_port_for_the_next_one(
    site: SshSite, home: Path, scripts: Scripts
):
    one = site.add_host("n1")
    first = scripts.start(
        f"""
from nbddp.controller.launch import lasting_ssh
lasting_ssh.PATIENCE_S = 12.0
pool = nbddp.start(
    1, launcher="ssh", hosts=["n1"], python={str(site.python)!r}, tunnel=True, keep="10min"
)
pool.run("x = rank + 10")
print("pool", pool.pool_id, flush=True)
time.sleep(1000)
"""
    )
    pool_id = first.wait_line("pool ")
    clients = process_tree.descendants_of(first.pid)
    one.set_cable(plugged=False)  # the host is not told that the notebook ends
    first.kill()
    for pid in clients:
        os.kill(pid, signal.SIGKILL)  # as the end of the whole machine does
    poll_until(lambda: all(process_tree.is_ending(pid) for pid in clients))
    one.set_cable(plugged=True)
    assert tunnel_ends(one)
    pool = take_back(pool_id, DEFAULTS)
    assert pool.pull("x") == [10]
    pool.run("dist.barrier()")
    pool.stop()
    poll_until(lambda: not one.processes("nbddp") and not connections(one))


@pytest.mark.slow
def test_an_attach_without_a_way_says_what_ssh_says(
    site: SshSite, home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    one = site.add_host("n1")
    with ssh_pool(site, one, n=1, tunnel=True, keep="5min") as first:
        first.detach()
        monkeypatch.setattr(taken_back, "_FIRST_S", 1.0)
        monkeypatch.setattr(ssh, "REACH_S", 3.0)
        others = process_tree.children_of(os.getpid())
        keys = tmp_path / "authorized"
        keys.rename(tmp_path / "away")
        with pytest.raises(PoolAttachError, match="ssh to n1 ended with exit code 255 and said: "):
            take_back(first.pool_id, DEFAULTS)
        (tmp_path / "away").rename(keys)
        assert process_tree.children_of(os.getpid()) == others
        assert known_state(first.pool_id) == "detached"
        take_back(first.pool_id, DEFAULTS).stop()


@pytest.mark.slow
def test_a_notebook_that_stands_still_finds_its_pool_again(
    site: SshSite, home: Path, scripts: Scripts
):
    """A closed laptop: the other end of the tunnel takes it for gone."""
    one = site.add_host("n1")
    script = scripts.start(
        f"""
from nbddp.controller.launch import lasting_ssh
lasting_ssh.PATIENCE_S = 12.0
pool = nbddp.start(
    1, launcher="ssh", hosts=["n1"], python={str(site.python)!r}, tunnel=True, keep="10min"
)
pool.run("x = rank + 10")
print("up", flush=True)
pool.run("import time\\nfor _ in range(300): time.sleep(0.1)\\nx += 1")
print("x", pool.pull("x"), flush=True)
pool.stop()
"""
    )
    script.wait_line("up")
    os.kill(script.pid, signal.SIGSTOP)
    poll_until(lambda: not tunnel_ends(one), 60.0)
    os.kill(script.pid, signal.SIGCONT)
    assert "x [11]" in script.finish()
    poll_until(lambda: not one.processes("nbddp") and not connections(one))
