"""The lines typed at a prompt after which a cell does, perhaps, other than its code says.

Runs in: the thread that waits for the cell. Pure.

A mismatch or a deadlock after such a line is no proof against the code of the cell, so a card names
the line. ``skip`` is told by itself: it leaves out an operation for certain. ``print`` only looks.
"""

import ast
import re
from collections.abc import Iterable
from typing import Final

from nbddp.wire.flight_recorder import shortened
from nbddp.wire.messages import InputRequest
from nbddp.wire.rank_set import ranks_by
from nbddp.wire.step_replies import StepReply, StepVerb

_MAX_CODE = 80
#: Functions that change nothing of what they get.
_VIEWERS: Final = frozenset(
    {
        *("bool", "dir", "display", "float", "getattr", "globals", "hasattr", "id", "int"),
        *("isinstance", "len", "locals", "max", "min", "print", "repr", "round"),
        *("show", "sorted", "str", "sum", "type", "vars"),
    }
)
#: The same of methods, and of functions of modules such as `torch`.
_VIEWING_METHODS: Final = frozenset(
    {
        *("abs", "all", "allclose", "any", "argmax", "argmin", "clone", "cpu", "detach", "equal"),
        *("get_rank", "get_world_size", "isfinite", "isinf", "isnan", "item", "max", "mean", "min"),
        *("named_parameters", "norm", "numel", "numpy", "parameters", "show", "size", "state_dict"),
        *("std", "sum", "tolist", "var"),
    }
)
#: Statements that change nothing, or that are commands of the debugger as well.
_NO_CHANGES: Final = (
    *(ast.Import, ast.ImportFrom, ast.Pass),
    *(ast.Return, ast.Continue, ast.Break),
)
#: The command of the debugger that goes to another line.
_JUMP = re.compile(r"(j|jump)\s+\d")
#: Its commands that evaluate an expression.
_PRINTS = re.compile(r"(p|pp)\s+")


def typed_at(replies: Iterable[tuple[InputRequest, StepReply | str]]) -> tuple[str, ...]:
    """Return sentences without a period on such lines, one for ranks with the same line.

    Args:
        replies: commands for ranks that have stopped before operations, and lines for debuggers.
    """
    lines = (
        ((line, _place(request)), request.rank)
        for request, reply in replies
        if not request.is_stuck and (line := _line(reply))
    )
    return tuple(
        f"{ranks.describe()} got `{shortened(' '.join(line.split()), _MAX_CODE)}` at the prompt"
        f"{place}"
        for (line, place), ranks in ranks_by(lines).items()
    )


def _line(reply: StepReply | str) -> str:
    """The line, if it may change something; else empty."""
    if isinstance(reply, str):
        line = reply.strip()
        parts = [_PRINTS.sub("", part.strip()).removeprefix("!") for part in line.split(";;")]
        may_change = _JUMP.match(line) or any(changes(part, calls=False) for part in parts)
        return line if may_change else ""
    match reply.verb:
        case StepVerb.RETRY if _is_call(reply.code):  # else the call is that of the line
            return f"retry {reply.code}"
        case StepVerb.RUN if changes(reply.code, calls=True):
            return f"run {reply.code}"
        case _:
            return ""


def _is_call(code: str) -> bool:
    """Whether code is one call, as `retry` takes it; other code is refused, and runs nothing."""
    try:
        return isinstance(ast.parse(code.strip(), mode="eval").body, ast.Call)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def changes(code: str, *, calls: bool) -> bool:
    """Whether code may change a variable, or what it holds; code that is wrong does nothing.

    Args:
        code: as the user has typed it.
        calls: a call of an unknown function may; False: only that of a method as `fill_`.
    """
    try:
        statements = ast.parse(code.strip()).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(_changes(each, calls=calls) for each in statements)


def _changes(statement: ast.stmt, *, calls: bool) -> bool:
    if not isinstance(statement, ast.Expr | ast.Assert):
        return not isinstance(statement, _NO_CHANGES)
    return any(_call_changes(each, calls=calls) for each in ast.walk(statement))


def _call_changes(node: ast.AST, *, calls: bool) -> bool:
    if isinstance(node, ast.NamedExpr):
        return True
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else ""
    name = function.id if isinstance(function, ast.Name) else name
    is_viewer = (name in _VIEWERS and isinstance(function, ast.Name)) or name in _VIEWING_METHODS
    return (calls and not is_viewer) or (name.endswith("_") and not name.endswith("__"))


def _place(request: InputRequest) -> str:
    site = request.debugger if request.stop is None else request.stop.site
    return f", {site.place}" if site is not None and site.line else ""
