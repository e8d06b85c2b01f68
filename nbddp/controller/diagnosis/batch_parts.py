"""Tells whether a loop takes a part of each batch by the number of the rank.

Runs in: the notebook's process. Pure. ``x[rank::4]``, ``x.chunk(4)[rank]`` and ``x.narrow(0, rank *
8, 8)`` use each sample on one rank, though all ranks have read it.
"""

import ast
import re
from collections.abc import Iterator

from nbddp.controller.diagnosis.code_places import called, names_in
from nbddp.controller.diagnosis.control_flow import Code

_RANK = re.compile(r"(?:.*_)?rank(?:_.*)?")
#: Functions that return a part of a tensor, by arguments.
_PARTS = frozenset(("narrow", "select", "index_select", "take", "getitem", "islice"))
_CONVERSIONS = frozenset(("dict", "list", "map", "torch", "tuple", "zip"))
_Loop = ast.For | ast.AsyncFor


def takes_part_by_rank(code: Code, line: int) -> bool:
    """Return whether a loop uses only a part of what it gets, which depends on the rank.

    Args:
        code: the text of a cell or file.
        line: of the loop.
    """
    module = ast.Module(code.statements, [])
    loops = [node for node in ast.walk(module) if isinstance(node, _Loop) and node.lineno == line]
    if not loops:
        return False
    ranks = _derived(module, set())
    return any(_takes_part(loop, ranks) for loop in loops)


def _takes_part(loop: _Loop, ranks: set[str]) -> bool:
    batch = names_in(loop.target)
    for node in (each for statement in loop.body for each in ast.walk(statement)):
        if isinstance(node, ast.comprehension) and names_in(node.iter) & batch:
            batch |= names_in(node.target)
        elif isinstance(node, ast.Assign) and _is_made_of(node.value, batch):
            batch |= {name for target in node.targets for name in names_in(target)}
    for node in (each for statement in loop.body for each in ast.walk(statement)):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            whole, parts = names_in(node.value), [node.slice]
        elif isinstance(node, ast.Call) and called(node) in _PARTS:
            whole, parts = names_in(node), [*node.args, *(each.value for each in node.keywords)]
        else:
            continue
        if whole & batch and any(_is_of_rank(part, ranks) for part in parts):
            return True
    return False


def _is_made_of(value: ast.expr, batch: set[str]) -> bool:
    """Whether a value is a batch in another form, and not what a model made of it."""
    calls = (each.func for each in ast.walk(value) if isinstance(each, ast.Call))
    known = batch | _CONVERSIONS
    return bool(names_in(value) & batch) and all(names_in(each) & known for each in calls)


def _derived(module: ast.Module, ranks: set[str]) -> set[str]:
    """The names that the code gives values made of the rank."""
    while True:
        names = {
            name
            for node in ast.walk(module)
            if isinstance(node, ast.Assign) and _is_number_of_rank(node.value, ranks)
            for target in node.targets
            for name in _plain_names(target)
        }
        if names <= ranks:
            return ranks
        ranks = ranks | names


def _plain_names(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Name):
        yield target.id


def _is_number_of_rank(value: ast.expr, ranks: set[str]) -> bool:
    """Whether an expression is a number or a slice made of the rank, not what it gives."""
    inside = list(ast.walk(value))
    is_other = any(
        isinstance(each, ast.Subscript) or (isinstance(each, ast.Call) and not _is_simple(each))
        for each in inside
    )
    return not is_other and _is_of_rank(value, ranks)


def _is_simple(call: ast.Call) -> bool:
    return called(call) in ("slice", "range", "int") or bool(_RANK.fullmatch(called(call)))


def _is_of_rank(node: ast.AST, ranks: set[str]) -> bool:
    """Whether an expression has the rank in it: by its name, or by ``get_rank()``."""
    return any(
        (isinstance(each, ast.Name) and (each.id in ranks or _RANK.fullmatch(each.id)))
        or (isinstance(each, ast.Attribute) and _RANK.fullmatch(each.attr))
        or (isinstance(each, ast.Call) and _RANK.fullmatch(called(each)))
        for each in ast.walk(node)
    )
