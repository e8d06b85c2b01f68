"""Which loops of the user wait for an answer of the store."""

from types import SimpleNamespace
from typing import Any

import pytest

from nbddp.rank.collectives import store_polls
from nbddp.rank.collectives.store_polls import StorePolls

SECOND = 1_000_000_000


class Rank:
    """A rank with a clock of its own; its records are numbers."""

    def __init__(self) -> None:
        self.now_ns = self.cpu_ns = 0
        self.ended: list[int] = []
        self.waiting: list[tuple[str, tuple[str, ...]]] = []
        self.writer = SimpleNamespace(
            newest=0, complete=lambda record, _: self.ended.append(record)
        )
        self.run_id, self.is_child = "run", False

    def monotonic_ns(self) -> int:
        return self.now_ns

    def thread_time_ns(self) -> int:
        return self.cpu_ns

    def other(self, call: Any) -> int:
        self.waiting.append((call.signature.op, call.signature.keys))
        self.writer.newest += 1
        return int(self.writer.newest)

    @property
    def open(self) -> int:
        return len(self.waiting) - len(self.ended)


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Rank:
    rank = Rank()
    monkeypatch.setattr(store_polls, "time", rank)
    return rank


@pytest.fixture
def polls(rank: Rank) -> StorePolls:
    recorder: Any = rank
    return StorePolls(recorder)


def ask(
    rank: Rank, polls: StorePolls, count: int, *, every_s: float = 0.3, works_s: float = 0.0,
    answer: object = False,
) -> None:  # fmt: skip
    for _ in range(count):
        rank.now_ns += int(every_s * SECOND)
        rank.cpu_ns += int(works_s * SECOND)
        polls.note_answer("store.check", "go", answer)


def test_equal_answers_for_a_second_are_a_loop_that_waits(rank: Rank, polls: StorePolls):
    ask(rank, polls, 4)
    assert rank.open == 0
    ask(rank, polls, 5)
    assert rank.waiting == [("store.check", ("go",))]
    ask(rank, polls, 1, answer=True)
    assert rank.open == 0


def test_a_loop_that_spins_waits_too(rank: Rank, polls: StorePolls):
    ask(rank, polls, 1100, every_s=0.001, works_s=0.001)
    assert rank.open == 1


def test_a_loop_that_works_between_its_questions_does_not_wait(rank: Rank, polls: StorePolls):
    ask(rank, polls, 50, works_s=0.2)
    assert not rank.waiting


def test_a_loop_with_operations_between_its_questions_does_not_wait(rank: Rank, polls: StorePolls):
    for _ in range(50):
        ask(rank, polls, 1)
        rank.writer.newest += 1  # an all_reduce
    assert not rank.waiting


def test_a_loop_over_several_keys_waits_for_all_of_them(rank: Rank, polls: StorePolls):
    for _ in range(20):
        rank.now_ns += SECOND // 10
        for key in ("a", "b"):
            polls.note_answer("store.get", key, 7)
    assert rank.waiting == [("store.get", ("a",)), ("store.get", ("b",))]
    assert rank.open == 2


def test_a_loop_that_gave_up_is_forgotten(rank: Rank, polls: StorePolls):
    ask(rank, polls, 10)
    polls.expire()
    assert rank.open == 1
    rank.now_ns += 3 * SECOND
    polls.expire()
    assert rank.open == 0


def test_a_loop_with_long_pauses_is_no_loop_that_gave_up(rank: Rank, polls: StorePolls):
    ask(rank, polls, 5, every_s=1.9)
    rank.now_ns += 3 * SECOND
    polls.expire()
    assert rank.open == 1


def test_the_end_of_a_cell_ends_its_loops(rank: Rank, polls: StorePolls):
    ask(rank, polls, 10)
    polls.end_cell()
    assert rank.open == 0
    rank.run_id = ""
    ask(rank, polls, 10)  # a thread that stays
    assert rank.open == 0


def test_the_last_keys_are_known(polls: StorePolls):
    for number in (*range(20), 19):
        polls.note_key(f"key {number}")
    assert polls.keys == tuple(f"key {number}" for number in range(4, 20))
