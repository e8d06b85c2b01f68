"""Lets ranks do two messages in another order, in the source: ``recv`` and ``send``.

Runs in: the notebook's process. Pure. A change is suggested only where the syntax tree shows that
the two calls are neighbours, and that neither needs what the other one has received.
"""

import ast
import re
from collections.abc import Mapping, Sequence

from nbddp.controller.diagnosis.code_places import (
    INDENTATION,
    Simple,
    called,
    communicates,
    find_place,
    has_long_text,
    names_in,
    shifted,
    with_comments,
)
from nbddp.controller.diagnosis.control_flow import Code
from nbddp.controller.diagnosis.report import ChangedLine
from nbddp.controller.diagnosis.suggested_change import bound, buffers, is_print

#: The name of a tensor that keeps a message while its buffer receives another one.
_COPY = "sent"
#: Functions of torch.distributed that wait for the other end.
_MESSAGES = {
    "send": "send",
    "recv": "recv",
    "send_object_list": "send",
    "recv_object_list": "recv",
}
_NUMBERS = {"rank", "world_size"}


def in_two_orders(  # noqa: PLR0911 - one for each reason against it
    code: Code, line: int, condition: str
) -> tuple[ChangedLine, ...]:
    """Let some ranks do two calls in the other order: ``recv`` and ``send``.

    Args:
        code: the text of a cell or file.
        line: a line of the first call.
        condition: true on the ranks that begin with the second call.

    Returns:
        The two calls before and after the change; none if more than a definition is between them.
    """
    place, helpers = find_place(code, line), _helpers(code)
    if place is None:
        return ()
    second, between, last = place.next, range(0), place.lines[-1]
    while second is not None and is_print(second.statement):
        last, second = second.lines[-1], second.next  # it stays behind the first call
    is_definition = second is not None and isinstance(second.statement, ast.Assign)
    if second is not None and is_definition and not _message(second.statement, helpers):
        between = second.lines
        second = second.next
    if second is None or not (place.has_own_lines and second.has_own_lines):
        return ()
    calls = [place.statement, second.statement]
    kinds = [_message(each, helpers) for each in calls]
    if set(kinds) != {"send", "recv"} or has_long_text(*calls) or _is_needed(*calls):
        return ()
    printed = place.body[place.index + 1 : second.index]
    if between and not (last == place.lines[-1] and _may_come_before(place.statement, printed[0])):
        return ()
    if kinds[0] == "send" and not between and _names(printed) & buffers(calls[1:]):
        return ()  # it would print what is received
    # The comments between the two calls are about the second one.
    second_lines = range(with_comments(code, second.lines[0]), second.lines[-1] + 1)
    texts = [
        shifted(code, each, len(INDENTATION))
        for each in (range(place.lines[0], last + 1), second_lines)
    ]
    if texts[0] is None or texts[1] is None:
        return ()
    outer = " " * place.statement.col_offset
    above = [code.source(number) for number in between]
    if _share_buffers(calls):
        message = _argument(place.statement)
        is_first = f"({message}" in texts[0][0]
        if (
            called(place.statement.value) != "send"
            or not message
            or not is_first
            or code.mentions(_COPY)
        ):
            return ()  # the message that is sent would be another one
        above.append(f"{outer}{_COPY} = {message}.clone()")
        texts[0] = [texts[0][0].replace(f"({message}", f"({_COPY}", 1)]
    lines = range(place.lines[0], second.lines[-1] + 1)
    orders = [*texts[1], *texts[0]], [*texts[0], *texts[1]]
    added = [*above, f"{outer}if {condition}:", *orders[0], f"{outer}else:", *orders[1]]
    return (
        *(ChangedLine("removed", number, code.source(number)) for number in lines),
        *(ChangedLine("added", 0, source) for source in added),
    )


def _may_come_before(call: Simple, definition: ast.stmt) -> bool:
    """Whether a definition behind a message may run before it: ``theirs = torch.empty(4)``."""
    around = names_in(definition) | bound([definition])
    touched = buffers([call]) if _message(call) == "recv" else set()
    is_free = bound([definition]).isdisjoint(names_in(call)) and around.isdisjoint(touched)
    calls = [node for node in ast.walk(definition) if isinstance(node, ast.Call)]
    return is_free and not has_long_text(definition) and all(map(_is_allocation, calls))


def _is_allocation(call: ast.Call) -> bool:
    return re.fullmatch("(empty|zeros|ones|full)(_like)?", called(call)) is not None


