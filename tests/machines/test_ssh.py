"""Pools on hosts that ssh reaches: they compute, free deadlocks, replace ranks, and end."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from nbddp.controller.options import PoolOptions
from nbddp.controller.state.rank_state import RankState
from nbddp.errors import BadOptionError, CellError, DeadlockError, PoolStartError, RankExitedError
from nbddp.notebook.render.status_table import survey
from nbddp.settings import Settings
from nbddp.system import process_tree
from tests.support.polling import poll_until
from tests.support.remote_pools import ssh_pool, start
from tests.support.ssh_hosts import SshSite
from tests.support.views import begin_cell

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]


def test_a_pool_on_two_hosts(site: SshSite):
    one, two = site.add_host("n1"), site.add_host("n2")
    with ssh_pool(site, one, two) as pool:
        pool.run("import socket\nt = torch.ones(3) * rank\ndist.all_reduce(t)")
        assert pool.pull("t.tolist()") == [[6.0] * 3] * 4
        assert pool.pull("socket.gethostname()") == ["n1", "n1", "n2", "n2"]
        pool.run("import os")
        # Gloo would take 127.0.1.1, the address of the host's name.
        assert pool.pull("os.environ['GLOO_SOCKET_IFNAME']") == ["eth0"] * 4
        assert pool.pull("os.environ['MASTER_ADDR']") == [one.address] * 4
        pool.push(large=b"x" * 3_000_000)
        assert pool.pull("len(large)") == [3_000_000] * 4

        with pytest.raises(DeadlockError):
            pool.run("if rank == 1:\n    dist.barrier()")
        with pytest.raises(RankExitedError):
            pool.run(
                "import os, signal\nif rank == 3:\n    os.kill(os.getpid(), 9)\ndist.barrier()"
            )
        pool.run("dist.all_reduce(torch.ones(1))")
        for host in (one, two):
            secrets = pool._processes.hub._channel.invitation("", [], "").secret_key  # type: ignore[attr-defined]
            listing = host.run(["sh", "-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ"]).stdout
            assert secrets not in listing


def test_ssh_carries_the_connection_where_hosts_cannot_reach_the_notebook(site: SshSite):
    one, two = site.add_host("n1"), site.add_host("n2")
    with ssh_pool(site, one, two, tunnel=True) as pool:
        pool.run("t = torch.ones(1)\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [4.0] * 4
        assert pool._processes.hub.nodes.facts[0].address == one.address


def test_a_host_without_power_is_lost_and_the_others_go_on(site: SshSite):
    one, two = site.add_host("n1"), site.add_host("n2")
    with ssh_pool(site, one, two, settings=Settings(node_timeout_s=10.0)) as pool:
        pool.run("x = rank")
        two.power_off()
        with pytest.raises(CellError, match="n2") as caught:
            pool.run("dist.barrier()")
        assert "pull what you need (x = %ddp pull x -r 0-1)" in " ".join(str(caught.value).split())
        states = [info.state for info in pool.ranks()]
        assert states == [RankState.IDLE] * 2 + [RankState.EXITED] * 2
        assert pool.pull("x", ranks="0-1") == [0, 1]


@pytest.mark.parametrize("cut_s", [2.0, 8.0])
def test_a_cut_line_loses_nothing(site: SshSite, cut_s: float):
    one, two = site.add_host("n1"), site.add_host("n2")
    settings = Settings(silent_after_s=3.0, node_timeout_s=60.0)
    with ssh_pool(site, one, two, settings=settings) as pool:
        lines = "import time\nfor number in range(100):\n    print(number)\n    time.sleep(0.05)"
        cell = begin_cell(pool, lines)
        poll_until(lambda: "3\n" in cell.view.text(2))
        two.set_cable(plugged=False)
        if cut_s > settings.silent_after_s:
            poll_until(lambda: pool.snapshot.silent_nodes == {1})
            assert f"1 n2 ({two.address}), silent" in survey(pool).bundle()["text/plain"]
        threading.Event().wait(cut_s)
        two.set_cable(plugged=True)
        view = cell.join(60.0)
        assert view.error is None
        assert view.texts() == dict.fromkeys(range(4), "".join(f"{n}\n" for n in range(100)))
        poll_until(lambda: not pool.snapshot.silent_nodes)
        pool.run("dist.barrier()")


def test_the_end_of_the_notebook_ends_everything_on_all_hosts(site: SshSite, tmp_path: Path):
    one, two = site.add_host("n1"), site.add_host("n2")
    script = tmp_path / "notebook.py"
    script.write_text(
        "import nbddp, time\n"
        f"pool = nbddp.start(1, launcher='ssh', hosts=['n1', 'n2'], python={str(site.python)!r})\n"
        "pool.run('import time')\nprint('up', flush=True)\ntime.sleep(600)\n"
    )
    notebook = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    assert notebook.stdout is not None
    assert notebook.stdout.readline() == b"up\n"
    assert one.processes("nbddp")
    clients = process_tree.descendants_of(notebook.pid)
    assert len(clients) == 2  # each ssh
    notebook.kill()
    notebook.wait()
    notebook.stdout.close()
    for host in (one, two):
        poll_until(lambda host=host: not host.processes("nbddp"))  # type: ignore[misc]
    poll_until(lambda: all(process_tree.is_ending(pid) for pid in clients))


def test_a_host_that_ssh_does_not_reach_is_named_with_the_words_of_ssh(site: SshSite):
    one = site.add_host("n1")
    options = PoolOptions.checked(
        1, launcher="ssh", hosts=["n1", "nowhere.invalid"], python=str(site.python)
    )
    with pytest.raises(
        PoolStartError,
        match=r"(?s)the agent on nowhere.invalid never came: "
        r"ssh ended with exit code 255 and said: .*resolve",
    ):
        start(options)
    poll_until(lambda: not one.processes("nbddp"))


def test_fewer_hosts_than_nodes_are_refused():
    options = PoolOptions.checked(1, launcher="ssh", hosts=["a"], nnodes=2)
    with pytest.raises(BadOptionError, match="there are 1 hosts for 2 nodes"):
        start(options)
