"""The Debug Adapter Protocol on a rank, by debugpy.

Runs in: the rank process. Thread ``nbddp-debug``, which starts with the first request, owns an
event loop, so that a front end gets answers while the main thread is stopped at a breakpoint.

    nbddp-io --Debug--> nbddp-debug --> `nbddp.rank.cells.debugpy_client`
    nbddp-io <--Debugged, DebugEvent--
"""

import asyncio
import importlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

from ipykernel import compiler

from nbddp.rank.agent_link import Link
from nbddp.rank.cells.shell import RankShell
from nbddp.wire.messages import Debug, DebugEvent, Debugged

if TYPE_CHECKING:
    from nbddp.rank.cells.debugpy_client import RankDebugger

#: ``STATE_RUN`` and ``STATE_SUSPEND`` of ``_pydevd_bundle.pydevd_constants``.
_RUNS, _SUSPENDED = 1, 2
_NO_STEP = -1  #: otherwise it would stop at the next line
#: Prefix of threads that must go on while the user's threads are stopped.
_OWN_THREADS = "nbddp-"


class DebugAdapter:
    """Forwards requests of the front end to debugpy in this process.

    Args:
        shell: of this rank.
        link: to the agent.
        loop: event loop of the main thread, which has to start debugpy.
    """

    def __init__(self, shell: RankShell, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        self._shell = shell
        self._link = link
        self._main_loop = loop
        self._loop: asyncio.AbstractEventLoop | None = None
        self._debugger: RankDebugger | None = None

    def handle(self, request: Debug) -> None:
        """Take a request of the front end. Called by the I/O thread."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="nbddp-debug", daemon=True).start()
        _exempt_own_threads()
        asyncio.run_coroutine_threadsafe(self._answer(request), self._loop)

    async def _answer(self, request: Debug) -> None:
        try:
            content = await self._debug(request.content, request.folder)
        except Exception as error:  # noqa: BLE001 - the front end shows errors of debugpy
            content = {
                "type": "response",
                "request_seq": request.content.get("seq", 0),
                "success": False,
                "command": request.content.get("command", ""),
                "message": f"rank {self._shell.rank}: {type(error).__name__}: {error}",
            }
        rank = self._shell.rank
        self._link.send(Debugged(number=request.number, rank=rank, content=content))

    async def _debug(self, content: dict[str, Any], folder: str) -> dict[str, Any]:
        if self._debugger is None:
            self._debugger = self._make()
        self._debugger.folder = folder or compiler.get_tmp_directory()
        response = await self._debugger.process_request(content)
        # A front end identifies a cell by the file that holds its text.
        self._shell.name_cells(self._debugger.file_of if self._debugger.is_started else None)
        return response

    def _make(self) -> "RankDebugger":
        # Ranks come from a fork server with frozen modules, which need no validation.
        os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
        module = importlib.import_module("nbddp.rank.cells.debugpy_client")  # loads debugpy
        debugger: RankDebugger = module.RankDebugger(
            self._send_event, lambda: asyncio.wrap_future(self._call_in_main_thread(module.listen))
        )
        self._stops = asyncio.get_running_loop().create_task(debugger.serve_stops())
        return debugger

    def _call_in_main_thread(self, call: Any) -> Any:
        async def run() -> Any:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self._main_loop)

    def _send_event(self, event: dict[str, Any]) -> None:
        self._link.send(DebugEvent(rank=self._shell.rank, content=event))


def leave_stop() -> None:
    """Make an interrupted main thread leave a breakpoint of debugpy.

    Where pydevd uses `sys.monitoring`, from Python 3.12, it would stop again at the next line that
    it sees, because it only knows that the thread has to be suspended.
    """
    info = _main_thread()
    if info is not None and info.pydev_state == _SUSPENDED:
        info.pydev_state = _RUNS
        info.pydev_step_cmd, info.pydev_step_stop = _NO_STEP, None


def end_step() -> None:
    """End a step over the last line of a cell; otherwise it would stop in code after the cell."""
    info = _main_thread()
    if info is not None:
        info.pydev_step_cmd, info.pydev_step_stop = _NO_STEP, None


def _main_thread() -> Any:
    """Return what pydevd notes about the main thread; None: it is not loaded."""
    module: Any = sys.modules.get("_pydevd_bundle.pydevd_additional_thread_info")
    return module and module.set_additional_thread_info(threading.main_thread())


def _exempt_own_threads() -> None:
    """Mark our threads as pydevd marks its own threads, because it stops all others."""
    for thread in threading.enumerate():
        if thread.name.startswith(_OWN_THREADS):
            thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
            thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]
