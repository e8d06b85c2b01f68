"""Exceptions as text for messages: whatever they are, and of a size that a notebook can hold.

Runs in: the rank process. Nothing here raises: an exception may have a ``__str__`` that does.
"""

import cmd
import re
import traceback

from nbddp.errors import CollectiveError
from nbddp.rank import shell_hooks
from nbddp.wire.flight_recorder.schema import cell_name
from nbddp.wire.message_types import ErrorInfo

#: Longest text of an exception, and longest traceback, in characters: jupyter_server drops what
#: is larger than a megabyte.
_MAX_TEXT = 8_000
_MAX_TRACEBACK = 48_000
_MAX_HANDLING = 200
_CELL_NAME = re.compile(r"<ipython-input-(\d+)-\w+>")
_CELL_FILE = re.compile(r'File "<ipython-input-(\d+)-\w+>", line')


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
        handling=_handling(error),
    )


def _handling(error: BaseException | None) -> str:
    """What was being handled when an operation failed: a collective in a ``finally``, for example.

    ``ValueError: bad batch (cell [3], line 2)``; empty if there was nothing, or the error is not
    one of an operation. An interrupt only where there is nothing else.
    """
    if not isinstance(error, CollectiveError):
        return ""
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
    return "" if interrupt is None else in_a_line(interrupt)


def is_of_debugger(error: BaseException) -> bool:
    """Raised by pdb itself: it looks for a command ``do_dist``, then takes the line for Python."""
    return isinstance(error, AttributeError) and isinstance(error.obj, cmd.Cmd)


def in_a_line(error: BaseException) -> str:
    """``ValueError: bad batch (cell [3], line 2)``."""
    first_line = safe_text(error).strip().partition("\n")[0][:_MAX_HANDLING]
    name = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    return name + _place(error)


def exit_lines(error: SystemExit) -> list[str]:
    """A traceback, since IPython makes none of it: the line of the cell, and what it is."""
    place = _place(error).strip(" ()").replace("cell [", "Cell In[")
    text = safe_text(error)
    return [*([place] if place else []), f"SystemExit: {text}" if text else "SystemExit"]


def place_of(error: BaseException) -> str:
    """``cell [3], line 2``: the innermost line of a cell; empty: in none."""
    return _place(error).strip(" ()")


def _place(error: BaseException) -> str:
    """`` (cell [3], line 2)``: the innermost line of a cell."""
    place = ""
    step = error.__traceback__
    while step is not None:
        cell = _CELL_NAME.match(step.tb_frame.f_code.co_filename)
        if cell is not None:
            place = f" ({cell_name(int(cell[1]))}, line {step.tb_lineno})"
        step = step.tb_next
    return place


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
