"""All exceptions that users of nbddp can see.

| error | when | what a caller does about it |
|---|---|---|
| `BadOptionError` | an option or argument is not legal | corrects it; nothing was changed |
| `NoTorchError` | torch is not installed where the ranks would run | installs it |
| `NoPoolError` | a pool is needed and none runs | starts one |
| `PoolExistsError` | a pool with other options runs already | stops or restarts it |
| `PoolStartError` | agents, store or ranks did not come up | reads the reason |
| `AgentJoinError` | an agent on another machine could not join a pool | reads the reason |
| `PoolInterruptedError` | the user interrupted a start, restart or stop | reads what runs now |
| `PoolBusyError` | a cell is running | waits for it, or interrupts it |
| `PoolBrokenError` | ranks are gone or stuck | restarts the pool |
| `CellError` | the cell raised on some ranks | fixes the cell |
| `DeadlockError` | ranks of the cell waited for what could never come | fixes the cell |
| `MismatchError` | ranks issued operations that do not match | fixes the cell |
| `CellInterruptedError` | the user interrupted the cell, or left it in the debugger | continues |
| `CellTimeoutError` | ``--timeout`` ran out | looks at the ranks that were late |
| `RankExitedError` | a rank's process ended | restarts the pool |
| `TransferError` | a value could not be pushed or pulled | corrects name or value |
| `TransferInterruptedError` | the user interrupted a transfer, or `vars` or `diff` | continues |
| `TooLargeError` | a display is larger than a message may be | shows a smaller one, or a file |

Raised on ranks, in the user's own line:

| error | when |
|---|---|
| `CollectiveAbortedError` | nbddp ended the operation in which this rank was blocked |
| `CollectiveFailedError` | the connection to another member of the group was lost |
| `CollectiveMismatchError` | the operation does not match that of another rank; nothing was sent |
| `CollectiveRefusedError` | it could not end well, as in one rank's callback; nothing was sent |

Runs in: every process. Pure.
"""

import linecache
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from nbddp.line_breaks import with_line_breaks
from nbddp.printable import harmless, without_colours
from nbddp.stack_text import cell_number

_PACKAGE = Path(__file__).parent
_MAGIC_CALLS = {"run_cell_magic", "run_line_magic"}
#: Packages between the user's code and nbddp.
_CALLERS = ("/torch/", "/ipywidgets/", "/traitlets/")


class NbddpError(Exception):
    """Base of all errors of nbddp.

    The message says what happened, to which ranks, and what to do next. Control codes of a
    terminal, which a rank may have printed, are made harmless in it.

    Example:
        >>> try:
        ...     pool.pull("missing")
        ... except nbddp.NbddpError as error:
        ...     print(type(error).__name__)
        TransferError
    """

    def __init__(self, *arguments: object) -> None:
        super().__init__(
            *(harmless(value) if isinstance(value, str) else value for value in arguments)
        )

    def _render_traceback_(self) -> list[str]:
        """The text that IPython shows: lines of the user's code, if any, and the message."""
        is_magic = any(name in _MAGIC_CALLS for _, _, name in _frames(self.__traceback__))
        lines = [] if is_magic else _user_lines(self.__traceback__)
        name = type(self).__name__
        # Below the first line may be code, or what other processes have printed.
        sentence, *others = str(self).split("\n")
        sentence = with_line_breaks(without_colours(f"{name}: {sentence}"), 4).removeprefix(name)
        return [*lines, "\n".join([f"\x1b[31m{name}\x1b[39m{sentence}", *others])]


def _user_lines(traceback: TracebackType | None, skipped: tuple[str, ...] = ()) -> list[str]:
    """The places of the user's code with their source, innermost last.

    Args:
        traceback: of the error.
        skipped: parts of the paths of files that are not the user's.
    """
    lines: list[str] = []
    for file, line, name in _frames(traceback):
        if _is_machinery(file) or any(part in file for part in skipped):
            continue
        inside = "" if name == "<module>" else f", in {name}"
        lines.append(f"{_place(file, line)}{inside}")
        lines.append(f"----> {line} {linecache.getline(file, line).strip()}")
    return [*lines, ""] if lines else []


