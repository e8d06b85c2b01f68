"""Statements of the user's code with the statements around them: the material of suggested changes.

Runs in: the notebook's process. Pure.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from nbddp.controller.diagnosis.control_flow import Code

#: A statement that can be moved.
Simple: TypeAlias = ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign

INDENTATION = " " * 4
#: Functions that give the items of their first argument.
WRAPPERS = ("enumerate", "tqdm", "track", "iter")

#: Functions of torch.distributed that all ranks of a group call, or two of them.
_COMMUNICATION = re.compile(
    "(all_)?reduce|reduce_scatter(_tensor)?|(all_)?gather(_object)?|all_gather_into_tensor|"
    "broadcast(_object_list)?|scatter(_object_list)?|all_to_all(_single)?|(monitored_)?barrier|"
    "i?send|i?recv|batch_isend_irecv"
)


@dataclass(frozen=True)
class Place:
    """A statement and the statements around it."""

    statement: Simple
    parent: ast.AST
    body: Sequence[ast.stmt]

    @property
    def index(self) -> int:
        """Its position among the statements of its body."""
        return self.body.index(self.statement)

    @property
    def lines(self) -> range:
        """Its lines."""
        return lines_of(self.statement)

    @property
    def next(self) -> "Place | None":
        """The simple statement behind it; None: there is none."""
        behind = self.body[self.index + 1 : self.index + 2]
        return next((Place(each, self.parent, self.body) for each in _simple(behind)), None)

    @property
    def has_own_lines(self) -> bool:
        """Whether no other statement of its body shares a line with it."""
        others = (each for each in self.body if each is not self.statement)
        return all(set(lines_of(each)).isdisjoint(self.lines) for each in others)


def find_place(code: Code, line: int) -> Place | None:
    """The simple statement that has a line."""
    waiting: list[ast.AST] = list(code.statements)
    module = ast.Module(code.statements, [])
    places = [Place(each, module, module.body) for each in _simple(module.body)]
    while waiting:
        parent = waiting.pop()
        for _, value in ast.iter_fields(parent):
            if isinstance(value, list):
                waiting += [each for each in value if isinstance(each, ast.AST)]
                if value and all(isinstance(each, ast.stmt) for each in value):
                    places += [Place(each, parent, value) for each in _simple(value)]
    return next((place for place in places if line in place.lines), None)


def _simple(statements: Sequence[ast.stmt]) -> Iterator[Simple]:
    return (each for each in statements if isinstance(each, Simple))


def lines_of(statement: ast.stmt) -> range:
    """The lines of a statement."""
    return range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def with_comments(code: Code, line: int) -> int:
    """The first line of the comments right above a line; the line itself if there are none."""
    first = line
    while (above := code.source(line - 1).strip()).startswith("#") or (not above and line > 1):
        line -= 1
        first = line if above else first
    return first


def shifted(code: Code, lines: range, by: int) -> list[str] | None:
    """The text of lines with another indentation; None: it is not one of spaces."""
    moved = []
    for source in map(code.source, lines):
        if by >= 0:
            moved.append(" " * by + source if source else "")
        elif source and source[:-by].strip(" "):
            return None
        else:
            moved.append(source[-by:])
    return moved


def has_long_text(*statements: ast.AST) -> bool:
    """Whether a string has several lines: another indentation would change it."""
    return any(
        isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno != node.lineno
        for statement in statements
        for node in ast.walk(statement)
    )


def names_in(node: ast.AST | None) -> set[str]:
    """The names that a piece of code has."""
    nodes = () if node is None else ast.walk(node)
    return {each.id for each in nodes if isinstance(each, ast.Name)}


def called(node: ast.AST | None) -> str:
    """The last part of the name of the function that is called; empty: it is no such call."""
    function = node.func if isinstance(node, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def unwrapped(items: ast.expr) -> ast.expr:
    """The items that a loop gets through functions such as ``enumerate``."""
    while isinstance(items, ast.Call) and called(items) in WRAPPERS and items.args:
        items = items.args[0]
    return items


def is_communication(node: ast.AST) -> bool:
    """Whether a node itself calls such a function."""
    return bool(_COMMUNICATION.fullmatch(called(node)))


def communicates(*statements: ast.AST) -> bool:
    """Whether statements call functions of torch.distributed by their names."""
    return any(is_communication(node) for statement in statements for node in ast.walk(statement))
