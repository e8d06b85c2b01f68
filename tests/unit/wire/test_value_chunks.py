"""Values in chunks: every size arrives, and chunks that do not fit are refused."""

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nbddp.errors import BadMessageError, TransferError
from nbddp.wire.message_types import ValueHeader
from nbddp.wire.values import pickling
from nbddp.wire.values.pickling import Reassembler, decode_value, encode_value, split
from tests.support.pickled_values import DTYPES, assert_equal, never

# --- any value ---------------------------------------------------------------------------------


sizes = st.integers(0, 3000)


leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | sizes.map(lambda n: np.arange(n, dtype=np.int32))
    | sizes.map(lambda n: torch.arange(n, dtype=torch.float64))
    | st.sampled_from(DTYPES[:4]).map(lambda dtype: torch.ones(1500, 2, dtype=dtype).t())
)


nested = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=15,
)


# A slow machine is no failure.
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(value=nested, chunk_bytes=st.integers(50, 40_000))
def test_any_value_arrives_in_chunks_of_any_size(value: Any, chunk_bytes: int):
    header, frames = encode_value(value)
    reassembler = Reassembler()
    done = None
    for part, parts, pieces in split(header, frames, chunk_bytes):
        assert done is None
        assert sum(memoryview(piece).nbytes for piece in pieces) <= chunk_bytes
        copies = [bytes(piece) for piece in pieces]
        done = reassembler.add("key", header, part, parts, copies)
        assert (done is not None) == (part == parts - 1)
    assert done is not None
    assert_equal(decode_value(header, done, never), value)


# --- chunks that do not fit --------------------------------------------------------------------


HEADER = ValueHeader(pickle_bytes=10, buffer_bytes=(0, 100))


def test_chunks_of_several_values_may_be_mixed():
    reassembler = Reassembler()
    assert reassembler.add("a", HEADER, 0, 2, [b"p" * 10, b"x" * 40]) is None
    assert reassembler.add("b", HEADER, 0, 2, [b"q" * 10]) is None
    first = reassembler.add("a", HEADER, 1, 2, [b"y" * 60])
    second = reassembler.add("b", HEADER, 1, 2, [b"z" * 100])
    assert first is not None
    assert second is not None
    assert list(map(bytes, first)) == [b"p" * 10, b"", b"x" * 40 + b"y" * 60]
    assert list(map(bytes, second)) == [b"q" * 10, b"", b"z" * 100]


@pytest.mark.parametrize(
    "messages",
    [
        [(HEADER, 0, 1, [b"p" * 10, b"", b"x" * 99])],
        [(HEADER, 0, 1, [b"p" * 10, b"x" * 100])],
        [(HEADER, 0, 2, [b"p" * 11])],
        [(HEADER, 0, 2, [b"p" * 10, b"x" * 101])],
        [(HEADER, 0, 2, [b"p" * 10, b"x" * 100])],
        [(HEADER, 0, 2, [b"p" * 10]), (HEADER, 1, 2, [b"x" * 99])],
        [(HEADER, 0, 2, [b"p" * 10]), (HEADER, 1, 2, [b"x" * 100, b"y"])],
        [(HEADER, 0, 3, [b"p" * 10]), (HEADER, 2, 3, [b"x" * 100])],
        [(HEADER, 0, 3, [b"p" * 10]), (HEADER, 0, 3, [b"p" * 10])],
        [(HEADER, 0, 3, [b"p" * 10]), (HEADER, 1, 2, [b"x" * 100])],
        [
            (HEADER, 0, 2, [b"p" * 10]),
            (ValueHeader(pickle_bytes=10, buffer_bytes=(100,)), 1, 2, [b"x" * 100]),
        ],
        [(HEADER, 1, 2, [b"p" * 10])],
        [(HEADER, 0, 0, [])],
        [(HEADER, 0, -1, [])],
        [(ValueHeader(pickle_bytes=-1, buffer_bytes=()), 0, 2, [])],
        [(ValueHeader(pickle_bytes=10, buffer_bytes=(-5,)), 0, 2, [b"p" * 5])],
        [(ValueHeader(pickle_bytes=10, buffer_bytes=(10**7,)), 0, 9, [b"p" * 5])],
        [(msgspec.structs.replace(HEADER, segment=3), 0, 2, [])],
    ],
)
def test_chunks_that_do_not_fit_are_refused_and_forgotten(
    messages: list[tuple[ValueHeader, int, int, list[bytes]]],
):
    reassembler = Reassembler(max_bytes=1000)
    for message in messages[:-1]:
        assert reassembler.add("key", *message) is None
    with pytest.raises(BadMessageError):
        reassembler.add("key", *messages[-1])
    # The same key can be used again, and no memory is counted for the refused value.
    whole = ValueHeader(pickle_bytes=500, buffer_bytes=(500,))
    assert reassembler.add("key", whole, 0, 2, [b"p" * 500]) is None
    assert reassembler.add("key", whole, 1, 2, [b"x" * 500]) is not None


def test_unfinished_values_are_bounded_together_and_can_be_dropped():
    reassembler = Reassembler(max_bytes=150)
    assert reassembler.add("a", HEADER, 0, 2, [b"p" * 10]) is None
    with pytest.raises(BadMessageError, match="more than 150 bytes"):
        reassembler.add("b", HEADER, 0, 2, [b"p" * 10])
    reassembler.drop("a")
    assert reassembler.add("b", HEADER, 0, 2, [b"p" * 10]) is None


def test_a_value_that_memory_cannot_hold_is_a_transfer_error(monkeypatch: pytest.MonkeyPatch):
    def fail(size: int) -> memoryview:
        raise MemoryError

    monkeypatch.setattr(pickling, "_new_buffer", fail)
    with pytest.raises(TransferError, match="no memory here"):
        Reassembler().add("key", HEADER, 0, 2, [b"p" * 10])


def test_large_buffers_of_a_reassembled_value_are_writable():
    tensor = torch.arange(1_000_000.0)
    header, frames = encode_value(tensor)
    reassembler, done = Reassembler(), None
    for part, parts, pieces in split(header, frames, 1_000_000):
        done = reassembler.add("key", header, part, parts, pieces)
    assert done is not None
    got = decode_value(header, done, never)
    got += 1
    assert got.equal(torch.arange(1.0, 1_000_001.0))
    assert got.data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize("frames", [[], [b"p" * 10], [b"p" * 10, b"", b"x" * 99]])
def test_frames_that_do_not_fit_the_header_are_refused(frames: list[bytes]):
    with pytest.raises(BadMessageError):
        decode_value(HEADER, frames, never)
