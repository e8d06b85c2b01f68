"""The names that hold random numbers of statements that run again."""

from typing import Any

import pytest

from nbddp.rank.random_draws import Draws

_LOADER = """
from torch.utils.data import DataLoader
import torch
class Data(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): return torch.rand(1) if noisy else torch.ones(1)
class Eager(torch.utils.data.Sampler):
    def __iter__(self): return iter(torch.randperm(4).tolist())
noisy = False
data = torch.arange(4.0)
"""


def drawn(*statements: str) -> tuple[str, ...]:
    namespace: dict[str, Any] = {}
    exec(_LOADER, namespace)
    draws = Draws(namespace)
    for statement in statements:
        code = compile(statement, "cell", "exec")
        with draws.watching(code):
            exec(code, namespace)
    return draws.names()


@pytest.mark.parametrize(
    ("loader", "names"),
    [
        ("DataLoader(data, batch_size=2)", ()),
        ("DataLoader(Data())", ()),
        ("DataLoader(data, shuffle=True)", ("s", "x")),
        ("DataLoader(data, batch_size=None, sampler=Eager())", ("s", "x")),
    ],
)
def test_the_base_seed_of_a_loader_is_no_random_number_of_a_value(
    loader: str, names: tuple[str, ...]
):
    assert drawn(f"for x in {loader}: s = x.sum()") == names


@pytest.mark.parametrize(
    "statement",
    [
        "for x in DataLoader(data): s = torch.rand(1)",
        "s = torch.rand(1)\nfor x in DataLoader(data): pass",
        "noisy = True\nfor x in DataLoader(Data()): s = x",
    ],
)
def test_other_draws_beside_a_base_seed_count(statement: str):
    assert "s" in drawn(statement)


def test_two_loops_over_a_loader_and_a_value_without_a_draw():
    assert drawn("for i in range(2):\n    for x in DataLoader(data): s = x") == ()
    assert drawn("y = torch.rand(1)", "for x in DataLoader(data): s = x + y") == ("s", "x", "y")
