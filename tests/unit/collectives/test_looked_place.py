"""The line from which commands at a prompt look is one of those that ``where`` prints."""

import sys
import types
from typing import Any

import pytest

from nbddp.rank.collectives.looked_place import LookedPlace
from nbddp.rank.collectives.recording.call_sites import Sites


def stopped_in(depth: int) -> types.FrameType:
    """The frame of a function that has called itself."""
    return stopped_in(depth - 1) if depth else sys._getframe()


@pytest.mark.parametrize("up", [1, 5, 1000])
def test_the_mark_is_at_the_line_that_was_moved_to(up: int, capsys: pytest.CaptureFixture[str]):
    no_writer: Any = None  # nothing is recorded
    place = LookedPlace(Sites(lambda file: 0, no_writer, ()), stopped_in(50))
    place.move(up)
    moved = capsys.readouterr().out.strip()
    place.print_stack()
    marked = [line for line in capsys.readouterr().out.splitlines() if line.startswith("> ")]
    assert marked == [moved.removesuffix(" (outermost line)")]
