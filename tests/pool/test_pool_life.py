"""The life of a pool: refusals, restart, stop, scripts, IPython."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import nbddp
from nbddp.controller.hub.hub_thread import HubThread
from nbddp.controller.hub.run import CellEvent
from nbddp.controller.options import PoolOptions
from nbddp.controller.pool import CellOptions, Pool, startup
from nbddp.controller.state.rank_state import Phase
from nbddp.errors import (
    BadOptionError,
    CellError,
    CellInterruptedError,
    CellTimeoutError,
    NbddpError,
    NoPoolError,
    PoolBrokenError,
    PoolBusyError,
    PoolExistsError,
    PoolInterruptedError,
)
from nbddp.settings import Settings
from nbddp.wire.messages import RunStarted
from tests.support.polling import poll_until
from tests.support.views import RecordingView, begin_cell, run_cell

SLEEP = "import time\nfor _ in range(600): time.sleep(0.1)"


# --- refusals ------------------------------------------------------------------------------------


def test_a_busy_pool_refuses(pool: Pool):
    cell = begin_cell(pool, SLEEP)
    poll_until(lambda: cell.view.has(RunStarted, 0) and cell.view.has(RunStarted, 1))
    assert repr(pool) == "<Pool -n 2: 2 busy>"
    for action in (
        lambda: run_cell(pool, "1"),
        lambda: run_cell(pool, "1", ranks=[0]),
        lambda: pool.pull("rank"),
        lambda: pool.push(x=1),
    ):
        with pytest.raises(PoolBusyError) as caught:
            action()
        assert str(caught.value) == (
            "the cell is still running on ranks 0-1, and this has to wait until it has ended. "
            "Next: wait for it, or %ddp interrupt"
        )
    pool.interrupt()
    view = cell.join()
    assert isinstance(view.error, CellInterruptedError)
    assert view.outcome is not None
    assert view.outcome.interrupted
    assert not pool.is_running
    pool.interrupt()  # of nothing
    assert run_cell(pool, "rank").result(1) == "1"


def test_a_timeout_interrupts(pool: Pool):
    with pytest.raises(CellTimeoutError) as caught:
        run_cell(pool, f"kept = 5\nif rank == 1:\n{textwrap.indent(SLEEP, ' ')}", timeout=1.5)
    assert "ran longer than its --timeout of " in str(caught.value)
    assert "rank 0 finished" in str(caught.value)
    assert caught.value.by_rank == {1: ("KeyboardInterrupt", "")}
    assert pool.pull("kept") == [5, 5]


def test_bad_arguments_of_a_cell(pool: Pool):
    with pytest.raises(BadOptionError, match="rank 2 is out of range in a pool of 2 ranks"):
        pool.run("1", ranks=[2])
    with pytest.raises(BadOptionError, match="timeout 0 is not a positive number"):
        pool.run("1", timeout=0)
    with pytest.raises(BadOptionError, match="timeout 'x' is not a positive number"):
        pool.run("1", timeout="x")  # type: ignore[arg-type]  # on purpose
    with pytest.raises(BadOptionError, match="the code is of type bytes; legal: str"):
        pool.run(b"1")  # type: ignore[arg-type]  # on purpose
    for code in ("1 +", "return 5", "x = %"):
        with pytest.raises(SyntaxError):
            pool.run(code)


@pytest.mark.parametrize(
    "code",
    ["x = !echo hi", "x = %pwd", "%%time\n1", "import asyncio; await asyncio.sleep(0)", "len?"],
)
def test_cells_may_use_syntax_that_ipython_adds(pool: Pool, code: str):
    pool.run(code)


def test_run_from_many_threads_runs_one_cell_at_a_time(pool: Pool):
    refused = []
    done = []

    def attempt() -> None:
        try:
            done.append(run_cell(pool, "import time; time.sleep(0.3)"))
        except PoolBusyError as error:
            refused.append(error)

    threads = [threading.Thread(target=attempt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(done) >= 1
    assert len(done) + len(refused) == 4


def test_a_cell_that_cannot_be_shown_leaves_no_run_behind(pool: Pool):
    class Broken(RecordingView):
        def show(self, event: CellEvent) -> None:
            raise ValueError("I/O operation on closed file")

    run = pool.submit(SLEEP, CellOptions(pool.all_ranks))
    with pytest.raises(ValueError, match="closed file"):
        pool.wait(run, Broken())
    poll_until(lambda: not pool.is_running)
    poll_until(lambda: pool._processes.hub._machine.refusal(pool.all_ranks) is None)
    assert run_cell(pool, "rank").result(1) == "1"


# --- restart and stop ----------------------------------------------------------------------------


def test_restart_gives_fresh_ranks(pool: Pool):
    run_cell(pool, "old = 1", execution_count=4)
    before = {info.pid for info in pool.ranks()}
    generation = int(pool.pull("int(__import__('os').environ['TORCHELASTIC_RESTART_COUNT'])")[0])
    options = pool.options
    pool.restart()
    assert {info.pid for info in pool.ranks()}.isdisjoint(before)
    with pytest.raises(CellError, match="name 'old' is not defined") as raised:
        run_cell(pool, "old", execution_count=5)
    assert "cell [4], which made old, ran before it" in str(raised.value)
    found = pool.pull("int(__import__('os').environ['TORCHELASTIC_RESTART_COUNT'])")
    assert found == [generation + 1] * 2
    assert pool.options == options
    pool.push(x=[1])
    assert pool.pull("x") == [[1], [1]]


def test_a_restarted_pool_has_forgotten_its_cells(pool: Pool):
    """Otherwise a card would say that a rank that dies loses names which it never had."""
    run_cell(pool, "before = rank", execution_count=1)
    pool.restart()
    run_cell(pool, "after = rank", execution_count=2)
    assert [cell.number for cell in pool.history] == [2]
    view = run_cell(pool, "import os; os._exit(3)", ranks="1", execution_count=3, check=False)
    assert view.outcome is not None
    assert view.outcome.report is not None
    assert "It lacks after of cell [2]." in view.outcome.report.findings[0].now


def test_restart_while_a_cell_runs(pool: Pool):
    cell = begin_cell(pool, SLEEP)
    poll_until(lambda: cell.view.has(RunStarted, 0))
    pool.restart()
    view = cell.join()
    assert isinstance(view.error, CellError)
    assert str(view.error) == (
        "CellError: the cell was ended by %ddp restart before ranks 0-1 had finished"
    )
    assert run_cell(pool, "rank").result(1) == "1"


def test_restart_while_values_are_held(pool: Pool):
    pool.push(tensor=__import__("torch").ones(500_000))
    held = pool.pull("tensor", ranks=1)
    pool.restart()
    assert float(held.sum()) == 500_000.0
    del held
    assert run_cell(pool, "rank").result(1) == "1"


def test_stop_leaves_nothing_and_may_be_called_again(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool(2)
    folder = Path(pool.ranks()[0].log_path).parent
    assert folder.is_dir()
    code = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True).pid"
    child = int(run_cell(pool, code, ranks="1").result(1) or 0)
    assert psutil.pid_exists(child)
    pool.stop()
    poll_until(lambda: not psutil.pid_exists(child))
    pool.stop()
    assert pool.is_stopped
    assert repr(pool) == "<Pool: stopped>"
    assert not folder.exists()
    for action in (
        lambda: pool.run("1"),
        lambda: pool.pull("rank"),
        lambda: pool.push(x=1),
        pool.interrupt,
        pool.restart,
    ):
        with pytest.raises(PoolBrokenError, match=r"the pool was stopped\. Next: %ddp start"):
            action()


def test_stop_while_a_cell_runs_ends_the_wait(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool(1)
    cell = begin_cell(pool, SLEEP)
    poll_until(lambda: cell.view.has(RunStarted, 0))
    pool.stop()
    error = cell.join().error
    assert str(error) == "CellError: the cell was ended by %ddp stop before rank 0 had finished"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")
def test_a_forked_child_of_the_notebook_does_not_touch_the_pool(pool: Pool):
    child = os.fork()
    if child == 0:
        try:
            pool.stop()
            pool.pull("rank")
        except PoolBrokenError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run_cell(pool, "rank").result(1) == "1"


def test_two_restarts_at_once(pool: Pool):
    outcomes: list[str] = []
    both = threading.Barrier(2)

    def restart() -> None:
        both.wait(10)
        try:
            pool.restart()
            outcomes.append("fresh")
        except PoolBusyError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=restart) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outcomes) in (
        ["fresh", "fresh"],  # the second began when the first was done
        [
            "fresh",
            "the pool is being restarted by another thread. Next: wait for it, or %ddp stop",
        ],
    )
    assert run_cell(pool, "rank").result(1) == "1"


@pytest.mark.full
def test_a_stop_ends_a_restart_in_another_thread(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool(1)
    found: list[Exception] = []

    def restart() -> None:
        try:
            pool.restart()
        except NbddpError as error:
            found.append(error)

    thread = threading.Thread(target=restart)
    thread.start()
    poll_until(lambda: pool._processes.hub.snapshot.phase is not Phase.UP)
    pool.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert [str(error) for error in found] == ["the pool did not start: it was stopped"]


def test_a_pool_that_is_given_up_while_it_starts_does_not_wait_for_torch(
    monkeypatch: pytest.MonkeyPatch,
):
    joins: list[float] = []
    join = HubThread.join

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    def recorded(hub: HubThread, timeout_s: float) -> bool:
        joins.append(timeout_s)
        return join(hub, timeout_s)

    monkeypatch.setattr(startup.PoolStartup, "_wait_until_up", interrupted)
    monkeypatch.setattr(HubThread, "join", recorded)
    with pytest.raises(PoolInterruptedError):
        Pool(PoolOptions.checked(1), Settings(), lambda pool, run: RecordingView())
    assert joins[0] == startup._STARTING_GRACE_S


def test_an_interrupted_stop_ends_everything_first(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool(1)
    folder = Path(pool.ranks()[0].log_path).parent
    run_cell(pool, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    run = pool.submit(SLEEP, CellOptions(pool.all_ranks))
    main = threading.main_thread().ident
    assert main is not None
    run.add_done_callback(lambda: signal.pthread_kill(main, signal.SIGINT))  # by `stop`
    with pytest.raises(KeyboardInterrupt):
        pool.stop()
    assert not folder.exists()
    assert not pool._processes.hub.is_alive
    pool.stop()


@pytest.mark.breaks_pool
def test_a_hub_that_has_ended_is_told_without_false_hints(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(threading, "excepthook", lambda args: None)

    def fail() -> None:
        raise RuntimeError("a bug")

    pool._processes.hub._call(fail)
    poll_until(lambda: not pool._processes.hub.is_alive)
    with pytest.raises(PoolBrokenError) as caught:
        run_cell(pool, "1")
    assert str(caught.value) == (
        "its hub has ended: RuntimeError: a bug. Next: %ddp restart gives a fresh pool"
    )
    pool.restart()
    assert run_cell(pool, "rank").result(1) == "1"


# --- nbddp.start ---------------------------------------------------------------------------------


def test_start_gives_the_one_pool_of_the_process(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    for name, value in PATIENT.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(NoPoolError, match="Next: %ddp start"):
        nbddp.pool()
    with nbddp.start(2, init="none") as pool:
        assert nbddp.pool() is pool
        assert nbddp.start(2, init="none") is pool
        with pytest.raises(PoolExistsError) as caught:
            nbddp.start(3, init="none")
        assert "(different: -n)" in str(caught.value)
        assert "Next: %ddp stop" in str(caught.value)
        pool.run("print('same')\nprint('rank', rank)\nrank")
    assert pool.is_stopped
    with pytest.raises(NoPoolError):
        nbddp.pool()
    lines = capfd.readouterr().out.splitlines()
    assert {"[0-1] same", "[0]   rank 0", "[1]   rank 1"} <= set(lines)


#: However busy the machine is, equal lines are folded.
PATIENT = {"NBDDP_OUTPUT_FOLD_S": "20"}

SCRIPT = """
import nbddp
from nbddp.errors import CellError

