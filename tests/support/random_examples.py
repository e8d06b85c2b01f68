"""How many random examples a property is tried with: a fifth in `make test`."""

from hypothesis import settings

_of_ten = [10]


def try_fewer(mark_expression: str) -> None:
    """A run without the tests marked `full` is short; called before tests are collected."""
    if "not full" in mark_expression:
        _of_ten[0] = 2


def examples(number: int) -> settings:
    """A decorator of a property: this many examples in `make test-full`."""
    return settings(max_examples=number * _of_ten[0] // 10, deadline=None)
