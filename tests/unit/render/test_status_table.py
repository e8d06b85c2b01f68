"""The rows of ``%ddp status``."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from nbddp.controller.catch_up import CellHistory
from nbddp.controller.diagnosis.rank_view import RankView
from nbddp.controller.diagnosis.report import RankStatus, Report
from nbddp.controller.state.actions import Diagnosed
from nbddp.controller.state.rank_state import Phase, RankInfo, RankState
from nbddp.controller.state.silent_nodes import BehindNode, SilentNode
from nbddp.controller.state.snapshot import PoolSnapshot
from nbddp.notebook.render.colours import RANK_COLOURS
from nbddp.notebook.render.old_cells import inside_old_cells, old_cell_notes
from nbddp.notebook.render.status_notes import fresh_notes, left_notes
from nbddp.notebook.render.status_table import (
    MAX_ROWS,
    Row,
    Survey,
    row,
)
from nbddp.wire.flight_recorder.schema import (
    AT_PROMPT,
    CALLBACK_THREAD,
    ExceptionLine,
    Failure,
    FailureKind,
    Operation,
    RankLook,
    Site,
    ThreadLook,
    Wait,
)
from nbddp.wire.message_types import AgentEnd, LostAgent
from nbddp.wire.messages import RankExited, StackDumped
from nbddp.wire.rank_set import NO_RANKS, RankSet
from tests.support.traces import LINE, MS, Recorder

RAISED = ExceptionLine(name="ValueError", text="a\nb", site=LINE)

FAULT = """Current thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.12/re/__init__.py", line 3 in match
  File "<ipython-input-13-ab12>", line 3 in <module>
