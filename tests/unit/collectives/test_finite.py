"""Whether a tensor that is sent holds NaN or Inf, for each dtype that can."""

import pytest
import torch

from nbddp.rank.collectives.sanitizer import finite

_DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.complex64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize(("value", "found"), {1.0: "", "nan": "NaN", "inf": "Inf"}.items())
def test_a_value_that_is_not_finite_is_found(dtype: torch.dtype, value: str, found: str):
    assert finite.value_of(torch.tensor([1.0, float(value)]).to(dtype)) == found


def test_the_sum_of_finite_values_may_be_infinite():
    assert finite.value_of(torch.full((4,), torch.finfo(torch.float32).max)) == ""


@pytest.mark.parametrize("tensor", [torch.ones(2, dtype=torch.int64), torch.ones(2, device="meta")])
def test_other_tensors_hold_none(tensor: torch.Tensor):
    assert finite.value_of(tensor) == ""


class _Half(torch.nn.Module):
    def __init__(self) -> None:
        self.layer = torch.nn.Linear(2, 2)  # before that of the base class


def test_modules_that_are_not_part_of_others_are_found_beside_one_that_failed_to_begin():
    with pytest.raises(AttributeError) as caught:
        _Half()
    whole = torch.nn.Sequential(torch.nn.Linear(2, 2))
    roots = finite.root_modules()
    assert [sum(each is one for each in roots) for one in (whole, whole[0])] == [1, 0]
    half = caught.traceback[-1].locals["self"]
    assert not any(each is half for each in roots)
