"""Ranks without progress are reported as quiet; the pipe of `faulthandler` is read."""

import itertools
import os
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nbddp.agent.stack_pipe import StackPipe
from nbddp.agent.stall_monitor import QuietRanks, StallMonitor, place_of
from nbddp.wire.flight_recorder.schema import LoopVariable, Operation, Signature, Site
from nbddp.wire.flight_recorder.writer import NodeMemory, Writer
from nbddp.wire.messages import RankAt, RanksStalled
from tests.support.machines import make_spec

Seen = tuple[int, int, bool]  # version, open operations, in a cell
OPEN: Seen = (1, 1, True)
NONE_OPEN: Seen = (1, 0, True)
OUTSIDE: Seen = (1, 1, False)
TICK_S = 0.125  # a sum of them is exact


def told(*moments: dict[int, Seen]) -> list[tuple[int, ...]]:
    """The quiet ranks that each tick reports, from the state of each rank at that tick."""
    quiet_ranks = QuietRanks(quiet_s=2 * TICK_S)
    found = []
    for number, looks in enumerate(moments):
        now = 100.0 + number * TICK_S
        for rank, (version, open_count, in_cell) in looks.items():
            quiet_ranks.update(rank, version, open_count, in_cell, now)
        found.append(quiet_ranks.news(now))
    return found


# --- who is quiet, and when --------------------------------------------------------------------


def test_a_rank_is_quiet_after_a_while_and_told_again():
    assert told(*[{0: OPEN}] * 10) == [(), (), (0,), (), (), (), (0,), (), (), ()]


@pytest.mark.parametrize("look", [NONE_OPEN, OUTSIDE])
def test_a_rank_without_open_operations_is_not_quiet(look: Seen):
    assert told(*[{0: look}] * 5) == [()] * 5


