"""``%ddp clear``: what it says of the break points that it removes."""

import pytest

from nbddp.controller.prompts.break_points import BreakPoints
from nbddp.notebook import session
from nbddp.notebook.magics import break_verbs


def test_a_removed_break_point_is_not_told_as_something_that_has_happened(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    points = BreakPoints()
    points.add(["all_reduce"])
    points.add([], on="deadlock")
    monkeypatch.setattr(session, "break_points", points)
    break_verbs.clear(None, numbers=[()])  # type: ignore[arg-type]  # no shell is used
    assert capsys.readouterr().out.splitlines() == [
        "break point 1 is removed: it no longer stops ranks before all_reduce",
        "break point 2 is removed: it no longer stops ranks before a proven deadlock is ended",
    ]
