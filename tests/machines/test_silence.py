"""A node of which nothing is heard for a while: the notebook stays usable."""

import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from nbddp.controller.state import PoolSnapshot
from nbddp.errors import CellInterruptedError, PoolBrokenError, PoolInterruptedError
from nbddp.notebook.render import timeline
from nbddp.notebook.render.status_table import survey
from nbddp.settings import Settings
from tests.support.kept_machines import Listening
from tests.support.polling import poll_until
from tests.support.pool_processes import agent_of
from tests.support.remote_pools import ssh_pool
from tests.support.ssh_hosts import SshSite
from tests.support.views import begin_cell, run_cell

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]
#: Less than any limit after which nbddp gives something up.
SOON_S = 10.0


@pytest.mark.parametrize("cuts_s", [(1.0, 4.0), pytest.param((20.0,), marks=pytest.mark.slow)])
def test_a_bad_line_that_is_cut_loses_and_doubles_nothing(site: SshSite, cuts_s: tuple[float, ...]):
    if shutil.which("nft") is None:
        pytest.skip("nftables is not installed")
    one, two = site.add_host("n1"), site.add_host("n2")
    settings = Settings(silent_after_s=2.0, node_timeout_s=90.0)
    with ssh_pool(site, one, two, settings=settings) as pool:
        two.make_line_bad(loss_percent=2)
        for cut_s in cuts_s:
            cell = begin_cell(
                pool,
                "import time\n"
                "for number in range(100):\n    print(number, '.' * 200)\n    time.sleep(0.05)",
            )
            poll_until(lambda view=cell.view: "3 ." in view.text(2))  # type: ignore[misc]
            two.set_cable(plugged=False)
            if cut_s > settings.silent_after_s:
                poll_until(lambda: pool.snapshot.silent_nodes == {1})
            threading.Event().wait(cut_s)
            two.set_cable(plugged=True)
            view = cell.join(90.0)
            assert view.error is None
            text = "".join(f"{number} {'.' * 200}\n" for number in range(100))
            assert view.texts() == dict.fromkeys(range(4), text)
            poll_until(lambda: not pool.snapshot.silent_nodes)
        pool.run("dist.barrier()")


def test_times_of_a_node_with_another_clock_are_moved_to_that_of_the_notebook(
    site: SshSite, tmp_path: Path
):
    one, two = site.add_host("n1"), site.add_host("n2")
    ahead_s = 100_000
    skewed = ["unshare", "-T", "--monotonic", str(ahead_s), "--fork", "--kill-child", "--"]
    if two.run([*skewed, "true"]).returncode:
        pytest.skip("this machine allows no time namespaces")
    python = tmp_path / "skewed-python"
    python.write_text(
        f'#!/bin/sh\n[ "$(hostname)" = n2 ] && exec {" ".join(skewed)} {site.python} "$@"\n'
        f'exec {site.python} "$@"\n'
    )
    python.chmod(0o755)
    with ssh_pool(site, one, two, n=1, python=str(python)) as pool:
        pool.run("for _ in range(3):\n    dist.barrier()")
        poll_until(lambda: len(pool.snapshot.clocks) == 2)
        near, far = pool.snapshot.clocks
        assert abs(near.offset_ns) <= near.error_ns
        assert abs(far.offset_ns - ahead_s * 10**9) <= far.error_ns
        rows = [row for row in pool.trace_rows() if row.op == "barrier"]
        assert len(rows) == 3
        assert all((row.spread_ns or 0) < ahead_s * 10**9 / 2 for row in rows)
        text = timeline.timeline(rows, "headline", clocks=pool.snapshot.clocks)["text/plain"]
        assert "n2: +27:46:40 h, known to " in text


def test_an_interrupt_and_a_restart_come_back_while_a_node_is_silent(site: SshSite):
    one, two = site.add_host("n1"), site.add_host("n2")
    with ssh_pool(site, one, two, n=1, settings=Settings(silent_after_s=2.0)) as pool:
        cell = begin_cell(pool, "import time\ntime.sleep(600)")
        two.set_cable(plugged=False)
        poll_until(lambda: pool.snapshot.silent_nodes == {1})
        assert f"1 n2 ({two.address}), silent for " in survey(pool).bundle()["text/plain"]
        pool.interrupt()
        error = cell.join(SOON_S).error
        assert isinstance(error, CellInterruptedError)
        assert "node 1 (n2) is silent for " in str(error)
        assert "it gets the interrupt when it is heard again, or is given up at 60 s" in str(error)

        pool.run("x = 7", ranks=[0])
        assert pool.pull("x", ranks=0) == 7
        for rank in (0, 1):
            with pytest.raises(PoolBrokenError, match=r"not restarted.*node 1 \(n2\) is silent"):
                pool.restart(rank)
        with pytest.raises(PoolBrokenError, match=r"node 1 \(n2\) is silent for"):
            pool.run("dist.barrier()")
        told: list[str] = []
        pool.listeners.background = lambda event: told.append(getattr(event, "text", ""))
        with pytest.raises(PoolBrokenError, match="rank 1 is perhaps still in an old cell"):
            pool.pull("x")
        assert not [text for text in told if "This waits" in text]
        status = " ".join(survey(pool).bundle()["text/plain"].split())
        assert (
            "rank 1 not heard since an old cell, perhaps still inside it. Next: wait until"
            in status
        )

        two.set_cable(plugged=True)
        poll_until(lambda: not pool.snapshot.silent and not pool.unfinished, 60.0)
        poll_until(lambda: {info.state.name for info in pool.ranks()} == {"IDLE"})
        pool.run("dist.barrier()")
        assert pool.pull("'x' in globals()") == [True, False]


