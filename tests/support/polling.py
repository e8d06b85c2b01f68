"""Waits until a condition is true: the only wait that tests use."""

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")

_INTERVAL_S = 0.01


def poll_until(predicate: Callable[[], T], timeout_s: float = 30.0) -> T:
    """Call ``predicate`` until what it returns is true, and return that.

    An AssertionError that it raises counts as "not yet", so that a predicate may be a list of
    asserts. The test fails when ``timeout_s`` is over; the message says what was seen last.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        seen: object
        try:
            value = predicate()
        except AssertionError as error:
            seen = error
        else:
            if value:
                return value
            seen = repr(value)
        if time.monotonic() >= deadline:
            pytest.fail(f"not true after {timeout_s:g} s; seen last: {seen}", pytrace=True)
        time.sleep(_INTERVAL_S)
