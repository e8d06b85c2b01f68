"""Two blocks of a tensor are compared element by element."""

import math
import struct

import pytest
import torch

from nbddp.controller.values import blocks as blockwise
from nbddp.rank.values import tensor_hash


def one_block(dtype: str, first: torch.Tensor, second: torch.Tensor) -> blockwise.BlockDifference:
    one, other = (bytes(tensor_hash.as_bytes(each).tolist()) for each in (first, second))
    return blockwise.compare(dtype, 1 << 20, {0: one}, {0: other})


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.complex64,
        torch.complex128,
    ],
    ids=str,
)
def test_the_first_element_that_differs(dtype: torch.dtype):
    first = torch.zeros(100, dtype=dtype)
    second = first.clone()
    second[57] = 1
    second[90] = 1
    block = one_block(str(dtype).removeprefix("torch."), first, second)
    assert (block.element, block.max_abs) == (57, 1)
    assert block.values[0] in ("0", "0.0", "False", "0j")


def test_the_largest_difference_and_not_the_first():
    first = torch.tensor([1.0, 2.0, 3.0])
    block = one_block("float32", first, torch.tensor([1.0, 2.5, 1.0]))
    assert (block.element, block.max_abs, block.values) == (1, 2.0, ("2", "2.5"))


def test_a_dtype_that_python_does_not_know_still_has_an_index():
    first = torch.ones(5).to(torch.float8_e4m3fn)
    second = torch.tensor([1.0, 1, 2, 1, 1]).to(torch.float8_e4m3fn)
    block = one_block("float8_e4m3fn", first, second)
    assert (block.element, block.max_abs) == (2, None)
    assert block.values == ("0x38", "0x40")


@pytest.mark.parametrize(
    ("first", "second", "max_abs"),
    [
        (0.0, -0.0, 0.0),
        (math.inf, math.inf, 0.0),
        (math.inf, 1.0, math.inf),
        (math.nan, 1.0, math.nan),
        (math.inf, -math.inf, math.inf),
    ],
)
def test_odd_numbers(first: float, second: float, max_abs: float):
    one, other = struct.pack("dd", first, 1.0), struct.pack("dd", second, 1.0)
    block = blockwise.compare("float64", 16, {0: one}, {0: other})
    assert block.max_abs is None or block.max_abs == max_abs or math.isnan(max_abs)
    assert (block.element is None) == (one == other)


def test_blocks_count_on():
    one = {3: bytes(8), 4: bytes(8)}
    other = {3: bytes(8), 4: bytes([0, 0, 0, 0, 1, 0, 0, 0])}
    assert blockwise.compare("int32", 8, one, other).element == 4 * 2 + 1


def test_index_of():
    shape = (3, 4, 5)
    for element in range(60):
        at = blockwise.index_of(element, shape)
        assert torch.arange(60).view(shape)[at] == element
    assert blockwise.index_of(0, ()) == ()
