"""Makes the processes of ranks and of the store.

Runs in: the agent's thread, and for a moment in each new process.

    agent --multiprocessing--> fork server (torch loaded, one thread) --fork--> rank, store

The fork server is that of the standard library with `nbddp.rank.preload` preloaded: a rank costs a
fork instead of an import of torch. It inherits the environment of the agent, so variables that
torch reads at import (``TORCH_*``) are in force. Where fork cannot be used (macOS, Windows) each
rank is a fresh interpreter, made by ``spawn``; all else is the same.
"""

import importlib
import multiprocessing
import os
import signal
import time
import traceback
from multiprocessing import forkserver
from typing import Any

from nbddp.agent.child_process import Child
from nbddp.settings import StartMethod
from nbddp.system import process_tree
from nbddp.wire.launch_specs import RankLaunch, StoreLaunch
from nbddp.wire.message_types import ForkServerEnd

_PRELOAD = "nbddp.rank.preload"
_POLL_S = 0.005
#: The end of the fork server may become visible this much later than that of the pipes from it.
END_SHOWS_S = 0.1
#: The system reports the end of a held process to its debugger before it reports it to the agent.
_HELD_S = 1.0


class ProcessMaker:
    """Makes processes that run a function of `nbddp.rank`, which the agent must not import."""

    def __init__(self, method: StartMethod) -> None:
        self.forks = method == "fork" or (method == "auto" and process_tree.IS_LINUX)
        # In the stubs, Process is an attribute of each concrete context, and not of their base.
        self._context: Any
        self._is_starting = False
        self._is_given_up = False
        if self.forks:
            self._context = multiprocessing.get_context("forkserver")
            self._context.set_forkserver_preload([_PRELOAD])
        else:
            self._context = multiprocessing.get_context("spawn")

    def warm(self) -> None:
        """Begin to load torch in the fork server, without waiting for it."""
        if self.forks:
            forkserver.ensure_running()

    @property
    def fork_server_pid(self) -> int:
        """Process id of the fork server; 0: there is none."""
        # The standard library has no public name for this number.
        return getattr(forkserver._forkserver, "_forkserver_pid", None) or 0

    def give_up_start(self) -> None:
        """Make every `start` raise, also one that waits for the fork server now.

        Another thread than that of `start` calls this.
        """
        self._is_given_up = True
        if self._is_starting and self.fork_server_pid:
            process_tree.kill_quietly(self.fork_server_pid, signal.SIGKILL)

    def end_if_held(self) -> None:
        """Kill a fork server that stays stopped, so that another can start.

        No process of the fork server lives when this is called.
        """
        if self._is_held():
            process_tree.kill_quietly(self.fork_server_pid, signal.SIGKILL)
            self.fork_server_end(_HELD_S)

    def _is_held(self) -> bool:
        """Return whether the fork server stays stopped in spite of SIGCONT."""
        return bool(self.fork_server_pid) and process_tree.is_held(self.fork_server_pid)

    def fork_server_end(self, patience_s: float = 0.0) -> ForkServerEnd | None:
        """Return how the fork server ended, which ends all its ranks; None while it lives.

        Args:
            patience_s: wait this long for its end, because the ends of processes that depend on it
                may become visible a moment earlier.
        """
        pid = self.fork_server_pid
        if not pid:
            return None
        give_up_at = time.monotonic() + patience_s
        while True:
            try:
                # It stays a zombie until the standard library collects it and starts the next one.
                status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return ForkServerEnd(exit_code=None)
            if status is not None:
                break
            if time.monotonic() >= give_up_at:
                return None
            time.sleep(_POLL_S)
        has_exited = status.si_code == os.CLD_EXITED
        return ForkServerEnd(exit_code=status.si_status if has_exited else -status.si_status)

    def start(self, module: str, launch: object, name: str) -> Child:
        """Run ``module.main(launch)`` in a new process, and wait until the process exists.

        Raises:
            RuntimeError: the fork server stays stopped, or the notebook has ended.
        """
        if self._is_given_up:
            raise RuntimeError("the notebook has ended")
        if self._is_held():
            raise RuntimeError(
                f"the fork server (pid {self.fork_server_pid}) is stopped and does not continue; "
                "does a debugger hold it? Next: let it go, or %ddp restart"
            )
        process = self._context.Process(target=_enter, args=(module, launch), name=name)
        self._is_starting = True
        try:
            process.start()
        finally:
            self._is_starting = False
        return Child(process)


def _enter(module: str, launch: object) -> None:
    try:
        main = importlib.import_module(module).main
    except BaseException as error:  # such as that of a torch that lacks a library
        _tell(launch, error)
        raise
    main(launch)


def _tell(launch: object, error: BaseException) -> None:
    """Write why a process does not begin to where the agent looks for that of a rank, or a store.

    The standard error of this process is that of the agent, and its exit code says nothing.
    """
    if isinstance(launch, RankLaunch):
        os.write(launch.stderr.take(), "".join(traceback.format_exception(error)).encode())
    elif isinstance(launch, StoreLaunch):
        os.write(launch.answer.take(), f"{type(error).__name__}: {error}".encode())