def test_a_rank_that_moves_is_not_quiet():
    assert told(*[{0: (number // 2, 1, True)} for number in range(12)]) == [()] * 12


def test_a_rank_that_moves_and_stops_again_waits_the_full_time_again():
    moments = [{0: (int(number >= 3), 1, True)} for number in range(7)]
    assert told(*moments) == [(), (), (0,), (), (), (0,), ()]


def test_each_rank_that_joins_is_told_at_once():
    moments: list[dict[int, Seen]] = [
        {0: OPEN, 1: OPEN, 2: (min(number, 3), 1, True)} for number in range(7)
    ]
    assert told(*moments) == [(), (), (0, 1), (), (), (0, 1, 2), ()]


def test_the_end_of_a_cell_elsewhere_is_news():
    """The quiet ranks may wait for the rank that has just left its cell."""
    moments: list[dict[int, Seen]] = [{0: OPEN, 1: (number, 0, number < 4)} for number in range(6)]
    assert told(*moments) == [(), (), (0,), (), (0,), ()]


def test_a_new_cell_starts_the_wait_again():
    moments: list[dict[int, Seen]] = [{0: (1, 1, number != 3)} for number in range(8)]
    assert told(*moments) == [(), (), (0,), (), (), (), (0,), ()]


def test_a_rank_that_is_gone_is_not_told():
    quiet_ranks = QuietRanks(quiet_s=0.2)
    quiet_ranks.update(0, *OPEN, 100.0)
    quiet_ranks.update(1, *OPEN, 100.0)
    quiet_ranks.forget(1)
    assert quiet_ranks.news(101.0) == (0,)
    quiet_ranks.clear()
    assert quiet_ranks.news(102.0) == ()


@pytest.mark.parametrize("seed", range(50))
def test_quiet_ranks_have_not_moved_and_are_never_forgotten(seed: int):
    """A reported rank was unchanged for long enough; such a rank is always reported."""
    rng = random.Random(seed)
    quiet_ranks = QuietRanks(quiet_s=2 * TICK_S)
    now = 100.0
    version = dict.fromkeys(range(3), 0)
    changed = dict.fromkeys(range(3), now)
    told_at = dict.fromkeys(range(3), 0.0)
    for number in range(200):
        now += rng.choice([TICK_S / 8, TICK_S, TICK_S, TICK_S, 7 * TICK_S]) if number else 0
        for rank in range(3):
            if rng.random() < 0.1 * rank:
                version[rank] += 1
                changed[rank] = now
            quiet_ranks.update(rank, version[rank], 1, True, now)
        quiet = quiet_ranks.news(now)
        for rank in range(3):
            if rank in quiet:
                assert now - changed[rank] >= 2 * TICK_S
                told_at[rank] = now
            elif now - changed[rank] >= 2 * TICK_S:
                assert now - told_at[rank] < 0.5


# --- the memory of a node ----------------------------------------------------------------------


class Scene:
    """Two ranks whose records the test writes; a clock that it turns."""

    def __init__(self) -> None:
        self.watch = StallMonitor(node=1, quiet_s=0.2)
        self.now = 50.0
        self.ranks: dict[int, Any] = {}
        self.memories: list[NodeMemory] = []

    def start(self, local_rank: int) -> Writer:
        """A process of that rank."""
        fd = self.watch.prepare(make_spec(2, 2), local_rank)
        assert fd is not None
        self.memories.append(NodeMemory.attach(os.dup(fd), 2))
        self.ranks[2 + local_rank] = SimpleNamespace(pipes=SimpleNamespace(run_id=None))
        return Writer(self.memories[-1], local_rank)

    def begin(self, rank: int, run_id: str | None = "run") -> None:
        self.ranks[rank].pipes.run_id = run_id

    def look(self, after_s: float = TICK_S) -> RanksStalled | None:
        self.now += after_s
        return self.watch.check(cast("Any", self.ranks), self.now)


def issue(writer: Writer, op: str = "all_reduce") -> int:
    signature = writer.text(op, lambda: Signature(kind="collective", op=op))
    return writer.issue(signature, 0, 0, 0, 1, 0, -1, 0, 0, 7, 0, 1)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.watch.close()


def test_ranks_are_watched_only_while_a_cell_runs(scene: Scene):
    writer = scene.start(0)
    scene.start(1)
    issue(writer)
    assert [scene.look() for _ in range(5)] == [None] * 5
    assert scene.watch.next_at == float("inf")
    quiet = RanksStalled(node=1, ranks=(2,))
    for _ in range(2):  # open operations wait the full time again in the second cell
        scene.begin(2)
        assert [scene.look(), scene.look(0.05), scene.look()] == [None] * 3
        assert scene.now < scene.watch.next_at < scene.now + 0.2
        assert [scene.look(), scene.look(0.01), scene.look(0.01)] == [quiet, None, None]
        scene.begin(2, None)
        assert [scene.look() for _ in range(9)] == [None] * 9
        assert scene.watch.next_at == float("inf")


def test_a_fresh_process_finds_fresh_memory(scene: Scene):
    writer = scene.start(0)
    neighbour = scene.start(1)
    issue(neighbour)
    issue(writer)
    scene.begin(2)
    assert [found.signature.op for found in scene.watch.records(2)[1]] == ["all_reduce"]
    del scene.ranks[2]
    scene.watch.forget(2)
    assert scene.watch.records(2) == (0, ())
    scene.start(0)
    scene.begin(2)
    assert scene.watch.records(2) == (0, ())
    assert len(scene.watch.records(3)[1]) == 1
    assert [scene.look() for _ in range(5)] == [None] * 5


def test_plain_pools_have_no_memory(scene: Scene):
    import msgspec

    spec = msgspec.structs.replace(make_spec(2), plain=True)
    assert scene.watch.prepare(spec, 0) is None
    assert scene.watch.records(0) == (0, ())


@pytest.mark.parametrize("seed", range(20))
def test_memory_that_a_rank_has_written_over_is_no_error(scene: Scene, seed: int):
    writer = scene.start(0)
    for number in range(100):
        issue(writer, f"op{number}")
    rng = random.Random(seed)
    region = scene.memories[0].region(0)
    for _ in range(3000):
        at = rng.choice([rng.randrange(len(region)), rng.randrange(5000)])
        region[at] = rng.choice([rng.getrandbits(63), -1, rng.randrange(1 << 20)])
    scene.begin(2)
    for _ in range(5):
        scene.look()
    scene.watch.records(2)


# --- the pipe of faulthandler ------------------------------------------------------------------

DUMP = (
    b"Stack (most recent call first):\n"
    b'  File "/lib/asyncio/base_events.py", line 1936 in _run_once\n'
    b'  File "<ipython-input-1>", line 1 in <module>\n'
    b'  File "<string>", line 1 in <module>\n'
)
CRASH = b'Fatal Python error: Aborted\n\nStack (most recent call first):\n  File "x", line 1 in f\n'


@pytest.fixture
def make_pipe() -> Iterator[Callable[[], StackPipe]]:
    made: list[StackPipe] = []

    def make() -> StackPipe:
        made.append(StackPipe())
        return made[-1]

    yield make
    for pipe in made:
        os.close(pipe.write_fd)
        pipe.close()


def test_a_dump_is_whole_when_the_main_thread_is_in_it(make_pipe: Callable[[], StackPipe]):
    pipe = make_pipe()
    for byte in DUMP:
        assert not pipe.has_whole_dump
        os.write(pipe.write_fd, bytes([byte]))
        assert pipe.read()
    assert pipe.has_whole_dump
    assert pipe.dump() == DUMP.decode()
    pipe.forget_dumps()
    assert (pipe.dump(), pipe.has_whole_dump, pipe.dump_bytes) == ("", False, 0)
    assert pipe.crash() == ""


@pytest.mark.parametrize("parts", list(itertools.permutations([DUMP, DUMP[:70], CRASH])))
def test_a_crash_is_told_from_dumps(make_pipe: Callable[[], StackPipe], parts: list[bytes]):
    """A dying rank writes no dump after its last words; before them there may be half of one."""
    pipe = make_pipe()
    before = b"".join(itertools.takewhile(lambda part: part is not CRASH, parts))
    os.write(pipe.write_fd, before)
    pipe.read()
    expected = (DUMP if DUMP in before else before).decode()
    assert pipe.dump() == expected
    os.write(pipe.write_fd, CRASH)
    assert pipe.crash() == CRASH.decode()
    assert pipe.dump() == expected
    pipe.forget_dumps()
    assert (pipe.dump(), pipe.crash()) == ("", CRASH.decode())


def test_the_last_whole_dump_counts(make_pipe: Callable[[], StackPipe]):
    """A rank may answer in Python when it returns from C code, in which it has answered already."""
    pipe = make_pipe()
    later = DUMP.replace(b"line ", b"line 1")
    os.write(pipe.write_fd, DUMP + later)
    pipe.read()
    assert pipe.dump() == later.decode()
    os.write(pipe.write_fd, DUMP[:50])
    pipe.read()
    assert pipe.dump() == later.decode()


def test_repeated_dumps_of_a_rank_are_not_kept(make_pipe: Callable[[], StackPipe]):
    pipe = make_pipe()
    for _ in range(100):
        os.write(pipe.write_fd, DUMP * 100)
        pipe.read()
    assert pipe.dump_bytes <= 1 << 20
    assert pipe.has_whole_dump


# --- where ranks are -----------------------------------------------------------------------------


def operation(
    record: int, line: int = 4, step: int | None = None, run_id: str = "run"
) -> Operation:
    return Operation(
        record_id=record,
        pg_id="0",
        signature=Signature(kind="collective", op="all_reduce"),
        state="completed",
        time_created_ns=record * 1000,
        site=Site(line=line),
        run_id=run_id,
        iteration=() if step is None else (LoopVariable(name="step", value=step),),
    )


def test_a_rank_is_at_the_iteration_that_its_records_name_last():
    found = place_of(2, "run", [operation(1, step=6), operation(2, step=7), operation(3)], None)
    assert found == RankAt(
        run_id="run", rank=2, line=4, iteration=(LoopVariable(name="step", value=7),)
    )


def test_a_rank_without_records_of_the_cell_is_at_its_line():
    line = Site(line=9), 5
    assert place_of(2, "run", [], None) is None
    assert place_of(2, "run", [operation(1, run_id="before")], line) == RankAt(
        run_id="run", rank=2, line=9
    )


def test_a_line_that_was_seen_much_later_replaces_the_iteration():
    found = place_of(2, "run", [operation(1, step=7)], (Site(line=9), 10**10))
    assert found == RankAt(run_id="run", rank=2, line=9)


def test_places_are_told_when_they_change(scene: Scene):
    writer = scene.start(0)
    scene.begin(2)
    writer.note_line(writer.text("site", lambda: Site(line=3)), 1)
    told = []
    for number in range(30):
        if number == 20:
            writer.note_line(writer.text("other", lambda: Site(line=8)), 2)
        scene.look()
        told += scene.watch.places(cast("Any", scene.ranks), scene.now)
    assert [place.line for place in told] == [3, 8]
