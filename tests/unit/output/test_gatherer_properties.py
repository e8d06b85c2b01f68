"""Properties of the gatherer for any output of any ranks at any time."""

import re
from collections import defaultdict
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from nbddp.notebook.output.gatherer import Gatherer, Rich, Show, Text
from nbddp.settings import Settings
from nbddp.wire.messages import Display, Output, Stream
from nbddp.wire.rank_set import RankSet
from tests.support.output_specs import spec_of

RANKS = 4
FOLD_S = 0.06
LABEL = re.compile(r"\[([\d,-]+)\]")


class Step(NamedTuple):
    """A rank shows something at a later time than the last one; a number stands for a display."""

    after_s: float
    rank: int
    stream: Stream
    shown: str


steps = st.builds(
    Step,
    st.sampled_from([0.0, 0.0, 0.001, 0.02, 0.2]),
    st.integers(0, RANKS - 1),
    st.sampled_from(["stdout", "stdout", "stderr"]),
    st.sampled_from(["a\n", "b\n", "c\n", "a\nb\n", "a\nb\nc\n", "\n", "part", "1", "2"]),
)


def items_of(show: Show) -> list[tuple[RankSet, str, str]]:
    """Ranks, stream, and line or display."""
    if isinstance(show, Rich):
        return [(show.ranks, "display", show.data["text/html"])]
    assert isinstance(show, Text)
    found: list[tuple[RankSet, str, str]] = []
    for line in show.text.removesuffix("\n").split("\n"):
        match = LABEL.match(line)
        assert match
        space = " " * (1 + max(0, len("[0-3]") - match.end()))
        text = line[match.end() :]
        assert not text or (text.startswith(space) and text != space)
        found.append((RankSet.parse(match[1], RANKS), show.stream, text.removeprefix(space)))
    return found


class World:
    """Plays steps to a gatherer, keeps its deadlines, and notes the times of its output."""

    def __init__(self) -> None:
        self.gatherer = Gatherer(
            spec_of(RANKS, Settings(output_fold_s=FOLD_S, output_expect_s=FOLD_S))
        )
        self.now = 0.0
        self.shown: list[tuple[float, RankSet, str, str]] = []
        self.printed: dict[int, list[tuple[float, str, str]]] = defaultdict(list)
        self.open: dict[tuple[int, str], str] = defaultdict(str)

    def note(self, shows: list[Show]) -> None:
        self.shown += [(self.now, *item) for show in shows for item in items_of(show)]

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (deadline := self.gatherer.next_deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.note(self.gatherer.tick(self.now))
            after = self.gatherer.next_deadline()
            assert after is None or after > self.now, "a tick must do what is due"
        self.now = end

    def commit(self, rank: int) -> None:
        for stream in ("stdout", "stderr"):
            if text := self.open.pop((rank, stream), ""):
                self.printed[rank].append((self.now, stream, text))

    def play(self, step: Step) -> None:
        self.wait(step.after_s)
        if step.shown.isdigit():
            self.commit(step.rank)
            self.printed[step.rank].append((self.now, "display", step.shown))
            event: Display | Output = Display(
                run_id="r",
                rank=step.rank,
                data={"text/html": step.shown},
                metadata={},
                transient={},
            )
        else:
            *lines, rest = (self.open[step.rank, step.stream] + step.shown).split("\n")
            self.printed[step.rank] += [(self.now, step.stream, line) for line in lines]
            self.open[step.rank, step.stream] = rest
            event = Output(run_id="r", rank=step.rank, stream=step.stream, text=step.shown)
        self.note(self.gatherer.add(event, self.now))

    def finish(self, rank: int) -> None:
        self.commit(rank)
        self.note(self.gatherer.finish_rank(rank, self.now))

    def of_rank(self, rank: int) -> list[tuple[float, str, str]]:
        return [(when, kind, what) for when, ranks, kind, what in self.shown if rank in ranks]


@given(st.lists(steps, max_size=40), st.permutations(range(RANKS)), st.integers(0, RANKS))
def test_each_rank_is_shown_whole_in_order_and_in_time(
    played: list[Step], order: list[int], finished: int
):
    world = World()
    for step in played:
        world.play(step)
    for rank in order[:finished]:
        world.finish(rank)
    for rank in order[finished:]:
        world.commit(rank)
    world.note(world.gatherer.end(world.now))
    for rank in range(RANKS):
        shown, printed = world.of_rank(rank), world.printed[rank]
        assert [each[1:] for each in shown] == [each[1:] for each in printed]
        waits = [late[0] - early[0] for late, early in zip(shown, printed, strict=True)]
        assert all(wait <= FOLD_S + 1e-9 for wait in waits)
    assert world.gatherer.end(world.now) == []


@given(
    st.lists(st.sampled_from(["a", "b", "c", "", "d", "e"]), max_size=60),
    st.integers(1, 100),
)
def test_equal_output_folds_whole_however_it_is_cut(lines: list[str], cut: int):
    world = World()
    text = "".join(f"{line}\n" for line in lines)
    for start in range(0, len(text), cut):
        for rank in range(RANKS):
            world.note(
                world.gatherer.add(
                    Output(run_id="r", rank=rank, stream="stdout", text=text[start : start + cut]),
                    0.0,
                )
            )
    assert [(ranks, line) for _, ranks, _, line in world.shown] == [
        (RankSet.all(RANKS), line) for line in lines
    ]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 10**6), unique=True, max_size=50), st.data())
def test_lines_that_only_some_ranks_have_do_not_spoil_the_rest(
    common: list[int], data: st.DataObject
):
    """Distinct common lines fold on all ranks, whatever a rank prints between them."""
    world = World()
    for rank in range(RANKS):
        extra = data.draw(st.lists(st.integers(0, len(common)), max_size=10))
        parts = []
        for index in range(len(common) + 1):
            parts += [f"rank {rank} alone\n"] * extra.count(index)
            parts += [f"{common[index]}\n"] if index < len(common) else []
        world.note(
            world.gatherer.add(
                Output(run_id="r", rank=rank, stream="stdout", text="".join(parts)), 0.0
            )
        )
    world.note(world.gatherer.end(0.0))
    everywhere = [what for _, ranks, _, what in world.shown if len(ranks) == RANKS]
    assert everywhere == [str(number) for number in common]
