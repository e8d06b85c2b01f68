"""Copies of the buffers that an operation is about to write."""

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
    kept = copy_written([small, large, torch.ones(4, 4).t()])
    assert (len(kept.parts), kept.lost_bytes) == (1, large.nbytes + 64)
    halves = [torch.empty(rollback.LIMIT_BYTES // 8) for _ in range(3)]
    assert copy_written(halves).lost_bytes == halves[0].nbytes


def test_memory_that_was_exchanged_is_left_alone():
    tensor = torch.ones(2)
    kept = copy_written(tensor)
    tensor.data = torch.full((2,), 5.0)
    kept.put_back()
    assert tensor.tolist() == [5, 5]
