"""A value is walked to its leaves, and each leaf gets a text that is equal on equal ranks."""

import math
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from nbddp.rank.values import traversal


@dataclass
class Config:
    lr: float
    layers: list[int]


class Plain:
    def __init__(self) -> None:
        self.weight = torch.ones(2)
        self.me = self


Pair = namedtuple("Pair", "first second")  # noqa: PYI024 - users have such


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        (3, [""]),
        (torch.ones(2), [""]),
        ({"a": [1, {"b": 2}], 3: None}, ["['a'][0]", "['a'][1]['b']", "[3]"]),
        (Config(0.1, [1, 2]), [".lr", ".layers[0]", ".layers[1]"]),
        (Pair(1, 2), [".first", ".second"]),
        (nn.Linear(2, 2), [".weight", ".bias"]),
        (
            nn.BatchNorm1d(2, affine=False),
            [".running_mean", ".running_var", ".num_batches_tracked"],
        ),
        (Plain(), [".weight", ".me"]),
        ([], [""]),
        ({1, 2}, [""]),
        (list(range(1000)), [""]),
        (torch.Generator(), [".get_state()"]),
        (len, [""]),
        (Config, [""]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_leaves(value: object, paths: list[str]):
    assert [path for path, _ in traversal.walk(value)] == paths


def test_leaves_of_an_optimizer_are_its_state():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    leaves = dict(traversal.walk(optimizer))
    assert isinstance(leaves["['state'][0]['momentum_buffer']"], torch.Tensor)
    assert leaves["['param_groups'][0]['lr']"] == 0.1


def test_text_of_equal_things_is_equal():
    assert traversal.text_of({"b", "a"}) == traversal.text_of({"a", "b"})
    assert traversal.text_of(object()) == traversal.text_of(object()), "addresses do not count"
    assert traversal.text_of(1) != traversal.text_of(1.0)
    assert traversal.text_of(0.0) != traversal.text_of(-0.0)
    assert traversal.text_of(math.nan) == traversal.text_of(math.nan)


def test_functions_differ_where_their_code_does():
    def made(code: str) -> Any:
        names: dict[str, Any] = {}
        exec(code, names)
        return names["f"]

    first, same, other = made("f = lambda x: x + 1"), made("f = lambda x: x + 1"), made("f = abs")
    assert traversal.text_of(first) == traversal.text_of(same)
    assert traversal.text_of(first) != traversal.text_of(other)


def test_a_list_inside_of_itself_ends():
    value: list[Any] = [1]
    value.append(value)
    assert len(list(traversal.walk(value))) == 2
