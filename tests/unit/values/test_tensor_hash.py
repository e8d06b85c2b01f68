"""Fingerprints of tensors are equal exactly where the bits are equal."""

import pytest
import torch

from nbddp.rank.values import tensor_hash
from nbddp.wire.values.value_questions import BLOCK_BYTES

SIZES = [1, 7, 1000, BLOCK_BYTES // 4, BLOCK_BYTES // 4 + 3]


@pytest.mark.parametrize("size", SIZES)
def test_equal_bits_give_equal_fingerprints(size: int):
    tensor = torch.randn(size)
    assert tensor_hash.of_tensor(tensor) == tensor_hash.of_tensor(tensor.clone())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("where", [0, 0.5, 1])
def test_one_changed_bit_anywhere_changes_the_fingerprint(size: int, where: float):
    tensor = torch.randn(size)
    other = tensor.clone()
    other.view(torch.int32)[int(where * (size - 1))] ^= 1
    assert tensor_hash.of_tensor(tensor) != tensor_hash.of_tensor(other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_flipped_signs_do_not_cancel_out(dtype: torch.dtype):
    tensor = torch.arange(1, 257).to(dtype)
    assert tensor_hash.of_tensor(tensor) != tensor_hash.of_tensor(-tensor)
    for count in (2, 4, 64):
        other = tensor.clone()
        other[1 : 1 + 2 * count : 2] *= -1
        assert tensor_hash.of_tensor(tensor) != tensor_hash.of_tensor(other)


def test_order_counts():
    tensor = torch.randn(100_000)
    assert tensor_hash.of_tensor(tensor) != tensor_hash.of_tensor(tensor.flip(0))
    first, second = tensor_hash.blocks(torch.cat([torch.ones(1 << 18), torch.zeros(1 << 18)]))
    assert first != second


def test_bits_and_not_numbers():
    zeros, nans = torch.zeros(3), torch.full((3,), torch.nan)
    assert tensor_hash.of_tensor(zeros) != tensor_hash.of_tensor(-zeros)
    assert tensor_hash.of_tensor(nans) == tensor_hash.of_tensor(nans.clone())


def test_the_layout_of_a_tensor_in_memory_does_not_count():
    tensor = torch.randn(33, 17)
    wanted = tensor_hash.of_tensor(tensor.t().contiguous())
    assert tensor_hash.of_tensor(tensor.t()) == wanted
    within = torch.zeros(33 * 17 + 1)
    within[1:] = tensor.t().reshape(-1)
    assert tensor_hash.of_tensor(within[1:].view(17, 33)) == wanted  # not at a multiple of 8 bytes


def test_one_element_or_none_may_have_any_stride():
    for value in (0.0, 10.0):
        column = torch.full((1, 3), value)[:, 0]  # of stride 3, and contiguous for torch
        assert tensor_hash.blocks(column) == tensor_hash.blocks(torch.tensor([value]))
        assert tensor_hash.blocks(column.view(1, 1)) == tensor_hash.blocks(torch.tensor([value]))
    assert tensor_hash.blocks(torch.ones(0, 3)[:, 0]) == tensor_hash.blocks(torch.ones(0)) == []


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.0),
        torch.empty(0),
        torch.ones(5, dtype=torch.bool),
        torch.ones(5, dtype=torch.complex64).conj(),
        torch.ones(5).to(torch.float8_e4m3fn),
        torch.ones(5, requires_grad=True),
    ],
    ids=lambda tensor: f"{tensor.dtype}{tuple(tensor.shape)}",
)
def test_every_kind_has_one(tensor: torch.Tensor):
    assert len(tensor_hash.of_tensor(tensor)) == 16


def test_a_tensor_without_bytes_is_refused():
    with pytest.raises(NotImplementedError, match="sparse"):
        tensor_hash.of_tensor(torch.eye(3).to_sparse())
    with pytest.raises(NotImplementedError, match="meta"):
        tensor_hash.of_tensor(torch.empty(3, device="meta"))


def test_the_generator_of_the_user_is_left_alone():
    before = torch.get_rng_state()
    tensor_hash._weights.cache_clear()
    tensor_hash.of_tensor(torch.ones(3))
    assert torch.equal(before, torch.get_rng_state())


def test_a_tensor_whose_memory_was_freed_has_no_fingerprint():
    freed = torch.ones(64)
    freed.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="has no memory"):
        tensor_hash.of_tensor(freed)
