"""The line of the user's code from which commands at a prompt look: ``up``, ``down``, ``where``.

Runs in: the rank process, in the thread that has stopped.
"""

import types

from nbddp.rank.collectives.recording.call_sites import Sites
from nbddp.wire.flight_recorder import Site


class LookedPlace:
    """A line of the stack, at first the innermost one.

    Args:
        sites: knows the user's code.
        frame: of the innermost line; None: not known.
    """

    def __init__(self, sites: Sites, frame: types.FrameType | None) -> None:
        self._sites = sites
        self.innermost = frame
        self.frame = frame  #: the frame from which commands look
        self._level = 0  #: lines outwards

    def move(self, lines: int) -> None:
        """Move outwards, or inwards if negative, as far as there are lines, and print the line."""
        frames = self._sites.frames(self.innermost)
        if not frames:
            _print("no line of the user's code is running")
            return
        wanted = self._level + lines
        self._level = min(max(wanted, 0), len(frames) - 1)
        self.frame = frames[self._level]
        end = "" if wanted == self._level else f" ({'outer' if lines > 0 else 'inner'}most line)"
        _print(f"> {_described(self._sites.site_of(self.frame))}{end}")

    def print_stack(self) -> None:
        """Print the lines that have led there; `move` marks one of them."""
        if self.innermost is None:
            _print("no line of the user's code is running")
        for level, site in enumerate(self._sites.stack(self.innermost)):
            mark = "" if self.frame is self.innermost else "> " if level == self._level else "  "
            _print(f"{mark}{_described(site)}")


def _described(site: Site) -> str:
    return f"{site}: {site.source}" if site.source else str(site)


def _print(text: str) -> None:
    print(text)  # noqa: T201 - output of the cell
