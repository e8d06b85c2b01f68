"""Lines of many ranks that differ in numbers only are one line."""

from dataclasses import replace

import pytest

from nbddp.notebook.output.gatherer import Gatherer, Redraw, Show, Text
from nbddp.notebook.output.number_ranges import MIN_RANKS, pattern_of, with_ranges
from nbddp.settings import Settings
from nbddp.wire.messages import ClearOutput, Output
from nbddp.wire.rank_set import RankSet
from tests.support.output_specs import spec_of

ALIKE = [
    ("step 3 loss 0.41", "step 3 loss 12.7"),
    ("loss=1e-3, lr 0.1", "loss=-2.5E+4, lr 0.1"),
    ("took 0.5s on cuda:0", "took 12ms on cuda:1"),
    ("[rank 3] 5%", "[rank 12] 100%"),
    ("(1, -2)", "(30, 4)"),
    ("loss  3.1", "loss 12.9"),
]
DIFFERENT = [
    ("loss 0.4", "Loss 0.4"),
    ("at 0x7f12", "at 0x8a13"),
    ("0.5s", "12ms"),
    ("x1 = 3", "x2 = 3"),
    ("v2a3", "v2b3"),
    ("version 2.0.1", "version 2.13.0"),
    ("10.0.0.1:80", "10.0.0.2:80"),
]
WITHOUT = [
    "no number",
    "",
    "rank_3",
    "1 2 3 4 5 6 7",
    "a 1\nb 2",
    "tensor([1., 2.])",
    "x = array([1])",
    "1 " + 300 * "x",
]


@pytest.mark.parametrize(("one", "other"), ALIKE[:2] + ALIKE[3:])
def test_lines_that_differ_in_numbers_only(one: str, other: str):
    assert pattern_of(one) is not None
    assert pattern_of(one) == pattern_of(other)


@pytest.mark.parametrize(("one", "other"), [*DIFFERENT, ALIKE[2]])
def test_lines_that_differ_in_more(one: str, other: str):
    assert pattern_of(one) is None or pattern_of(one) != pattern_of(other)


@pytest.mark.parametrize("text", WITHOUT)
def test_lines_that_have_no_pattern(text: str):
    assert pattern_of(text) is None


RANGES = {
    "one number": (
        [0, 1, 17, 18],
        ["step 3 loss 0.41", "step 3 loss 0.52", "step 3 loss 0.73", "step 3 loss 0.6"],
        "step 3 loss 0.41 … 0.73 (median 0.52, largest on rank 17)",
    ),
    "equal lines": ([0, 1], ["loss 1", "loss 1"], "loss 1"),
    "two ranks": ([0, 1], ["loss 2", "loss 1"], "loss 1 … 2"),
    "two numbers": ([0, 1, 2], ["a 1 b 9", "a 3 b 8", "a 2 b 7"], "a 1 … 3 b 7 … 9"),
    "the rank is no measurement": (
        [0, 1, 2],
        ["rank 0 got 5", "rank 1 got 7", "rank 2 got 6"],
        "rank 0 … 2 got 5 … 7 (median 6, largest on rank 1)",
    ),
    "only the rank": ([3, 4, 5], ["I am 3", "I am 4", "I am 5"], "I am 3 … 5"),
    "written differently": ([0, 1, 2], ["x 1.0", "x 1", "x 1.00"], "x 1.0"),
    "several ranks have the largest": (
        [2, 5, 9],
        ["x 3", "x 4", "x 4"],
        "x 3 … 4 (median 4)",
    ),
    "thousands": (
        [0, 1, 2],
        ["samples 950", "samples 1,950", "samples 12,000,950.5"],
        "samples 950 … 12,000,950.5 (median 1,950, largest on rank 2)",
    ),
    "large": ([0, 1], [f"{2**62}", f"{2**62 + 1}"], f"{2**62} … {2**62 + 1}"),
    "negative": ([0, 1, 2], ["x -3", "x -4", "x 1e2"], "x -4 … 1e2 (median -3, largest on rank 2)"),
}


@pytest.mark.parametrize("name", RANGES)
def test_ranges(name: str):
    ranks, texts, line = RANGES[name]
    assert with_ranges(ranks, texts) == line


# --- in the output of a cell ---------------------------------------------------------------------


