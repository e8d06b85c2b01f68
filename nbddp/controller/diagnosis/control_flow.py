"""Finds the statements that decide whether a line of the user's code runs: `if`, loops, `break`.

Runs in: the notebook's process. Pure. Reads the syntax tree of a cell or file; lines count as in
`nbddp.wire.flight_recorder.Site`.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, TypeAlias

from nbddp.wire.flight_recorder import Site

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Loop: TypeAlias = ast.For | ast.AsyncFor | ast.While
#: Lines of IPython in a cell: ``%time step()``, ``!ls``, ``files = !ls``, ``step?``.
_MAGIC = re.compile(r"^(\s*)(?:[%!].*|[\w, ]+=\s*[%!].*|\??[\w.]+\?{1,2})$")
#: An escape in a string: Python warns of unknown ones, and the text of strings does not matter.
_ESCAPE = re.compile(r"\\.")
#: Classes of the error by which nbddp frees a rank.
_OF_FREED = frozenset({"Exception", "BaseException", "RuntimeError"})
_ELSE = re.compile(r"\s*else\s*:")
#: Levels of a statement; each takes some of the 1,000 calls that Python nests.
_MAX_DEPTH = 200
#: Functions that call no collective.
_HARMLESS = re.compile(r"print|len|(\w+\.)*(get_rank|get_world_size)")


#: ``try``: with an ``except``, so that an exception leaves out the rest of it, or `suppress`.
BranchKind: TypeAlias = Literal["condition", "loop", "try"]


@dataclass(frozen=True)
class Branch:
    """A part of the code that ranks may run, or not, or a different number of times."""

    kind: BranchKind
    line: int  #: of its first line: ``if rank == 0:``
    end: int  #: its last line
    source: str  #: the text of its first line
    #: For ``else``: the statement that it belongs to.
    other: "Branch | None" = None
    test: ast.expr | None = field(default=None, compare=False)  #: of ``if`` and ``elif``
    handlers: "tuple[Handler, ...]" = ()  #: of ``try``
    #: ``and`` or ``or``: the parts of a condition in front of it decide whether a call behind runs.
    operator: str = ""

    @property
    def headers(self) -> tuple[int, ...]:
        """The lines that name it: for ``else``, also its ``if``; for ``try``, its ``except``."""
        handlers = (handler.line for handler in self.handlers)
        others = () if self.other is None else self.other.headers
        return tuple(dict.fromkeys((*others, self.line, *handlers)))

    def __contains__(self, line: int) -> bool:
        return self.line <= line <= self.end


@dataclass(frozen=True)
class Handler:
    """An ``except`` that goes on after an exception, or a ``with suppress``."""

    line: int
    source: str
    #: It takes any exception, also one by which nbddp frees a rank, and raises none.
    takes_all: bool = False


@dataclass(frozen=True)
class Exit:
    """A `continue`, `break`, `return` or `sys.exit()` after which a line does not run."""

    line: int
    source: str
    condition: Branch  #: the innermost one around it
    is_continue: bool = False


def _is_deep(statement: ast.stmt) -> bool:
    """Whether a syntax tree has too many levels, as a sum of 300 terms: each adds one."""
    nodes: list[ast.AST] = [statement]
    for _ in range(_MAX_DEPTH):
        nodes = [child for node in nodes for child in ast.iter_child_nodes(node)]
        if not nodes:
            return False
    return True


class Code:
    """The text of a cell or a file.

    Args:
        text: its source; cells may have magics.
        first_line: the line that the text begins on.
    """

    def __init__(self, text: str, first_line: int = 1) -> None:
        self._lines = [""] * (first_line - 1) + text.splitlines()

    def source(self, line: int) -> str:
        """Return the text of a line, with its indentation; empty where there is none."""
        return self._lines[line - 1].rstrip() if 0 < line <= len(self._lines) else ""

    @property
    def text(self) -> str:
        """The whole text; lines before its first one are empty."""
        return "\n".join(self._lines)

    def mentions(self, word: str) -> bool:
        """Return whether a line has a word, or a part of one; no syntax tree is needed."""
        return any(word in line for line in self._lines)

    @cached_property
    def statements(self) -> list[ast.stmt]:
        """The syntax tree, with lines of IPython left out; empty for code with an error.

        A statement that is nested too deeply for functions that call themselves is left out, too.
        """
        plain = [_ESCAPE.sub("xx", line) for line in self._lines]
        for lines in (plain, [_MAGIC.sub(r"\1pass", line) for line in plain]):
            try:
                tree = ast.parse("\n".join(lines))
                return [each for each in tree.body if not _is_deep(each)]
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
        return []

    def branches(self, line: int) -> tuple[Branch, ...]:
        """Return the branches around a line, the innermost first, up to its function."""
        return tuple(reversed(list(self._around(line)[1])))

    def exits(self, line: int) -> tuple[Exit, ...]:
        """Return the statements that may keep a rank from this line, in the order of the lines."""
        body, inside = self._around(line)
        exits = [
            Exit(
                statement.lineno,
                self.source(statement.lineno).strip(),
                around[-1],
                isinstance(statement, ast.Continue),
            )
            for statement, loops, conditions in self._statements(body)
            if _is_exit(statement)
            and _skips(statement, loops, line)
            and (around := [each for each in conditions if each not in inside])
        ]
        return tuple(sorted(exits, key=lambda leave: leave.line))

    def _around(self, line: int) -> tuple[Sequence[ast.stmt], list[Branch]]:
        """Return the body of the function that has the line, and the branches, outermost first."""
        function: Sequence[ast.stmt] = self.statements
        branches: list[Branch] = []
        statements: Sequence[ast.stmt] = self.statements
        while True:
            inside = next(
                (each for each in statements if _first(each) <= line <= _last(each)), None
            )
            if inside is None:
                return function, branches
            if isinstance(inside, _Function):
                function, branches = inside.body, []
            for body, branch in self._parts(inside):
                if body and _runs_in(body, inside, line):
                    statements = body
                    branches += [branch] if branch is not None else []
                    break
            else:
                return function, [*branches, *self._behind_and(inside, line)]

    def _behind_and(self, statement: ast.stmt, line: int) -> Iterator[Branch]:
        """The first parts of a condition after which a call in it runs: ``if rank == 0 and f():``.

        For `or` they are negated. Or the condition of ``f() if rank == 0 else None``.
        """
        match statement:
            case ast.If(test=ast.BoolOp(op=op, values=[first, *others])) if not _calls([first]):
                behind = next((n for n, each in enumerate(others) if _calls([each])), None)
            case ast.Expr() | ast.Assign() | ast.AugAssign() | ast.AnnAssign() | ast.Return():
                yield from _in_expression(statement, line)
                return
            case _:
                return
        if behind is None or not others[behind].lineno <= line <= _last(others[behind]):
            return
        test: ast.expr = first if not behind else ast.BoolOp(op, [first, *others[:behind]])
        test = ast.UnaryOp(ast.Not(), test) if isinstance(op, ast.Or) else test
        whole = self._branch("condition", statement, statement.body)
        name = "or" if isinstance(op, ast.Or) else "and"
        yield replace(whole, end=_last(statement.test), test=test, operator=name)

    def _parts(self, statement: ast.stmt) -> Iterator[tuple[Sequence[ast.stmt], Branch | None]]:
        """The bodies of a statement; None: it runs whenever the statement does."""
        match statement:
            case ast.If():
                yield statement.body, self._branch("condition", statement, statement.body)
                yield from self._else(statement)
            case ast.For() | ast.AsyncFor() | ast.While():
                yield statement.body, self._branch("loop", statement, statement.body)
                yield statement.orelse, None
            case ast.Try() | ast.TryStar():
                whole = self._branch("try", statement, statement.body)
                handlers = tuple(map(self._handler, statement.handlers))
                is_handled = replace(whole, handlers=handlers) if handlers else None
                yield statement.body, is_handled
                for handler in statement.handlers:
                    yield handler.body, self._branch("condition", handler, handler.body)
                yield statement.orelse, None
                yield statement.finalbody, None
            case ast.Match():
                for case in statement.cases:
                    yield case.body, self._branch("condition", case.pattern, case.body)
            case ast.With(items=[ast.withitem(context_expr=ast.Call() as call)]) if ast.unparse(
                call.func
            ) in ("suppress", "contextlib.suppress"):
                whole = self._branch("try", statement, statement.body)
                takes_all = any(_takes_all(each) for each in call.args)
                suppress = (Handler(whole.line, whole.source, takes_all),)
                yield statement.body, replace(whole, handlers=suppress)
            case ast.With() | ast.AsyncWith() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield statement.body, None
            case ast.ClassDef():
                yield statement.body, None
            case _:
                pass

    def _else(self, statement: ast.If) -> Iterator[tuple[Sequence[ast.stmt], Branch | None]]:
        rest = statement.orelse
        if not rest:
            return
        is_elif = isinstance(rest[0], ast.If) and self.source(rest[0].lineno).lstrip()[:4] == "elif"
        if len(rest) == 1 and is_elif:
            yield rest, None  # it has its own condition
            return
        header = _first(rest[0])
        while header > _last(statement.body[-1]) and not _ELSE.match(self.source(header)):
            header -= 1
        condition = self._branch("condition", statement, statement.body)
        source = self._header(header, rest[0])
        yield rest, Branch("condition", header, _last(rest[-1]), source, condition)

    def _branch(
        self,
        kind: BranchKind,
        statement: ast.stmt | ast.ExceptHandler | ast.pattern,
        body: Sequence[ast.stmt],
    ) -> Branch:
        source = self._header(statement.lineno, body[0])
        test = statement.test if isinstance(statement, ast.If) else None
        return Branch(kind, statement.lineno, _last(body[-1]), source, test=test)

    def _handler(self, handler: ast.ExceptHandler) -> Handler:
        raises = any(isinstance(node, ast.Raise) for node in ast.walk(handler))
        takes_all = not raises and (handler.type is None or _takes_all(handler.type))
        return Handler(handler.lineno, self._header(handler.lineno, handler.body[0]), takes_all)

    def _header(self, line: int, first: ast.stmt) -> str:
        """The text up to the body: ``if rank == 0:``, in one line and without a comment."""
        parts = []
        for number in range(line, _first(first) + 1):
            text = self.source(number)
            if number == first.lineno:
                text = text.encode()[: first.col_offset].decode(errors="replace")
            text = text.strip()
            text = text if text.endswith(":") else text.partition("#")[0].rstrip()
            parts.append(text)
            if text.endswith(":"):
                break
        return " ".join(parts)

    def _statements(
        self,
        body: Sequence[ast.stmt],
        loops: tuple[ast.stmt, ...] = (),
        conditions: tuple[Branch, ...] = (),
    ) -> Iterator[tuple[ast.stmt, tuple[ast.stmt, ...], tuple[Branch, ...]]]:
        """The statements of a function, with the loops and conditions around each."""
        for statement in body:
            yield statement, loops, conditions
            if isinstance(statement, _Function):
                continue
            inner = (*loops, statement) if isinstance(statement, _Loop) else loops
            for part, branch in self._parts(statement):
                is_condition = branch is not None and branch.kind == "condition"
                around = (*conditions, branch) if branch and is_condition else conditions
                yield from self._statements(part, inner, around)


#: Gives the code that has a line; None: it is not known.
Sources: TypeAlias = Callable[[Site], Code | None]


def no_sources(site: Site) -> Code | None:
    """No code is known."""
    return None


def _in_expression(statement: ast.stmt, line: int) -> Iterator[Branch]:
    """The condition of ``f() if rank == 0 else None``, if no other part of the statement calls."""
    for node in ast.walk(statement):
        match node:
            case ast.IfExp(test=test, body=body, orelse=orelse):
                parts = [part for part in (body, orelse) if _calls([part])]
            case _:
                continue
        if len(parts) != 1 or _count_calls(statement) != _count_calls(parts[0]):
            continue
        if not parts[0].lineno <= line <= _last(parts[0]):
            continue
        source = f"if {ast.unparse(test)} else {ast.unparse(orelse)}"
        if parts[0] is orelse:
            source = f"{ast.unparse(body)} if {ast.unparse(test)} else"
            test = ast.UnaryOp(ast.Not(), test)
        yield Branch("condition", node.test.lineno, _last(statement), source, test=test)


def _count_calls(node: ast.AST) -> int:
    """The number of calls that may communicate."""
    return sum(_calls([each]) for each in ast.walk(node) if isinstance(each, ast.Call | ast.Await))


def _runs_in(body: Sequence[ast.stmt], statement: ast.stmt, line: int) -> bool:
    """Whether a line belongs to a part of a statement.

    In ``if agree(x): break`` the line runs for the condition, and nothing in the part can call.
    """
    if not _first(body[0]) <= line <= _last(body[-1]):
        return False
    test = statement.test if isinstance(statement, ast.If) else None
    if test is None or not test.lineno <= line <= (test.end_lineno or line) or not _calls([test]):
        return True
    return _calls(each for each in body if _first(each) <= line <= _last(each))


def _calls(nodes: Iterable[ast.AST]) -> bool:
    """Whether code calls a function that may communicate."""
    return any(
        isinstance(node, ast.Await)
        or (isinstance(node, ast.Call) and not _HARMLESS.fullmatch(ast.unparse(node.func)))
        for each in nodes
        for node in ast.walk(each)
    )


def _takes_all(kinds: ast.expr) -> bool:
    """Whether an ``except`` of these kinds takes the error by which nbddp frees a rank."""
    parts = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
    return not _OF_FREED.isdisjoint(map(ast.unparse, parts))


def _is_exit(statement: ast.stmt) -> bool:
    """Whether a statement leaves a loop, a function, or the cell."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return ast.unparse(statement.value.func) in ("sys.exit", "exit", "quit")
    return isinstance(statement, ast.Break | ast.Continue | ast.Return)


def _skips(leaving: ast.stmt, loops: tuple[ast.stmt, ...], line: int) -> bool:
    """Whether a line may not run because of a `continue`, `break` or `return` inside loops."""
    around = [_first(loop) <= line <= _last(loop) for loop in loops]
    match leaving:
        case ast.Continue():
            return bool(around) and around[-1] and leaving.lineno < line
        case ast.Break():
            return bool(around) and around[-1]
        case _:
            return leaving.lineno < line or any(around)


def _first(statement: ast.stmt) -> int:
    decorators = statement.decorator_list if isinstance(statement, _Function) else []
    return min([statement.lineno, *(each.lineno for each in decorators)])


def _last(statement: ast.stmt | ast.expr) -> int:
    return statement.end_lineno or statement.lineno
