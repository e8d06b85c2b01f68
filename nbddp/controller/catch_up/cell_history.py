"""The cells that a pool has run.

Runs in: the notebook's process, the thread that runs cells. Pure.
"""

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from nbddp.controller.catch_up.cell_names import CellNames, cell_names
from nbddp.controller.diagnosis import Code
from nbddp.controller.state import RunOutcome
from nbddp.wire.rank_set import RankSet

_MAX_CELLS = 1000
#: ``%time`` runs the rest of its line in the namespace of the cell.
_TIME = re.compile(r"^([ \t]*)%time[ \t]+(?=[^\s-])", re.MULTILINE)


@dataclass(frozen=True)
class PastCell:
    """A cell that has run."""

    number: int  #: its execution count
    code: str
    first_line: int  #: line of the notebook's cell on which the code begins
    ranks: RankSet  #: it ran on these
    is_ok: bool = False  #: it ended well on all of them
    has_operations: bool = False  #: a rank issued collectives in it
    makes_groups: bool = False  #: a rank became a member of a new group in it

    @cached_property
    def names(self) -> CellNames:
        """The names that it binds, changes and reads."""
        code = _TIME.sub(r"\1", self.code)
        return cell_names(Code(code, self.first_line).statements)


class CellHistory:
    """The last cells of a pool, in the order in which they ran."""

    def __init__(self) -> None:
        self._cells: deque[PastCell] = deque(maxlen=_MAX_CELLS)
        self._open: tuple[str, PastCell] | None = None
        self._calls: dict[tuple[int, str], int] = {}  # collectives so far, by rank and group
        self._fresh_since: dict[int, int] = {}  # numbers of cells, by rank

    def __iter__(self) -> Iterator[PastCell]:
        return iter(tuple(self._cells))

    def begin(self, run_id: str, cell: PastCell) -> None:
        """Note a cell that begins; `end` completes it."""
        self._open = run_id, cell

    def end(self, outcome: RunOutcome | None) -> None:
        """Note the end of the last cell; None: there is none yet. It may be called again."""
        if outcome is None or self._open is None or self._open[0] != outcome.run_id:
            return
        _, cell = self._open
        self._open = None
        for rank in outcome.fresh:
            self._fresh_since[rank] = cell.number
        self._cells.append(
            replace(
                cell,
                is_ok=outcome.ranks("ok") == cell.ranks,
                has_operations=self._note_calls(outcome),
                makes_groups=any(result.made_groups for result in outcome.results.values()),
            )
        )

    def _note_calls(self, outcome: RunOutcome) -> bool:
        calls = {
            (rank, mark.pg_id): mark.collective_seq_id
            for rank, result in outcome.results.items()
            for mark in result.marks
        }
        has_operations = any(self._calls.get(key, 0) != count for key, count in calls.items())
        self._calls.update(calls)
        return has_operations

    def origin(self, name: str) -> int:
        """The number of the last cell that bound a name; 0: none of these did."""
        numbers = (cell.number for cell in reversed(self._cells) if name in cell.names.binds)
        return next(numbers, 0)

    def lost_names(self, ranks: RankSet) -> list[tuple[int, list[str]]]:
        """The names that processes of ranks had, which the last cell replaced, by their cells.

        Returns:
            Numbers of cells, the oldest first, with the names that no later cell bound again.
        """
        cells: dict[str, int] = {}
        for cell in self._cells:
            if any(rank in cell.ranks for rank in ranks):
                cells.update(dict.fromkeys(sorted(cell.names.binds), cell.number))
                for name in cell.names.deletes:
                    cells.pop(name, None)
        names: dict[int, list[str]] = {}
        for name, number in cells.items():
            names.setdefault(number, []).append(name)
        return sorted(names.items())

    def fresh_since(self, rank: int) -> int:
        """The number of the cell in which this rank's process was replaced; 0: in none."""
        return self._fresh_since.get(rank, 0)
