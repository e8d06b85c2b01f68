"""Values at a glance: what is told of them, and that no code of theirs runs."""

from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from nbddp.rank.cells import name_lookup
from nbddp.rank.cells.glances import NoGlanceError, glance

# As the thread does that answers.
name_lookup.prepare(SimpleNamespace(Completer=SimpleNamespace()))  # type: ignore[arg-type]


def called(*_: object) -> Any:
    raise AssertionError("called")


class Net(torch.nn.Module):
    """A model of the user, with a representation that must not be asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.zeros_(self.fc.weight)

    __repr__ = called


class Wild:
    """Everything that it does calls code of the user."""

    def __init__(self) -> None:
        self.plain = 1

    loss = property(called)
    cached = cached_property(called)
    __repr__ = __hash__ = __eq__ = __len__ = __iter__ = __getitem__ = called


class WildList(list):  # type: ignore[type-arg]
    __iter__ = __len__ = __repr__ = called


class WildTensor(torch.Tensor):
    __torch_function__: Any = classmethod(called)


class Dynamic:
    __getattr__ = called


NAMES: dict[str, Any] = {
    "step": 7,
    "losses": [1.5, 0.25],
    "many": list(range(1000)),
    "nested": [[[[1]]]],
    "config": {"lr": 0.1, "name": "sgd"},
    "pair": ("a",),
    "text": "x" * 1000,
    "huge": 10**5000,
    "x": torch.ones(2, 3),
    "flags": torch.tensor([True, False]),
    "empty": torch.empty(0),
    "half": torch.tensor(0.5),
    "meta": torch.empty(3, device="meta"),
    "array": np.zeros((2, 2)),
    "model": Net(),
    "wild": Wild(),
    "wilds": {"w": Wild(), "l": WildList()},
    "wild_tensor": torch.ones(2).as_subclass(WildTensor),
    "dynamic": Dynamic(),
    "_hidden": 1,
}


def shell(**names: Any) -> Any:
    return SimpleNamespace(user_ns={**names, "rank": 1}, predefined={"rank": 1}, user_ns_hidden={})


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("step", "7"),
        ("losses", "[1.5, 0.25]"),
        ("losses[-1]", "0.25"),
        ("config", "{'lr': 0.1, 'name': 'sgd'}"),
        ("config['lr']", "0.1"),
        ("many", "[0, 1, 2, 3, 4, 5, … (1,000 in all)]"),
        ("many[step]", "7"),
        ("nested", "[[[list of 1]]]"),
        ("pair", "('a',)"),
        ("text", repr("x" * 200) + "… (1,000 in all)"),
        ("huge", "int of 16,610 bits"),
        ("x", "Tensor  float32 (2, 3)  1, 1, 1, …"),
        ("x[0]", "Tensor  float32 (3,)  1, 1, 1"),
        ("x.grad", "None"),
        ("x.dtype", "an object of torch.dtype"),
        ("flags", "Tensor  bool (2,)  1, 0"),
        ("empty", "Tensor  float32 (0,)"),
        ("half", "Tensor  float32 ()  0.5"),
        ("meta", "Tensor  float32 (3,) on meta"),
        ("array", "ndarray  float64 (2, 2)"),
        ("model", "Net (a module: fc)"),
        ("model.fc.weight", "Parameter  float32 (1, 2)  0, 0"),
        ("model.training", "True"),
        ("rank", "1"),
        ("wild", f"an object of {__name__}.Wild"),
        ("wild.plain", "1"),
        ("wilds", f"{{'w': an object of {__name__}.Wild, 'l': an object of {__name__}.WildList}}"),
        ("wild_tensor", f"an object of {__name__}.WildTensor (a tensor)"),
        ("missing", "NameError: name 'missing' is not defined"),
        ("model.fx", "AttributeError: "),
        ("losses[9]", "IndexError: "),
        ("config['x']", "KeyError: 'x'"),
    ],
)
def test_a_value_is_told_in_a_few_words(code: str, text: str):
    told = glance(shell(**NAMES), code)
    assert told.startswith(text) if text.endswith(": ") else told == text


@pytest.mark.parametrize(
    "code",
    [
        "x.sum()",
        "x + 1",
        "x = 1",
        "import os",
        "%ddp who",
        "def",
        "wild.loss",
        "wild.cached",
        "wild[0]",
        "config[wild]",
        "dynamic.name",
        "(yes := 1)",
        "[1 for _ in x]",
    ],
)
def test_what_would_run_code_is_refused(code: str):
    with pytest.raises(NoGlanceError):
        glance(shell(**NAMES), code)


def test_without_code_the_users_variables_are_told():
    told = glance(shell(b=2, a=[1], _hidden=1, np=np, fun=len, Net=Net), "")
    assert told.splitlines() == ["b = 2", "a = [1]"]
    assert glance(shell(), "") == "no variables"
