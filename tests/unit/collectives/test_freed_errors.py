"""Errors that an abort has caused are told from those that the user's code raised before it."""

from types import SimpleNamespace
from typing import Any

import pytest

from nbddp.errors import CollectiveAbortedError
from nbddp.rank.collectives.service import Collectives


@pytest.mark.parametrize(
    ("error", "raised_at", "was_freed"),
    [
        (RuntimeError("Connection closed by peer"), 6.0, True),
        (KeyboardInterrupt(), 6.0, True),
        (RuntimeError("a wrong shape"), 4.0, False),
        (ValueError("a wrong value"), 6.0, False),
        (CollectiveAbortedError("freed"), 4.0, True),
    ],
)
def test_an_error_before_the_abort_is_the_users(
    error: BaseException, raised_at: float, was_freed: bool
):
    """Its traceback may still be formatted when the operations are aborted."""
    service: Any = SimpleNamespace(_abort=SimpleNamespace(fired_at=5.0))
    assert Collectives.was_freed(service, error, raised_at) is was_freed