class Page:
    """The text of a cell of so many ranks."""

    def __init__(self, ranks: int, *, folds: bool = True, room: int = 1_000_000) -> None:
        spec = spec_of(ranks, Settings(notebook_total_bytes=room, notebook_burst_bytes=room))
        self.ranks = ranks
        self.gatherer = Gatherer(replace(spec, folds_numbers=folds, can_redraw=True))
        self.text = ""

    def print(self, rank: int, text: str, now: float) -> None:
        output = Output(run_id="r", rank=rank, stream="stdout", text=text)
        self.note(self.gatherer.add(output, now))

    def end(self, now: float = 100.0) -> list[str]:
        for rank in range(self.ranks):
            self.note(self.gatherer.finish_rank(rank, now))
        self.note(self.gatherer.end(now))
        return self.text.splitlines()

    def note(self, shows: list[Show]) -> None:
        for show in shows:
            match show:
                case Redraw():
                    self.text = ""
                    self.note(list(show.blocks))
                case Text():
                    self.text += show.text
                case _:
                    raise AssertionError(show)


@pytest.mark.parametrize(("ranks", "folds"), [(MIN_RANKS - 1, True), (MIN_RANKS, False)])
def test_lines_of_few_ranks_and_of_merged_output_stay_apart(ranks: int, folds: bool):
    page = Page(ranks, folds=folds)
    for rank in range(ranks):
        page.print(rank, f"loss {rank}.5\n", 0.0)
    assert len(page.end()) == ranks


def test_ranks_at_different_speed_have_one_line_for_each_step():
    page = Page(12)
    for step in range(3):
        for rank in range(12):
            page.print(rank, f"step {step} loss {rank / 10}\n", step + rank / 3)
    assert page.end() == [
        f"[0-11] step {step} loss 0.0 … 1.1 (median 0.5, largest on rank 11)" for step in range(3)
    ]


def test_other_lines_between_them_keep_their_place():
    page = Page(9)
    for rank in range(9):
        page.print(rank, "begin\n", 0.0)
        page.print(rank, "odd\n" if rank == 4 else "", 0.0)
        page.print(rank, f"loss {rank}\n", 0.0)
    assert page.end() == ["[0-8] begin", "[4]   odd", "[0-8] loss 0 … 8"]


@pytest.mark.parametrize("ranks", [4, 12])
@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "[W1124 09:12:3{small}.{rank:09} socket.cpp:207] [c10d] no name. err=-3",
            "[W1124 09:12:30.000000000 socket.cpp:207] [c10d] no name. err=-3",
        ),
        (
            "[rank{rank}]:[W1124 09:12:3{small}.{rank:09} socket.cpp:755] [c10d] no [::1]:4{small}",
            "[W1124 09:12:30.000000000 socket.cpp:755] [c10d] no [::1]:40,41,42",
        ),
        (
            "[rank{rank}]:W1124 09:12:30.{rank} 9{small} torch/_dynamo/guards.py:12] [0/1] again",
            "W1124 09:12:30.0 90 torch/_dynamo/guards.py:12] [0/1] again",
        ),
    ],
)
def test_lines_of_torchs_log_fold_whatever_their_time_rank_and_port(
    ranks: int, line: str, shown: str
):
    page = Page(ranks)
    for rank in range(ranks):
        page.print(rank, line.format(rank=rank, small=rank % 3) + "\n", 0.0)
    assert page.end() == [f"[0-{ranks - 1}] {shown}"]


def test_a_line_of_torchs_log_of_one_rank_stays_as_it_is():
    page = Page(4)
    text = "[rank2]:[W1124 09:12:30.1 socket.cpp:207] [c10d] no name. err=-3"
    page.print(2, f"{text}\n", 0.0)
    assert page.end() == [f"[2]   {text}"]


def test_every_line_is_shown_or_left_out_of_its_own_rank():
    page = Page(9, room=5_000)
    for step in range(300):
        for rank in range(9):
            page.print(rank, f"step {step} loss {rank}{rank}.5\n", 0.0)
    lines = [line[1:].split("] ", 1) for line in page.end()]
    for rank in range(9):
        texts = [text for ranks, text in lines if rank in RankSet.parse(ranks, world_size=9)]
        left_out = [int(text.split()[1]) for text in texts if "left out here" in text]
        assert sum(left_out) + len(texts) - len(left_out) == 300
        assert left_out


def test_clear_output_after_a_range_clears_the_rank():
    page = Page(9)
    for rank in range(9):
        page.print(rank, f"loss {rank * 2}\n", 0.0)
    assert page.gatherer.take_over(0.0) is None
    page.note(page.gatherer.add(ClearOutput(run_id="r", rank=0, wait=False), 1.0))
    assert page.end() == ["[1-8] loss 2 … 16 (median 8, largest on rank 8)"]
