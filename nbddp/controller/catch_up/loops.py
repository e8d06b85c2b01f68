"""Finds the cells that run a loop: themselves, or in a function or method of a cell that they call.

Runs in: the notebook's process. Pure. ``for batch in data: step(batch)`` and ``train(data)`` with
the same loop in ``train`` are one case for the plan, so they are one case here.
"""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from nbddp.controller.catch_up.past_cell import PastCell
from nbddp.controller.diagnosis import Code
from nbddp.wire.fault_grammar import OPERATIONS

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class _Body:
    """Code that runs together: a cell or a function, without the functions that it defines."""

    has_loop: bool
    calls: frozenset[str]  #: names of functions; after a dot, they begin with one
    repeated: frozenset[str]  #: those of them that a comprehension calls


class Loops:
    """The loops of cells.

    Args:
        cells: all cells; of functions with one name the last one counts.
    """

    def __init__(self, cells: Iterable[PastCell]) -> None:
        self._known: dict[str, _Body] = {}  # by name; that of a method begins with a dot
        for cell in cells:
            for statement in _statements(cell):
                for node in ast.walk(statement):
                    if isinstance(node, _Function):
                        self._known[node.name] = _body(node.body)
                    if isinstance(node, ast.ClassDef):
                        methods = (each for each in node.body if isinstance(each, _Function))
                        self._known.update({f".{each.name}": _body(each.body) for each in methods})

    def runs_loop(self, cell: PastCell) -> bool:
        """Whether a loop runs with a cell, not only in functions that it defines."""
        return self._has_loop(_body(_statements(cell)), set())

    def _has_loop(self, body: _Body, seen: set[str]) -> bool:
        if body.has_loop or any(
            name.lstrip(".") in OPERATIONS or name in self._known for name in body.repeated
        ):
            return True
        new = body.calls & self._known.keys() - seen
        seen |= new
        return any(self._has_loop(self._known[name], seen) for name in sorted(new))


def _statements(cell: PastCell) -> list[ast.stmt]:
    return list(Code(cell.python, cell.first_line).statements)


def _body(statements: Iterable[ast.stmt]) -> _Body:
    nodes = list(_run(statements))
    comprehensions = (node for node in nodes if isinstance(node, _COMPREHENSIONS))
    return _Body(
        any(isinstance(node, _LOOPS) for node in nodes),
        _called(nodes),
        _called(inner for node in comprehensions for inner in ast.walk(node)),
    )


def _run(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Walk through code that runs with these statements, and not through functions in it."""
    for node in nodes:
        yield node
        if not isinstance(node, _Function | ast.Lambda):
            yield from _run(ast.iter_child_nodes(node))


def _called(nodes: Iterable[ast.AST]) -> frozenset[str]:
    functions = (node.func for node in nodes if isinstance(node, ast.Call))
    return frozenset(
        function.id if isinstance(function, ast.Name) else f".{function.attr}"
        for function in functions
        if isinstance(function, ast.Name | ast.Attribute)
    )
