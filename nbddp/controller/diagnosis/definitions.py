"""Finds what a name of the user's code means: the one assignment that gives it its value.

Runs in: the notebook's process. Pure. A name with several assignments, a parameter, and a global
name in a function have no meaning here: they may be anything when the line runs.
"""

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from nbddp.controller.diagnosis.control_flow import Code
from nbddp.wire.flight_recorder import Site

#: Cells before that of a line in which a name is looked for.
_CELLS = 50


@dataclass(frozen=True)
class Scope:
    """A place in the code, from which names are looked for."""

    site: Site
    code: Code
    sources: Callable[[Site], Code | None]

    def definition(self, name: str) -> "Definition | None":
        """Return the value of a name at the place; None: it is not known."""
        function = function_at(self.code.statements, self.site.line)
        if function is not None:
            arguments = {each.arg for each in ast.walk(function) if isinstance(each, ast.arg)}
            return None if name in arguments else self._only(function.body, name)
        if name in _bound(self.code.statements):
            return self._only(self.code.statements, name)
        first = max(1, self.site.cell - _CELLS)
        for cell in range(self.site.cell - 1, first - 1, -1):
            site = Site("", 1, "<module>", "", cell)
            code = self.sources(site)
            if code is not None and code.mentions(name) and name in _bound(code.statements):
                scope = Scope(site, code, self.sources)
                return scope._only(code.statements, name, is_earlier=True)
        return None

    def _only(
        self, statements: Sequence[ast.stmt], name: str, *, is_earlier: bool = False
    ) -> "Definition | None":
        """The one assignment to a name; None: there are more, or another statement binds it."""
        if _bound(statements).count(name) != 1:
            return None
        for node in nodes_of(statements):
            match node:
                case ast.Assign(targets=[ast.Name(id=bound)], value=value) if bound == name:
                    if is_earlier or node.lineno < self.site.line:
                        site = msgspec.structs.replace(self.site, line=node.lineno)
                        return Definition(value, Scope(site, self.code, self.sources))
                case _:
                    pass
        return None


@dataclass(frozen=True)
class Definition:
    """The value that a name has got."""

    value: ast.expr
    scope: Scope  #: the place of its assignment


def resolved(value: ast.expr, scope: Scope) -> Definition:
    """The value of a name at a place, or the expression itself."""
    definition = scope.definition(value.id) if isinstance(value, ast.Name) else None
    return definition or Definition(value, scope)


def function_at(
    statements: Sequence[ast.stmt], line: int
) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The innermost function that has a line."""
    module = ast.Module(list(statements), [])
    functions = [
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(functions, key=lambda each: each.lineno, default=None)


def nodes_of(statements: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    """The nodes of a body, without those of functions and classes in it."""
    waiting: list[ast.AST] = list(statements)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def _bound(statements: Sequence[ast.stmt]) -> list[str]:
    """The names that a body binds, each as often as it does."""
    names = []
    for node in nodes_of(statements):
        match node:
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                names.append(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.append(name)
            case ast.ClassDef(name=name):
                names.append(name)
            case ast.alias(name=name, asname=other):
                names.append(other or name.partition(".")[0])
            case _:
                pass
    return names
