"""The values that fresh ranks have, and that are perhaps not the right ones.

Runs in: the notebook's process. Pure. They are no source for other ranks.
"""

from collections.abc import Collection, Iterable

from nbddp.controller.catch_up.past_cell import PastCell
from nbddp.wire.rank_set import RankSet


class Doubts:
    """The names, by rank, whose values an answer of a catch-up has called doubtful."""

    def __init__(self) -> None:
        self._names: dict[int, set[str]] = {}

    def note(self, ranks: RankSet, made: Iterable[str], doubtful: Collection[str]) -> None:
        """Note the end of a catch-up.

        Args:
            ranks: those that have caught up.
            made: names that they have got in it; whatever was said of these before is over.
            doubtful: names whose values are perhaps not the right ones.
        """
        made = {*made}
        for rank in ranks:
            self._names[rank] = (self._names.get(rank, set()) - made) | {*doubtful}

    def note_values(self, names: Iterable[str], ranks: Iterable[int]) -> None:
        """Note that ranks have got values for names, as by a push."""
        names = {*names}
        for rank in ranks:
            if self._names.get(rank):
                self._names[rank] -= names

    def note_cell(self, cell: PastCell, ranks: Iterable[int]) -> None:
        """Note a cell that has ended well on ranks: it binds names, and not from what they were."""
        if any(self._names.get(rank) for rank in ranks):  # mostly there is none
            self.note_values(cell.names.assigns - cell.names.reads, ranks)

    def forget(self, rank: int) -> None:
        """Note that the process of a rank is gone."""
        self._names.pop(rank, None)

    def holders(self, name: str) -> RankSet:
        """The ranks whose value of a name is in doubt."""
        return RankSet.of(rank for rank, names in self._names.items() if name in names)
