"""The failures of operations, as records have them."""

import pytest

from nbddp.errors import (
    CollectiveAbortedError,
    CollectiveMismatchError,
    CollectiveRefusedError,
    NbddpError,
)
from nbddp.rank.collectives.recording.recorder import failure_of
from nbddp.wire.flight_recorder import FailureKind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (KeyboardInterrupt(), "interrupted"),
        (CollectiveAbortedError("freed"), "freed"),
        (CollectiveMismatchError("sizes"), "collective"),
        (CollectiveRefusedError("a bad list"), "collective"),
        (RuntimeError("CollectiveAbortedError: so says the user's code"), "raised"),
        (NbddpError("KeyboardInterrupt"), "raised"),
        (type("KeyboardInterrupt", (Exception,), {})(), "raised"),  # only its name is the same
    ],
)
def test_the_kind_is_that_of_the_exception_and_not_of_its_text(
    error: BaseException, kind: FailureKind
):
    failure = failure_of(error)
    assert failure is not None
    assert failure.kind == kind


def test_the_text_is_for_readers():
    assert failure_of(None) is None
    for error, text in [(ValueError("bad: 3"), "ValueError: bad: 3"), (OSError(), "OSError")]:
        failure = failure_of(error)
        assert failure is not None
        assert failure.text == text
