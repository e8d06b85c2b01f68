"""Every cell that hangs is proven, explained and freed; every variable of the pool is kept."""

import json
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from nbddp.controller.diagnosis.report import Finding, Report
from nbddp.controller.pool.pool import Pool
from nbddp.controller.state.actions import NoticeChanged, VerdictReached
from nbddp.errors import CellError, CellInterruptedError, DeadlockError, RankExitedError
from nbddp.settings import Settings
from nbddp.wire.rank_set import RankSet
from tests.cases.hung_cells import HungCell, parametrize
from tests.cases.hung_collectives import MISSING
from tests.cases.hung_conditions import CONDITIONS
from tests.cases.hung_cycles import CYCLES
from tests.cases.hung_deaths import DEATHS
from tests.cases.hung_failures import ERRORS
from tests.cases.hung_iterations import ITERATIONS
from tests.cases.hung_messages import UNMATCHED
from tests.cases.hung_mismatched_messages import MESSAGES
from tests.cases.hung_mismatches import MISMATCHED
from tests.cases.hung_modules import MODULES
from tests.cases.hung_stores import STORE
from tests.cases.hung_strides import STRIDES
from tests.cases.hung_suspects import SUSPECTS
from tests.cases.hung_wrapped import WRAPPED
from tests.support.lasting_pool import choose_lasting_pool, make_lasting_pools
from tests.support.polling import poll_until
from tests.support.views import RecordingView, begin_cell, run_cell

lasting_pools = pytest.fixture(scope="module")(make_lasting_pools)
shared_pool = pytest.fixture(choose_lasting_pool)

#: A guard against hanging: a cell that needs it has not been freed.
_LIMIT_S = 20.0

CELLS = [
    *MISSING,
    *WRAPPED,
    *ITERATIONS,
    *CONDITIONS,
    *MODULES,
    *MISMATCHED,
    *STRIDES,
    *MESSAGES,
    *UNMATCHED,
    *CYCLES,
    *STORE,
    *ERRORS,
]


def test_the_tables_hold_enough_cells():
    cells = [*CELLS, *DEATHS, *SUSPECTS]
    assert len(cells) >= 60
    assert len({cell.name for cell in cells}) == len(cells)
    kinds = {cell.kind for cell in cells}
    assert kinds >= {
        "first-error",
        "mismatched-collective",
        "p2p-cycle",
        "group-cycle",
        "p2p-unmatched",
        "store-wait",
        "missing-rank",
        "straggler",
        "stuck-outside",
    }


def _run(pool: Pool, cell: HungCell) -> RecordingView:
    if cell.before:
        run_cell(pool, cell.before, timeout=_LIMIT_S, execution_count=1)
    return run_cell(pool, cell.code, timeout=_LIMIT_S, check=False, execution_count=2)


def _check(cell: HungCell, view: RecordingView, pool: Pool) -> None:
    assert view.outcome is not None
    report = view.outcome.report
    text = str(view.error or "")
    if cell.kind is None:
        assert report is None or not report.verdict, report.findings
    else:
        assert report is not None, f"there is no report; the cell's error: {view.error}"
        assert report is pool.last_report
        finding = report.proven[0]
        _check_finding(cell, finding)
        text = text or f"{finding.headline} {finding.explanation}"
        assert json.loads(json.dumps(report.to_dict()))["findings"][0]["kind"] == cell.kind
    assert type(view.error) is (cell.error or type(None)), view.error
    for word in cell.words:
        assert word in text
    assert str(view.outcome.fresh) == cell.dead
    assert view.outcome.rebuild_failure == ""


def _check_finding(cell: HungCell, finding: Finding) -> None:
    assert finding.kind == cell.kind, finding
    if cell.kind != "mismatched-collective":
        assert cell.culprits in (None, str(finding.culprits)), finding.headline
    elif cell.culprits is not None:
        assert set(RankSet.parse(cell.culprits, cell.n)) <= set(finding.culprits), finding.headline
    assert cell.waiting in (None, str(finding.waiting)), finding.headline
    if cell.op:
        assert finding.op == cell.op
    if cell.fields:
        assert finding.fields == cell.fields
    assert cell.quotes in " ".join((*finding.suspicions, finding.next_step))
    for line in finding.code:
        if line.site.cell == 2:
            assert line.site.source == cell.code.splitlines()[line.site.line - 1]
    assert bool(finding.code) or not cell.quotes or finding.kind != "missing-rank"
    where = {rank: finding.ranks[rank].site for rank in cell.lines}
    found = {rank: (site.cell, site.line) if site else None for rank, site in where.items()}
    expected = {rank: (cell.cell, line) for rank, line in cell.lines.items()}
    if cell.kind == "mismatched-collective":
        # Two ranks have disagreed, and a third one may not have come yet.
        found = {rank: site for rank, site in found.items() if site and site[0]}
        assert len(found) >= min(2, len(expected))
        expected = {rank: expected[rank] for rank in found}
    assert found == expected