def _argument(statement: Simple) -> str:
    """The name that is the first argument of a call in one line; empty for anything else."""
    match statement.value:
        case ast.Call(args=[ast.Name(id=name), *_]) if statement.end_lineno == statement.lineno:
            return name
        case _:
            return ""


def swapped(code: Code, line: int) -> tuple[ChangedLine, ...]:
    """Let the ranks that run a call do the call behind it first.

    Args:
        code: the text of a cell or file.
        line: a line of the first call.
    """
    place = find_place(code, line)
    second = None if place is None else place.next
    if place is None or second is None or not (place.has_own_lines and second.has_own_lines):
        return ()
    calls = [place.statement, second.statement]
    if {_message(each) for each in calls} != {"send", "recv"} or _is_needed(*calls):
        return ()
    if _share_buffers(calls):
        return ()
    moved = range(with_comments(code, second.lines[0]), second.lines[-1] + 1)
    header = place.lines[0] - 1
    is_below = any(branch.line == header for branch in code.branches(line))
    return (
        *(ChangedLine("same", number, code.source(number)) for number in [header] if is_below),
        *(ChangedLine("added", 0, code.source(number)) for number in moved),
        *(ChangedLine("same", number, code.source(number)) for number in place.lines),
        *(ChangedLine("removed", number, code.source(number)) for number in moved),
    )


def wait_later(code: Code, line: int) -> tuple[ChangedLine, ...]:
    """Let ranks wait for an ``irecv`` or ``isend`` behind the message that follows.

    Args:
        code: the text of a cell or file.
        line: the line of a call such as ``req = dist.irecv(...)``.
    """
    place = find_place(code, line)
    wait = None if place is None else place.next
    other = None if wait is None else wait.next
    if place is None or wait is None or other is None:
        return ()
    match place.statement, wait.statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=value), ast.Expr(
            value=ast.Call(func=ast.Attribute(value=ast.Name(id=waited), attr="wait"), args=[])
        ) if name == waited:
            kind = {"isend": "send", "irecv": "recv"}.get(called(value), "")
        case _:
            return ()
    places = (place, wait, other)
    kinds = {kind, _message(other.statement)}
    if kinds != {"send", "recv"} or not all(each.has_own_lines for each in places):
        return ()
    if _share_buffers([place.statement, other.statement]):
        return ()
    return (
        *(ChangedLine("same", number, code.source(number)) for number in place.lines),
        *(ChangedLine("removed", number, code.source(number)) for number in wait.lines),
        *(ChangedLine("same", number, code.source(number)) for number in other.lines),
        *(ChangedLine("added", 0, code.source(number)) for number in wait.lines),
    )


def _share_buffers(calls: list[Simple]) -> bool:
    """Whether one call may change the tensor of the other one."""
    arguments = [names_in(each.value) - _NUMBERS for each in calls]
    return not (arguments[0] & arguments[1]).isdisjoint(buffers(calls))


def _is_needed(first: Simple, second: Simple) -> bool:
    """Whether the second call uses a name that the first one gives a value."""
    return not bound([first]).isdisjoint(names_in(second))


def _names(statements: Sequence[ast.stmt]) -> set[str]:
    return {name for each in statements for name in names_in(each)}


def _helpers(code: Code) -> Mapping[str, str]:
    """The functions of the code that send or receive one message, and call nothing else."""
    kind_by_function = {}
    for function in code.statements:
        if isinstance(function, ast.FunctionDef):
            calls = [
                node
                for node in ast.walk(function)
                if isinstance(node, ast.Call) and communicates(ast.Call(node.func, [], []))
            ]
            if len(calls) == 1 and called(calls[0]) in _MESSAGES:
                kind_by_function[function.name] = _MESSAGES[called(calls[0])]
    return kind_by_function


def _message(statement: Simple, helpers: Mapping[str, str] | None = None) -> str:
    """``send`` or ``recv``: a statement calls it, or a helper does; empty for another one."""
    value = statement.value
    if not isinstance(statement, ast.Expr | ast.Assign) or not isinstance(value, ast.Call):
        return ""
    match value:
        case ast.Call(func=ast.Attribute(value=ast.Call() as inner, attr="wait"), args=[]):
            return {"isend": "send", "irecv": "recv"}.get(called(inner), "")
        case ast.Call(func=ast.Name(id=name)) if helpers and name in helpers:
            return helpers[name]
        case _:
            return _MESSAGES.get(called(value), "")
