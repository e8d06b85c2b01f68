"""Changes of the user's code after which a deadlock is gone: a call moves, or all ranks skip it.

Runs in: the notebook's process. Pure. A change is suggested only where the syntax tree shows that
it is possible: the call needs nothing that its ``if`` has defined, and stands on lines of its own.
"""

import ast
import re
from collections.abc import Collection, Iterator, Sequence

from nbddp.controller.diagnosis.code_places import (
    Place,
    Simple,
    called,
    communicates,
    find_place,
    has_long_text,
    lines_of,
    names_in,
    shifted,
    with_comments,
)
from nbddp.controller.diagnosis.control_flow import Code
from nbddp.controller.diagnosis.report import ChangedLine

#: Lines around a change that are shown.
_CONTEXT = 1
#: Functions that a line with `print` may call: they communicate with no other rank.
_HARMLESS = re.compile(
    "print|str|repr|int|float|bool|len|round|min|max|sum|abs|list|tuple|type|item|tolist|mean|std|"
    "numpy|cpu|detach|size|dim|format|join|get_rank|get_world_size|time|"
    "is_?nan|is_?inf|isfinite|any|all"
)


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
    place = find_place(code, line)
    if place is None or not isinstance(place.parent, ast.If):
        return ()
    around = place.parent
    before, calls, behind = _split(place)
    is_elif = code.source(around.lineno).lstrip().startswith("elif")
    if is_elif or around.lineno == place.lines[0] or _needs(calls, before):
        return ()
    if isinstance(around.test, ast.BoolOp) or (before and behind):
        return ()  # a part of the condition is to stay; lines before the call are to run before it
    if communicates(*before) or (len(calls) > 1 and around.orelse):
        return ()  # other ranks may have made these calls, or other ones in their place
    if not all(map(is_print, behind)) or "async_op" in "".join(map(ast.unparse, calls)):
        return ()  # they may depend on the call, and would have to move, too
    if has_long_text(*calls) or not all(
        Place(each, around, place.body).has_own_lines for each in calls
    ):
        return ()
    lines = range(with_comments(code, calls[0].lineno), lines_of(calls[-1])[-1] + 1)
    removed = set(lines)
    if not before and not behind:
        is_else = place.body is around.orelse
        if around.orelse and not is_else:
            return ()  # an `if` without statements
        header = code.branches(line)[0].line if is_else else around.lineno
        removed.update(range(header, lines[0]))
    moved = shifted(code, lines, around.col_offset - place.statement.col_offset)
    if moved is None:
        return ()
    added = [ChangedLine("added", 0, source) for source in moved]
    kept = list(_kept(code, lines_of(around), removed))
    return tuple([*added, *kept] if behind else [*kept, *added])


def _split(place: Place) -> tuple[Sequence[ast.stmt], Sequence[Simple], Sequence[ast.stmt]]:
    """The calls to move, and the statements of the body before and behind them.

    All calls that follow one another move together: the next one would hang as well, and a rank
    may have made the one before alone, since a sender does not always wait.
    """
    first = last = place.index
    if communicates(place.statement):
        while first and _is_call(place.body[first - 1]):
            first -= 1
        while last + 1 < len(place.body) and _is_call(place.body[last + 1]):
            last += 1
    calls = [each for each in place.body[first : last + 1] if isinstance(each, Simple)]
    return place.body[:first], calls, place.body[last + 1 :]


def _is_call(statement: ast.stmt) -> bool:
    return isinstance(statement, Simple) and communicates(statement)


def moved_before(  # noqa: PLR0911 - one for each reason against it
    code: Code, line: int, condition: int
) -> tuple[ChangedLine, ...]:
    """Move a call before the ``if`` above it, by whose ``continue`` or ``return`` ranks skip it.

    Args:
        code: the text of a cell or file.
        line: a line of the call.
        condition: the line of the ``if``.

    Returns:
        The lines before and after the change; none if the call cannot be moved, or ranks that
        leave there would skip more than this call.
    """
    place = find_place(code, line)
    if place is None or not communicates(place.statement):
        return ()
    before, calls, behind = _split(place)
    leaving = before[-1] if before else None
    if not isinstance(leaving, ast.If) or leaving.lineno != condition or leaving.orelse:
        return ()
    *first, last = leaving.body
    match place.parent, last:
        case ast.For(), ast.Continue():
            pass
        case ast.FunctionDef() | ast.AsyncFunctionDef(), ast.Return(value=None):
            pass
        case _:
            return ()  # it leaves more than this body
    if not all(map(_is_local, (*first, *behind, ast.Expr(leaving.test)))):
        return ()  # other calls may be skipped, too
    if _needs(calls, [each for each in before if not isinstance(each, Simple)]):
        return ()  # a rank that leaves there may not have it
    if not (buffers(calls) | bound(calls)).isdisjoint(names_in(leaving)):
        return ()  # it would see the result
    text = "".join(map(ast.unparse, calls))
    if "async_op" in text or "group=" in text or has_long_text(*calls):
        return ()  # perhaps the ranks that leave there are in another group
    if not all(Place(each, place.parent, place.body).has_own_lines for each in calls):
        return ()
    removed = range(with_comments(code, calls[0].lineno), lines_of(calls[-1])[-1] + 1)
    added = (ChangedLine("added", 0, code.source(number)) for number in removed)
    return (*added, *_kept(code, range(leaving.lineno, removed[-1] + 1), removed))


