"""The n-th displays of several ranks, which are shown as one grid.

Runs in: the notebook's main thread. Pure: no clock, no I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nbddp.notebook.output.items import freeze
from nbddp.notebook.output.shows import Rich, rich_bytes
from nbddp.notebook.render import rank_grid
from nbddp.notebook.render.embedded import embedded
from nbddp.wire.rank_set import RankSet


@dataclass
class RankGrid:
    """Displays of different ranks, in the order of ranks; equal ones share a slot.

    A display that can be updated has a slot of its own.

    Attributes:
        display_id: of the grid in the front end.
        slots: the displays.
    """

    display_id: str
    slots: tuple[Rich, ...]

    @property
    def ranks(self) -> RankSet:
        """The ranks that have a slot."""
        return RankSet.of(rank for slot in self.slots for rank in slot.ranks)

    @property
    def size_bytes(self) -> int:
        """Approximate size as JSON."""
        return sum(map(rich_bytes, self.slots))

    def add(self, displays: Sequence[Rich]) -> None:
        """Add the displays of more ranks."""
        self.slots = folded([*self.slots, *displays])

    def update(self, rich: Rich) -> bool:
        """Replace the content of a slot, and return whether there is one."""
        is_here = any(slot.display_id == rich.display_id for slot in self.slots)
        self.slots = tuple(
            replace(slot, data=rich.data, metadata=rich.metadata)
            if slot.display_id == rich.display_id
            else slot
            for slot in self.slots
        )
        return is_here

    def remove(self, rank: int) -> None:
        """Remove the display of a rank."""
        without = [replace(slot, ranks=RankSet.of(set(slot.ranks) - {rank})) for slot in self.slots]
        self.slots = tuple(slot for slot in without if slot.ranks)

    def as_rich(self, *, update: bool = False) -> Rich:
        """Return one bundle, without ranks: its slots have labels."""
        slots = [
            rank_grid.Slot(
                slot.ranks, embedded(slot.data, slot.metadata), str(slot.data.get("text/plain", ""))
            )
            for slot in self.slots
        ]
        return Rich(
            RankSet(), "display", dict(rank_grid.bundle(slots)), {}, self.display_id, update
        )


def folded(displays: Sequence[Rich]) -> tuple[Rich, ...]:
    """Return displays in the order of ranks, with equal ones as one."""
    by_key: dict[object, Rich] = {}
    for rich in sorted(displays, key=lambda rich: rich.ranks.ranks):
        content = (rich.kind, freeze(rich.data), freeze(rich.metadata))
        key = ("updated", rich.display_id) if rich.display_id else content
        same = by_key.get(key)
        ranks = rich.ranks if same is None else RankSet.of((*same.ranks, *rich.ranks))
        by_key[key] = replace(same or rich, ranks=ranks)
    return tuple(by_key.values())
