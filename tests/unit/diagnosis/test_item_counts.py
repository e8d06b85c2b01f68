"""The number of items of a loop on each rank, where the code alone tells it."""

import ast

import pytest

from nbddp.controller.diagnosis.control_flow import Code, no_sources
from nbddp.controller.diagnosis.definitions import Scope
from nbddp.controller.diagnosis.item_counts import item_count
from tests.support.looks import site


def counts(source: str) -> list[int | None]:
    """The number of iterations of the loop at the end of a cell, on two ranks."""
    text = f"{source}\n    pass"
    code = Code(text)
    line = text.count("\n") + 1
    loop = code.statements[-1]
    assert isinstance(loop, ast.For)
    scope = Scope(site(line), code, no_sources)
    return [item_count(loop.iter, scope, rank, 2) for rank in range(2)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("for x in [1, 2, 3]:", [3, 3]),
        ("for x in ('a', 'b'):", [2, 2]),
        ("for x in range(3 - rank):", [3, 2]),
        ("for x in range(3 if rank == 1 else 2):", [2, 3]),
        ("for x in range(1, 6, 2):", [3, 3]),
        ("n = 4\nfor x in range(n):", [4, 4]),
        ("items = [1, 2]\nfor x in items:", [2, 2]),
        ("items = [1, 2]\nfor i, x in enumerate(items):", [2, 2]),
        ("items = [1, 2]\nfor i in range(len(items)):", [2, 2]),
        ("for x in zip([1, 2], range(5)):", [2, 2]),
        ("for x in [1, 2] if ready else [3, 4]:", [2, 2]),
        ("for x in [rank] if rank else [1, 2]:", [2, 1]),
        ("for x in [f(i) for i in range(3)]:", [3, 3]),
    ],
)
def test_items_that_the_code_counts(source: str, expected: list[int]):
    assert counts(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "for x in loader:",
        "for x in [1, *more]:",
        "for x in [i for i in range(3) if ok(i)]:",
        "items = [1]\nitems.append(2)\nfor x in items:",
        "items = [1]\nfill(items)\nfor x in items:",
        "items = [1]\nitems[:] = load()\nfor x in items:",
        "items = [1]\nitems += load()\nfor x in items:",
        "for x in [1] if ready else [3, 4]:",
        "for x in range(0, 3, 0):",
        "for x in range(n):",
        "for x in zip([1], loader):",
    ],
)
def test_items_that_the_code_does_not_count(source: str):
    assert counts(source) == [None, None]
