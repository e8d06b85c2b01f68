"""A verdict about ranks of which some are still on their way names all of them in the end."""

from typing import Any

from nbddp.controller.diagnosis import RankView, Report, completed, late_ranks, settled_views
from nbddp.wire.flight_recorder import Failure
from tests.support.looks import Ranks, told

_FREED = "CollectiveAbortedError: freed by nbddp"


def freed(pool: Ranks, rank: int, op: str, **fields: Any) -> None:
    """A rank comes to a call of a group whose operations were freed."""
    pool[rank].issue(op, state="failed", failure=Failure("freed"), **fields)
    pool[rank].raised(_FREED, was_freed=True)


def at_the_end(pool: Ranks, verdict: Report, first: dict[int, RankView]) -> Report | None:
    views = settled_views(verdict, first, pool.views())
    settled = Ranks(len(views))
    settled.views = lambda **_: views  # type: ignore[method-assign]
    return completed(verdict, settled.diagnose())


def test_ranks_that_end_the_cell_later_never_called_it_either():
    pool = Ranks(6)
    pool[0].blocked("barrier", line=2)
    pool[1].finished()
    verdict, first = pool.diagnose(), pool.views()
    assert told(verdict.findings[0]) == ("missing-rank", "1", "0")
    assert str(late_ranks(verdict)) == "2-5"
    for rank in (2, 3, 4):
        pool[rank].finished()
    freed(pool, 5, "barrier", line=2)
    report = at_the_end(pool, verdict, first)
    assert report is not None
    assert told(report.findings[0]) == ("missing-rank", "1-4", "0,5")
    assert not late_ranks(report)
    assert (
        report.ranks[5].description == "waits in barrier #1, at cell [3], line 2: `dist.barrier(x)`"
    )
    assert report.ranks[5].since_s is None  # it was freed at once


def test_pairs_that_come_later_are_in_the_circle():
    pool = Ranks(4)
    for rank in (0, 1):
        pool[rank].blocked("recv", peer=rank ^ 1)
    verdict, first = pool.diagnose(), pool.views()
    assert told(verdict.findings[0]) == ("p2p-cycle", "0-1", "0-1")
    for rank in (2, 3):
        freed(pool, rank, "recv", peer=rank ^ 1)
    report = at_the_end(pool, verdict, first)
    assert report is not None
    assert told(report.findings[0]) == ("p2p-cycle", "0-3", "0-3")


def test_calls_that_come_later_are_in_the_table():
    pool = Ranks(4)
    pool[0].blocked("all_reduce")
    pool[1].blocked("all_reduce", input_sizes=((1,),))
    verdict, first = pool.diagnose(), pool.views()
    assert str(late_ranks(verdict)) == "2-3"
    freed(pool, 2, "all_reduce")
    freed(pool, 3, "all_reduce")
    report = at_the_end(pool, verdict, first)
    assert report is not None
    assert told(report.findings[0]) == ("mismatched-collective", "1", "0-3")
    assert "ranks 0,2-3 called all_reduce" in report.findings[0].headline


def test_a_report_about_something_else_is_not_the_same_verdict():
    pool = Ranks(3)
    pool[0].blocked("barrier")
    pool[1].finished()
    verdict, first = pool.diagnose(), pool.views()
    pool[2].raised("ValueError: boom")
    assert at_the_end(pool, verdict, first) is None


def test_nobody_is_late_after_a_verdict_that_names_all():
    pool = Ranks(2)
    pool[0].blocked("barrier")
    pool[1].finished()
    assert not late_ranks(pool.diagnose())
