"""Debuggers of ranks: ``%ddp debug`` in a cell, and the front end's debugger in an nbddp kernel.

Runs in: the notebook's process. `debug` and `choose_debugger`: thread of the running cell;
`DebugForwarder`: threads of the kernel's control channel, and the hub thread.
"""

import atexit
import shutil
import sys
from collections.abc import Callable
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from nbddp.controller.pool import CellOptions, Pool
from nbddp.errors import COLLECTIVE_ERRORS, BadOptionError, CellError, NbddpError
from nbddp.line_breaks import with_line_breaks
from nbddp.notebook import front_end_request, session
from nbddp.wire.flight_recorder import LEFT_DEBUGGER
from nbddp.wire.messages import DebugEvent

#: A rank that computes in C answers later; the front end then gets an error.
_ANSWER_S = 10.0
_HAS_RAISED = "getattr(__import__('sys'), 'last_traceback', None) is not None"
#: Exceptions that follow from an error of another rank, or from an interrupt.
_CONSEQUENCES = COLLECTIVE_ERRORS | {"KeyboardInterrupt", "Unfinished", LEFT_DEBUGGER}


def debug(shell: InteractiveShell, *, ranks: str | None) -> None:
    """Open the debugger on one rank; returns when the user has left it.

    Args:
        shell: knows the number of the running cell.
        ranks: one rank; None: the one whose error made the last cell fail.

    Raises:
        BadOptionError: ``ranks`` is not one rank; it is None and the last error was not that of a
            cell; or the rank has raised nothing.
        NoPoolError: no pool is running.
    """
    pool = session.pool()
    rank = _last_failed(pool) if ranks is None else _one_rank(pool, ranks)
    if not pool.pull(_HAS_RAISED, ranks=rank):  # a pull is no cell: a fresh rank stays fresh
        raise BadOptionError(
            f"rank {rank} has raised no exception: there is nothing to debug. "
            "Next: breakpoint() in a cell opens the debugger there"
        )
    options = CellOptions(
        asks=False,  # a break point would come before the debugger
        ranks=pool.rank_set(rank),
        execution_count=front_end_request.execution_count(shell),
        cell_name="%ddp debug",
    )
    pool.run_cell("%debug", options)


def choose_debugger(shell: InteractiveShell, *, ranks: str | None) -> None:
    """Show or choose the rank of the front end's debugger.

    Args:
        shell: its kernel may be an nbddp kernel.
        ranks: one rank; None: the rank stays as it is.

    Raises:
        BadOptionError: ``ranks`` is not one rank, or the kernel is not an nbddp kernel.
        NoPoolError: a rank is named and no pool is running.
    """
    forwarder = getattr(getattr(shell, "kernel", None), "debug_forwarder", None)
    if not isinstance(forwarder, DebugForwarder):
        raise BadOptionError(
            "%ddp debugger: this kernel's debugger knows the notebook's own process only. "
            "Next: `nbddp kernel install` adds one that debugs ranks; %ddp debug works everywhere"
        )
    if ranks is None:
        print(f"the front end's debugger works on rank {forwarder.rank}")
        return
    forwarder.move_to(_one_rank(session.pool(), ranks))
    print(
        with_line_breaks(
            f"the front end's debugger works on rank {forwarder.rank}: switch it off and on again, "
            "then set its breakpoints"
        )
    )


class DebugForwarder:
    """Forwards requests of the Debug Adapter Protocol to one rank, and its events back.

    Args:
        publish: sends an event to the front end; the hub thread calls it.
        folder: holds the files that stand for cells; the front end asks for it before there are
            ranks. It is removed when the process exits.
    """

    def __init__(self, publish: Callable[[dict[str, Any]], None], folder: str) -> None:
        self._folder = folder
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self._publish = publish
        self.rank = 0
        self.is_on = False  #: the front end has switched it on

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request to the rank, and wait for its response.

        Returns:
            The response of the rank, or a failure that says why there is none.
        """
        try:
            session.await_start()
            pool = session.pool()
            pool.listeners.debug = self._on_event
            answer = pool.talk.debug(self.rank, request, _ANSWER_S, folder=self._folder)
        except NbddpError as error:
            return _failure(request, str(error))
        if answer is None:
            return _failure(request, f"rank {self.rank} does not answer")
        if request.get("command") in ("initialize", "disconnect"):
            self.is_on = request["command"] == "initialize"
        return answer.content or _failure(request, f"the debugger of rank {self.rank} is off")

    def move_to(self, rank: int) -> None:
        """Disconnect from the current rank, and forward to ``rank`` from now on."""
        self.ask({"type": "request", "seq": 0, "command": "disconnect", "arguments": {}})
        self.rank = rank

    def _on_event(self, event: DebugEvent) -> None:
        if event.rank == self.rank:
            self._publish(event.content)


def _failure(request: dict[str, Any], message: str) -> dict[str, Any]:
    return {
        "type": "response",
        "request_seq": request.get("seq", 0),
        "success": False,
        "command": request.get("command", ""),
        "message": message,
    }


def _one_rank(pool: Pool, text: str) -> int:
    ranks = pool.rank_set(text).ranks
    if len(ranks) != 1:
        raise BadOptionError(f"-r {text}: a debugger works on one rank. Next: -r {ranks[0]}")
    return ranks[0]


def _last_failed(pool: Pool) -> int:
    """The rank whose error made the last cell fail."""
    error = getattr(sys, "last_value", None)
    failed = error.by_rank if isinstance(error, CellError) else {}
    causes = [rank for rank, (name, _) in failed.items() if name not in _CONSEQUENCES]
    for rank in [*causes, *failed]:
        if rank < pool.world_size:
            return rank
    raise BadOptionError(
        "%ddp debug: the last error was not that of a rank. Next: %ddp debug -r RANK"
    )
