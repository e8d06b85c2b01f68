"""A part of a table of cases for `make test`, and the whole table for `make test-full`."""

from collections.abc import Iterable
from typing import Any

import pytest


def one_in(number: int, cases: Iterable[Any]) -> list[Any]:
    """Parameters for each case of a table; all but the first of each group are marked `full`.

    Args:
        number: the size of a group: 4 leaves each fourth case unmarked.
        cases: their names, or cases that have a name.
    """
    return [
        pytest.param(
            case, id=getattr(case, "name", case), marks=[pytest.mark.full] if index % number else []
        )
        for index, case in enumerate(cases)
    ]
