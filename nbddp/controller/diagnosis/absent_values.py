"""Values that are None on some ranks: a condition keeps these ranks from the call that uses them.

Runs in: the notebook's process. Pure. A call before such a condition would fail there.
"""

import ast
from collections.abc import Iterator

from nbddp.controller.diagnosis.code_places import find_place
from nbddp.controller.diagnosis.control_flow import Branch, Code

_GRADIENT = "grad"


def absent_value(code: Code, line: int, condition: Branch, *, skips: bool) -> ast.expr | None:
    """The value that a call uses, and that a condition compares with None; None: there is none.

    Args:
        code: the text of a cell or a file.
        line: a line of the call.
        condition: the condition.
        skips: a rank that meets it skips the call; False: such a rank makes the call.
    """
    place = find_place(code, line)
    if place is None or condition.test is None or condition.other is not None:
        return None
    used = {ast.dump(node) for node in ast.walk(place.statement) if isinstance(node, ast.expr)}
    values = _compared(condition.test, ast.Is if skips else ast.IsNot)
    return next((value for value in values if ast.dump(value) in used), None)


def _compared(test: ast.expr, operator: type[ast.cmpop]) -> Iterator[ast.expr]:
    """The values that are compared with None, if each is a part of an `and` or an `or`."""
    match test:
        case ast.BoolOp():
            for value in test.values:
                yield from _compared(value, operator)
        case ast.Compare(ops=[found], comparators=[ast.Constant(value=None)]):
            if isinstance(found, operator):
                yield test.left
        case _:
            pass


def with_zeros(value: ast.expr) -> str:
    r"""The advice to give ranks the value that they lack, without its place.

    >>> with_zeros(ast.parse("p.grad", mode="eval").body)
    'put `if p.grad is None: p.grad = torch.zeros_like(p)`'
    """
    name = ast.unparse(value)
    if isinstance(value, ast.Attribute) and value.attr == _GRADIENT:
        return f"put `if {name} is None: {name} = torch.zeros_like({ast.unparse(value.value)})`"
    return f"where `{name}` is None, give it zeros of the shape that it has on the other ranks"
