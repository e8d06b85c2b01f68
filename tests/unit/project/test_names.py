"""Local names say what they hold."""

import ast
import re
from pathlib import Path

import pytest

_PACKAGE = Path(__file__).parents[3] / "nbddp"
#: They fit any value. One line can do with them: a comprehension, a generator expression.
_EMPTY_NAMES = {"found", "each", "told"}


_WORDS = re.compile(rf"\b({'|'.join(_EMPTY_NAMES)})\b")


def empty_names(source: str) -> list[tuple[int, str]]:
    """The lines of a module where a statement of a function binds a name that says nothing."""
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return sorted(
        {
            (name.lineno, name.id)
            for function in functions
            for node in ast.walk(function)
            for target in _targets(node)
            for name in ast.walk(target)
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
            if name.id in _EMPTY_NAMES
        }
    )


def _targets(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.Assign(targets=targets):
            return targets
        case ast.For(target=target) | ast.AsyncFor(target=target):
            return [target]
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            return [target]
        case ast.NamedExpr(target=target):
            return [target]
        case ast.With(items=items) | ast.AsyncWith(items=items):
            return [item.optional_vars for item in items if item.optional_vars is not None]
        case _:
            return []


@pytest.mark.parametrize(
    "statement",
    [
        "found = 1",
        "first, found = 1, 2",
        "found: int = 1",
        "told += 1",
        "for each in (): pass",
        "for key, each in (): pass",
        "if found := 1: pass",
        "with open('') as found: pass",
    ],
)
def test_statements_that_bind_an_empty_name(statement: str):
    assert len(empty_names(f"def function():\n    {statement}")) == 1


@pytest.mark.parametrize(
    "statement",
    ["names = [each for each in ()]", "is_any = any(each for each in ())", "self.told = 1"],
)
def test_one_line_may_use_an_empty_name(statement: str):
    assert empty_names(f"def function(self):\n    {statement}") == []


def test_local_names_say_what_they_hold():
    wrong = [
        f"{path.relative_to(_PACKAGE.parent)}:{line}: {name}"
        for path in sorted(_PACKAGE.rglob("*.py"))
        if _WORDS.search(source := path.read_text(encoding="utf-8"))  # the parser takes long
        for line, name in empty_names(source)
    ]
    assert wrong == [], "name each by what it holds"
