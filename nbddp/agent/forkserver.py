"""How rank and store processes are made.

Runs in: the agent's thread, and for a moment in each new process.

    agent --multiprocessing--> fork server (torch loaded, one thread) --fork--> rank, store

The fork server is that of the standard library with `nbddp.rank.preload` preloaded: a rank costs a
fork instead of an import of torch. It inherits the environment of the agent, so variables that
torch reads at import (``TORCH_*``) are in force. Where fork cannot be used (macOS, Windows) each
rank is a fresh interpreter, by ``spawn``; all else is the same.
"""

import importlib
import multiprocessing
import os
import signal
import time
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from typing import Any

from nbddp.settings import StartMethod
from nbddp.wire.lifetime import IS_LINUX

_PRELOAD = "nbddp.rank.preload"
_LOOK_S = 0.005


class ProcessMaker:
    """Makes processes that run a function of `nbddp.rank`, which the agent must not import."""

    def __init__(self, method: StartMethod) -> None:
        self.forks = method == "fork" or (method == "auto" and IS_LINUX)
        # Process is an attribute of each concrete context, not of their base in the stubs.
        self._context: Any
        if self.forks:
            self._context = multiprocessing.get_context("forkserver")
            self._context.set_forkserver_preload([_PRELOAD])
        else:
            self._context = multiprocessing.get_context("spawn")

    def warm(self) -> None:
        """Begin to load torch in the fork server, without waiting for it."""
        if self.forks:
            forkserver.ensure_running()

    def fork_server_end(self, patience_s: float = 0.0) -> str:
        """How the fork server ended, and with it all its ranks; empty while it lives.

        Args:
            patience_s: wait so long for its end: what depends on it may show a moment earlier.
        """
        # The standard library keeps its number to itself.
        pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
        if not self.forks or pid is None:
            return ""
        give_up_at = time.monotonic() + patience_s
        while True:
            try:
                # It stays a zombie: the standard library collects it before it starts the next.
                found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return "the fork server ended"
            if found is not None:
                break
            if time.monotonic() >= give_up_at:
                return ""
            time.sleep(_LOOK_S)
        if found.si_code == os.CLD_EXITED:
            return f"the fork server ended (exit code {found.si_status})"
        return f"the fork server ended ({signal.Signals(found.si_status).name})"

    def start(self, module: str, launch: object, name: str) -> BaseProcess:
        """Run ``module.main(launch)`` in a new process; waits until the process exists."""
        process: BaseProcess = self._context.Process(
            target=_enter, args=(module, launch), name=name
        )
        process.start()
        return process


def _enter(module: str, launch: object) -> None:
    importlib.import_module(module).main(launch)
