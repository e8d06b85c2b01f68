"""The output of %ddp stacks."""

from typing import Any

import msgspec

from nbddp.controller.diagnosis.exit_phrase import ExitPhrase
from nbddp.controller.diagnosis.rank_view import RankView
from nbddp.controller.diagnosis.report import RankStatus
from nbddp.notebook.render.stacks import stacks
from nbddp.wire.flight_recorder.schema import (
    ExceptionLine,
    Operation,
    OperationKind,
    RankLook,
    Site,
    ThreadLook,
    Wait,
)
from nbddp.wire.rank_set import RankSet
from tests.support.traces import MS, Recorder

LINE = Site(file="c", line=5, function="<module>", source="step(x)", cell=4)
INNER = Site(file="c", line=8, function="step", source="dist.all_reduce(x)", cell=2)


def waiting(rank: int, *, since: float, kind: OperationKind = "collective") -> RankView:
    recorder = Recorder(rank)
    if kind == "collective":
        operation = recorder.collective(at=1)
    elif kind == "store":
        operation = recorder.other("store", "store.wait", at=1, keys=("go",))
    else:
        operation = recorder.message(kind, 1 - rank, at=1)
    wait = Wait(
        kind="operation",
        record_ids=(operation.record_id,),
        since_ns=round((1000 - since) * MS),
    )
    main = ThreadLook(name="MainThread", is_main=True, wait=wait, stack=(INNER, LINE))
    return RankView(rank, "running", look=look(rank, [main], [operation]))


def look(
    rank: int, threads: list[ThreadLook], operations: list[Operation] | None = None
) -> RankLook:
    return RankLook(
        rank=rank,
        pid=100 + rank,
        activity="running",
        version=1,
        time_ns=1000 * MS,
        threads=tuple(threads),
        operations=tuple(operations or ()),
    )


def runs(name: str, innermost: str, *stack: Site, is_main: bool = True) -> ThreadLook:
    return ThreadLook(name=name, is_main=is_main, wait=None, stack=stack, innermost=innermost)


def view(rank: int, *threads: ThreadLook, state: RankStatus = "running", **known: Any) -> RankView:
    return RankView(rank, state, look=look(rank, list(threads)), **known)


def test_equal_stacks_are_shown_once():
    found = {
        0: waiting(0, since=900),
        1: waiting(1, since=950),
        2: view(2, runs("MainThread", "sleep", LINE)),
        3: waiting(3, since=900),
    }
    bundle = stacks(found)
    assert bundle["text/plain"].splitlines() == [
        "ranks 0-1,3: have waited in all_reduce #1 for 950 ms",
        "    cell [2], line 8, in step  dist.all_reduce(x)",
        "    cell [4], line 5           step(x)",
        "rank 2: runs sleep()",
        "    cell [4], line 5  step(x)",
    ]
    assert bundle["text/html"].count("dist.all_reduce(x)") == 1
    assert stacks(found, RankSet.of([2]))["text/plain"].splitlines() == [
        "rank 2: runs sleep()",
        "    cell [4], line 5  step(x)",
    ]


def test_messages_and_the_store_are_named():
    text = stacks(
        {
            0: waiting(0, since=1, kind="send"),
            1: waiting(1, since=1, kind="recv"),
            2: waiting(2, since=1, kind="store"),
        }
    )["text/plain"]
    assert "rank 0: has waited in send to rank 1 for 1.0 ms" in text
    assert "rank 1: has waited in recv from rank 0 for 1.0 ms" in text
    assert "rank 2: has waited for the key 'go' for 1.0 ms" in text


def test_verbs_agree_with_the_number_of_ranks():
    idle = look(0, [runs("MainThread", "select")])
    forming = msgspec.structs.replace(idle, activity="reforming")
    assert stacks({0: RankView(0, "idle", look=forming)})["text/plain"] == (
        "rank 0: makes its groups again"
    )
    both = {rank: RankView(rank, "idle", look=forming) for rank in (0, 1)}
    assert stacks(both)["text/plain"] == "ranks 0-1: make their groups again"


