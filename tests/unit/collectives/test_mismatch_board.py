"""Ranks whose calls do not match are told so, and others are not, in any order of their steps.

Each rank is a thread; all share one memory. A schedule, drawn from a seed, says who does the next
step: at most one runs, and others get their turn wherever ranks touch the board, and wherever one
of them waits.
"""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from nbddp.errors import CollectiveMismatchError
from nbddp.rank.collectives.recording import mismatch_board
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.user_code_context import Callbacks
from nbddp.wire.flight_recorder.schema import Failure, GroupInfo, Signature, Site
from nbddp.wire.flight_recorder.writer import NodeMemory

_TOO_LONG = 20_000


@dataclass(frozen=True)
class Call:
    """A call of one rank."""

    op: str
    size: int = 1
    line: int = 1
    is_refused: bool = False
    is_async: bool = False
    is_blocked: bool = False  #: before torch has said that it takes it
    splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


def refused(op: str, size: int = 1, line: int = 1) -> Call:
    """Torch refuses the call."""
    return Call(op, size, line, is_refused=True)


class StuckError(Exception):
    """No rank can continue."""


class FreedError(Exception):
    """The event that a rank waits for never comes."""


class Turns:
    """The scheduler: one thread runs at a time."""

    def __init__(self, seed: int, patient: Sequence[int] = ()) -> None:
        self._random = random.Random(seed)
        self._turns: dict[int, threading.Semaphore] = {}
        self._rank_by_thread: dict[int, int] = {}
        self._left = _TOO_LONG
        self._ended = threading.Event()
        self._patient = set(patient)

    def run(self, ranks: Sequence[Callable[[], None]]) -> None:
        self._turns = {rank: threading.Semaphore(0) for rank in range(len(ranks))}
        threads = [
            threading.Thread(target=self._run, args=(rank, what)) for rank, what in enumerate(ranks)
        ]
        for thread in threads:
            thread.start()
        self._turns[0].release()
        for thread in threads:
            thread.join()
        if self._left <= 0:
            raise StuckError

    def _run(self, rank: int, what: Callable[[], None]) -> None:
        self._rank_by_thread[threading.get_ident()] = rank
        self._turns[rank].acquire()
        try:
            self.switch()
            what()
        except StuckError:
            pass
        finally:
            del self._turns[rank]
            if self._turns:
                self._next().release()

    def _next(self) -> threading.Semaphore:
        """Schedules some ranks rarely."""
        others = [rank for rank in self._turns if rank not in self._patient]
        if others and self._random.random() < 0.9:
            return self._turns[self._random.choice(others)]
        return self._turns[self._random.choice(list(self._turns))]

    def switch(self, *_: object) -> None:
        """Lets other ranks run first, or not."""
        mine = self._turns.get(self._rank_by_thread.get(threading.get_ident(), -1))
        if mine is None:
            return
        self._left -= 1
        if self._left <= 0:
            raise StuckError
        following = self._next()
        if following is not mine:
            following.release()
            mine.acquire()


class Words:
    """The board: others may come before each access."""

    def __init__(self, words: memoryview, switch: Callable[[], None]) -> None:
        self._words = words
        self._switch = switch

    def __getitem__(self, at: int) -> int:
        self._switch()
        return int(self._words[at])

    def __setitem__(self, at: int, value: int) -> None:
        self._switch()
        self._words[at] = value
        self._switch()


@dataclass
class World:
    """Ranks of one machine and what torch has of them."""

    turns: Turns
    programs: Sequence[Sequence[Call]]
    backend: str = "gloo"
    #: Calls that torch has taken, by number and rank.
    taken: dict[int, dict[int, Call]] = field(default_factory=dict)
    told: dict[int, CollectiveMismatchError] = field(default_factory=dict)
    #: Calls that torch has got with one number, and that do not belong together.
    mixed: list[dict[int, Call]] = field(default_factory=list)

    def run(self) -> "World":
        n = len(self.programs)
        memory = NodeMemory.create(n)
        real = memory.board
        memory.board = lambda group: Words(real(group), self.turns.switch)  # type: ignore[method-assign, assignment, return-value]
        ranks = [
            Recorder(memory, rank, rank, lambda file: 0, (), callbacks=Callbacks())
            for rank in range(n)
        ]
        self.turns.run([lambda rank=rank: self._run(ranks[rank]) for rank in range(n)])  # type: ignore[misc]
        return self

    def _run(self, recorder: Recorder) -> None:
        n = len(self.programs)
        info = GroupInfo.of(pg_id="g", name="0", ranks=tuple(range(n)), backend=self.backend)
        counters = GroupCounters(info)
        try:
            for call in self.programs[recorder.rank]:
                self._call(recorder, counters, call)
        except FreedError:
            pass
        except CollectiveMismatchError as error:
            self.told[recorder.rank] = error

    def _call(self, recorder: Recorder, counters: GroupCounters, call: Call) -> None:
        switch, writer = self.turns.switch, recorder.writer
        site = Site(file="cell", line=call.line)
        recorder.sites.here = lambda depth=0: (  # type: ignore[method-assign]
            writer.text(site, lambda: site),
            None,
        )
        known = recorder.signatures.find((call,), lambda: signature_of(call))
        digest = counters.digest
        record = recorder.collective(counters, known)
        switch()
        if call.is_refused:
            writer.complete(record, time.monotonic_ns(), 0, Failure("raised", "RuntimeError: no"))
            switch()
            recorder.withdraw(counters, digest)
            return
        while call.is_blocked and not self.told:
            switch()
        taken = self.taken.setdefault(counters.seq, {})
        taken[recorder.rank] = call
        if any(not belong(call, other) for other in taken.values()):
            self.mixed.append(taken)
        switch()
        if call.is_async:
            recorder.opened(record, None)
        else:
            slot = writer.begin_wait(threading.get_ident(), record, time.monotonic_ns())
        while len(taken) < len(self.programs):
            switch()
            if self.told or self.mixed:
                raise FreedError
        if not call.is_async:
            writer.end_wait(slot)
        writer.complete(record, time.monotonic_ns(), 5)