@parametrize(CELLS)
def test_a_hung_cell(cell: HungCell, pool: Pool):
    view = _run(pool, cell)
    if cell.after:  # before anything else: it may be what the cell has broken
        run_cell(pool, cell.after, timeout=_LIMIT_S)
    _check(cell, view, pool)


@parametrize(DEATHS)
def test_a_cell_in_which_a_rank_dies(cell: HungCell, pool: Pool):
    _check(cell, _run(pool, cell), pool)


@parametrize(SUSPECTS)
def test_a_hang_that_is_only_suspected_ends_by_an_interrupt(cell: HungCell, pool: Pool):
    running = begin_cell(pool, cell.code, timeout=_LIMIT_S)

    def notice() -> Report:
        told = [event.report for event in running.view.events if isinstance(event, NoticeChanged)]
        assert told, "nothing was noticed"
        report = told[-1]
        assert report is not None
        assert report.findings
        # A rank that holds the GIL may answer a first look too late: "does not answer" comes first.
        assert report.findings[0].kind == cell.kind, report.findings
        return report

    finding = poll_until(notice).findings[0]
    assert not finding.proven
    _check_finding(replace(cell, cell=1), finding)
    pool.interrupt()
    view = running.join()
    assert isinstance(view.error, CellInterruptedError), view.error
    assert not [event for event in view.events if isinstance(event, VerdictReached)]
    if cell.after:
        run_cell(pool, cell.after, timeout=_LIMIT_S)


@pytest.mark.parametrize("shared_pool", [3], indirect=True)
def test_children_of_a_dead_rank_are_collected(pool: Pool):
    """Otherwise `no_leaks` finds them as zombies of the agent."""
    code = """\
import subprocess
child = subprocess.Popen(["sleep", "1000"])
if rank == 1:
    os.kill(os.getpid(), 9)
dist.barrier()
"""
    view = run_cell(pool, code, timeout=_LIMIT_S, check=False)
    assert isinstance(view.error, RankExitedError), view.error
    run_cell(pool, "child.kill()\nchild.wait()", ranks="0,2")


# --- what else holds for all of them -------------------------------------------------------------

_ALL_KINDS = [
    MISSING[0],
    MISMATCHED[0],
    CYCLES[0],
    STORE[0],
    ERRORS[0],
]


@parametrize([*_ALL_KINDS[:2], *(replace(cell, is_variant=True) for cell in _ALL_KINDS[2:])])
def test_a_pool_that_only_reports_leaves_the_ranks_where_they_are(cell: HungCell, pool: Pool):
    pool.configure(on_deadlock="report", on_mismatch="warn")
    try:
        if cell.before:
            run_cell(pool, cell.before)
        running = begin_cell(pool, cell.code, timeout=_LIMIT_S)
        poll_until(lambda: any(isinstance(event, VerdictReached) for event in running.view.events))
        judged = [event for event in running.view.events if isinstance(event, VerdictReached)]
        assert not running.has_ended
        assert [event.acted for event in judged] == [False]
        assert judged[0].report.verdict
        pool.interrupt()
        assert isinstance(running.join().error, CellError)
    finally:
        pool.configure(on_deadlock="abort", on_mismatch="raise")


@pytest.mark.slow  # `test_thirty_deadlocks` has all kinds in a row
@parametrize([cell for cell in _ALL_KINDS if cell.error is DeadlockError])
def test_one_deadlock_ten_times_in_a_row(cell: HungCell, pool: Pool):
    if cell.before:
        run_cell(pool, cell.before)
    for _ in range(10):
        view = run_cell(pool, cell.code, timeout=_LIMIT_S, check=False)
        assert isinstance(view.error, DeadlockError), view.error


