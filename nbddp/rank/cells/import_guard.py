"""Delays an interrupt until the library module that is being imported is complete.

Runs in: the rank process, main thread, in the handler of signals.

An exception in the middle of an import leaves incomplete modules: each later import of them fails,
and only a fresh process helps. The first DDP of a process imports ``torch._dynamo``, which takes
seconds; ranks that were interrupted in it because another rank had died were lost.
"""

import sysconfig
import time
import types

#: An interrupt is delayed at most this long in one cell.
_LIMIT_S = 10.0
_IMPORTLIB = "<frozen importlib._bootstrap>"
#: Folders of libraries. An import of a user's module delays nothing, because it may run forever.
_libraries = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


class ImportWatch:
    """Decides whether an interrupt has to wait for an import."""

    def __init__(self) -> None:
        self._cell = 0
        self._since = 0.0

    def is_importing(self, frame: types.FrameType | None, cell: int) -> bool:
        """Return whether ``frame`` is in the import of a library, which has not taken long yet.

        Args:
            frame: the frame in which the signal is handled.
            cell: number of the cell that runs.
        """
        if not is_in_library_import(frame):
            return False
        now = time.monotonic()
        if cell != self._cell:
            self._cell, self._since = cell, now
        return now - self._since < _LIMIT_S


def is_in_library_import(frame: types.FrameType | None) -> bool:
    """Return whether a module of a library is being executed for the first time."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename == _IMPORTLIB and code.co_name == "_load_unlocked":
            origin = getattr(frame.f_locals.get("spec"), "origin", None)
            if isinstance(origin, str) and origin.startswith(_libraries):
                return True
        frame = frame.f_back
    return False
