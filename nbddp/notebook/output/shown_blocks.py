"""The contents of the output area of one cell, for redraws.

Runs in: the notebook's main thread. Pure: no clock, no I/O.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from nbddp.notebook.output.rank_grid import RankGrid, folded
from nbddp.notebook.output.shows import (
    BLOCK_OVERHEAD_BYTES,
    Labels,
    Rich,
    Text,
    labelled,
    rich_bytes,
)
from nbddp.notebook.render.embedded import is_embeddable
from nbddp.wire.messages import Stream
from nbddp.wire.rank_set import RankSet

#: Rich bundles are kept for a redraw up to this total size.
RICH_MEMORY_BYTES = 32 * 1024 * 1024


@dataclass
class _Lines:
    """Consecutive lines of the same ranks and stream."""

    ranks: tuple[int, ...]
    stream: Stream
    lines: list[str] = field(default_factory=list)
    size: int = BLOCK_OVERHEAD_BYTES


class ShownBlocks:
    """Keeps the shown output in bounded memory, and drops the oldest first.

    Promises: `clear` removes a rank from every block, and blocks without ranks vanish; `render`
    returns the rest, in order, with the latest content of every display.

    Args:
        labels: the labels of lines.
        text_limit_bytes: of all text together.
        grid_scope: the start of the display ids of grids; no other cell has it.
    """

    def __init__(self, *, labels: Labels, text_limit_bytes: int, grid_scope: str = "") -> None:
        self._labels = labels
        self._text_limit = text_limit_bytes
        self._grid_scope = grid_scope
        self._blocks: deque[_Lines | Rich | RankGrid] = deque()
        self._grid_by_place: dict[int, RankGrid] = {}
        self.text_bytes = 0  #: memory of all texts, with overhead
        self._rich_bytes = 0
        self._has_forgotten = False

    def label(self, ranks: tuple[int, ...]) -> str:
        """Return ``[0-3]``, or nothing in a pool of one rank."""
        return self._labels.of(ranks)

    def add_text(self, ranks: tuple[int, ...], stream: Stream, text: str) -> None:
        """Keep lines."""
        last = self._blocks[-1] if self._blocks else None
        if not (isinstance(last, _Lines) and last.ranks == ranks and last.stream == stream) or (
            last.size > self._text_limit // 8  # `_forget` drops whole blocks
        ):
            last = _Lines(ranks, stream)
            self._blocks.append(last)
            self.text_bytes += last.size
        size = len(text) + 64  # a short str takes some 50 bytes more than its text
        last.lines.append(text)
        last.size += size
        self.text_bytes += size
        if self.text_bytes > self._text_limit:
            self._forget(_Lines)

    def add_rich(self, rich: Rich) -> None:
        """Keep a bundle."""
        self._blocks.append(rich)
        self._rich_bytes += rich_bytes(rich)
        if self._rich_bytes > RICH_MEMORY_BYTES:
            self._forget_rich()

    def add_displays(self, displays: Sequence[Rich], place: int) -> Rich:
        """Keep the n-th displays of some ranks, and return the bundle that shows them.

        Args:
            displays: of different ranks.
            place: n. Displays of other ranks with the same one join them in their grid.
        """
        slots = folded(displays)
        grid = self._grid_by_place.get(place)
        if grid is not None and self._has_room(grid, {r for slot in slots for r in slot.ranks}):
            self._rich_bytes -= grid.size_bytes
            grid.add(displays)
            self._rich_bytes += grid.size_bytes
            return grid.as_rich(update=True)
        if len(slots) == 1:
            self.add_rich(slots[0])
            return slots[0]
        first_rank = slots[0].ranks.ranks[0]
        grid = RankGrid(f"nbddp-grid-{self._grid_scope}-{place}-{first_rank}", slots)
        self._grid_by_place[place] = grid
        self._blocks.append(grid)
        self._rich_bytes += grid.size_bytes
        if self._rich_bytes > RICH_MEMORY_BYTES:
            self._forget_rich()
        return grid.as_rich()

    def _has_room(self, grid: RankGrid, ranks: set[int]) -> bool:
        """Return whether the grid is shown, and these ranks have shown nothing in or below it."""
        for block in reversed(self._blocks):
            if not ranks.isdisjoint(block.ranks):
                return False
            if block is grid:
                return True
        return False

    @property
    def grids(self) -> list[RankGrid]:
        """The grids that are shown."""
        return [block for block in self._blocks if isinstance(block, RankGrid)]

    def update(self, rich: Rich) -> RankGrid | None:
        """Keep the latest content of the displays with this id; return the grid that has them."""
        for grid in self.grids:
            if grid.update(rich):
                return grid
        for index, block in enumerate(self._blocks):
            if isinstance(block, Rich) and block.display_id == rich.display_id:
                self._rich_bytes += rich_bytes(rich) - rich_bytes(block)
                self._blocks[index] = replace(block, data=rich.data, metadata=rich.metadata)
        return None

    def clear(self, rank: int) -> bool:
        """Remove ``rank`` from all blocks, and return whether any block had it."""
        if not any(rank in block.ranks for block in self._blocks):
            return False
        kept: deque[_Lines | Rich | RankGrid] = deque()
        for block in self._blocks:
            others = tuple(other for other in block.ranks if other != rank)
            if not others:
                self._subtract(block)
            elif len(others) == len(block.ranks):
                kept.append(block)
            elif isinstance(block, RankGrid):
                self._rich_bytes -= block.size_bytes
                block.remove(rank)
                self._rich_bytes += block.size_bytes
                kept.append(block)
            elif isinstance(block, Rich):
                kept.append(replace(block, ranks=RankSet(others)))
            else:
                kept.append(replace(block, ranks=others))
        self._blocks = kept
        return True

    def render(self) -> tuple[Text | Rich, ...]:
        """Return all blocks; consecutive texts of one stream are joined."""
        shown: list[Text | Rich] = []
        parts: list[str] = []
        stream: Stream = "stdout"
        if self._has_forgotten:
            parts.append("... earlier output is no longer kept\n")
        for block in self._blocks:
            if isinstance(block, Rich | RankGrid) or block.stream != stream:
                if parts:
                    shown.append(Text(stream, "".join(parts)))
                parts = []
            if isinstance(block, Rich | RankGrid):
                shown.append(block if isinstance(block, Rich) else block.as_rich())
            else:
                stream = block.stream
                label = self.label(block.ranks)
                parts += [labelled(label, line) for line in block.lines]
        if parts:
            shown.append(Text(stream, "".join(parts)))
        return tuple(shown)

    def render_by_rank(self) -> dict[int, list[Text | Rich]] | None:
        """Return the blocks of each rank, without labels; None: one cannot stand in HTML."""
        shown: dict[int, list[Text | Rich]] = {}
        for block in self._blocks:
            if isinstance(block, _Lines):
                text = Text(block.stream, "".join(f"{line}\n" for line in block.lines))
                for rank in block.ranks:
                    shown.setdefault(rank, []).append(text)
                continue
            for rich in block.slots if isinstance(block, RankGrid) else (block,):
                if not is_embeddable(rich.data, rich.metadata):
                    return None
                for rank in rich.ranks:
                    shown.setdefault(rank, []).append(replace(rich, ranks=RankSet((rank,))))
        return shown

    @property
    def size_bytes(self) -> int:
        """Approximate size of a redraw."""
        return self.text_bytes + self._rich_bytes

    def _forget_rich(self) -> None:
        self._forget(Rich, RankGrid)

    def _forget(self, *kinds: type[_Lines | Rich | RankGrid]) -> None:
        """Drop the oldest block of these kinds, unless it is the only one."""
        for index, block in enumerate(self._blocks):
            if isinstance(block, kinds):
                if index < len(self._blocks) - 1:
                    self._subtract(block)
                    del self._blocks[index]
                    self._has_forgotten = True
                return

    def _subtract(self, block: _Lines | Rich | RankGrid) -> None:
        match block:
            case Rich():
                self._rich_bytes -= rich_bytes(block)
            case RankGrid():
                self._rich_bytes -= block.size_bytes
            case _Lines():
                self.text_bytes -= block.size
