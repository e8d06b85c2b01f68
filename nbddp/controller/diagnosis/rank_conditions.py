"""Evaluates conditions and numbers in the user's code that depend on the rank only.

Runs in: the notebook's process. Pure. A condition is true, false, or not known (None):
``rank == 2 and step == 1`` is false on rank 0, and not known on rank 2.
"""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_LARGEST: Final = 1 << 20
_BINARY: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_,
}
_COMPARE: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}


class _UnknownError(Exception):
    """A part of the condition is about something else."""


def holds(test: ast.expr | None, rank: int, world_size: int) -> bool | None:
    """Return whether a condition is true on a rank; None: that is not known.

    The names ``rank`` and ``world_size`` mean what they mean in a new cell.

    >>> holds(ast.parse("rank % 2 == 0 and ready", mode="eval").body, 1, 4)
    False
    """
    value = None if test is None else value_of(test, {"rank": rank, "world_size": world_size})
    return None if value is None else bool(value)


def number(node: ast.expr, rank: int, world_size: int) -> int | None:
    """Return the value of an expression on a rank; None: that is not known.

    >>> number(ast.parse("8 + 4 * rank", mode="eval").body, 1, 4)
    12
    """
    value = value_of(node, {"rank": rank, "world_size": world_size})
    return value if isinstance(value, int) else None


def value_of(node: ast.expr, names: Mapping[str, int]) -> Any:
    """Return the value of an expression of such names: a number, a range or a list; None: unknown.

    >>> value_of(ast.parse("range(1, size)", mode="eval").body, {"size": 3})
    range(1, 3)
    """
    try:
        return _value(node, names)
    except (_UnknownError, ArithmeticError, TypeError, ValueError, RecursionError):
        return None


def _value(node: ast.expr, names: Mapping[str, int]) -> Any:  # noqa: PLR0911 - one for each kind
    match node:
        case ast.Constant(value=int() as value) if abs(value) <= _LARGEST:
            return value
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.Call(func=function, args=[], keywords=[]):
            return _call(ast.unparse(function), names)
        case ast.Call(func=ast.Name(id="range"), args=arguments, keywords=[]):
            return range(*(_value(each, names) for each in arguments))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, names)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left, names), _value(right, names))
        case ast.BoolOp(op=op, values=values):
            return _combined(values, names, decisive=isinstance(op, ast.Or))
        case ast.Compare(left=left, ops=ops, comparators=others):
            return _compared([left, *others], ops, names)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, names) else orelse, names)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return [_value(part, names) for part in parts]
        case _:
            raise _UnknownError


def _call(function: str, names: Mapping[str, int]) -> int:
    """The value of ``dist.get_rank()`` and the like."""
    match function.rpartition(".")[2]:
        case "get_rank":
            return names["rank"]
        case "get_world_size":
            return names["world_size"]
        case _:
            raise _UnknownError


def _combined(parts: Sequence[ast.expr], names: Mapping[str, int], *, decisive: bool) -> bool:
    """The value of ``and`` or ``or``: one part may decide, though others are not known."""
    is_known = True
    for part in parts:
        try:
            if bool(_value(part, names)) is decisive:
                return decisive
        except _UnknownError:
            is_known = False
    if not is_known:
        raise _UnknownError
    return not decisive


def _compared(
    operands: Sequence[ast.expr], ops: Sequence[ast.cmpop], names: Mapping[str, int]
) -> bool:
    values = [_value(operand, names) for operand in operands]
    for one, op, other in zip(values[:-1], ops, values[1:], strict=True):
        if type(op) not in _COMPARE:
            raise _UnknownError
        if not _COMPARE[type(op)](one, other):
            return False
    return True
