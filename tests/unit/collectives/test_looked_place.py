"""The lines of the user's code that have led to a stop, and the one from which commands look."""

import os
import sys
import types
from typing import Any

import pytest

from nbddp.rank.collectives.looked_place import LookedPlace
from nbddp.rank.collectives.recording.call_sites import OWN_FOLDER, Sites

_NO_WRITER: Any = None  # nothing is recorded
SITES = Sites(lambda file: 0, _NO_WRITER, ())


def stopped_in(depth: int) -> types.FrameType:
    """The frame of a function that has called itself."""
    return stopped_in(depth - 1) if depth else sys._getframe()


def test_code_of_a_package_whose_name_begins_with_ours_is_not_ours():
    file = f"{OWN_FOLDER.removesuffix(os.sep)}_extra{os.sep}train.py"
    found: list[types.FrameType] = []
    look = {"found": found, "frame": sys._getframe}
    exec(compile("found.append(frame())", file, "exec"), look)
    assert found[0] in SITES.frames(found[0])


@pytest.mark.parametrize("up", [1, 5, 1000])
def test_the_mark_is_at_the_line_that_was_moved_to(up: int, capsys: pytest.CaptureFixture[str]):
    place = LookedPlace(SITES, stopped_in(50))
    place.move(up)
    moved = capsys.readouterr().out.strip()
    place.print_stack()
    marked = [line for line in capsys.readouterr().out.splitlines() if line.startswith("> ")]
    assert marked == [moved.removesuffix(" (outermost line)")]
