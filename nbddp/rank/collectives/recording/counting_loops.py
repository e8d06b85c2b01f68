"""Finds loops that count, so that a record can say in which iteration a rank issued an operation.

Runs in: the rank process, any thread; the syntax trees are pure.

A loop counts if its variable has the same value on every rank in the same iteration, whatever the
data of the ranks are: ``for step in range(n)``, ``for i, batch in enumerate(loader)``, also inside
of a progress bar. ``range(start, ...)`` counts only from a number that the code spells out, since a
start may depend on the rank.
"""

import ast
import linecache
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: Progress bars, which give the items of their first argument.
_BARS: Final = frozenset(("tqdm", "track", "progress_bar"))
_RANGES: Final = frozenset(("range", "trange"))
#: Before Python 3.13, a function's ``f_locals`` is a copy that the frame keeps.
_IS_COPY: Final = sys.version_info < (3, 13)
#: References to such a copy while this module looks at it, if nothing else refers to it: of the
#: frame, of a local variable, and of the call of `sys.getrefcount`.
_OWN_REFERENCES: Final = 3
_LARGEST: Final = 1 << 62
#: So many files keep their loops; each cell is a file.
_MAX_FILES: Final = 64


@dataclass(frozen=True)
class _Function:
    """A function, class, or the module, and the loops that belong to it directly."""

    first: int
    last: int
    loops: list["_Loop"]


@dataclass(frozen=True)
class _Loop:
    first: int  #: lines of its body
    last: int
    name: str


class CountingLoops:
    """Finds the counting loops around a line; parses a file once, as long as it is unchanged.

    To parse a cell takes milliseconds, and later cells call its functions: a cell keeps its loops
    until `_MAX_FILES` other files have come.
    """

    def __init__(self) -> None:
        self._files: dict[str, tuple[list[str], list[_Function]]] = {}

    def around(self, file: str, line: int) -> tuple[str, ...]:
        """Return the variables of the loops around a line of a function, the innermost first."""
        lines = linecache.getlines(file)
        known = self._files.get(file)
        if known is None or known[0] is not lines:  # a file that changed has another list
            known = (lines, _functions("".join(lines)))
            self._files.pop(file, None)  # the newest is the last
            self._files[file] = known
            for oldest in list(self._files)[:-_MAX_FILES]:
                self._files.pop(oldest, None)
        enclosing = [one for one in known[1] if one.first <= line <= one.last]
        if not enclosing:
            return ()
        innermost = min(enclosing, key=lambda one: one.last - one.first)
        loops = [loop for loop in innermost.loops if loop.first <= line <= loop.last]
        return tuple(loop.name for loop in sorted(loops, key=lambda loop: -loop.first))


def local_integer(frame: types.FrameType, name: str) -> int | None:
    """Return a local variable of a frame; None: it is no integer that a record can hold.

    Before Python 3.13, ``f_locals`` of a function copies all its variables, and the frame keeps the
    copy: tensors would live until the function ends. So the copy is emptied, unless other code has
    asked for it, too.
    """
    variables = frame.f_locals
    value = variables.get(name)
    if _IS_COPY and frame.f_code.co_flags & 1 and sys.getrefcount(variables) <= _OWN_REFERENCES:
        variables.clear()
    return value if type(value) is int and -_LARGEST < value < _LARGEST else None


def _functions(text: str) -> list[_Function]:
    if "for" not in text:
        return []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    module = _Function(0, sys.maxsize, [])
    functions = [module]
    pending: list[tuple[ast.AST, _Function]] = [(tree, module)]
    while pending:
        node, function = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            function = _Function(node.lineno, node.end_lineno or node.lineno, [])
            functions.append(function)
        elif isinstance(node, ast.For) and (name := _counter(node)):
            last = node.body[-1]
            function.loops.append(_Loop(node.body[0].lineno, last.end_lineno or last.lineno, name))
        pending += [(child, function) for child in ast.iter_child_nodes(node)]
    return functions


def _counter(loop: ast.For) -> str:
    """Return the variable that counts the iterations of a loop; empty: it does not count."""
    iterable = loop.iter
    while isinstance(iterable, ast.Call) and _name(iterable.func) in _BARS and iterable.args:
        iterable = iterable.args[0]
    if not isinstance(iterable, ast.Call):
        return ""
    target: ast.expr = loop.target
    function, arguments = _name(iterable.func), iterable.args
    starts = [keyword.value for keyword in iterable.keywords if keyword.arg == "start"]
    if function in _RANGES:
        starts = [arguments[0], *arguments[2:3]] if len(arguments) > 1 else []
    elif function == "enumerate":
        starts += arguments[1:]
        if not (isinstance(target, ast.Tuple) and len(target.elts) == 2):
            return ""
        target = target.elts[0]
    else:
        return ""
    if not isinstance(target, ast.Name) or not all(map(_is_number, starts)):
        return ""
    if _ends_with_success(loop.body):
        return ""
    is_changed = any(
        isinstance(node, ast.Name) and node.id == target.id and not isinstance(node.ctx, ast.Load)
        for statement in loop.body
        for node in ast.walk(statement)
    )
    return "" if is_changed else target.id


def _ends_with_success(body: Sequence[ast.stmt]) -> bool:
    """Whether a loop tries something again, which ranks may do differently often."""
    return any(
        isinstance(statement, ast.Break | ast.Return)
        or (
            isinstance(statement, ast.Try)
            and (_ends_with_success(statement.body) or _ends_with_success(statement.orelse))
        )
        for statement in body
    )


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Constant) and isinstance(node.value, int)
