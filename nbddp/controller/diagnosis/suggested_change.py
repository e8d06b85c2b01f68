"""Changes of the user's code after which a deadlock is gone: a call moves out of its ``if``.

Runs in: the notebook's process. Pure. A change is suggested only where the syntax tree shows that
it is possible: the call needs nothing that its ``if`` has defined, and stands on lines of its own.
"""

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nbddp.controller.diagnosis.control_flow import Code
from nbddp.controller.diagnosis.report import ChangedLine

#: A statement that can be moved.
_Simple: TypeAlias = ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign
#: Lines around a change that are shown.
_CONTEXT = 1
_INDENTATION = " " * 4


@dataclass(frozen=True)
class _Place:
    """A statement and the statements around it."""

    statement: _Simple
    parent: ast.AST
    body: Sequence[ast.stmt]

    @property
    def index(self) -> int:
        """Its position among the statements of its body."""
        return self.body.index(self.statement)

    @property
    def lines(self) -> range:
        """Its lines."""
        return _lines(self.statement)


def moved_out(  # noqa: PLR0911 - one for each reason against it
    code: Code, line: int
) -> tuple[ChangedLine, ...]:
    """Move a call out of the ``if`` or ``else`` around it.

    Args:
        code: the text of a cell or file.
        line: a line of the call.

    Returns:
        The ``if`` before and after the change; none if the call cannot be moved.
    """
    place = _place(code, line)
    if place is None or not isinstance(place.parent, ast.If) or not _has_own_lines(place):
        return ()
    around = place.parent
    before = place.body[: place.index]
    is_elif = code.source(around.lineno).lstrip().startswith("elif")
    if is_elif or around.lineno == place.lines[0] or _needs(place.statement, before):
        return ()
    behind = place.body[place.index + 1 :]
    if isinstance(around.test, ast.BoolOp) or (before and behind):
        return ()  # a part of the condition is to stay; lines before the call are to run before it
    if not all(map(_is_print, behind)) or "async_op" in ast.unparse(place.statement):
        return ()  # they may depend on the call, and would have to move, too
    removed = set(place.lines)
    if len(place.body) == 1:
        is_else = place.body is around.orelse
        if around.orelse and not is_else:
            return ()  # an `if` without statements
        header = code.branches(line)[0].line if is_else else around.lineno
        removed.update(range(header, place.lines[0]))
    moved = _shifted(code, place.lines, around.col_offset - place.statement.col_offset)
    if moved is None:
        return ()
    added = [ChangedLine("added", 0, source) for source in moved]
    kept = list(_kept(code, _lines(around), removed))
    is_last = place.index == len(place.body) - 1
    return tuple([*kept, *added] if is_last else [*added, *kept])


def in_two_orders(code: Code, line: int, condition: str) -> tuple[ChangedLine, ...]:
    """Let some ranks do two calls in the other order: ``recv`` and ``send``.

    Args:
        code: the text of a cell or file.
        line: a line of the first call.
        condition: true on the ranks that begin with the second call.

    Returns:
        The two calls before and after the change; none if they are no neighbours.
    """
    place = _place(code, line)
    if place is None or place.index + 1 == len(place.body):
        return ()
    other = place.body[place.index + 1]
    second = _Place(other, place.parent, place.body) if isinstance(other, _Simple) else None
    if second is None or not (_has_own_lines(place) and _has_own_lines(second)):
        return ()
    if {_message(place.statement), _message(second.statement)} != {"send", "recv"}:
        return ()
    arguments = [_names(each.statement.value) for each in (place, second)]
    if not (arguments[0] & arguments[1]).isdisjoint(_names_of_buffers(place, second)):
        return ()  # the message that is sent would be another one
    calls = [_shifted(code, each.lines, len(_INDENTATION)) for each in (place, second)]
    if calls[0] is None or calls[1] is None:
        return ()
    outer = " " * place.statement.col_offset
    lines = range(place.lines[0], second.lines[-1] + 1)
    added = [f"{outer}if {condition}:", *calls[1], *calls[0], f"{outer}else:", *calls[0], *calls[1]]
    return (
        *(ChangedLine("removed", number, code.source(number)) for number in lines),
        *(ChangedLine("added", 0, source) for source in added),
    )


def _place(code: Code, line: int) -> _Place | None:
    """The simple statement that has a line."""
    waiting: list[ast.AST] = list(code.statements)
    module = ast.Module(code.statements, [])
    bodies = [_Place(each, module, module.body) for each in _simple(module.body)]
    while waiting:
        parent = waiting.pop()
        for _, value in ast.iter_fields(parent):
            if isinstance(value, list):
                waiting += [each for each in value if isinstance(each, ast.AST)]
                if value and all(isinstance(each, ast.stmt) for each in value):
                    bodies += [_Place(each, parent, value) for each in _simple(value)]
    return next((place for place in bodies if line in place.lines), None)


def _simple(statements: Sequence[ast.stmt]) -> Iterator[_Simple]:
    return (each for each in statements if isinstance(each, _Simple))


def _lines(statement: ast.stmt) -> range:
    return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def _has_own_lines(place: _Place) -> bool:
    """Whether no other statement of its body shares a line with it."""
    others = (each for each in place.body if each is not place.statement)
    return all(set(_lines(each)).isdisjoint(place.lines) for each in others)


def _needs(statement: ast.stmt, before: Sequence[ast.stmt]) -> bool:
    """Whether a statement reads a name that the statements before it may bind."""
    reads = {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    binds: set[str] = set()
    for node in (node for each in before for node in ast.walk(each)):
        match node:
            case ast.Name(ctx=ast.Store()):
                binds.add(node.id)
            case ast.alias():
                binds.add(node.asname or node.name.partition(".")[0])
            case ast.FunctionDef() | ast.ClassDef():
                binds.add(node.name)
            case _:
                pass
    return not reads.isdisjoint(binds)


def _shifted(code: Code, lines: range, by: int) -> list[str] | None:
    """The text of lines with another indentation; None: it is not one of spaces."""
    shifted = []
    for source in map(code.source, lines):
        if by >= 0:
            shifted.append(" " * by + source if source else "")
        elif source and source[:-by].strip(" "):
            return None
        else:
            shifted.append(source[-by:])
    return shifted


def _kept(code: Code, lines: range, removed: Collection[int]) -> Iterator[ChangedLine]:
    """The lines of a statement; those far from a removed line are left out."""
    is_elided = False
    for number in lines:
        source = code.source(number)
        is_near = any(number + n in removed for n in range(-_CONTEXT, _CONTEXT + 1))
        if number in removed:
            yield ChangedLine("removed", number, source)
        elif number == lines[0] or is_near:
            yield ChangedLine("same", number, source)
        elif not is_elided:
            yield ChangedLine("same", 0, source[: len(source) - len(source.lstrip())] + "...")
        is_elided = not (number in removed or number == lines[0] or is_near)


def _is_print(statement: ast.stmt) -> bool:
    """Whether a statement only prints."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Name(id="print"))):
            return True
        case _:
            return False


def _names(node: ast.AST | None) -> set[str]:
    nodes = () if node is None else ast.walk(node)
    return {each.id for each in nodes if isinstance(each, ast.Name)}


def _names_of_buffers(*places: _Place) -> set[str]:
    """The names in the first arguments of calls: the tensors that are sent or received."""
    names: set[str] = set()
    for place in places:
        call = place.statement.value
        if isinstance(call, ast.Call) and call.args:
            names |= _names(call.args[0])
    return names


def _message(statement: _Simple) -> str:
    """``send`` or ``recv``: the function that a statement calls; empty for another one."""
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return ""
    function = statement.value.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
