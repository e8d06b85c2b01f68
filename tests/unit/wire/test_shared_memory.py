"""Segments of shared memory are leased to readers and used again after the last release."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from nbddp.errors import BadMessageError
from nbddp.wire.message_types import ValueHeader
from nbddp.wire.values import shared_memory as arena_module
from nbddp.wire.values.shared_memory import Arena, SegmentUnreachableError, attach, is_supported

pytestmark = pytest.mark.skipif(not is_supported(), reason="no memfd on this system")

PIECES = [b"pickle", b"a" * 70_000, b"", b"b" * 100]


def written(arena: Arena, pieces: list[bytes] = PIECES, readers: tuple[int, ...] = (-1,)):
    header = arena.write(pieces, readers)
    assert header is not None
    return header


def ignore(number: int) -> None:
    pass


def contents(header: ValueHeader) -> list[bytes]:
    attached = attach(header, ignore)
    return [bytes(attached.pickle), *map(bytes, attached.buffers)]


def python(script: str) -> "subprocess.Popen[str]":
    """Another process of this machine that runs ``script`` with headers on its stdin."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    )


def answer(script: str, header: ValueHeader) -> str:
    with python(script) as process:
        out, _ = process.communicate(msgspec.json.encode(header).decode() + "\n", timeout=30)
    assert process.returncode == 0
    return out


READER = """
import sys, msgspec
from nbddp.wire.values.shared_memory import attach
from nbddp.wire.message_types import (ValueHeader)
released = []
attached = attach(msgspec.json.decode(sys.stdin.readline(), type=ValueHeader), released.append)
"""

OWNER = """
import sys, msgspec
from nbddp.wire.values.shared_memory import Arena
arena = Arena()
print(msgspec.json.encode(arena.write([b"pickle", b"x" * 100_000])).decode(), flush=True)
sys.stdin.read()
"""


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# --- two processes -----------------------------------------------------------------------------


def test_writes_of_a_reading_process_reach_no_other():
    arena = Arena()
    header = written(arena)
    script = READER + (
        "print(bytes(attached.pickle), [len(b) for b in attached.buffers])\n"
        "assert bytes(attached.buffers[0]) == b'a' * 70_000\n"
        "attached.buffers[0][:] = b'z' * 70_000\n"
        "attached.pickle[:] = b'broken'\n"
        "print(bytes(attached.buffers[0][:3]))"
    )
    assert answer(script, header).splitlines() == ["b'pickle' [70000, 0, 100]", "b'zzz'"]
    assert contents(header) == PIECES
    arena.close()


def test_a_value_outlives_its_owner():
    with python(OWNER) as owner:
        assert owner.stdout is not None
        header = msgspec.json.decode(owner.stdout.readline(), type=ValueHeader)
        attached = attach(header, ignore)
        owner.kill()
    assert bytes(attached.buffers[0]) == b"x" * 100_000
    attached.buffers[0][:2] = b"yy"
    assert bytes(attached.buffers[0][:3]) == b"yyx"


def test_a_dead_owners_segment_is_unreachable_and_the_caller_learns_it():
    with python(OWNER) as owner:
        assert owner.stdout is not None
        header = msgspec.json.decode(owner.stdout.readline(), type=ValueHeader)
        owner.kill()
    released: list[int] = []
    with pytest.raises(SegmentUnreachableError, match="cannot be opened"):
        attach(header, released.append)
    assert released == [header.segment]


def test_a_forked_child_does_not_end_the_lease_of_its_parent():
    arena = Arena()
    script = READER + (
        "import os\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    del attached\n"
        "    os._exit(len(released))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), len(released))\n"
        "del attached\n"
        "print(len(released))"
    )
    assert answer(script, written(arena)).split() == ["0", "0", "1"]
    arena.close()


# --- leases ------------------------------------------------------------------------------------


def test_a_lease_ends_with_the_last_view():
    arena = Arena()
    header = written(arena)
    released: list[int] = []
    attached = attach(header, released.append)
    first, last = attached.buffers[0], attached.buffers[2][10:20]
    del attached
    gc.collect()
    assert released == []
    del first
    assert released == []
    del last
    assert released == [header.segment]
    arena.close()


def test_views_are_writable_and_aligned():
    arena = Arena()
    attached = attach(written(arena, [b"abc", b"d", b"ee"]), ignore)
    assert not any(view.readonly for view in [attached.pickle, *attached.buffers])
    ctypes = pytest.importorskip("ctypes")
    addresses = [ctypes.addressof(ctypes.c_char.from_buffer(view)) for view in attached.buffers]
    assert [address % 64 for address in addresses] == [0, 0]
    arena.close()


def test_a_released_segment_is_used_again_under_another_number():
    arena = Arena()
    first = written(arena)
    arena.release(first.segment)
    second = written(arena, [b"p", b"other"])
    assert second.segment_path == first.segment_path
    assert second.segment != first.segment
    assert contents(second) == [b"p", b"other"]
    with pytest.raises(SegmentUnreachableError, match="not that of this machine"):
        attach(first, ignore)
    arena.close()


