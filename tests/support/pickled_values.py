"""Values for tests of pickling, and their exact comparison."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch


def never(number: int) -> None:
    pytest.fail(f"write {number} is not in shared memory")


def assert_equal(left: Any, right: Any) -> None:
    """Same types, same values, same places of NaN; through containers."""
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert left.requires_grad == right.requires_grad
        torch.testing.assert_close(left, right, rtol=0, atol=0, equal_nan=True)
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_equal(left[key], right[key])
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_equal(one, other)
    elif dataclasses.is_dataclass(left):
        assert_equal(vars(left), vars(right))
    else:
        assert left == right


DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.int64,
    torch.complex64,
    torch.complex128,
]
