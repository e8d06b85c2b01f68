"""Text of exceptions for messages: of any exception, and of a size that a notebook can hold.

Runs in: the rank process. Nothing here raises, although an exception may have a ``__str__`` that
does.
"""

import cmd
import traceback

from nbddp.errors import CollectiveError
from nbddp.rank import shell_hooks
from nbddp.rank.code_sites import innermost_in_cell
from nbddp.stack_text import with_named_cells
from nbddp.wire.flight_recorder import ExceptionLine
from nbddp.wire.message_types import ErrorInfo

#: Longest text of an exception, and longest traceback, in characters: jupyter_server drops messages
#: that are larger than a megabyte.
_MAX_TEXT = 8_000
_MAX_TRACEBACK = 48_000
_MAX_HANDLING = 200


def safe_text(error: BaseException | None) -> str:
    """Return ``str(error)``, or its ``repr``, or at least its type."""
    for read in (str, repr):
        try:
            return _cut(read(error), _MAX_TEXT)
        except BaseException:  # noqa: BLE001, S112 - the user's __str__ and __repr__ may do anything
            continue
    return f"<a {type(error).__name__} that cannot be printed>"


def error_info(
    error: BaseException | None,
    lines: list[str] | None = None,
    libraries: tuple[str, ...] = (),
) -> ErrorInfo:
    """Return an exception for a message.

    Args:
        error: the exception.
        lines: its traceback if formatted already.
        libraries: of each of these lines, see `ErrorInfo`.
    """
    name, text = type(error).__name__[:_MAX_HANDLING], safe_text(error)
    whole = lines or [f"{name}: {text}" if text else name]
    lines = _cut_lines(whole)
    hint = shell_hooks.hint(error)
    return ErrorInfo(
        ename=name,
        evalue=text,
        traceback=[*lines, hint] if hint else lines,
        libraries=libraries if lines is whole else (),
        site=None if error is None else innermost_in_cell(error.__traceback__),
        handling=_handling(error),
        name=str(error.name or "")[:_MAX_HANDLING] if isinstance(error, NameError) else "",
    )


def _handling(error: BaseException | None) -> ExceptionLine | None:
    """Return the exception that was being handled when an operation failed, in a ``finally`` say.

    None if there was none, or ``error`` is not the error of an operation. An interrupt is returned
    only if there is no other exception.
    """
    if not isinstance(error, CollectiveError):
        return None
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
    return None if interrupt is None else summary_line(interrupt)


def is_debugger_error(error: BaseException) -> bool:
    """Return whether pdb raised it, which looks for a command ``do_dist`` before it runs Python."""
    return isinstance(error, AttributeError) and isinstance(error.obj, cmd.Cmd)


def summary_line(error: BaseException) -> ExceptionLine:
    """Return its name, the first line of its message, and the innermost line of a cell."""
    return ExceptionLine(
        name=type(error).__name__[:_MAX_HANDLING],
        text=safe_text(error).strip().partition("\n")[0][:_MAX_HANDLING],
        site=innermost_in_cell(error.__traceback__),
    )


def exit_lines(error: SystemExit) -> list[str]:
    """Return a traceback, because IPython makes none: the line of the cell, and the exception."""
    site = innermost_in_cell(error.__traceback__)
    text = safe_text(error)
    lines = [f"SystemExit: {text}" if text else "SystemExit"]
    if site is None:
        return lines
    cell = f"Cell In[{site.cell}]" if site.cell > 0 else "Console cell"
    return [f"{cell}, line {site.line}", *lines]


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
    return [with_named_cells(line).rstrip("\n") for line in lines]


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