@pytest.mark.parametrize("shared_pool", [2], indirect=True)
def test_the_traceback_of_a_freed_rank_ends_at_the_line_where_it_waited(pool: Pool):
    code = "def total():\n    dist.all_reduce(torch.ones(1))\n\nif rank:\n    total()"
    view = run_cell(pool, code, check=False)
    assert view.outcome is not None
    error = view.outcome.results[1].error
    assert error is not None
    assert error.ename == "CollectiveAbortedError"
    assert error.evalue.endswith("each later operation of the group raises this error, too.")
    lines = [line.strip() for line in error.traceback[:4]]
    assert lines == [
        "Cell In[1], line 5",
        "----> 5 total()",
        "Cell In[1], line 2, in total",
        "----> 2 dist.all_reduce(torch.ones(1))",
    ]
    assert view.outcome.results[1].was_freed


@pytest.mark.parametrize("shared_pool", [2], indirect=True)
def test_a_timeout_of_the_user_is_left_to_torch_and_then_explained(pool: Pool):
    run_cell(pool, "brief = dist.new_group(timeout=timedelta(seconds=1))")
    code = "if rank:\n    dist.all_reduce(torch.ones(1), group=brief)"
    view = run_cell(pool, code, timeout=_LIMIT_S, check=False)
    assert type(view.error) is CellError
    assert str(view.error).count("Timed out waiting 1000ms") == 2  # in the traceback, and summed up
    [judged] = [event for event in view.events if isinstance(event, VerdictReached)]
    assert not judged.acted
    assert judged.report is pool.last_report
    assert [finding.kind for finding in judged.report.findings] == ["missing-rank"]
    run_cell(pool, "dist.destroy_process_group(brief)")


@pytest.mark.full  # "in a loop that swallows RuntimeError" is such a loop
def test_a_retry_loop_is_ended(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool(settings=Settings(cleanup_grace_s=0.5))
    code = """\
kept = rank
while rank:
    try:
        dist.all_reduce(torch.ones(1))
    except RuntimeError:
        pass
"""
    view = run_cell(pool, code, timeout=_LIMIT_S, check=False)
    assert isinstance(view.error, DeadlockError), view.error
    after = run_cell(pool, "dist.all_reduce(x := torch.ones(1)); print(x.item(), kept)")
    assert after.texts() == {0: "2.0 0\n", 1: "2.0 1\n"}


@pytest.mark.full  # test_process_groups has a rank that does not call it
def test_init_process_group_called_by_some(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool(3, init="none")
    view = run_cell(
        pool, "if rank:\n    dist.init_process_group('gloo')", timeout=_LIMIT_S, check=False
    )
    assert isinstance(view.error, DeadlockError), view.error
    assert pool.last_report is not None
    finding = pool.last_report.proven[0]
    assert (finding.kind, finding.op) == ("store-wait", "init_process_group")
    assert (str(finding.culprits), str(finding.waiting)) == ("0", "1-2")
    code = "dist.init_process_group('gloo')\ndist.all_reduce(x := torch.ones(1))\nprint(x.item())"
    assert run_cell(pool, code, timeout=_LIMIT_S).texts() == dict.fromkeys(range(3), "3.0\n")


@pytest.mark.parametrize("shared_pool", [2], indirect=True)
def test_a_hang_in_a_thread_that_is_awaited_ends_by_an_interrupt(pool: Pool):
    """The verdict may come first and end it."""
    code = "import asyncio\nif rank:\n    await asyncio.to_thread(dist.barrier)"
    running = begin_cell(pool, code, timeout=_LIMIT_S)
    poll_until(lambda: "barrier" in str(pool.stacks(ranks=[1]).looks[1].operations[-1:]))
    pool.interrupt()
    view = running.join()
    assert isinstance(view.error, DeadlockError | CellInterruptedError), view.error
    run_cell(pool, "dist.all_reduce(torch.ones(1))", timeout=_LIMIT_S)


@pytest.mark.full
@pytest.mark.parametrize("shared_pool", [2], indirect=True)
def test_deadlocks_that_are_interrupted_at_any_point(pool: Pool):
    """The verdict and the interrupt of the user may come together: the cell ends exactly once."""
    for number in range(12):
        running = begin_cell(pool, "if rank:\n    dist.barrier()", timeout=_LIMIT_S)
        timer = threading.Timer(0.03 * number, pool.interrupt)
        timer.start()
        view = running.join()
        timer.cancel()
        timer.join()
        assert isinstance(view.error, DeadlockError | CellInterruptedError), view.error
        run_cell(pool, "dist.all_reduce(torch.ones(1))", timeout=_LIMIT_S)