def signature_of(call: Call) -> Signature:
    shapes = ((call.size,),)
    return Signature(
        kind="collective", op=call.op, input_sizes=shapes, input_dtypes=("float32",),
        tensors=1, output_sizes=shapes, input_splits=call.splits[0], output_splits=call.splits[1],
    )  # fmt: skip


def belong(one: Call, other: Call) -> bool:
    return (one.op, one.size) == (other.op, other.size)


class Clock:
    """Continues only while a rank waits; then others get their turn."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, _: float) -> None:
        self._now += 0.05
        self._turns.switch()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    def run(seed: int, *programs: Sequence[Call], backend: str = "gloo") -> World:
        turns = Turns(seed, patient=[seed % (len(programs) + 1)])
        monkeypatch.setattr(mismatch_board, "time", Clock(turns))
        return World(turns, programs, backend).run()

    return run


SAME = [
    refused("reduce_scatter"),
    refused("reduce_scatter", 2),
    Call("reduce_scatter_tensor"),
    refused("all_reduce"),
    Call("barrier", is_async=True),
    refused("all_reduce"),
    refused("all_reduce"),
    Call("barrier"),
]


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_call_that_torch_refuses_is_not_compared_with_the_next_call(run: Any, ranks: int):
    for seed in range(60):
        world = run(seed, *[SAME] * ranks)
        assert not world.told, (seed, world.told)
        assert [len(taken) for taken in world.taken.values()] == [ranks] * 3


UNEQUAL = {
    "op": [[Call("all_reduce")], [Call("barrier")]],
    "async": [[Call("all_reduce", is_async=True)], [Call("barrier")]],
    "size": [[Call("all_reduce")], [Call("all_reduce", 2)], [Call("all_reduce")]],
    "all": [[Call("all_reduce")], [Call("barrier")], [Call("broadcast")]],
    "order": [
        [Call("barrier"), Call("all_reduce"), Call("broadcast")],
        [Call("barrier"), Call("broadcast"), Call("all_reduce")],
    ],
    "after a refusal": [
        [refused("all_reduce"), Call("barrier"), Call("all_reduce", 3)],
        [refused("all_reduce"), Call("barrier"), Call("all_reduce", 4)],
    ],
    "behind a refusal": [
        [refused("all_reduce", line=1), Call("barrier", line=2)],
        [refused("all_reduce", line=1), Call("broadcast", line=3)],
    ],
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_calls_that_do_not_belong_together_are_told_before_torch_has_both(run: Any, name: str):
    for seed in range(60):
        world = run(seed, *UNEQUAL[name])
        assert world.told, seed
        assert not world.mixed, seed
        assert "disagree in" in str(next(iter(world.told.values())))


def uneven(wanted: tuple[int, ...], sent: tuple[int, ...], line: int = 1) -> Call:
    return Call("all_to_all_single", 3, line, splits=(sent, wanted))


def test_uneven_splits(run: Any):
    for seed in range(40):
        assert not run(seed, [uneven((1, 2), (1, 2))], [uneven((2, 1), (2, 1))]).told
        assert run(seed, [uneven((1, 2), (1, 2))], [uneven((1, 1), (2, 1))]).told
        refusing = replace(uneven((1, 2), (9, 9)), is_refused=True)
        assert not run(seed, *[[refusing, Call("barrier", line=2)]] * 2).told


def test_a_call_of_nccl_that_does_not_return_counts_as_taken_after_a_while(run: Any):
    for seed in range(20):
        blocked = replace(Call("all_reduce"), is_blocked=True)
        world = run(seed, [blocked], [replace(Call("barrier"), is_blocked=True)], backend="nccl")
        assert world.told, seed
        late = [refused("all_reduce"), Call("barrier")]
        assert not run(seed, late, late, backend="nccl").told
