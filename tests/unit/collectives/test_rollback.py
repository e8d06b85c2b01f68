"""Copies of the buffers that an operation is about to write."""

from collections.abc import Callable

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
    ],
)
def test_tensors_of_any_strides_are_restored_and_nothing_beside_them(
    view: Callable[[torch.Tensor], torch.Tensor],
):
    whole = torch.arange(24.0).reshape(6, 4)
    written = view(whole)
    expected = written.clone()
    beside = torch.isin(whole, expected.flatten()).logical_not()
    kept = copy_written(written)
    assert kept.lost_bytes == 0
    whole.fill_(-1)
    kept.put_back()
    assert torch.equal(written, expected)
    assert bool(whole[beside].eq(-1).all())
