"""The change of a collective that an exception of one rank skips: inside a ``try``, or behind it.

Runs in: the notebook's process. Pure. All ranks tell each other whether they have come to the
call, and make it only if all have. The syntax tree must show that the change is possible.
"""

import ast
from collections.abc import Iterator, Sequence

from nbddp.controller.diagnosis.code_places import (
    INDENTATION,
    communicates,
    find_place,
    has_long_text,
    lines_of,
    names_in,
    shifted,
)
from nbddp.controller.diagnosis.control_flow import Code, Exit
from nbddp.controller.diagnosis.report import ChangedLine
from nbddp.controller.diagnosis.suggested_change import is_print

_FLAG = "ok"
_SET = f"{_FLAG} = torch.tensor({{}}, device=device)"
#: A change with more lines is not shown.
_MAX_LINES = 14


def skipped_after_error(code: Code, line: int) -> tuple[ChangedLine, ...]:  # noqa: PLR0911 - as there
    """Let all ranks skip a call at the end of a ``try`` if one of them raises before it.

    Args:
        code: the text of a cell, in which the name ``device`` exists.
        line: a line of the call.

    Returns:
        The lines before and after the change; none if the ``try`` is not simple enough.
    """
    place = find_place(code, line)
    if place is None or not isinstance(place.parent, ast.Try):
        return ()
    guard = place.parent
    if any(_FLAG in names_in(each) for each in code.statements):
        return ()
    if place.body is not guard.body or guard.orelse or guard.finalbody:
        return ()
    before, behind = place.body[: place.index], place.body[place.index + 1 :]
    moved = [place.statement, *behind]
    if not communicates(place.statement) or not before or communicates(*before):
        return ()
    if not all(map(is_print, behind)) or any("group=" in ast.unparse(each) for each in moved):
        return ()
    if has_long_text(*moved) or "async_op" in ast.unparse(place.statement):
        return ()
    if any(_leaves(handler.body) or communicates(*handler.body) for handler in guard.handlers):
        return ()
    if any(handler.body[0].lineno == handler.lineno for handler in guard.handlers):
        return ()  # no line can follow a body in the line of its ``except``
    removed = range(place.lines[0], lines_of(moved[-1])[-1] + 1)
    outer = " " * guard.col_offset
    inner = shifted(code, removed, guard.col_offset + len(INDENTATION) - place.statement.col_offset)
    if inner is None or not place.has_own_lines:
        return ()
    change = [
        *_guard(code, guard, place.statement.col_offset, removed),
        _added(f"{outer}dist.all_reduce({_FLAG}, op=dist.ReduceOp.MIN)"),
        _added(f"{outer}if {_FLAG}:"),
        *map(_added, inner),
    ]
    return tuple(change) if len(change) <= _MAX_LINES else ()


def left_after_error(code: Code, line: int, leaving: Exit) -> str:  # noqa: PLR0911 - as above
    """Let all ranks leave behind a ``try`` if an ``except`` of it has made one of them leave.

    Args:
        code: the text of a cell, in which the name ``device`` exists.
        line: a line of the call, behind the ``try`` or above it in a loop.
        leaving: the last statement of the ``except``.

    Returns:
        How, as the rest of a sentence; empty if the ``try`` is not simple enough.
    """
    guard, body = _guard_of(code, leaving.condition.line)
    if guard is None or guard.orelse or guard.finalbody or len(guard.handlers) != 1:
        return ""
    last = guard.handlers[0].body[-1]
    if last.lineno != leaving.line or any(_leaves([each]) for each in guard.body):
        return ""
    if line in lines_of(guard) or any(_FLAG in names_in(each) for each in code.statements):
        return ""
    if communicates(*guard.body, *guard.handlers[0].body) or _leaves(guard.handlers[0].body[:-1]):
        return ""
    match last:
        case ast.Continue() | ast.Break() if isinstance(body, ast.For | ast.While):
            pass
        case ast.Return(value=None | ast.Constant()):
            if not isinstance(body, ast.For | ast.While | ast.FunctionDef):
                return ""
        case _:
            return ""
    exit_source = ast.unparse(last)
    return (
        f": end the `try` with `{_SET.format(1)}`, put `{_SET.format(0)}` in the place of the "
        f"`{exit_source}`, and `dist.all_reduce({_FLAG}, op=dist.ReduceOp.MIN)` and "
        f"`if not {_FLAG}: {exit_source}` behind the `try`"
    )


def _guard_of(code: Code, line: int) -> tuple[ast.Try | None, ast.AST | None]:
    """The ``try`` with an ``except`` in a line, and the statement whose body has it."""
    for statement in code.statements:
        for parent in ast.walk(statement):
            for child in getattr(parent, "body", ()) if isinstance(parent, ast.stmt) else ():
                if isinstance(child, ast.Try) and line in (h.lineno for h in child.handlers):
                    return child, parent
    return None, None


def _added(source: str) -> ChangedLine:
    return ChangedLine("added", 0, source)


def _leaves(body: Sequence[ast.stmt]) -> bool:
    kinds = ast.Raise | ast.Return | ast.Continue | ast.Break
    return any(isinstance(node, kinds) for each in body for node in ast.walk(each))


def _guard(code: Code, guard: ast.Try, indent: int, removed: range) -> Iterator[ChangedLine]:
    """The lines of the ``try`` from the call on; the flag is set there, and in each ``except``."""
    last_by_line = {lines_of(handler.body[-1])[-1]: handler for handler in guard.handlers}
    shown = {*last_by_line, *(handler.lineno for handler in guard.handlers)}
    is_elided = False
    for number in range(removed[0], lines_of(guard)[-1] + 1):
        source = code.source(number)
        if number in removed:
            yield ChangedLine("removed", number, source)
        elif number in shown:
            yield ChangedLine("same", number, source)
        elif not is_elided:
            yield ChangedLine("same", 0, source[: len(source) - len(source.lstrip())] + "...")
        is_elided = number not in removed and number not in shown
        if number == removed[-1]:
            yield _added(f"{' ' * indent}{_SET.format(1)}")
        elif number in last_by_line:
            yield _added(f"{' ' * last_by_line[number].body[-1].col_offset}{_SET.format(0)}")
