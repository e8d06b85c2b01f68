"""Values that may be copied or kept."""

import numpy as np
import pytest
import torch

from nbddp.rank.values.plain_values import is_plain

WEIGHT = torch.nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(
    "value", [1, "a", None, {"a": [1, (2.0, b"c")]}, np.float64(1), np.ones(2), torch.ones(2)]
)
def test_values_that_refer_to_nothing_else_are_plain(value: object):
    assert is_plain(value)


@pytest.mark.parametrize(
    "value", [np.log, np.vectorize(len), np.array([object()]), [WEIGHT], {"a": object()}, print]
)
def test_other_values_are_not_plain(value: object):
    assert not is_plain(value)
