"""Counts the items of what a loop iterates over, on each rank, where the code alone tells it.

Runs in: the notebook's process. Pure. Names are followed to their one assignment in the same cell
or file, as long as nothing there may change the items since.
"""

import ast

from nbddp.controller.diagnosis.code_places import called
from nbddp.controller.diagnosis.definitions import Scope, resolved
from nbddp.controller.diagnosis.rank_conditions import holds, number

#: Functions that give each item of their first argument once.
_WRAPPERS = ("enumerate", "tqdm", "list", "tuple", "sorted", "reversed", "iter")
#: Functions that leave their arguments as they are.
_READERS = (*_WRAPPERS, "len", "zip", "range", "print", "sum", "min", "max", "str", "isinstance")


def item_count(  # noqa: PLR0911 - one for each kind of items
    items: ast.expr, scope: Scope, rank: int, size: int
) -> int | None:
    """Return the number of items on a rank; None: the code does not tell it.

    Args:
        items: what a loop iterates over.
        scope: the line of the loop.
        rank: the rank.
        size: the number of ranks of the pool.
    """
    match items:
        case ast.Name(id=name):
            definition = resolved(items, scope)
            is_here = definition.scope.code is scope.code
            if definition.value is items or not is_here or _may_change(name, scope):
                return None
            return item_count(definition.value, definition.scope, rank, size)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return None if any(isinstance(each, ast.Starred) for each in parts) else len(parts)
        case ast.Constant(value=str() as text):
            return len(text)
        case ast.IfExp():
            return _of_either(items, scope, rank, size)
        case ast.ListComp(generators=[ast.comprehension(iter=inner, ifs=[])]):
            return item_count(inner, scope, rank, size)
        case ast.Call(func=ast.Name(id="range"), args=arguments, keywords=[]):
            bounds = [_number(each, scope, rank, size) for each in arguments]
            known = [each for each in bounds if each is not None]
            return (
                len(range(*known)) if 0 < len(known) == len(bounds) and known[2:] != [0] else None
            )
        case ast.Call(args=[first, *_]) if called(items) in _WRAPPERS:
            return item_count(first, scope, rank, size)
        case ast.Call(args=[first]) if called(items) in (
            "ones",
            "zeros",
            "rand",
            "randn",
            "arange",
        ):
            return _number(first, scope, rank, size)
        case ast.Call(func=ast.Name(id="zip"), args=[_, *_] as arguments, keywords=[]):
            counts = [item_count(each, scope, rank, size) for each in arguments]
            return min(each for each in counts if each is not None) if None not in counts else None
        case _:
            return None


def _of_either(items: ast.IfExp, scope: Scope, rank: int, size: int) -> int | None:
    """The number of items of one of two values; that of both where it is the same."""
    is_met = holds(items.test, rank, size)
    counts = [item_count(each, scope, rank, size) for each in (items.body, items.orelse)]
    if is_met is None:
        return counts[0] if counts[0] == counts[1] else None
    return counts[0 if is_met else 1]


def _number(node: ast.expr, scope: Scope, rank: int, size: int) -> int | None:
    """A number, also that of a name, or the length of items."""
    match node:
        case ast.Call(func=ast.Name(id="len"), args=[items]):
            return item_count(items, scope, rank, size)
        case ast.Name(id=name) if name not in ("rank", "world_size"):
            definition = resolved(node, scope)
            if definition.value is node or definition.scope.code is not scope.code:
                return None
            return number(definition.value, rank, size)
        case _:
            return number(node, rank, size)


def _may_change(name: str, scope: Scope) -> bool:
    """Whether the code has a method of a name, or gives it to a function, or sets its items."""
    for node in ast.walk(ast.Module(scope.code.statements, [])):
        match node:
            case ast.Attribute(value=ast.Name(id=owner)) if owner == name:
                return True
            case ast.Subscript(value=ast.Name(id=owner), ctx=ast.Store() | ast.Del()):
                if owner == name:
                    return True
            case ast.Call(args=arguments, keywords=keywords) if called(node) not in _READERS:
                values = [*arguments, *(each.value for each in keywords)]
                if any(isinstance(each, ast.Name) and each.id == name for each in values):
                    return True
            case _:
                pass
    return False
