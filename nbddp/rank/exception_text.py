"""Text of exceptions for messages: of any exception, and of a size that a notebook can hold.

Runs in: the rank process. Nothing here raises, although an exception may have a ``__str__`` that
does.
"""

import cmd
import re
import traceback

from nbddp.errors import CollectiveError
from nbddp.rank import shell_hooks
from nbddp.wire.flight_recorder.schema import cell_name
from nbddp.wire.message_types import ErrorInfo

#: Longest text of an exception, and longest traceback, in characters: jupyter_server drops messages
#: that are larger than a megabyte.
_MAX_TEXT = 8_000
_MAX_TRACEBACK = 48_000
_MAX_HANDLING = 200
_CELL_NAME = re.compile(r"<ipython-input-(\d+)-\w+>")
_CELL_FILE = re.compile(r'File "<ipython-input-(\d+)-\w+>", line')


def safe_text(error: BaseException | None) -> str:
    """Return ``str(error)``, or its ``repr``, or at least its type."""
    for read in (str, repr):
        try:
            return _cut(read(error), _MAX_TEXT)
        except BaseException:  # noqa: BLE001, S112 - the user's __str__ and __repr__ may do anything
            continue
    return f"<a {type(error).__name__} that cannot be printed>"


def error_info(error: BaseException | None, lines: list[str] | None = None) -> ErrorInfo:
    """Return an exception for a message; ``lines`` is its traceback if formatted already."""
    name, text = type(error).__name__[:_MAX_HANDLING], safe_text(error)
    lines = _cut_lines(lines or [f"{name}: {text}" if text else name])
    hint = shell_hooks.hint(error)
    return ErrorInfo(
        ename=name,
        evalue=text,
        traceback=[*lines, hint] if hint else lines,
        handling=_handling(error),
    )


def _handling(error: BaseException | None) -> str:
    """Return the exception that was being handled when an operation failed, in a ``finally`` say.

    For example ``ValueError: bad batch (cell [3], line 2)``; empty if there was none, or ``error``
    is not the error of an operation. An interrupt is returned only if there is no other exception.
    """
    if not isinstance(error, CollectiveError):
        return ""
    torch_cause = error.__cause__
    handled = error.__context__
    interrupt: KeyboardInterrupt | None = None
    seen: set[int] = set()
    while handled is not None and id(handled) not in seen:
        seen.add(id(handled))
        if isinstance(handled, KeyboardInterrupt):
            interrupt = handled
        elif (
            handled is not torch_cause
            and not isinstance(handled, CollectiveError)
            and not is_debugger_error(handled)
        ):
            return summary_line(handled)
        torch_cause = handled.__cause__ if isinstance(handled, CollectiveError) else torch_cause
        handled = handled.__context__
    return "" if interrupt is None else summary_line(interrupt)


def is_debugger_error(error: BaseException) -> bool:
    """Return whether pdb raised it, which looks for a command ``do_dist`` before it runs Python."""
    return isinstance(error, AttributeError) and isinstance(error.obj, cmd.Cmd)


def summary_line(error: BaseException) -> str:
    """Return one line, such as ``ValueError: bad batch (cell [3], line 2)``."""
    first_line = safe_text(error).strip().partition("\n")[0][:_MAX_HANDLING]
    name = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    return name + _place(error)


def exit_lines(error: SystemExit) -> list[str]:
    """Return a traceback, because IPython makes none: the line of the cell, and the exception."""
    place = _place(error).strip(" ()").replace("cell [", "Cell In[")
    text = safe_text(error)
    return [*([place] if place else []), f"SystemExit: {text}" if text else "SystemExit"]


def place_of(error: BaseException) -> str:
    """Return the innermost line of a cell, such as ``cell [3], line 2``; empty: in no cell."""
    return _place(error).strip(" ()")


def _place(error: BaseException) -> str:
    """Return the innermost line of a cell, such as `` (cell [3], line 2)``."""
    place = ""
    step = error.__traceback__
    while step is not None:
        cell = _CELL_NAME.match(step.tb_frame.f_code.co_filename)
        if cell is not None:
            place = f" ({cell_name(int(cell[1]))}, line {step.tb_lineno})"
        step = step.tb_next
    return place


def group_lines(error: BaseException, own_folders: tuple[str, ...]) -> list[str]:
    """Return the traceback of an exception group, which IPython does not format.

    Args:
        error: the group.
        own_folders: frames of files in these folders are left out at the top.
    """
    first_step = error.__traceback__
    while first_step is not None and first_step.tb_frame.f_code.co_filename.startswith(own_folders):
        first_step = first_step.tb_next
    try:
        lines = traceback.format_exception(type(error), error, first_step)
    except BaseException:  # noqa: BLE001 - one of the group's exceptions may not be printable
        return [f"{type(error).__name__}: {safe_text(error)}"]
    named = [_CELL_FILE.sub(r"Cell In[\1], line", line).rstrip("\n") for line in lines]
    return [line.replace("Cell In[0], line", "Console cell, line") for line in named]


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n... {left_out:,} characters left out here ...\n{text[-half:]}"


def _cut_lines(lines: list[str]) -> list[str]:
    if sum(map(len, lines)) <= _MAX_TRACEBACK:
        return lines
    return [_cut("\n".join(lines), _MAX_TRACEBACK)]
