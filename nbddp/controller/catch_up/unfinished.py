"""Cells of a catch-up that failed, or were changed at their prompt, and those that use theirs.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Container, Mapping, Sequence

from nbddp.controller.catch_up.past_cell import PastCell
from nbddp.wire.values.value_questions import NameKind


class Unfinished:
    """The cells whose names have values, perhaps not the right ones.

    Args:
        cells: those that ran again, in order.
        failed: the numbers of those that have perhaps not done what they did before.
        kinds: the kinds of the values of names. A definition is whole if it is there, and modules
            and the like get the state of another rank.
    """

    def __init__(
        self, cells: Sequence[PastCell], failed: Container[int], kinds: Mapping[str, NameKind]
    ) -> None:
        #: Each name that they have made or changed, with the number of a cell of ``failed``; in the
        #: order of the cells, and of the alphabet.
        self.cell_by_name: dict[str, int] = {}
        self.cells: frozenset[int] = frozenset()  #: their numbers
        for cell in cells:
            names = cell.names
            touched = {name for name in names.touches if kinds.get(name) in ("plain", "data")}
            used = [self.cell_by_name.get(name, 0) for name in sorted(names.reads | names.changes)]
            cause = cell.number if cell.number in failed else next(filter(None, used), 0)
            for name in sorted(names.binds | names.changes | touched):
                if cause and kinds.get(name) != "definition":
                    self.cell_by_name.setdefault(name, cause)
                elif not cause and name in names.assigns:
                    self.cell_by_name.pop(name, None)
            if cause:
                self.cells |= {cell.number}

    @property
    def names(self) -> set[str]:
        """The names that they have made or changed."""
        return set(self.cell_by_name)
