"""The timeline: layout, text, and the note about late ranks."""

import base64
import itertools
import re

import pytest

from nbddp.controller.state import NodeClock
from nbddp.controller.trace.rows import TraceRow, rows
from nbddp.notebook.render import timeline
from nbddp.notebook.render.timeline_text import clocks_text, open_operations, straggler
from nbddp.wire.flight_recorder.schema import Failure, FailureKind, GroupInfo
from nbddp.wire.rank_set import RankSet
from tests.support.png import decode
from tests.support.traces import GROUPS, LINE, MS, by_rank, recorders


def training(count: int = 4, steps: int = 10, late: float = 40.0) -> list[TraceRow]:
    """An all_reduce every 100 ms; the last rank comes late, then it takes 10 ms."""
    group = GroupInfo.of(pg_id="w", name="0", desc="default_pg", ranks=tuple(range(count)))
    ranks = recorders(count)
    for step in range(steps):
        for recorder in ranks:
            at = step * 100 + (late if recorder.rank == count - 1 else 0)
            recorder.collective(at=at, end=step * 100 + late + 10, group=group, site=LINE)
    return rows(by_rank(ranks), {"w": group})


def straggler_text(chosen: list[TraceRow]) -> str:
    late = straggler(chosen)
    return "" if late is None else late.sentence()


def overlapping() -> list[TraceRow]:
    """Two asynchronous operations at once, one more afterwards."""
    ranks = recorders(2)
    group = GroupInfo.of(pg_id="w", name="0", ranks=(0, 1))
    for recorder in ranks:
        recorder.collective(at=0, end=60, group=group, async_op=True)
        recorder.collective(at=20, end=80, group=group, async_op=True)
        recorder.collective("broadcast", at=90, end=100, group=group)
    return rows(by_rank(ranks), {"w": group})


# --- layout --------------------------------------------------------------------------------------


def test_a_bar_waits_until_the_last_rank_has_come():
    found = timeline.layout(training(count=2, steps=2))
    assert found.span_ns == 150 * MS
    first, second = found.bars[0]
    assert (first.begin_ns, first.moves_ns, first.end_ns) == (0, 40 * MS, 50 * MS)
    assert (second.begin_ns, second.moves_ns, second.end_ns) == (100 * MS, 140 * MS, 150 * MS)
    late = found.bars[1][0]
    assert (late.begin_ns, late.moves_ns, late.end_ns) == (40 * MS, 40 * MS, 50 * MS)


def test_bars_that_overlap_share_the_height():
    found = timeline.layout(overlapping()).bars[0]
    assert [(bar.lane, bar.lanes) for bar in found] == [(0, 2), (1, 2), (0, 1)]


def test_open_operations_reach_to_the_end_and_move_only_when_all_have_come():
    ranks = recorders(2)
    group = GroupInfo.of(pg_id="w", name="0", ranks=(0, 1))
    for recorder in ranks:
        recorder.collective(at=0, end=100, group=group)
    ranks[0].collective(at=100, group=group)
    found = timeline.layout(rows(by_rank(ranks), {"w": group}))
    assert [bar.part.ending for bar in found.bars[0]] == ["done", "open"]
    bar = found.bars[0][1]
    assert bar.moves_ns == bar.end_ns == found.span_ns > 100 * MS
    assert bar.tip == (
        "all_reduce #2 on rank 0: 4.0 kB, rank 1 never came, not complete; cell [4], line 6"
    )


def hanging(op: str = "all_reduce") -> list[TraceRow]:
    """Rank 0 came at 100 ms, rank 1 not yet, and it is 3.3 s."""
    ranks = recorders(2)
    group = GroupInfo.of(pg_id="w", name="0", ranks=(0, 1))
    for recorder in ranks:
        recorder.collective(at=0, end=100, group=group)
    ranks[0].collective(op, at=100, group=group)
    return rows(by_rank(ranks), {"w": group}, now_by_run={"run-4": 3300 * MS})


