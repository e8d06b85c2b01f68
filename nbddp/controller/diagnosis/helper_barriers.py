"""Moves a barrier out of a function that one rank calls: ``if rank == 0: save(step)``.

Runs in: the notebook's process. Pure. The whole call must not move out of its ``if``: then all
ranks would write the file. The barrier alone moves, to a line behind the ``if``.
"""

import ast
import re
from dataclasses import dataclass

from nbddp.controller.diagnosis.callers import lines_that_call
from nbddp.controller.diagnosis.code_places import (
    Place,
    called,
    communicates,
    find_place,
    with_comments,
)
from nbddp.controller.diagnosis.control_flow import Code, Sources
from nbddp.controller.diagnosis.definitions import function_at, nodes_of
from nbddp.controller.diagnosis.divergence import Divergence
from nbddp.controller.diagnosis.report import ChangedLine, CodeChange
from nbddp.wire.flight_recorder import Operation, shortened
from nbddp.wire.flight_recorder.matching import BARRIERS

#: Functions whose effect is meant to happen once: they write files, or to a log.
_ONCE = re.compile(
    r"_?(save|dump|write|log|export|upload|checkpoint|record)\w*|\w+_(save|dump|write|checkpoint)|"
    "open|to_(csv|json|parquet|pickle)|mkdir|makedirs|remove|unlink|rename|copy2?|copytree|rmtree|"
    "add_scalar|savefig"
)
_MAX_SOURCE = 60


@dataclass(frozen=True)
class HelperCall:
    """A call, inside a condition, of a function that acts once and has a collective in it."""

    divergence: Divergence  #: the line of the call
    operation: Operation  #: the collective
    function: ast.FunctionDef | ast.AsyncFunctionDef  #: it has the collective
    code: Code  #: of the function

    @property
    def is_barrier(self) -> bool:
        """Whether the collective can move without the function around it."""
        alone = [node for node in nodes_of(self.function.body) if communicates_itself(node)]
        return self.operation.signature.op in BARRIERS and len(alone) == 1

    @property
    def call(self) -> str:
        r"""``\`save(step)\```."""
        return f"`{shortened(self.divergence.site.source, _MAX_SOURCE)}`"

    @property
    def change(self) -> CodeChange | None:
        """The barrier moves behind the ``if``; None: the source is not simple enough."""
        site = self.divergence.site
        lines = self._moved() if site.position[:2] == self.operation.site.position[:2] else ()
        return CodeChange(site.cell, site.file, lines) if lines else None

    def _moved(  # noqa: PLR0911 - one for each reason against it
        self,
    ) -> tuple[ChangedLine, ...]:
        code, line = self.code, self.operation.site.line
        caller, inner = find_place(code, self.divergence.site.line), find_place(code, line)
        if not self.is_barrier or caller is None or inner is None or not caller.has_own_lines:
            return ()
        around, barrier = caller.parent, inner.statement
        is_only = len(list(lines_that_call(code, self.function.name))) == 1
        is_last = inner.parent is self.function and inner.body[-1] is barrier
        if not (is_only and is_last and len(inner.body) > 1 and isinstance(around, ast.If)):
            return ()
        if code.source(around.lineno).lstrip()[:4] == "elif" or around.lineno == caller.lines[0]:
            return ()
        if not _is_plain(barrier) or len(inner.lines) > 1 or not inner.has_own_lines:
            return ()
        if self.function.name != called(caller.statement.value):
            return ()  # another function is between them
        behind = [*caller.body[caller.index + 1 :], *around.orelse]
        if caller.body is not around.body or communicates(*behind):
            return ()
        return tuple(self._lines(inner, caller, around))

    def _lines(self, inner: Place, caller: Place, around: ast.If) -> list[ChangedLine]:
        code = self.code
        last = around.end_lineno or around.lineno
        removed = range(with_comments(code, inner.lines[0]), inner.lines[-1] + 1)
        shown = sorted({removed[0] - 1, *removed, around.lineno, *caller.lines, last})
        lines: list[ChangedLine] = []
        before = shown[0]
        for number in shown:
            source = code.source(number)
            if number > before + 1:
                blank = " " * (len(source) - len(source.lstrip()))
                lines.append(ChangedLine("same", 0, f"{blank}..."))
            lines.append(ChangedLine("removed" if number in removed else "same", number, source))
            before = number
        text = code.source(inner.lines[0]).strip()
        return [*lines, ChangedLine("added", 0, " " * around.col_offset + text)]


def helper_call(
    divergence: Divergence, operation: Operation, sources: Sources
) -> HelperCall | None:
    """Return the call of a helper that must not move out of its condition as a whole.

    Args:
        divergence: the line that some ranks have not come to.
        operation: the collective that they have not called.
        sources: the code.

    Returns:
        The call; None: it is the collective itself, or the helper may run on all ranks.
    """
    site = operation.site
    if divergence.site.position == site.position or operation.is_by_library:
        return None
    if [branch.kind for branch in divergence.branches] != ["condition"]:
        return None
    code = sources(site) if site.line else None
    function = None if code is None else function_at(code.statements, site.line)
    if code is None or function is None:
        return None
    calls = [called(node) for node in nodes_of(function.body)]
    acts_once = any(_ONCE.fullmatch(name) for name in (function.name, *filter(None, calls)))
    return HelperCall(divergence, operation, function, code) if acts_once else None


def communicates_itself(node: ast.AST) -> bool:
    """Whether a node is a call of torch.distributed, without those inside it."""
    return isinstance(node, ast.Call) and communicates(ast.Call(node.func, [], []))


def _is_plain(statement: ast.stmt) -> bool:
    """Whether a statement is ``dist.barrier()``: it needs no name of its function."""
    match statement:
        case ast.Expr(value=ast.Call(args=[], keywords=[])):
            return True
        case _:
            return False
