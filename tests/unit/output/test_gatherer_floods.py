"""Floods: shown and kept output is bounded, and a notice counts the missing part."""

import tracemalloc
from typing import Any

import pytest

from nbddp.notebook.output.gatherer import Gatherer, Rich, Show, Text
from nbddp.settings import Settings
from nbddp.wire.messages import ClearOutput, Display, Output
from tests.support.output_specs import spec_of

BURST = 10_000
RATE = 5_000
TOTAL = 40_000


def make(ranks: int = 2, **settings: Any) -> Gatherer:
    limits = {
        "notebook_burst_bytes": BURST,
        "notebook_bytes_per_s": RATE,
        "notebook_total_bytes": TOTAL,
    }
    return Gatherer(spec_of(ranks, Settings(**{**limits, **settings})))


def out(rank: int, text: str, dropped: int = 0) -> Output:
    return Output(run_id="run1", rank=rank, stream="stdout", text=text, dropped_bytes=dropped)


def html(rank: int, text: str) -> Display:
    data = {"text/html": text}
    return Display(run_id="run1", rank=rank, data=data, metadata={}, transient={})


def lines_of(shows: list[Show]) -> list[str]:
    return "".join(show.text for show in shows if isinstance(show, Text)).splitlines()


def flood(lines: int, first: int = 0) -> str:
    return "".join(f"line {number}\n" for number in range(first, first + lines))


@pytest.mark.parametrize("chunk_lines", [7, 100, 100_000])
def test_a_flood_ends_with_a_notice_and_the_last_lines(chunk_lines: int):
    gatherer = make()
    shows: list[Show] = []
    for first in range(0, 100_000, chunk_lines):
        count = min(chunk_lines, 100_000 - first)
        shows += gatherer.add(out(1, flood(count, first)), 0.0)
    shows += gatherer.tick(0.06)
    assert sum(len(line) + 1 for line in lines_of(shows)) <= BURST
    head = lines_of(shows)
    tail = lines_of(gatherer.end(0.1))
    lines = head + tail
    notices = [line for line in lines if "left out" in line]
    shown = [line for line in lines if "left out" not in line]
    missing = 100_000 - len(shown)
    assert len(notices) == 1
    assert notices[0].startswith(f"[1]   ... {missing:,} lines (")
    assert notices[0].endswith(" left out here; the whole output: /logs/rank1.log")
    assert shown[:3] == ["[1]   line 0", "[1]   line 1", "[1]   line 2"]
    assert shown[-20:] == [f"[1]   line {number}" for number in range(99_980, 100_000)]
    assert gatherer.has_left_out


def test_equal_floods_have_one_end():
    gatherer = make(3)
    for rank in range(3):
        gatherer.add(out(rank, flood(50_000)), 0.0)
    gatherer.finish_rank(0, 0.0)
    gatherer.finish_rank(1, 0.0)
    lines = lines_of(gatherer.finish_rank(2, 0.0))
    assert lines[-20:] == [f"[0-2] line {number}" for number in range(49_980, 50_000)]
    assert lines[-21].startswith("[0-2] ... ")
    assert lines[-21].endswith("the whole output: /logs/rank0.log to rank2.log")


def test_a_little_too_much_is_shown_late_but_whole():
    gatherer = make(1, notebook_burst_bytes=100)
    assert len(lines_of(gatherer.add(out(0, flood(20)), 0.0))) < 20
    lines = lines_of(gatherer.tick(100.0))
    assert lines[-1] == "line 19"
    assert not any("left out" in line for line in lines)


def test_a_rank_is_shown_again_when_it_is_slow_again():
    gatherer = make(1)
    gatherer.add(out(0, flood(100_000)), 0.0)
    assert gatherer.add(out(0, "still hidden\n"), 0.5) == []
    shows: list[Show] = []
    for _ in range(10):
        deadline = gatherer.next_deadline()
        if deadline is None:
            break
        shows += gatherer.tick(deadline)
    lines = lines_of(shows)
    assert "left out" in lines[0]
    assert lines[-1] == "still hidden"
    assert gatherer.add(out(0, "live\n"), 20.0) == [Text("stdout", "live\n")]


def test_other_ranks_are_shown_while_one_floods():
    gatherer = make(2)
    shows: list[Show] = []
    for step in range(100):
        now = step / 10
        shows += gatherer.add(out(0, flood(5000)), now)
        if step > 20:
            shows += gatherer.add(out(1, f"loss {step}\n"), now)
        shows += gatherer.tick(now)
    losses = [line for line in lines_of(shows) if line.startswith("[1]   loss")]
    assert len(losses) >= 70