@pytest.mark.slow  # its pauses are those of TCP
def test_a_cell_waits_for_an_interrupt_that_tcp_delays_after_a_cut(site: SshSite, tmp_path: Path):
    one, two = site.add_host("n1"), site.add_host("n2")
    # A cell that is interrupted ends after 2.5 s of silence; later the node is not silent again.
    with ssh_pool(site, one, two, n=1, settings=Settings(silent_after_s=30.0)) as pool:
        is_plugged = tmp_path / "plugged"
        waits = (
            f"while rank and not pathlib.Path({str(is_plugged)!r}).exists():\n    time.sleep(0.1)"
        )
        code = f"{waits}\nprint('heard')\nwhile True:\n    time.sleep(0.1)"
        cell = begin_cell(pool, f"import pathlib, time\nkept = rank + 5\n{code}")
        poll_until(lambda: cell.view.text(0))
        two.set_cable(plugged=False)
        cut = time.monotonic()
        poll_until(lambda: time.monotonic() - cut > 3.0)
        pool.interrupt()
        assert isinstance(cell.join(SOON_S).error, CellInterruptedError)
        # TCP sends again after 0.2 s, 0.4 s, ..., the sixth time after 12.6 s, then after 25.4 s.
        poll_until(lambda: time.monotonic() - cut > 14.0, 20.0)
        two.set_cable(plugged=True)
        is_plugged.touch()
        poll_until(lambda: not pool.snapshot.silent, 60.0)
        status = " ".join(survey(pool).bundle()["text/plain"].split())
        assert "rank 1 perhaps still inside an old cell" in status
        assert "is heard, but does not answer yet" in status
        assert "still inside a cell that was given up" not in status
        pool.run("dist.barrier()")
        assert pool.pull("kept") == [5, 6]


def test_a_restart_before_a_killed_agent_is_noticed_ends_no_rank(listening: Listening):
    pool = listening.start(settings=Settings(silent_after_s=3.0))
    run_cell(pool, "x = rank + 10")
    agent_of(pool, 1).kill()
    assert not pool.snapshot.silent_nodes
    with pytest.raises(PoolBrokenError, match=r"rank 0 was not restarted.*node 1 \(.*\) is silent"):
        pool.restart(0)
    assert pool.pull("x", ranks=0) == 10


def test_a_cell_that_fails_since_an_agent_was_killed_names_the_silent_node(listening: Listening):
    pool = listening.start(n=2)
    code = (
        "print('in')\nfor _ in range(1000):\n    dist.all_reduce(torch.ones(1)); time.sleep(0.05)"
    )
    cell = begin_cell(pool, f"import time\n{code}")
    poll_until(lambda: set(cell.view.texts()) == {0, 1, 2, 3})
    agent_of(pool, 1).kill()
    error = " ".join(str(cell.join(60.0).error).split())
    assert "silent for" in error
    assert "ranks 2-3 may go on there" in error
    assert "still inside the cell" not in error
    assert "wait for the silent node" in error


def test_the_stop_button_ends_the_wait_for_a_sign_of_life_of_a_killed_agent(listening: Listening):
    pool = listening.start(settings=Settings(silent_after_s=60.0))
    run_cell(pool, "x = rank + 10")
    agent_of(pool, 1).kill()
    restarts = pool._processes.hub._recovery._restarts

    def press() -> None:
        poll_until(lambda: restarts._called)
        signal.raise_signal(signal.SIGINT)

    button = threading.Thread(target=press)
    button.start()
    with pytest.raises(PoolInterruptedError, match="interrupted before a process was ended"):
        pool.restart(0)
    button.join()
    assert pool.pull("x", ranks=0) == 10


def test_a_restart_of_all_ranks_replaces_an_agent_that_was_killed_just_now(listening: Listening):
    pool = listening.start(settings=Settings(silent_after_s=3.0))
    first = agent_of(pool, 0).pid
    agent_of(pool, 1).kill()
    shown: list[str] = []

    def show(snapshot: PoolSnapshot) -> None:
        if not shown:
            listening.start_agents(1)
        shown.append(snapshot.waits_for)

    pool.listeners.progress = show
    pool.restart()
    assert shown[0].startswith("waits for another agent in the place of node 1")
    assert agent_of(pool, 0).pid == first
    run_cell(pool, "dist.barrier()")


def test_a_pull_says_at_once_that_it_waits_for_a_silent_node(site: SshSite):
    one, two = site.add_host("n1"), site.add_host("n2")
    told: list[str] = []
    with ssh_pool(site, one, two, n=1, settings=Settings(silent_after_s=2.0)) as pool:
        pool.listeners.background = lambda event: told.append(getattr(event, "text", ""))
        two.set_cable(plugged=False)
        poll_until(lambda: pool.snapshot.silent_nodes == {1})
        values: list[object] = []
        wait = threading.Thread(target=lambda: values.append(pool.pull("rank")))
        wait.start()
        poll_until(lambda: any("This waits for it" in text for text in told))
        text = " ".join("".join(told).split())
        assert "nbddp: node 1 (n2) is silent for " in text
        assert "the stop button ends the wait, and -r 0 leaves rank 1 out" in text
        two.set_cable(plugged=True)
        wait.join(60.0)
        assert values == [[0, 1]]