def _place(file: str, line: int) -> str:
    number = cell_number(file)
    if number is not None:
        return f"Cell In[{number}], line {line}" if number else f"Console cell, line {line}"
    if Path(file).parent.name.startswith("ipykernel_"):  # a cell of the notebook's own kernel
        return f"Cell, line {line}"
    return f"File {file}:{line}"


def _frames(traceback: TracebackType | None) -> Iterator[tuple[str, int, str]]:
    while traceback is not None:
        code = traceback.tb_frame.f_code
        yield code.co_filename, traceback.tb_lineno, code.co_name
        traceback = traceback.tb_next


def _is_machinery(file: str) -> bool:
    return Path(file).is_relative_to(_PACKAGE) or "/IPython/" in file or "/ipykernel/" in file


class BadOptionError(NbddpError, ValueError):
    """An option or argument is not legal; the message says what is. Nothing was changed.

    Example:
        >>> pool.pull("rank", ranks=7)
        Traceback (most recent call last):
            ...
        nbddp.errors.BadOptionError: rank 7 is out of range in a pool of 2 ranks; legal: ...
    """


class BadMessageError(NbddpError):
    """Bytes from a socket are not an nbddp message. They are dropped and counted."""


class TooLargeError(NbddpError, ValueError):
    """A display, or another message, is larger than a message may be. It was not sent."""


class NoTorchError(NbddpError, ImportError):
    """torch cannot be imported in the environment of the ranks."""


class NoPoolError(NbddpError):
    """A pool is needed and none runs.

    Example:
        >>> pool.stop()
        >>> nbddp.pool()
        Traceback (most recent call last):
            ...
        nbddp.errors.NoPoolError: no pool is running. Next: %ddp start -n 2 (the last options)
    """


class PoolExistsError(NbddpError):
    """A pool with other options runs already.

    Example:
        >>> nbddp.start(3)
        Traceback (most recent call last):
            ...
        nbddp.errors.PoolExistsError: a pool is running with other options: it has -n 2, ...
    """


class PoolStartError(NbddpError):
    """The pool did not come up; all processes that had been started were ended."""


class PoolAttachError(NbddpError):
    """A pool could not be taken back, or let go; the message says why."""


class AgentJoinError(NbddpError):
    """An agent on another machine could not join a pool; `nbddp agent` prints it."""


class PoolInterruptedError(NbddpError):
    """The user interrupted the start, restart or stop of a pool; the message says what runs now."""


class PoolBusyError(NbddpError):
    """A cell is running, and cells run one after another.

    Example:
        >>> nbddp.load_ipython_extension(get_ipython())
        >>> code = "import time; time.sleep(60)"
        >>> handle = get_ipython().run_cell_magic("ddp", "--async", code)
        >>> pool.pull("rank")
        Traceback (most recent call last):
            ...
        nbddp.errors.PoolBusyError: cell [...] is still running on ranks 0-1, ...
        >>> handle.interrupt(); handle.wait()
        Traceback (most recent call last):
            ...
        nbddp.errors.CellInterruptedError: ...
    """


class PoolBrokenError(NbddpError):
    """The pool was stopped, or ranks are gone or do not answer; ``%ddp restart`` gives fresh ranks.

    Example:
        >>> pool.stop()
        >>> pool.run("rank")
        Traceback (most recent call last):
            ...
        nbddp.errors.PoolBrokenError: the pool was stopped. Next: %ddp start
    """


class InvalidTransitionError(NbddpError):
    """A bug in nbddp: an illegal transition of the state machine. Shows the rank's history."""


class TransferError(NbddpError):
    """A value could not be pushed, pulled or described; no variable was changed.

    Example:
        >>> pool.pull("missing")
        Traceback (most recent call last):
            ...
        nbddp.errors.TransferError: could not pull 'missing' (ranks 0-1: NameError: ...). Next: ...
    """


class TransferInterruptedError(TransferError):
    """The user interrupted a push, pull, vars or diff; no variable was changed."""


