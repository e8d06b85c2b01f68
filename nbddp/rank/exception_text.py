"""Exceptions as text for messages: whatever they are, and of a size that a notebook can hold.

Runs in: the rank process. Nothing here raises: an exception may have a ``__str__`` that does.
"""

import cmd
import traceback

from nbddp.errors import CollectiveError
from nbddp.rank import shell_hooks
from nbddp.rank.code_sites import innermost_in_cell
from nbddp.stack_text import with_named_cells
from nbddp.wire.flight_recorder.schema import ExceptionLine
from nbddp.wire.message_types import ErrorInfo

#: Longest text of an exception, and longest traceback, in characters: jupyter_server drops what
#: is larger than a megabyte.
_MAX_TEXT = 8_000
_MAX_TRACEBACK = 48_000
_MAX_HANDLING = 200


def safe_text(error: BaseException | None) -> str:
    """``str(error)``, or what comes nearest."""
    for read in (str, repr):
        try:
            return _cut(read(error), _MAX_TEXT)
        except BaseException:  # noqa: BLE001, S112 - the user's __str__ and __repr__ may do anything
            continue
    return f"<a {type(error).__name__} that cannot be printed>"


def error_info(error: BaseException | None, lines: list[str] | None = None) -> ErrorInfo:
    """An exception for a message; ``lines`` is its traceback if that was formatted already."""
    name, text = type(error).__name__[:_MAX_HANDLING], safe_text(error)
    lines = _cut_lines(lines or [f"{name}: {text}" if text else name])
    hint = shell_hooks.hint(error)
    return ErrorInfo(
        ename=name,
        evalue=text,
        traceback=[*lines, hint] if hint else lines,
        site=None if error is None else innermost_in_cell(error.__traceback__),
        handling=_handling(error),
    )


def _handling(error: BaseException | None) -> ExceptionLine | None:
    """What was being handled when an operation failed: a collective in a ``finally``, for example.

    None if there was nothing, or the error is not one of an operation. An interrupt only where
    there is nothing else.
    """
    if not isinstance(error, CollectiveError):
        return None
    torchs = error.__cause__
    found = error.__context__
    interrupt: KeyboardInterrupt | None = None
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, KeyboardInterrupt):
            interrupt = found
        elif (
            found is not torchs
            and not isinstance(found, CollectiveError)
            and not is_of_debugger(found)
        ):
            return in_a_line(found)
        torchs = found.__cause__ if isinstance(found, CollectiveError) else torchs
        found = found.__context__
    return None if interrupt is None else in_a_line(interrupt)


def is_of_debugger(error: BaseException) -> bool:
    """Raised by pdb itself: it looks for a command ``do_dist``, then takes the line for Python."""
    return isinstance(error, AttributeError) and isinstance(error.obj, cmd.Cmd)


def in_a_line(error: BaseException) -> ExceptionLine:
    """Its name, the first line of its message, and the innermost line of a cell."""
    return ExceptionLine(
        name=type(error).__name__[:_MAX_HANDLING],
        text=safe_text(error).strip().partition("\n")[0][:_MAX_HANDLING],
        site=innermost_in_cell(error.__traceback__),
    )


def exit_lines(error: SystemExit) -> list[str]:
    """A traceback, since IPython makes none of it: the line of the cell, and what it is."""
    site = innermost_in_cell(error.__traceback__)
    text = safe_text(error)
    lines = [f"SystemExit: {text}" if text else "SystemExit"]
    if site is None:
        return lines
    cell = f"Cell In[{site.cell}]" if site.cell > 0 else "Console cell"
    return [f"{cell}, line {site.line}", *lines]


def group_lines(error: BaseException, own_folders: tuple[str, ...]) -> list[str]:
    """The traceback of an exception group, which IPython does not format.

    Args:
        error: the group.
        own_folders: frames of files in these are left out at the top.
    """
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_filename.startswith(own_folders):
        found = found.tb_next
    try:
        lines = traceback.format_exception(type(error), error, found)
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