def test_the_time_of_an_operation_with_a_missing_rank_is_that_of_its_bars():
    group = GroupInfo.of(pg_id="w", name="0", ranks=(0, 1))
    ranks = recorders(2)
    ranks[0].collective(at=0, end=1600, group=group, failure=Failure("interrupted"))
    found = rows(by_rank(ranks), {"w": group})
    assert timeline.headline_of(found, 4, "1 all_reduce").endswith("in 1.6 s")


def test_open_operations_of_a_running_cell_reach_until_now():
    found = timeline.layout(hanging())
    bar = found.bars[0][1]
    assert bar.moves_ns == bar.end_ns == found.span_ns == 3300 * MS
    assert bar.tip == (
        "all_reduce #2 on rank 0: 4.0 kB, rank 1 has not come yet, waits, 3.2 s so far; "
        "cell [4], line 6"
    )
    headline = timeline.headline_of(hanging(), 4, "2 all_reduce")
    bundle = timeline.timeline(hanging(), headline)
    lines = bundle["text/plain"].splitlines()
    assert lines[0] == "timeline of cell [4]: 2 all_reduce; 8.0 kB in 3.3 s so far"
    assert re.fullmatch(r"rank 0  A{2,3}/{80,}", lines[1])
    assert lines[3].endswith("3.3 s, now")
    assert lines[5] == "rank 0 waits in all_reduce #2 for rank 1, 3.2 s so far"
    assert lines[5] in bundle["text/html"]
    assert "framed" not in bundle["text/html"]


def test_operations_that_all_ranks_have_issued_are_not_said_to_wait_for_a_rank():
    ranks = recorders(2)
    group = GroupInfo.of(pg_id="w", name="0", ranks=(0, 1))
    for recorder in ranks:
        recorder.collective(at=100 * recorder.rank, group=group)
    found = rows(by_rank(ranks), {"w": group}, now_by_run={"run-4": 1100 * MS})
    assert open_operations(found) == [
        "all_reduce #1: all ranks have come, and it is not complete, 1.0 s so far"
    ]
    tip = timeline.layout(found).bars[0][0].tip
    assert "waited 100 ms for others, not complete, 1.1 s so far" in tip


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        ("interrupted", "interrupted"),
        ("freed", "freed"),
        ("raised", "failed"),
        ("collective", "freed"),
        ("lost", "failed"),
        ("stopped", "stopped"),
    ],
)
def test_operations_that_failed_are_never_drawn_as_done(kind: FailureKind, ending: str):
    ranks = recorders(2)
    group = GroupInfo.of(pg_id="w", name="0", ranks=(0, 1))
    for recorder in ranks:
        recorder.collective(at=0, end=50, group=group, failure=Failure(kind, "no code reads this"))
    found = rows(by_rank(ranks), {"w": group})
    bundle = timeline.timeline(found, "timeline")
    lines = bundle["text/plain"].splitlines()
    assert re.fullmatch(r"ranks 0-1  /{80,}!", lines[1])
    assert lines[3] == f"A all_reduce   /: waits for the others   !: {ending}"
    assert f"4.0 kB, {ending} after 50 ms" in bundle["text/html"]
    assert f"framed, !: {ending}" in bundle["text/html"]


def test_a_bar_tells_what_it_is():
    tip = timeline.layout(training()).bars[0][6].tip
    assert tip == (
        "all_reduce #7 on rank 0: 4.0 kB, waited 40 ms for others, then 10 ms; cell [4], line 6"
    )


# --- late ranks ----------------------------------------------------------------------------------


def test_a_rank_that_is_always_last_is_named():
    assert straggler_text(training()) == (
        "rank 3 always came last, in all 10 operations; the others waited 400 ms for it"
    )


