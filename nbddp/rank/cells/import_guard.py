"""Imports of libraries: an interrupt waits for them, and the notebook names long ones.

Runs in: the rank process. `ImportWatch` in the main thread, in the handler of signals;
`ImportReports` on the I/O thread.

An exception in the middle of an import leaves incomplete modules: each later import of them fails,
and only a fresh process helps. The first DDP of a process imports ``torch._dynamo``, which takes
seconds; ranks that were interrupted in it because another rank had died were lost.
"""

import os
import sys
import sysconfig
import threading
import time
import types

from nbddp.rank.agent_link import Link
from nbddp.rank.cells.shell import RankShell
from nbddp.wire.messages import ImportChanged

#: Interval at which the main thread is looked at.
_LOOK_S = 0.25
#: An interrupt is delayed at most this long in one cell: in processor time of the thread, which a
#: busy machine does not use up, and by the clock.
_LIMIT_S, _LONGEST_S = 10.0, 30.0
_IMPORTLIB = "<frozen importlib._bootstrap>"
#: Folders of libraries. An import of a user's module delays nothing, because it may run forever.
_libraries = tuple(
    {f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib", "platlib")}
)


class ImportWatch:
    """Decides whether an interrupt has to wait for an import."""

    def __init__(self) -> None:
        self._cell = 0
        self._since = self._used = 0.0

    def is_importing(self, frame: types.FrameType | None, cell: int) -> bool:
        """Return whether ``frame`` is in the import of a library, which has not taken long yet.

        Args:
            frame: the frame in which the signal is handled.
            cell: number of the cell that runs.
        """
        if not is_in_library_import(frame):
            return False
        now, used = time.monotonic(), time.thread_time()
        if cell != self._cell:
            self._cell, self._since, self._used = cell, now, used
        return used - self._used < _LIMIT_S and now - self._since < _LONGEST_S


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


def imported_library(frame: types.FrameType | None) -> str:
    """Return the name of the library module whose import has led to a frame; empty: none has.

    Of modules that import each other it is the first one. The locals of frames are not read,
    because the frames may be running.
    """
    name = ""
    while frame is not None:
        code, caller = frame.f_code, frame.f_back
        if (
            code.co_name == "<module>"
            and code.co_filename.startswith(_libraries)
            and caller is not None
            and caller.f_code.co_filename == _IMPORTLIB
        ):
            name = str(frame.f_globals.get("__name__", ""))
        frame = caller
    return name


class ImportReports:
    """Reports which library the cell imports.

    Args:
        shell: knows the cell that runs.
        link: sends the reports.
        rank: this rank.
    """

    def __init__(self, shell: RankShell, link: Link, rank: int) -> None:
        self._shell = shell
        self._link = link
        self._rank = rank
        self._main = threading.main_thread().ident or 0
        self._look_at = 0.0
        self._run_id: str | None = None
        self._module = ""  # reported for this cell

    def look(self) -> None:
        """Report a change since the last look."""
        now = time.monotonic()
        run_id = self._shell.run_id
        if now < self._look_at or run_id is None:
            return
        self._look_at = now + _LOOK_S
        if run_id != self._run_id:
            self._run_id, self._module = run_id, ""
        module = imported_library(sys._current_frames().get(self._main))
        if module != self._module:
            self._module = module
            self._link.send(ImportChanged(run_id=run_id, rank=self._rank, module=module))
