"""A cell that a pool has run.

Runs in: the notebook's process. Pure.
"""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache

from nbddp.controller.catch_up.cell_names import CellNames, cell_names, taken_branches
from nbddp.controller.diagnosis import Code
from nbddp.wire.rank_set import RankSet

_MAX_CACHED = 8000
#: ``%time`` runs the rest of its line in the namespace of the cell.
_TIME = re.compile(r"^([ \t]*)%time[ \t]+(?=[^\s-])", re.MULTILINE)


@dataclass(frozen=True)
class PastCell:
    """A cell that has run."""

    number: int  #: its execution count
    code: str
    first_line: int  #: line of the notebook's cell on which the code begins
    ranks: RankSet  #: it ran on these
    #: It ended well on all of them, and no error was found in their records.
    is_ok: bool = False
    #: A rank issued collectives or messages in it, or would have without the user at its prompt.
    has_operations: bool = False
    makes_groups: bool = False  #: a rank became a member of a new group in it
    #: A rank that keeps its variables has run the lines above this one, though the cell failed.
    run_above: float = 0.0
    #: The user has changed what it does, at its prompt: by `run`, `retry`, `skip` or a debugger.
    was_changed: bool = False
    was_struck: bool = False  #: a fault on purpose struck in it that was no mere delay

    @cached_property
    def python(self) -> str:
        """Its code as Python."""
        return _TIME.sub(r"\1", self.code)

    @cached_property
    def names(self) -> CellNames:
        """The names that it binds, changes and reads."""
        return cell_names(Code(self.python, self.first_line).statements)

    @cached_property
    def names_run(self) -> CellNames:
        """The names of the statements that a rank, which keeps its variables, surely has run."""
        if self.is_ok:
            return self.names
        statements = Code(self.python, self.first_line).statements
        return cell_names([each for each in statements if (each.end_lineno or 0) < self.run_above])

    def binds_on(self, rank: int, world_size: int) -> tuple[frozenset[str], frozenset[str]]:
        """The names that it has bound on a rank, and those of which that is not known.

        The names inside an ``if rank == 0:`` are not bound on rank 1.
        """
        if rank not in self.ranks:
            return frozenset(), frozenset()
        if "if" not in self.python:
            return self.names.binds, frozenset()
        code = self.python, self.first_line
        known, possible = (
            _names_of_branches(*code, rank, world_size, unknown=unknown).binds
            for unknown in (False, True)
        )
        return known, possible - known

    def names_on(self, rank: int, world_size: int) -> CellNames:
        """The names of the cell, without those of branches that a rank of it does not take.

        Of a cell that ran on other ranks only, these are all names: perhaps the rank was to run it.
        """
        if rank not in self.ranks or "if" not in self.python:
            return self.names
        return _names_of_branches(self.python, self.first_line, rank, world_size, unknown=True)


def callers_that_bind(name: str, cells: Iterable[PastCell]) -> frozenset[int]:
    """The numbers of cells that call a function which binds a name: by a ``global`` statement."""
    binders: set[str] = set()  # functions
    callers: set[int] = set()
    for cell in cells:
        if name not in cell.names.binds and cell.names.reads.isdisjoint(binders):
            continue
        for statement in Code(cell.python, cell.first_line).statements:
            names = cell_names([statement])
            binds_later = name in names.binds - names.assigns or not names.reads.isdisjoint(binders)
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                (binders.add if binds_later else binders.discard)(statement.name)
            elif binds_later and (cell.is_ok or (statement.end_lineno or 0) < cell.run_above):
                callers.add(cell.number)
    return frozenset(callers)


@lru_cache(maxsize=_MAX_CACHED)
def _names_of_branches(
    python: str, first_line: int, rank: int, world_size: int, *, unknown: bool
) -> CellNames:
    """The names of the branches that a rank takes; a plan asks many times."""
    statements = Code(python, first_line).statements
    return cell_names(taken_branches(statements, rank, world_size, unknown=unknown))