class CellError(NbddpError):
    """The cell raised on one rank or more. The message groups equal tracebacks.

    ``error.by_rank`` has ``(exception name, message)`` of each rank that failed.

    Args:
        message: the whole text, for programs; ``str(error)`` has no colours.
        by_rank: ``(exception name, message)`` of each rank that failed.
        displayed: what IPython shows instead: with colours, long lines broken, and below a card
            only what that has not told. Empty: the message.
        headline: the line of the message that says what happened; default: its last line.

    Example:
        >>> try:
        ...     pool.run("1 / rank")
        ... except nbddp.CellError as error:
        ...     print(error.by_rank)
        [1]   Out: 1.0
        {0: ('ZeroDivisionError', 'division by zero')}
    """

    def __init__(
        self,
        message: str,
        by_rank: dict[int, tuple[str, str]] | None = None,
        *,
        displayed: str = "",
        headline: str = "",
    ) -> None:
        super().__init__(without_colours(message))
        self._displayed = harmless(displayed or message)
        self.by_rank = by_rank or {}  #: ``(exception name, message)`` by rank
        #: The line of the message that says what happened: ``DeadlockError: ...``
        self.headline = harmless(without_colours(headline)) or str(self).rpartition("\n")[2]

    def _render_traceback_(self) -> list[str]:
        return [self._displayed]


class CellInterruptedError(CellError):
    """The user interrupted the cell, or left it with ``q`` in the debugger.

    Example:
        >>> nbddp.load_ipython_extension(get_ipython())
        >>> code = "import time; time.sleep(60)"
        >>> handle = get_ipython().run_cell_magic("ddp", "--async", code)
        >>> handle.interrupt(); handle.wait()
        Traceback (most recent call last):
            ...
        nbddp.errors.CellInterruptedError: ...
    """


class CellTimeoutError(CellError):
    """The cell ran longer than its ``--timeout``, and was interrupted.

    Example:
        >>> pool.run("import time; time.sleep(60)", timeout=0.2)
        Traceback (most recent call last):
            ...
        nbddp.errors.CellTimeoutError: ...
    """


class RankExitedError(CellError):
    """The process of a rank ended, by a signal or by itself; a fresh one takes its place.

    Example:
        >>> pool.run("import os; rank == 1 and os._exit(3)", ranks=[1])
        Traceback (most recent call last):
            ...
        nbddp.errors.RankExitedError: RankExitedError: rank 1 exited with code 3 while it ...
        ...
    """


class DeadlockError(CellError):
    """Ranks waited for what could never come. They were freed; every variable is kept.

    Example:
        >>> pool.run("if rank == 0: dist.barrier()")
        Traceback (most recent call last):
            ...
        nbddp.errors.DeadlockError: ...
        >>> nbddp.last_report().findings[0].next_step
        'The call in line 1 is inside `if rank == 0:`: move it out, so that rank 1 runs it, too.'
    """


class MismatchError(CellError):
    """Ranks issued operations that do not match. They were freed; every variable is kept.

    Example:
        >>> pool.run("dist.all_reduce(torch.ones(2 + rank))")
        Traceback (most recent call last):
            ...
        nbddp.errors.MismatchError: ...
        >>> nbddp.last_report().findings[0].kind
        'mismatched-collective'
    """


class CollectiveError(NbddpError, RuntimeError):
    """Base of the errors that are raised in a line of the user's code that called a collective."""

    def _render_traceback_(self) -> list[str]:
        """The lines of cells and of the user's files, with their source; torch's are left out."""
        lines = _user_lines(self.__traceback__, _CALLERS) or [""]
        return [*lines, f"\x1b[31m{type(self).__name__}\x1b[39m: {self}"]


class CollectiveAbortedError(CollectiveError):
    """nbddp ended the operation in which this rank was blocked. Raised on ranks.

    It is a RuntimeError, like torch's own errors of collectives.
    """


class CollectiveFailedError(CollectiveError):
    """The connection to another member was lost; torch's text is below. Raised on ranks."""


class CollectiveRefusedError(CollectiveError):
    """The call would never end, or give wrong values: nothing was sent, or counted."""


class CollectiveMismatchError(CollectiveError):
    """The operation does not match that of another rank; no data has moved. Raised on ranks."""


#: The names of these errors, as messages have them.
COLLECTIVE_ERRORS = frozenset(kind.__name__ for kind in CollectiveError.__subclasses__())
