"""Copies of the buffers that an operation is about to write."""

import ctypes
from collections.abc import Callable, Iterator

import pytest
import torch

from nbddp.rank.collectives import rollback
from nbddp.rank.collectives.rollback import copy_written


def test_all_kinds_of_arguments():
    one, two = torch.arange(4.0), torch.arange(6).reshape(2, 3)
    for written in (one, [one], [[one], [two]], (one, two)):
        kept = copy_written(written)
        one.fill_(9)
        two.zero_()
        kept.put_back()
        assert one.tolist() == [0, 1, 2, 3]
        if len(kept.parts) > 1:
            assert two.tolist() == [[0, 1, 2], [3, 4, 5]]
        two.copy_(torch.arange(6).reshape(2, 3))
    for nothing in (object(), None, [], torch.ones(0)):
        assert (copy_written(nothing).parts, copy_written(nothing).lost_bytes) == ([], 0)


def test_autograd_does_not_see_the_copies():
    weight = torch.nn.Parameter(torch.ones(3))
    product = (weight * weight).sum()
    kept = copy_written([weight])
    with torch.no_grad():
        weight.data.fill_(7)
    version = weight._version
    kept.put_back()
    assert (weight._version, weight.tolist()) == (version, [1, 1, 1])
    product.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2, 2, 2]


def test_bytes_that_are_not_copied_are_counted():
    large = torch.empty(rollback.LIMIT_BYTES // 4 + 1)
    small = torch.ones(2)
    column = torch.ones(2, rollback.LIMIT_BYTES // 4)[:, 0]  # too much lies between its elements
    kept = copy_written([small, large, column])
    assert (len(kept.parts), kept.lost_bytes) == (1, large.nbytes + 8)
    halves = [torch.empty(rollback.LIMIT_BYTES // 8) for _ in range(3)]
    assert copy_written(halves).lost_bytes == halves[0].nbytes


def test_memory_that_was_exchanged_is_left_alone():
    tensor = torch.ones(2)
    kept = copy_written(tensor)
    tensor.data = torch.full((2,), 5.0)
    kept.put_back()
    assert tensor.tolist() == [5, 5]


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x.reshape(2, 3, 4).permute(2, 0, 1),
        lambda x: x[:, ::2],
        lambda x: x[1:, 1],
        lambda x: x[:, 1:3],
        lambda x: x[:1, :2].expand(3, 2),
        lambda x: x[0].unfold(0, 2, 1),
        lambda x: x.T[::2, 1:],
        lambda x: x.t()[::3, ::2],
        lambda x: x[::2].unfold(1, 2, 1),
        lambda x: x.flatten().unfold(0, 4, 1)[::2],
    ],
)
@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.bfloat16, torch.float32, torch.int64, torch.complex128]
)
def test_tensors_of_any_strides_are_restored_and_nothing_beside_them(
    view: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
):
    whole = torch.arange(24).reshape(6, 4).to(dtype)
    written = view(whole)
    expected = written.clone()
    numbers = torch.arange(24).reshape(6, 4)
    beside = torch.isin(numbers, view(numbers).flatten()).logical_not()
    kept = copy_written(written)
    assert kept.lost_bytes == 0
    whole.fill_(-1)
    kept.put_back()
    assert torch.equal(written, expected)
    assert bool(whole[beside].eq(-1).all())


def test_two_million_elements_with_gaps_are_restored_by_few_copies(
    monkeypatch: pytest.MonkeyPatch,
):
    """A copy for each element takes seconds."""
    copies: list[object] = []
    memmove = ctypes.memmove
    lines = rollback._lines

    def counted(target: int, source: bytes, size: int) -> object:
        copies.append(source)
        return memmove(target, source, size)

    def listed(tensor: torch.Tensor, unit: int) -> Iterator[slice]:
        for line in lines(tensor, unit):
            copies.append(line)
            yield line

    monkeypatch.setattr(ctypes, "memmove", counted)
    monkeypatch.setattr(rollback, "_lines", listed)
    whole = torch.zeros(1024, 2048, 2, dtype=torch.int8)
    kept = copy_written([whole[..., 0], whole[:, :1000, 1]], room=8 << 20)
    assert (len(kept.parts), kept.lost_bytes) == (2, 0)
    whole.fill_(1)
    kept.put_back()
    assert (int(whole[..., 0].sum()), int(whole[:, 1000:, 1].min())) == (0, 1)
    assert int(whole[:, :1000, 1].sum()) == 0
    assert len(copies) <= 1 + 1024