@pytest.mark.parametrize(
    ("computes", "waited"),
    [(0, "300 ms"), (200, "100 ms")],
    ids=["waits at once", "computes before"],
)
def test_waits_that_overlap_count_once(computes: float, waited: str):
    """The cell issues twenty operations at once, and waits for their handles afterwards."""
    ranks = recorders(4)
    for recorder in ranks:
        start = 300 if recorder.rank == 2 else 0
        begin = max(start, computes)
        for number in range(20):
            end = max(310, begin) + number
            recorder.collective(
                at=start + number / 100,
                end=end,
                waited=end - begin if number == 0 else 1,
                async_op=True,
            )
    assert straggler_text(rows(by_rank(ranks), GROUPS)) == (
        f"rank 2 always came last, in all 20 operations; the others waited {waited} for it"
    )


def test_ranks_that_come_together_are_not_named():
    assert straggler_text(training(late=0.2)) == ""


def test_few_operations_prove_nothing():
    assert straggler_text(training(steps=2)) == ""


def test_a_rank_that_is_last_in_turn_is_not_named():
    ranks = recorders(4)
    for step in range(12):
        for recorder in ranks:
            at = step * 100 + (40 if recorder.rank == step % 4 else 0)
            recorder.collective(at=at, end=step * 100 + 50)
    assert straggler_text(rows(by_rank(ranks), GROUPS)) == ""


