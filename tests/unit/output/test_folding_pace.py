"""Output of all ranks is folded if they print it within ``output_expect_s`` of each other."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nbddp.notebook.output.gatherer import Gatherer, Text
from nbddp.settings import Settings
from nbddp.wire.messages import Output
from tests.support.output_specs import spec_of

_LIMITS = Settings()
_RANKS = 3


class Reader:
    """Ticks when it is due, and reads."""

    def __init__(self) -> None:
        self.gatherer = Gatherer(spec_of(_RANKS))
        self.lines: list[tuple[float, str]] = []
        self.now = 0.0

    def print_at(self, at: float, rank: int, text: str) -> None:
        self.wait_until(at)
        event = Output(run_id="r", rank=rank, stream="stdout", text=f"{text}\n")
        self._read(self.gatherer.add(event, at))

    def wait_until(self, at: float) -> None:
        while (due := self.gatherer.next_deadline()) is not None and due <= at:
            self.now = max(self.now, due)
            self._read(self.gatherer.tick(self.now))
        self.now = at

    def end(self) -> list[str]:
        self._read(self.gatherer.end(self.now))
        return [line for _, line in self.lines]

    def _read(self, shows: object) -> None:
        assert isinstance(shows, list)
        for show in shows:
            assert isinstance(show, Text)
            self.lines += [(self.now, line) for line in show.text.splitlines()]


@given(
    st.lists(
        st.lists(st.floats(0.0, 0.9 * _LIMITS.output_expect_s), min_size=_RANKS, max_size=_RANKS),
        min_size=1,
        max_size=8,
    )
)
@settings(max_examples=100, deadline=None)
def test_the_same_program_gives_the_same_output_at_any_pace(pauses: list[list[float]]):
    """All ranks begin each step together, as after a collective; then each takes its own time."""
    reader = Reader()
    began = 0.0
    for step, pause_by_rank in enumerate(pauses):
        for at, rank in sorted((began + pause, rank) for rank, pause in enumerate(pause_by_rank)):
            reader.print_at(at, rank, f"step {step}")
        began += max(pause_by_rank)
    assert reader.end() == [f"[0-2] step {step}" for step in range(len(pauses))]


def test_output_of_one_rank_alone_is_late_once():
    reader = Reader()
    for number in range(3):
        reader.print_at(2.0 * number, 0, f"loss {number}")
    reader.wait_until(10.0)
    fold_s, expect_s = _LIMITS.output_fold_s, _LIMITS.output_expect_s
    assert reader.lines == [
        (expect_s, "[0]   loss 0"),
        (2.0 + fold_s, "[0]   loss 1"),
        (4.0 + fold_s, "[0]   loss 2"),
    ]


def test_unequal_output_of_all_ranks_does_not_wait():
    reader = Reader()
    for number in range(2):
        for rank in range(_RANKS):
            reader.print_at(2.0 * number, rank, f"I am {rank}")
    reader.wait_until(10.0)
    assert {at for at, _ in reader.lines} == {_LIMITS.output_fold_s, 2.0 + _LIMITS.output_fold_s}


def test_ended_ranks_are_not_waited_for():
    reader = Reader()
    reader.print_at(0.0, 0, "alone")
    for rank in (1, 2):
        reader._read(reader.gatherer.finish_rank(rank, 0.1))
    assert reader.lines == [(0.0, "[0]   alone")]
