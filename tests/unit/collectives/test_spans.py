"""Two tensors share memory or do not: compared with the bytes that they really have."""

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nbddp.rank.collectives.sanitizer.spans import overlap, span_of

_BUFFER = torch.zeros(60, dtype=torch.int32)


@st.composite
def views(draw: st.DrawFn) -> torch.Tensor:
    """A view of one buffer, with any strides, also of elements that lie in one place."""
    sizes = draw(st.lists(st.integers(1, 4), max_size=3))
    strides = [draw(st.integers(0, 8)) for _ in sizes]
    extent = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    offset = draw(st.integers(0, max(0, 59 - extent)))
    if offset + extent > 59:
        sizes, strides = [], []
    return _BUFFER.as_strided(sizes, strides, offset)


def _elements(view: torch.Tensor) -> set[int]:
    numbers = torch.arange(60, dtype=torch.int32)
    return set(
        numbers.as_strided(view.shape, view.stride(), view.storage_offset()).flatten().tolist()
    )


@given(views(), views())
@example(_BUFFER[26], _BUFFER.as_strided((2, 2, 3), (2, 3, 3), 19))  # some elements coincide
@settings(max_examples=500, deadline=None)
def test_views_of_one_buffer(one: torch.Tensor, other: torch.Tensor):
    first, second = span_of(one), span_of(other)
    assert first is not None
    assert second is not None
    assert overlap(first, second) is bool(_elements(one) & _elements(other))


def test_tensors_without_memory_have_no_span():
    assert span_of(torch.empty(0)) is None
    assert span_of(torch.empty(2, device="meta")) is None
    assert span_of(torch.ones(2).to_sparse()) is None


def test_a_span_knows_that_its_memory_was_freed():
    tensor = torch.ones(2)
    span = span_of(tensor, lasts=True)
    assert span is not None
    assert not span.is_gone
    del tensor
    assert span.is_gone


def test_too_many_elements_with_gaps_are_not_compared():
    buffer = torch.zeros(200, 200)
    one, other = span_of(buffer[::2, ::2]), span_of(buffer[::3, ::3])
    assert one is not None
    assert other is not None
    assert not overlap(one, other)