def test_a_segment_is_not_written_before_all_readers_have_released_it():
    arena = Arena()
    first = written(arena, readers=(0, 1))
    arena.release(first.segment, 0)
    arena.release(first.segment, 0)  # twice is not two readers
    arena.release(first.segment, 7)
    second = written(arena, [b"p", b"other"], readers=(0, 1))
    assert second.segment_path != first.segment_path
    assert contents(first) == PIECES
    arena.release(first.segment, 1)
    assert arena.leased_count == 1
    third = written(arena, [b"p", b"third"], readers=(0,))
    assert third.segment_path == first.segment_path
    arena.close()


def test_a_late_release_does_not_free_a_newer_write():
    arena = Arena()
    first = written(arena)
    arena.release(first.segment)
    second = written(arena)
    arena.release(first.segment)
    assert arena.leased_count == 1
    arena.release(second.segment)
    assert arena.leased_count == 0
    arena.close()


def test_a_reader_that_is_gone_holds_nothing():
    arena = Arena()
    both, one = written(arena, readers=(0, 1)), written(arena, readers=(1,))
    arena.release_all(1)
    assert arena.leased_count == 1
    arena.release(both.segment, 0)
    assert arena.leased_count == 0
    assert both.segment_path != one.segment_path
    arena.close()


def test_a_write_without_readers_is_free_at_once():
    arena = Arena()
    assert arena.write(PIECES, ()) is not None
    assert (arena.leased_count, arena.free_bytes > 0) == (0, True)
    arena.close()


# --- limits ------------------------------------------------------------------------------------


def test_free_memory_and_segments_are_bounded_and_nothing_is_left_open():
    before = descriptors()
    arena = Arena(keep_bytes=400_000, keep_segments=2, max_segments=8)
    headers = [written(arena, [b"p", b"x" * 150_000]) for _ in range(5)]
    for header in headers:
        arena.release(header.segment)
    assert 300_000 <= arena.free_bytes <= 400_000
    assert descriptors() - before == 4  # two for each of two segments
    big = written(arena, [b"p", b"x" * 500_000])
    arena.release(big.segment)
    assert arena.free_bytes <= 400_000
    arena.close()
    assert (arena.free_bytes, descriptors()) == (0, before)


def test_too_many_leases_are_declined():
    arena = Arena(max_segments=2)
    first, _ = written(arena), written(arena)
    assert arena.write(PIECES) is None
    arena.release(first.segment)
    assert arena.write(PIECES) is not None
    arena.close()


def test_a_free_segment_that_is_too_small_makes_room_for_a_larger_one():
    arena = Arena(max_segments=1)
    arena.release(written(arena).segment)
    large = [b"p", b"x" * 3_000_000]
    assert contents(written(arena, large)) == large
    arena.close()


def test_close_keeps_what_is_attached_and_refuses_more():
    before = descriptors()
    arena = Arena()
    header = written(arena)
    attached = attach(header, ignore)
    arena.close()
    arena.close()
    assert arena.write(PIECES) is None
    assert bytes(attached.buffers[0]) == PIECES[1]
    arena.release(header.segment)
    del attached
    assert descriptors() == before


def test_an_arena_without_descriptors_declines(monkeypatch: pytest.MonkeyPatch):
    def fail(name: str, flags: int) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", fail)
    assert Arena().write(PIECES) is None


@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()])
def test_a_write_that_fails_leases_nothing(monkeypatch: pytest.MonkeyPatch, error: BaseException):
    def fail(*_: object) -> None:
        raise error

    arena = Arena()
    with monkeypatch.context() as patch:
        patch.setattr(arena_module, "_write_all", fail)
        if isinstance(error, OSError):
            assert arena.write(PIECES) is None
        else:
            with pytest.raises(KeyboardInterrupt):
                arena.write(PIECES)
    assert arena.leased_count == 0
    assert contents(written(arena)) == PIECES
    arena.close()


# --- headers that lie --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"segment": 12345}, SegmentUnreachableError),
        ({"segment_size": 2**21}, SegmentUnreachableError),
        ({"segment_path": "/proc/1/fd/999999"}, SegmentUnreachableError),
        ({"segment_path": "/etc/passwd"}, BadMessageError),
        ({"segment_path": "/proc/self/fd/../../../etc/passwd"}, BadMessageError),
        ({"pickle_bytes": 2**40}, BadMessageError),
        ({"pickle_bytes": -1}, BadMessageError),
        ({"buffer_bytes": (5, -5)}, BadMessageError),
    ],
)
def test_a_wrong_header_is_refused_and_released_once(
    change: dict[str, object], error: type[Exception]
):
    arena = Arena()
    header = msgspec.structs.replace(written(arena), **change)
    released: list[int] = []
    with pytest.raises(error):
        attach(header, released.append)
    gc.collect()
    assert released == [header.segment]
    arena.close()
