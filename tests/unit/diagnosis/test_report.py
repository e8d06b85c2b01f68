"""Facts of a report beside its findings: plain values, a fingerprint, timeouts, all ranks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nbddp.controller.diagnosis.analysis import diagnose
from nbddp.controller.diagnosis.history import History
from nbddp.controller.diagnosis.report import KINDS, GroupRef, Report
from nbddp.wire.flight_recorder import GroupInfo, Site
from nbddp.wire.rank_set import RankSet
from tests.support.looks import CELL, NOW, RUN, SECOND, Ranks, site

OF_FILE = Site(file="train.py", line=9, source="self.work.wait()")
OTHER_CELL = msgspec.structs.replace(site(2, "w.wait()"), file="<other>", cell=CELL + 1)


def hang(*, at_s: float = 1.0, line: int = 4) -> Ranks:
    pool = Ranks(3)
    for rank in (0, 1):
        pool[rank].done(line=3)
        pool[rank].blocked(line=line, at_s=at_s, timeout_ms=30_000)
    pool[2].done(line=3)
    pool[2].finished()
    return pool


# --- plain values --------------------------------------------------------------------------------


def test_the_report_as_plain_values():
    report = hang().diagnose()
    told = json.loads(json.dumps(report.to_dict()))
    (finding,) = told.pop("findings")
    ranks = told.pop("ranks")
    assert told == {
        "version": 1,
        "run_id": RUN,
        "verdict": True,
        "stuck": [0, 1],
        "involved": [0, 1, 2],
        "pg_ids": ["world"],
        "waits_for_store": [],
        "earliest_timeout_ms": 30_000,
        "earliest_timeout_left_ms": 29_000,
        "injected": [],
        "left_out": [],
        "typed": [],
        "fingerprint": report.fingerprint,
    }
    assert finding.pop("ranks") == ranks
    assert finding == {
        "kind": "missing-rank",
        "proven": True,
        "is_error": False,
        "is_consequence": False,
        "culprits": [2],
        "nodes": [],
        "waiting": [0, 1],
        "written": [],
        "scratch": [],
        "group": {"pg_id": "world", "name": "0", "desc": "default_pg", "ranks": [0, 1, 2]},
        "op": "all_reduce",
        "origin": "",
        "collective_seq_id": 2,
        "fields": [],
        "headline": "Rank 2 never called the 2nd all_reduce (#2); ranks 0-1 wait for it.",
        "explanation": (
            "Proven: a collective needs every member of the default group, "
            "and rank 2 can no longer call it."
        ),
        "suspicions": [],
        "now": "",
        "next_step": (
            "Call it on all ranks of the group: look for an `if`, a `break`, or a loop with "
            "a different number of iterations around it."
        ),
        "since_s": 1.0,
        "code": [],
        "change": None,
    }
    assert ranks[0] == {
        "rank": 0,
        "status": "running",
        "what": "waits in all_reduce #2",
        "since_s": 1.0,
        "site": {
            "cell": 3,
            "line": 4,
            "function": "<module>",
            "source": "dist.all_reduce(x)",
            "file": "<cell>",
        },
    }
    assert ranks[2]["since_s"] is None
    assert ranks[2]["site"]["line"] == 3


def test_an_empty_report():
    report = diagnose({}, now_ns=NOW, run_id=RUN)
    assert report == Report(run_id=RUN)
    assert json.loads(json.dumps(report.to_dict()))["findings"] == []
    assert not report.verdict


def test_every_rank_is_told_even_without_a_finding():
    pool = Ranks(4)
    pool[1].runs("x = f(y)", innermost="matmul")
    pool[2].starting()
    pool[3].idle()
    report = pool.diagnose()
    assert report.findings == ()
    assert [str(each) for each in report.ranks.values()] == [
        "rank 0 runs",
        "rank 1 runs, now in matmul(), at cell [3], line 2: `x = f(y)`",
        "rank 2 is starting",
        "rank 3 takes no part in this cell",
    ]


def test_a_rank_outside_of_the_cell_whose_thread_waits():
    pool = Ranks(2)
    pool[1].blocked("recv", peer=0, thread="trainer")
    pool[1].idle()
    assert pool.diagnose().ranks[1].what == (
        "takes no part in this cell; a thread of it waits in recv from rank 0"
    )


@pytest.mark.parametrize(
    ("stack", "is_async", "text"),
    [
        ((site(6, "w.wait()"),), True, " (wait() in line 6)"),
        ((site(3, "w.wait()"),), True, ""),
        ((site(6, "w.wait()"),), False, ""),
        ((site(6, "finish(w)"),), True, ""),
        ((OF_FILE, site(6, "w.wait()")), True, " (wait() in line 6)"),
        ((OTHER_CELL,), True, f" (wait() in line 2 of cell [{CELL + 1}])"),
    ],
)
def test_a_rank_that_waits_in_another_line_than_that_of_its_operation(
    stack: tuple[Site, ...], is_async: bool, text: str
):
    pool = Ranks(2)
    record = pool[0].issue("recv", peer=1, line=3, source="w = dist.irecv(x, 1)")
    operations = pool[0].operations
    operations[-1] = msgspec.structs.replace(operations[-1], async_op=is_async)
    pool[0].waits(record, stack=stack)
    pool[1].runs()
    place = pool.diagnose().ranks[0]
    assert place.what == f"waits in recv from rank 1{text}"
    assert place.site is not None
    assert place.site.line == 3


def test_many_operations_of_one_wait_are_shortened():
    pool = Ranks(2)
    pool[0].waits(*(pool[0].issue("recv", peer=1) for _ in range(5)))
    assert pool.diagnose().ranks[0].what == (
        "waits for recv from rank 1, recv from rank 1, recv from rank 1 and 2 more"
    )


@pytest.mark.parametrize(
    ("group", "label"),
    [
        (GroupRef("p", "0", "default_pg", RankSet.all(2)), "the default group"),
        (GroupRef("p", "7", "undefined", RankSet.all(2)), "group '7' (ranks 0-1)"),
        (GroupRef("p", "7", "tp", RankSet.of([3])), "group 'tp' (rank 3)"),
        (GroupRef("p", "7"), "group '7'"),
    ],
)
def test_names_of_groups(group: GroupRef, label: str):
    assert group.label == label


# --- fingerprints --------------------------------------------------------------------------------


def test_time_and_lines_do_not_change_a_fingerprint():
    assert hang(at_s=1).diagnose().fingerprint == hang(at_s=9, line=5).diagnose().fingerprint


def test_a_running_rank_does_not_change_a_fingerprint():
    found = set()
    for source in ("x = f(x)", "time.sleep(1)", "y = g(x)"):
        pool = Ranks(2)
        pool[0].blocked(at_s=len(source))
        pool[1].runs(source, line=len(source))
        found.add(pool.diagnose().fingerprint)
    assert len(found) == 1


def test_changes_that_a_fingerprint_reflects():
    pools = [hang(), hang(), hang(), Ranks(3), Ranks(3)]
    pools[1][2].raised()
    pools[2][1].runs()
    pools[3][0].blocked()
    pools[4][0].blocked(group=pools[4].group("a", 0, 1, 2))
    found = [pool.diagnose() for pool in pools]
    assert len({report.fingerprint for report in found}) == 5
    again = diagnose(pools[0].views(), now_ns=NOW, run_id="another")
    assert again.fingerprint != found[0].fingerprint


# --- for who acts on it --------------------------------------------------------------------------


def test_no_timeout_is_told_without_a_verdict():
    pool = Ranks(2)
    pool[0].blocked(timeout_ms=1000)
    report = pool.diagnose()
    assert report.earliest_timeout_ms is report.earliest_timeout_left_ms is None


def test_the_earliest_timeout():
    pool = Ranks(3)
    pool[0].blocked(timeout_ms=9_000, at_s=7.0)
    pool[1].blocked(timeout_ms=5_000, at_s=1.0)
    pool[2].finished()
    report = pool.diagnose()
    assert (report.earliest_timeout_ms, report.earliest_timeout_left_ms) == (5_000, 2_000)
    limits = [report.ranks[rank].limit_s for rank in range(3)]
    assert limits == [pytest.approx(9.0), pytest.approx(5.0), None]


def test_a_timeout_that_is_over_and_one_that_is_not_known():
    pool = Ranks(3)
    pool[0].blocked(timeout_ms=1_000, at_s=7.0)
    pool[1].blocked()
    pool[2].finished()
    assert pool.diagnose().earliest_timeout_left_ms == 0


def test_a_message_times_out_from_its_wait_on():
    pool = Ranks(2)
    record = pool[0].issue("recv", peer=1, timeout_ms=10_000, at_s=9.0)
    pool[0].waits(record, since_s=2.0)
    pool[1].finished()
    assert pool.diagnose().earliest_timeout_left_ms == 8_000


def test_a_dead_rank_is_involved():
    pool = Ranks(2)
    pool[0].blocked()
    pool[1].dead()
    assert pool.diagnose().involved == RankSet.all(2)


def test_only_ranks_that_matter_are_involved():
    pool = Ranks(5)
    pool.group("a", 0, 1)
    pool[0].blocked(group="a")
    pool[1].finished()
    pool[2].blocked(group=pool.group("b", 2, 3))
    pool[4].finished()
    report = pool.diagnose()
    assert report.stuck == RankSet.of([0])
    assert report.involved == RankSet.of([0, 1])


def test_a_key_involves_every_rank():
    pool = Ranks(4)
    pool[0].blocked("store.wait", keys=("x",))
    for rank in (1, 2, 3):
        pool[rank].finished()
    assert pool.diagnose().involved == RankSet.all(4)


def test_a_verdict_on_a_key_takes_longer_to_confirm():
    """Setting a key leaves no record, so the verdict gets time to be disproved."""
    pool = Ranks(2)
    pool[0].blocked("store.wait", keys=("x",))
    pool[1].finished()
    assert pool.diagnose().confirm_after_s == 0.06
    assert hang().diagnose().confirm_after_s == 0.0


def test_ranks_that_have_come_are_not_involved():
    pool = Ranks(3)
    pool[0].blocked()
    pool[1].issue()
    pool[1].runs()
    pool[2].finished()
    report = pool.diagnose()
    assert report.stuck == RankSet.of([0])
    assert report.involved == RankSet.of([0, 2])


def test_waits_are_measured_by_the_clock_of_the_rank():
    """Clocks of two machines have nothing in common."""
    pool = Ranks(2)
    pool[0].blocked(at_s=2.0)
    views = pool.views()
    assert diagnose(views, now_ns=5, run_id=RUN).ranks[0].since_s == 2.0
    look = views[0].look
    assert look is not None
    without: Any = msgspec.structs.replace(look, time_ns=0)
    views[0] = type(views[0])(rank=0, state="running", look=without)
    assert diagnose(views, now_ns=NOW + SECOND, run_id=RUN).ranks[0].since_s == 3.0


def test_a_hundred_ranks_are_no_trouble():
    pool = Ranks(128)
    half = pool.group("half", *range(64))
    for rank in range(127):
        pool[rank].blocked(group=half if rank < 60 else "world")
    pool[127].finished()
    report = pool.diagnose()
    assert len(report.stuck) == 127
    assert report.findings[0].kind in ("missing-rank", "group-cycle")


# --- how many are meant --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "one", "several"),
    [
        ("blocked", "waits in all_reduce #1", "wait in all_reduce #1"),
        ("runs", "runs", "run"),
        (
            "silent",
            "does not answer: it is stopped, or runs C code that holds the GIL",
            "do not answer: they are stopped, or run C code that holds the GIL",
        ),
        ("idle", "takes no part in this cell", "take no part in this cell"),
        (
            "fresh",
            "is a fresh process that has run nothing yet",
            "are fresh processes that have run nothing yet",
        ),
        (
            "finished",
            "has finished the cell and called no collective in it",
            "have finished the cell and called no collective in it",
        ),
        (
            "raised",
            "raised ValueError: boom, before any collective of this cell",
            "raised ValueError: boom, before any collective of this cell",
        ),
        (
            "dead",
            "exited with SIGKILL (signal 9) and called no collective in this cell",
            "exited with SIGKILL (signal 9) and called no collective in this cell",
        ),
    ],
)
def test_verbs_agree_with_the_number_of_ranks(state: str, one: str, several: str):
    pool = Ranks(1)
    getattr(pool[0], state)()
    predicate = pool.diagnose().ranks[0].predicate
    assert (predicate.describe(1), predicate.describe(2)) == (one, several)


def test_the_last_operation_is_said_aside():
    pool = Ranks(1)
    pool[0].done()
    pool[0].finished()
    predicate = pool.diagnose().ranks[0].predicate
    assert predicate.describe(2) == (
        "have finished the cell; their last operation was all_reduce #1"
    )
    assert predicate.main_clause() == "has finished the cell"


# --- the document --------------------------------------------------------------------------------

DOCUMENT = (Path(__file__).parents[3] / "docs" / "diagnosis.md").read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_described(kind: str):
    assert f"\n### {kind}\n" in DOCUMENT
    assert f"[`{kind}`](#{kind})" in DOCUMENT


def test_every_field_of_the_plain_values_is_described():
    report = hang().diagnose()
    finding = report.findings[0]
    for told in (report.to_dict(), finding.to_dict(), finding.ranks[0].to_dict()):
        for name in told:
            assert f"\n| `{name}` |" in DOCUMENT


def test_the_work_does_not_grow_with_the_square_of_the_ranks(monkeypatch: pytest.MonkeyPatch):
    calls = 0
    has_joined, local_failures = History.has_joined, History.local_failures

    def count(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            return function(*arguments)

        return counted

    monkeypatch.setattr(History, "has_joined", count(has_joined))
    monkeypatch.setattr(History, "local_failures", count(local_failures))
    counts = []
    for size in (16, 64):
        pool, calls = Ranks(size), 0
        for state in pool.states[:-1]:
            state.blocked("all_reduce", line=1)
        pool[size - 1].finished()
        assert pool.diagnose().verdict
        counts.append(calls)
    assert 0 < counts[1] <= 5 * counts[0]


def test_the_members_of_a_group_are_read_once_for_all_ranks(monkeypatch: pytest.MonkeyPatch):
    pool = Ranks(64)
    read: list[GroupInfo] = []
    group_ref_of = GroupRef.of

    def counted(info: GroupInfo) -> GroupRef:
        read.append(info)
        return group_ref_of(info)

    monkeypatch.setattr(GroupRef, "of", counted)
    for state in pool.states[:-1]:
        state.blocked("all_reduce", line=1)
    pool[63].finished()
    assert pool.diagnose().verdict
    assert len(read) == 1