def two_machines(*late_ms: float) -> list[TraceRow]:
    """Rank 1 comes so late in each operation; ranks 2-3 are on another machine."""
    clocks = {
        rank: NodeClock(rank // 2, "n", 0, (1_300_000, 300_000)[rank // 2]) for rank in range(4)
    }
    ranks = recorders(4)
    for step, late in enumerate(late_ms):
        for recorder in ranks:
            at = step * 100 + (late if recorder.rank == 1 else 0)
            recorder.collective(at=at, end=step * 100 + 50)
    return rows(by_rank(ranks), GROUPS, clocks=clocks)


def test_a_rank_is_not_last_by_less_than_the_clocks_are_known():
    assert straggler_text(two_machines(5.5, 2.9, 1.4)) == ""  # two operations prove nothing
    assert straggler_text(two_machines(5, 5, 5)) == (
        "rank 1 always came last, in all 3 operations; the others waited 15 ms for it"
    )
    assert straggler_text(two_machines(5, 5, 5, 1.5)) == (
        "rank 1 came last in 3 of 4 operations; the others waited 15 ms for it, 91% of all such "
        "waits; the clocks do not tell which rank was the last in 1"
    )
    assert straggler_text(two_machines(5, 5, 5, 0)) == (
        "rank 1 came last in 3 of 4 operations, and in the rest all came together, as far as the "
        "clocks tell; the others waited 15 ms for it"
    )
    assert straggler_text(two_machines(5, 5, 5, *[1.5] * 10)) == ""  # perhaps others caused more


# --- what is shown -------------------------------------------------------------------------------


def test_text():
    lines = timeline.timeline(training(steps=2), "timeline")["text/plain"].splitlines()
    assert lines[0] == "timeline"
    assert re.fullmatch(r"ranks 0-2  /{20,}A{5,}·+/{20,}A{5,}", lines[1])
    assert re.fullmatch(r"rank 3     ·{20,}A{5,}·{50,}A{5,}", lines[2])
    assert lines[3].split() == ["0", "150", "ms"]
    assert lines[4] == "A all_reduce   /: waits for the others"
    assert all(len(line) <= 100 for line in lines)


def test_no_wait_is_claimed_beside_ranks_of_which_nothing_is_known():
    ranks = recorders(4)
    for recorder in ranks:
        recorder.collective(at=30 if recorder.rank == 1 else 0, end=100)
    seen = rows(by_rank(ranks[:2]), GROUPS)
    lines = timeline.timeline(seen, "timeline", lack="records are missing")["text/plain"].split(
        "\n"
    )
    assert re.fullmatch(r"rank 0  /{20,}\?{40,}", lines[1])
    assert re.fullmatch(r"rank 1  ·{20,}\?{40,}", lines[2])
    assert lines[4].endswith("/: waits for the others   ?: waits for ranks 2-3, or data moves")
    assert lines[5] == "records are missing"


def test_text_of_many_ranks_has_the_late_one():
    ranks = recorders(40)
    group = GroupInfo.of(pg_id="w", name="0", ranks=tuple(range(40)))
    for step in range(5):
        for recorder in ranks:  # each comes at a time of its own
            at = step * 100 + (60 if recorder.rank == 33 else recorder.rank)
            recorder.collective(at=at, end=step * 100 + 70, group=group)
    text = timeline.timeline(rows(by_rank(ranks), {"w": group}), "timeline")["text/plain"]
    assert "rank 33 always came last" in text
    assert "\nrank 33 " in text
    assert "more rows; -r RANKS chooses" in text


def test_the_timeline_of_some_ranks():
    bundle = timeline.timeline(training(), "timeline", RankSet.of([1]))
    assert "rank 1 " in bundle["text/plain"]
    assert "rank 3 always came last" in bundle["text/plain"]  # it is judged by all
    assert "on rank 3" not in bundle["text/html"]


def test_html_is_an_image_that_tells_on_hover_and_stays_small():
    html = timeline.timeline(training(count=64, steps=30), "timeline")["text/html"]
    png, height = re.findall(r'base64,([^"]*)" width="560" height="(\d+)"', html)[0]
    assert base64.b64decode(png).startswith(b"\x89PNG")
    assert int(height) < 800
    name = re.findall(r'usemap="#([^"]*)"', html)
    assert re.findall(r'<map name="([^"]*)"', html) == name
    assert html.count("<area") <= 96
    assert len(html) - len(png) < 24_000


@pytest.mark.parametrize("count", [3, 20])
def test_the_tooltip_of_a_bar_lies_over_the_bar(count: int):
    html = timeline.timeline(training(count=count, steps=3), "timeline")["text/html"]
    png, height = re.findall(r'base64,([^"]*)" width="560" height="(\d+)"', html)[0]
    pixels = decode(base64.b64decode(png))
    assert (len(pixels[0]), len(pixels)) == (2 * 560, 2 * int(height))
    areas = re.findall(r'coords="(\d+),(\d+),(\d+),(\d+)" title="all_reduce #\d on', html)
    assert len(areas) == 3 * count
    drawn = set()
    for left, top, right, bottom in (map(int, area) for area in areas):
        drawn |= set(itertools.product(range(2 * left, 2 * right), range(2 * top, 2 * bottom)))
        # The gap below a bar is a part of its area; the last tenth of a bar is filled.
        assert pixels[2 * top][2 * right - 2] == (45, 121, 184, 255)
    first = min(left for left, _ in drawn)
    bars = {
        (column, row)
        for row, line in enumerate(pixels[: 2 * (int(height) - 14)])
        for column, colour in enumerate(line)
        if column >= first and colour[:3] == (47, 127, 193)
    }
    assert bars <= {(column + x, row) for column, row in drawn for x in (-1, 0, 1)}


def test_the_clocks_of_nodes_have_one_line():
    clocks = [NodeClock(0, "a", 3_000, 200_000), NodeClock(1, "b", -100_000_000_000_000, 90_000)]
    text = timeline.timeline(hanging(), "headline", clocks=clocks)["text/plain"]
    assert text.splitlines()[-1] == (
        "times are on the notebook's clock; clocks of the nodes: a: +0.00 ms, known to 0.2 ms; "
        "b: -27:46:40 h, known to 0.09 ms"
    )
    many = [NodeClock(node, f"n{node}", 0, node) for node in range(20)]
    assert clocks_text(many).endswith("; 12 more, known to 0.00 ms")
    assert clocks_text([]) == ""
    same = [NodeClock(node, "n1", 0, 0) for node in (0, 1)]
    assert "nodes: n1 (node 0): +0.00 ms, known to 0.00 ms; n1 (node 1): +0.0" in clocks_text(same)