def skipped_together(
    code: Code, line: int, condition: int, *, has_device: bool = True
) -> tuple[ChangedLine, ...]:
    """Let all ranks skip a call if one of them does: they exchange the condition first.

    Args:
        code: the text of a cell or file.
        line: a line of the call.
        condition: the line of the ``if``, which all ranks reach in each iteration.
        has_device: the name ``device`` exists there, as in cells.

    Returns:
        The lines before and after the change; none if the ``if`` is not simple enough.
    """
    place = find_place(code, line)
    if place is None or not isinstance(place.parent, ast.For):
        return ()
    leaving = next((each for each in place.body if each.lineno == condition), None)
    match leaving:
        case ast.If(body=[*first, ast.Continue()], orelse=[]) if all(map(_is_local, first)):
            pass
        case _:
            return ()
    tensor, name = _tensor_of(place.statement), "skip"
    if tensor is None:
        return ()
    if tensor in bound(place.body[place.body.index(leaving) : place.index]):
        tensor = _tested(leaving.test)  # that of the call does not exist yet
    device = f"{tensor}.device" if tensor else "device"
    is_pure = _is_local(ast.Expr(leaving.test)) and not any(
        isinstance(node, ast.NamedExpr) for node in ast.walk(leaving.test)
    )
    test = ast.unparse(leaving.test)
    is_plain = (
        code.source(condition).strip() == f"if {test}:" and leaving.body[0].lineno > condition
    )
    if not (is_pure and is_plain and (tensor or has_device)) or code.mentions(name):
        return ()
    outer = " " * leaving.col_offset
    value = f"int({test})" if _is_number(leaving.test) else f"int(bool({test}))"
    added = [
        f"{outer}{name} = torch.tensor({value}, device={device})",
        f"{outer}dist.all_reduce({name}, op=dist.ReduceOp.MAX)",
    ]
    until_call = _kept(code, range(condition, place.lines[0]), (condition,))
    calls = [ChangedLine("same", number, code.source(number)) for number in place.lines]
    header, *rest = [*until_call, *calls]
    changed = ChangedLine("added", 0, f"{outer}if {name}:")
    return (*(ChangedLine("added", 0, line) for line in added), header, changed, *rest)


def _tensor_of(statement: Simple) -> str | None:
    """The name of the tensor that a call sends, or whose backward it is.

    Returns:
        Empty: it is no name, as in ``dist.all_reduce(grads[0])``. None: it is another call, or one
        of another group.
    """
    match statement.value:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="dist")), args=[tensor, *_]):
            if "group=" in ast.unparse(statement):
                return None
            return tensor.id if isinstance(tensor, ast.Name) else ""
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="backward")):
            return name
        case _:
            return None


def _tested(test: ast.expr) -> str:
    """The tensor that a condition looks at: ``loss`` of ``loss.isnan()``; empty: none is known."""
    match test:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch")), args=[ast.Name(id=name)]):
            return name
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name)), args=[]) if name != "torch":
            return name
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _tested(operand)
        case _:
            return ""


def _is_number(test: ast.expr) -> bool:
    """Whether a condition is a bool, or a tensor with one."""
    if isinstance(test, ast.BoolOp):
        return all(map(_is_number, test.values))
    is_question = isinstance(test, ast.Call) and re.match(r"is|any$|all$", called(test))
    is_not = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    return bool(is_question) or is_not or isinstance(test, ast.Compare)


def _is_local(statement: ast.stmt) -> bool:
    """Whether a statement calls only functions that wait for no other rank."""
    calls = (node for node in ast.walk(statement) if isinstance(node, ast.Call))
    return all(_HARMLESS.fullmatch(called(call)) for call in calls)


def _needs(statements: Sequence[ast.stmt], before: Sequence[ast.stmt]) -> bool:
    """Whether statements read a name that the statements before them may bind."""
    reads = {name for each in statements for name in names_in(each)}
    return not reads.isdisjoint(bound(before))


def bound(statements: Sequence[ast.AST]) -> set[str]:
    """The names that statements may bind."""
    binds: set[str] = set()
    for node in (node for each in statements for node in ast.walk(each)):
        match node:
            case ast.Name(ctx=ast.Store()):
                binds.add(node.id)
            case ast.alias():
                binds.add(node.asname or node.name.partition(".")[0])
            case ast.FunctionDef() | ast.ClassDef():
                binds.add(node.name)
            case _:
                pass
    return binds


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


def is_print(statement: ast.stmt) -> bool:
    """Whether a statement only prints: no function that it calls may wait for another rank."""
    is_print = isinstance(statement, ast.Expr) and called(statement.value) == "print"
    return is_print and _is_local(statement)


def buffers(statements: Sequence[Simple]) -> set[str]:
    """The names in the first arguments of calls: the tensors that are sent or received."""
    calls = [each.value for each in statements if isinstance(each.value, ast.Call)]
    return {name for call in calls if call.args for name in names_in(call.args[0])}
