"""How many random examples a property is tried with: a fifth in `make test`."""

from typing import Any

from hypothesis import settings

_of_ten = [10]


def try_fewer(mark_expression: str) -> None:
    """Called before tests are collected: runs without the tests that are marked `full` are short."""
    if "not full" in mark_expression:
        _of_ten[0] = 2


def examples(number: int) -> Any:
    """A decorator of a property: this many examples in `make test-full`."""
    return settings(max_examples=number * _of_ten[0] // 10, deadline=None)