if __name__ == "__main__":
    with nbddp.start(2) as pool:
        pool.run("t = torch.ones(1); dist.all_reduce(t)")
        print(pool.pull("t.item()"))
        try:
            pool.run("1 / 0")
        except CellError as error:
            print(error.by_rank)
        pool.run("print('from a script')")
"""


_IPYTHON = pytest.param(["python", "-m", "IPython", "--quick"], marks=pytest.mark.slow)


@pytest.mark.parametrize("command", [["python"], _IPYTHON])
def test_scripts(tmp_path: Path, command: list[str]):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, *command[1:], str(path)],
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, **PATIENT, "IPYTHONDIR": str(tmp_path / "ipython")},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "[2.0, 2.0]",
        "{0: ('ZeroDivisionError', 'division by zero'), "
        "1: ('ZeroDivisionError', 'division by zero')}",
        "[0-1] from a script",
    ]


@pytest.mark.slow  # `test_orphans` has one, and looks for what it leaves
def test_a_script_that_forgets_to_stop(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", "import nbddp; nbddp.start(1).run('print(7)')"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "7\n", "")


def test_ipython_in_a_terminal(tmp_path: Path):
    code = (
        "get_ipython().run_line_magic('load_ext', 'nbddp')\n"
        "get_ipython().run_line_magic('ddp', 'start -n 2')\n"
        "get_ipython().run_cell_magic('ddp', '', 'print(rank)\\nrank + 1')\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--quick", "--colors=NoColor", "-c", code],
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {"[0]   0", "[1]   1"} <= set(done.stdout.splitlines())