def test_output_after_the_total_shows_only_its_end():
    gatherer = make(1)
    shown = 0
    for step in range(1000):
        now = step * 2.0
        shown += sum(len(line) + 1 for line in lines_of(gatherer.add(out(0, flood(500)), now)))
        shown += sum(len(line) + 1 for line in lines_of(gatherer.tick(now + 1.9)))
    assert shown <= TOTAL + 5000
    assert gatherer.next_deadline() is None
    lines = lines_of(gatherer.end(3000.0))
    assert len(lines) == 21
    assert "left out" in lines[0]
    assert lines[-1] == "line 499"


def test_a_display_after_a_flood_comes_after_its_end():
    gatherer = make(1)
    shows = gatherer.add(out(0, flood(100_000)), 0.0)
    shows += gatherer.add(html(0, "plot"), 0.0)
    assert isinstance(shows[-1], Rich)
    assert lines_of(shows)[-1] == "line 99999"


def test_displays_are_shown_when_the_text_is_spent():
    gatherer = make(1, notebook_total_bytes=400)
    gatherer.add(out(0, flood(100_000)), 0.0)
    shows = gatherer.add(html(0, "plot"), 0.0)
    assert [type(show) for show in shows] == [Rich]
    lines = lines_of(gatherer.end(1.0))
    assert "left out" in lines[0]
    assert lines[-1] == "line 99999"


def test_text_that_the_agent_dropped_is_said():
    gatherer = make(1)
    shows = gatherer.add(out(0, "a\nb"), 0.0)
    shows += gatherer.add(out(0, "c\n", dropped=1_234_567), 0.0)
    assert lines_of(shows) == [
        "a",
        "b",
        "... 1.2 MB left out here; the whole output: /logs/rank0.log",
        "c",
    ]
    assert gatherer.has_left_out


def test_a_line_without_end_is_cut_and_left_out():
    gatherer = make(1)
    for _ in range(100):
        gatherer.add(out(0, "x" * 100_000), 0.0)
    assert sum(len(row) for _, row in gatherer.open_lines()) <= 64 * 1024
    lines = lines_of(gatherer.end(1.0))
    assert "left out" in lines[0]
    assert sum(map(len, lines)) < 50_000


def test_clear_forgets_a_flood():
    gatherer = make(1)
    gatherer.add(out(0, flood(100_000)), 0.0)
    gatherer.add(ClearOutput(run_id="run1", rank=0, wait=False), 10.0)
    assert gatherer.add(out(0, "fresh\n"), 10.2) == [Text("stdout", "fresh\n")]
    assert lines_of(gatherer.end(11.0)) == []


def test_cleared_output_does_not_count_towards_the_total():
    gatherer = make(1)
    for step in range(100):
        now = step * 10.0
        gatherer.add(ClearOutput(run_id="run1", rank=0, wait=True), now)
        shows = gatherer.add(out(0, flood(500)), now)
        assert shows
    assert gatherer.end(2000.0) == []


def test_a_redraw_says_what_is_no_longer_kept():
    gatherer = make(2, notebook_burst_bytes=10**6)
    for step in range(1000):
        gatherer.add(out(0, f"{step}\n"), step * 1.0)
        gatherer.tick(step + 0.5)
    gatherer.add(out(1, "x\n"), 2000.0)
    gatherer.tick(2001.0)
    shows = gatherer.add(ClearOutput(run_id="run1", rank=1, wait=False), 2002.0)
    lines = lines_of(list(shows[0].blocks)) if not isinstance(shows[0], Text | Rich) else []
    assert lines[0] == "... earlier output is no longer kept"
    assert lines[-1] == "[0]   999"


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 10_000,
        "x" * 10_000,
        "\r12345" * 2000,
        "a\n" * 5000,
        "é" * 100 + "\n\x1b[A",
        "\x1b[A\n",
    ],
    ids=["newlines", "one line", "bar", "short lines", "up", "down"],
)
def test_memory_is_bounded_for_any_output(text: str):
    gatherer = make(4, notebook_total_bytes=10**6)
    tracemalloc.start()
    try:
        for step in range(100):
            for rank in range(4):
                gatherer.add(out(rank, text), step / 100)
            gatherer.tick(step / 100)
        assert tracemalloc.get_traced_memory()[0] < 8 * 1024**2
    finally:
        tracemalloc.stop()
