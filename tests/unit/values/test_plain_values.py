"""Values that may be copied or kept, and names that get the values back that they had."""

from typing import Any

import numpy as np
import pytest
import torch

from nbddp.rank.values import plain_values
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


def test_values_are_put_back_beside_a_function_of_numpy():
    names: dict[str, Any] = {"steps": 5, "log": np.log, "model": WEIGHT, "epoch": 1}
    plain_values.hold(names, ["epoch", "log", "model", "other", "steps"])
    names.update(steps=0, log=np.exp, model=None, epoch=0)
    plain_values.put_back(names, ["log", "model", "other", "steps"], only_plain=True)
    assert names == {"steps": 5, "log": np.exp, "model": None, "epoch": 0}
    plain_values.release()


def test_names_are_as_they_were_before_a_catch_up_that_ended_early():
    """Also where values were put back before."""
    names: dict[str, Any] = {"steps": 5, "model": WEIGHT, "mine": 1}
    plain_values.hold(names, ["model", "optimizer", "steps", "never"])
    names.update(steps=0, model=None, optimizer=2)
    plain_values.put_back(names, ["model", "steps"], only_plain=True)
    plain_values.roll_back(names)
    assert names == {"steps": 5, "model": WEIGHT, "mine": 1}
    plain_values.roll_back(names)
    assert names == {"steps": 5, "model": WEIGHT, "mine": 1}