"""


def operation(*, end: float | None) -> Operation:
    return Recorder(0).collective(at=100, end=end, site=LINE)


def look(*, wait: Wait | None = None, operations: Any = (), **fields: Any) -> RankLook:
    main = ThreadLook(name="MainThread", is_main=True, wait=wait, stack=(LINE,))
    return RankLook(
        rank=0,
        pid=7,
        activity="running",
        version=1,
        time_ns=2000 * MS,
        threads=(main,),
        operations=operations,
        **fields,
    )


def peeked(**fields: Any) -> StackDumped:
    return StackDumped(number=1, rank=0, version=0, operations=(), stack="", **fields)


def row_of(
    view: RankView,
    peek: StackDumped | None = None,
    *,
    is_running: bool = True,
    info: RankInfo | None = None,
) -> Row:
    found = Diagnosed(
        number=1,
        report=Report(run_id=""),
        looks={},
        peeks={} if peek is None else {0: peek},
        silent=RankSet(),
        views={0: view},
    )
    told = info or RankInfo(rank=0, node=0, pid=7, device="cpu")
    return row(told, found, is_running=is_running)


def test_a_callback_of_a_widget_is_told_with_its_line_though_no_cell_runs():
    found = msgspec.structs.replace(look(), activity="callback")
    states: tuple[RankStatus, ...] = ("idle", "raised")
    for state in states:
        other = Site(file="a.py", line=9)
        view = RankView(rank=0, state=state, look=found, error=ExceptionLine(name="E", site=other))
        seen = row_of(view, is_running=False)
        assert (seen.state, seen.place) == ("in a widget's callback", str(LINE))


@pytest.mark.parametrize(
    ("percent", "state"), [(3, "idle"), (19, "idle"), (97, "100 % CPU between cells")]
)
def test_a_rank_that_computes_between_cells_is_not_idle(percent: int, state: str):
    found = msgspec.structs.replace(look(), activity="idle", cpu_percent=percent)
    states: tuple[RankStatus, ...] = ("idle", "finished", "raised")
    for before in states:
        told = row_of(RankView(0, before, found, error=RAISED), is_running=False)
        assert (told.state, told.is_odd) == (state, state != "idle")


def left(rank: int, *threads: ThreadLook) -> tuple[int, RankLook]:
    return rank, msgspec.structs.replace(look(), activity="idle", threads=threads)


def test_threads_of_ended_cells_are_named():
    library = Site(file="/x/site-packages/wandb/run.py", line=3)
    spin = ThreadLook("spin", is_main=False, wait=None, stack=(library, LINE), cpu_percent=96)
    naps = ThreadLook("naps", is_main=False, wait=None, stack=(LINE,))
    others = [
        ThreadLook("MainThread", is_main=True, wait=None, stack=(LINE,)),
        ThreadLook("quiet", is_main=False, wait=None, stack=(library,), cpu_percent=4),
        ThreadLook("worker", is_main=False, wait=None, is_dormant=True, stack=(LINE,)),
        ThreadLook(CALLBACK_THREAD, is_main=False, wait=None, stack=(LINE,)),
    ]
    busy = ThreadLook("busy", is_main=False, wait=None, stack=(library,), cpu_percent=50)
    found = Diagnosed(
        number=1,
        report=Report(run_id=""),
        looks=dict([left(0, *others), left(1, naps, spin), left(2, busy, naps)]),
        peeks={},
        silent=RankSet(),
        views={},
    )
    assert left_notes(found) == [
        f"ranks 1-2: thread 'naps' of an earlier cell still runs, at {LINE}",
        f"rank 1: thread 'spin' of an earlier cell still runs, at {LINE} (100 % CPU)",
        "rank 2: thread 'busy' of an earlier cell still runs (50 % CPU)",
    ]


def test_a_rank_that_waits_in_a_collective():
    found = operation(end=None)
    wait = Wait(kind="operation", record_ids=(found.record_id,), since_ns=800 * MS)
    told = row_of(RankView(0, "running", look(wait=wait, operations=(found,))))
    assert (told.state, told.place, told.source) == ("waits", "cell [4], line 6", LINE.source)
    assert (told.collective, told.collective_state) == ("all_reduce #1", "for 1.2 s")
    assert not told.is_odd


def test_a_rank_that_runs():
    told = row_of(RankView(0, "running", look(operations=(operation(end=110),), gpu_bytes=5)))
    assert (told.state, told.place) == ("runs", "cell [4], line 6")
    assert (told.collective, told.collective_state) == ("all_reduce #1", "done")
    assert told.gpu_bytes == 5


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        ("interrupted", "interrupted"),
        ("freed", "freed"),
        ("raised", "failed"),
        ("collective", "freed"),
        ("stopped", "stopped"),
    ],
)
def test_the_last_collective_has_not_ended_well(kind: FailureKind, ending: str):
    found = Recorder(0).collective(at=100, end=110, failure=Failure(kind, "no code reads this"))
    told = row_of(RankView(0, "idle", look(operations=(found,))), is_running=False)
    assert (told.collective, told.collective_state) == ("all_reduce #1", ending)


def test_a_wait_that_ended_with_another_rank_has_the_word_of_the_card():
    broke = Failure("lost", "no code reads this")
    found = Recorder(0).collective(at=100, end=110, failure=broke)
    history = CellHistory()
    assert _state_of(found, history) == "failed"
    history.note_freed(found.run_id, RankSet.of([1]))
    assert _state_of(found, history) == "failed"
    history.note_freed(found.run_id, RankSet.of([0, 1]))
    assert _state_of(found, history) == "freed"


def _state_of(found: Operation, history: CellHistory) -> str:
    view = RankView(0, "idle", look(operations=(found,)))
    diagnosed = Diagnosed(1, Report(run_id=""), {}, {}, RankSet(), {0: view})
    info = RankInfo(rank=0, node=0, pid=7, device="cpu")
    return row(info, diagnosed, is_running=False, was_freed=history.was_freed).collective_state


def test_a_wait_for_the_store_has_its_usual_name():
    found = Recorder(0).other("store", "store.wait", at=100, end=110, keys=("go",))
    told = row_of(RankView(0, "running", look(operations=(found,))))
    assert told.collective == "store.wait('go')"


def test_a_fresh_rank_is_said_to_be_fresh():
    info = RankInfo(rank=0, node=0, replaced="restarted")
    assert row_of(RankView(0, "idle", look()), info=info).state == "idle, fresh"
    assert row_of(RankView(0, "starting"), info=info).state == "starting"
    exited = RankInfo(rank=1, node=0, replaced="exited")
    assert fresh_notes([info, exited]) == [
        "rank 0 is fresh: it was restarted, without the variables",
        "rank 1 is fresh: it took the place of one that exited, without the variables",
    ]


def test_silent_ranks_in_an_old_cell_are_not_said_to_be_given_up():
    states = (RankState.IDLE, RankState.BUSY) * 2
    infos = [RankInfo(rank, rank // 2, state=state) for rank, state in enumerate(states)]
    pool = PoolSnapshot(
        phase=Phase.UP, generation=0, ranks=tuple(infos), run_id=None, active_run_id=None,
        joining=NO_RANKS, lost_agents=frozenset(), store_is_lost=False,
    )  # fmt: skip
    assert inside_old_cells(pool) == (RankSet.of([1, 3]), NO_RANKS, NO_RANKS)
    assert inside_old_cells(pool, {1}) == (RankSet.of([1]), RankSet.of([3]), NO_RANKS)
    silent = msgspec.structs.replace(pool, silent=(SilentNode(1, "n2", 0.0, 60.0),))
    assert inside_old_cells(silent, {1}) == (RankSet.of([1]), NO_RANKS, RankSet.of([3]))
    behind = msgspec.structs.replace(pool, behind=(BehindNode(1, "n2", is_heard=True),))
    diagnosed = Diagnosed(1, Report(""), {}, {}, NO_RANKS)
    assert old_cell_notes(behind, diagnosed, lambda ranks: f"restart {ranks}") == [
        "rank 1 still inside a cell that was given up. Next: restart 1, if it does not come back",
        "rank 3 perhaps still inside an old cell, and perhaps the interrupt is still on its way. "
        "Next: %ddp status again in some seconds",
    ]
    running = msgspec.structs.replace(silent, run_id="r", active_run_id="r")
    assert inside_old_cells(running) == (NO_RANKS, NO_RANKS, NO_RANKS)


def test_a_rank_that_asks_the_user():
    asking = ThreadLook(name="MainThread", is_main=True, wait=None, innermost=AT_PROMPT)
    view = RankView(0, "running", msgspec.structs.replace(look(), threads=(asking,)))
    assert row_of(view).state == "at a prompt"


@pytest.mark.parametrize(
    ("view", "peek", "state", "place", "is_odd"),
    [
        (RankView(0, "dead", exit_text="SIGKILL (signal 9)"), None,
         "exited: SIGKILL (signal 9)", "", True),
        (RankView(0, "starting"), None, "starting", "", False),
        (RankView(0, "silent", stack_text=FAULT), peeked(process_state="R"),
         "does not answer", "cell [13], line 3", True),
        (RankView(0, "silent"), peeked(process_state="T"), "stopped (SIGSTOP)", "", True),
        (RankView(0, "finished", look()), None, "finished", "", False),
        (RankView(0, "idle", look()), None, "idle", "", False),
        # of a plain pool, whose ranks report nothing
        (RankView(0, "running", stack_text=FAULT), peeked(process_state="R"),
         "in a cell, computes", "cell [13], line 3", False),
        (RankView(0, "running", stack_text=FAULT), peeked(process_state="S"),
         "in a cell, sleeps", "cell [13], line 3", False),
        (RankView(0, "running"), None, "in a cell", "", False),
        (RankView(0, "running"), peeked(process_state="T"), "stopped (SIGSTOP)", "", True),
        (RankView(0, "finished", stack_text=FAULT), peeked(process_state="S"),
         "finished", "", False),
        (RankView(0, "idle", stack_text=FAULT), peeked(process_state="S"), "idle", "", False),
        (RankView(0, "raised", look(), error=RAISED), None,
         "raised ValueError: a b", "cell [4], line 6", True),
    ],
)  # fmt: skip
def test_states(view: RankView, peek: StackDumped | None, state: str, place: str, is_odd: bool):
    told = row_of(view, peek)
    assert (told.state, told.place, told.is_odd) == (state, place, is_odd)


def test_between_cells_all_are_idle():
    assert row_of(RankView(0, "finished", look()), is_running=False).state == "idle"
    raised = RankView(0, "raised", look(), error=RAISED)
    told = row_of(raised, is_running=False)
    assert (told.state, told.place, told.is_odd) == ("idle", "", False)


def text_of(rows: list[Row]) -> list[str]:
    paths = [f"/tmp/p/rank{each.rank}.log" for each in rows]
    return Survey("pool", rows, paths, []).bundle()["text/plain"].splitlines()


def test_columns_that_say_nothing_are_left_out():
    rows = [
        Row(rank, "idle", pid=10 + rank, device="cpu", memory_bytes=182_000_000)
        for rank in range(2)
    ]
    assert text_of(rows) == [
        "pool",
        "rank  state  memory  pid",
        "0     idle   182 MB   10",
        "1     idle   182 MB   11",
        "logs: /tmp/p/rank0.log to rank1.log",
    ]
    rows[1] = Row(1, "idle", pid=11, device="cpu", memory_bytes=191_000_000, memory_is_rss=True)
    assert text_of(rows)[3].split() == ["1", "idle", "191", "MB", "RSS", "11"]
    nodes = [Row(rank, "idle", node=rank, device=f"cuda:{rank}") for rank in range(2)]
    assert text_of(nodes)[1].split() == ["rank", "state", "GPU", "memory", "pid", "node", "device"]


def test_a_lost_node_leaves_the_columns_of_pids_and_nodes():
    lost = RankExited(
        rank=1,
        pid=11,
        exit_code=-9,
        out_of_memory=False,
        last_output="",
        cause=LostAgent(1, AgentEnd("silent", 60, "hostb")),
    )
    info = RankInfo(rank=0, node=1, state=RankState.EXITED, pid=11, device="cpu", exited=lost)
    dead = row_of(RankView(0, "dead", exit_text="the agent of node 1 ended"), info=info)
    assert (dead.state, dead.is_odd) == ("lost with its node", True)
    waits = Row(
        0, "waits", "cell [4], line 6", "x" * 70, "all_reduce #7", "for 3.2 s", 10**8, pid=9
    )
    rows = [replace(waits, gpu_bytes=10**8, device="cuda:0"), replace(dead, rank=1)]
    assert {"pid", "node"} <= set(text_of(rows)[1].split())


def test_many_ranks_are_one_row_and_the_odd_one_comes_first():
    rows = [Row(rank, "waits", memory_bytes=10_000_000 + rank * 100_000) for rank in range(64)]
    rows[17] = Row(17, "does not answer", is_odd=True)
    assert len(rows) > MAX_ROWS
    assert [line.split() for line in text_of(rows)[1:4]] == [
        ["rank", "state", "memory"],
        ["17", "does", "not", "answer"],
        ["0-16,18-63", "waits", "10", "MB", "to", "16", "MB"],
    ]
    html = Survey("pool", rows, [], []).bundle()["text/html"]
    assert "<details" in html
    assert html.count(">63<") == 1  # each rank is one click away


def test_the_source_makes_room_for_numbers_and_few_odd_ranks_are_bold():
    rows = [
        Row(rank, "waits", "cell [4], line 6", "x" * 70, "all_reduce #7", "for 3.2 s", 10**8, pid=9)
        for rank in range(8)
    ]
    rows[5] = Row(5, "runs", "cell [4], line 5", "time.sleep(60)", memory_bytes=10**8, pid=9)
    lines = text_of(rows)
    assert all(len(line) <= 100 for line in lines)
    assert " ".join(lines[2].split()).startswith(
        "0 waits all_reduce #7 for 3.2 s 100 MB 9 cell [4]"
    )
    html = Survey("pool", rows, [], []).bundle()["text/html"]
    assert "<b>runs</b>" in html
    assert "<b>waits</b>" not in html


# --- colours -------------------------------------------------------------------------------------


def _luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", RANK_COLOURS)
def test_colours_can_be_read_on_white_and_on_black(colour: str):
    """WCAG 2 asks for 3:1 of large or bold text; all have 4:1."""
    light = _luminance(colour) + 0.05
    assert 1.05 / light >= 4
    assert light / (_luminance("#111111") + 0.05) >= 4


def test_the_table_of_every_rank_ends_where_a_browser_would_not_draw_it():
    def html(count: int) -> str:
        rows = [Row(rank, "waits", node=rank // 8) for rank in range(count)]
        return Survey("pool p", rows, [], []).bundle()["text/html"]

    assert "every rank" in html(512)
    many = html(8192)
    assert "ranks 0-511" in many
    assert len(many) < 1.05 * len(html(512))