def test_threads_that_are_not_dormant_are_shown():
    threads = [
        runs("MainThread", "<module>", LINE),
        runs("loader", "read", INNER, is_main=False),
        ThreadLook(name="idle worker", is_main=False, wait=None, is_dormant=True),
    ]
    text = stacks({0: view(0, *threads)})["text/plain"]
    assert text.splitlines() == [
        "rank 0: runs Python code",
        "    cell [4], line 5  step(x)",
        "    thread 'loader': runs read()",
        "        cell [2], line 8, in step  dist.all_reduce(x)",
    ]


def test_ranks_that_run_nothing():
    idle = RankLook(
        rank=0,
        pid=1,
        activity="idle",
        version=1,
        time_ns=1,
        threads=(runs("MainThread", "select"),),
    )
    bad = ExceptionLine(name="ValueError", text="bad", site=LINE)
    views = {
        0: RankView(0, "idle", look=idle),
        1: RankView(1, "finished", look=idle),
        2: RankView(2, "raised", look=idle, error=bad),
        3: RankView(3, "dead", exit_text="SIGKILL (signal 9)"),
        4: RankView(4, "starting"),
        5: RankView(
            5,
            "dead",
            exit_text="lost",
            exit_phrase=ExitPhrase(": node 1 was given up", was_lost=True),
        ),
        6: RankView(
            6,
            "dead",
            exit_text="lost",
            exit_phrase=ExitPhrase(": node 1 was given up", was_lost=True),
        ),
    }
    assert stacks(views)["text/plain"].splitlines() == [
        "rank 0: no cell runs",
        "rank 1: has finished the cell",
        "rank 2: raised ValueError: bad",
        "    cell [4], line 5  step(x)",
        "rank 3: exited: SIGKILL (signal 9)",
        "rank 4: is being started",
        "ranks 5-6: were lost: node 1 was given up",
    ]


def test_a_rank_that_tells_nothing_is_seen_from_outside():
    views = {
        1: RankView(1, "silent", stack_text='  File "x.py", line 3 in spin\n'),
        2: RankView(2, "silent"),
    }
    assert stacks(views)["text/plain"].splitlines() == [
        "rank 1: did not answer; seen from outside",
        "    x.py, line 3, in spin",
        "rank 2: did not answer, and has no Python stack: its process does not run",
    ]
    long = RankView(0, "silent", stack_text="\n".join(f"frame {n}" for n in range(100)))
    assert stacks({0: long})["text/plain"].endswith("frame 39\n    and 60 more lines")


def test_many_ranks_in_the_same_place_stay_small():
    bundle = stacks({rank: waiting(rank, since=1) for rank in range(512)})
    assert bundle["text/plain"].startswith("ranks 0-511: have waited in all_reduce #1")
    assert len(bundle["text/html"]) < 1000


def test_places_that_differ_in_numbers_only_are_folded():
    views = {}
    for rank in range(64):
        recorder = Recorder(rank)
        recorder.message("send", (rank + 1) % 64, at=1)
        wait = Wait(kind="operation", record_ids=(1,), since_ns=0)
        main = ThreadLook(name="MainThread", is_main=True, wait=wait, stack=(LINE,))
        views[rank] = RankView(rank, "running", look=look(rank, [main], recorder.operations))
    assert stacks(views)["text/plain"].splitlines() == [
        "ranks 0-62: have waited in send to the next rank for 1.0 s",
        "    cell [4], line 5  step(x)",
        "rank 63: has waited in send to rank 0 for 1.0 s",
        "    cell [4], line 5  step(x)",
    ]


def test_many_different_stacks_are_cut():
    found = {
        rank: view(rank, runs("MainThread", "sleep", Site(file="f", line=rank, cell=1)))
        for rank in range(100)
    }
    text = stacks(found)["text/plain"]
    assert text.endswith("and 68 more kinds of stacks; %ddp stacks -r RANKS shows them")


def test_text_of_users_is_escaped():
    evil = Site(file="c", line=1, cell=1, source="print('<script>\x1b[2J')")
    bundle = stacks({0: view(0, runs("<b>", "<i>", evil))})
    assert "<script" not in bundle["text/html"]
    assert "\x1b" not in bundle["text/plain"] + bundle["text/html"]
    assert stacks({})["text/plain"] == "no ranks"
