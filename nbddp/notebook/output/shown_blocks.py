"""The contents of the output area of one cell, for redraws.

Runs in: the notebook's main thread. Pure: no clock, no I/O.
"""

from collections import deque
from dataclasses import dataclass, field, replace

from nbddp.notebook.output.shows import (
    BLOCK_OVERHEAD_BYTES,
    Labels,
    Rich,
    Text,
    labelled,
    rich_bytes,
)
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
    """

    def __init__(self, *, labels: Labels, text_limit_bytes: int) -> None:
        self._labels = labels
        self._text_limit = text_limit_bytes
        self._blocks: deque[_Lines | Rich] = deque()
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
            self._forget(Rich)

    def update(self, rich: Rich) -> None:
        """Keep the latest content of the displays with this id."""
        for index, block in enumerate(self._blocks):
            if isinstance(block, Rich) and block.display_id == rich.display_id:
                self._rich_bytes += rich_bytes(rich) - rich_bytes(block)
                self._blocks[index] = replace(block, data=rich.data, metadata=rich.metadata)

    def clear(self, rank: int) -> bool:
        """Remove ``rank`` from all blocks, and return whether any block had it."""
        if not any(rank in block.ranks for block in self._blocks):
            return False
        kept: deque[_Lines | Rich] = deque()
        for block in self._blocks:
            others = tuple(other for other in block.ranks if other != rank)
            if not others:
                self._subtract(block)
            elif len(others) == len(block.ranks):
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
            if isinstance(block, Rich) or block.stream != stream:
                if parts:
                    shown.append(Text(stream, "".join(parts)))
                parts = []
            if isinstance(block, Rich):
                shown.append(block)
            else:
                stream = block.stream
                label = self.label(block.ranks)
                parts += [labelled(label, line) for line in block.lines]
        if parts:
            shown.append(Text(stream, "".join(parts)))
        return tuple(shown)

    @property
    def size_bytes(self) -> int:
        """Approximate size of a redraw."""
        return self.text_bytes + self._rich_bytes

    def _forget(self, kind: type[_Lines | Rich]) -> None:
        """Drop the oldest block of this kind, unless it is the only one."""
        for index, block in enumerate(self._blocks):
            if isinstance(block, kind):
                if index < len(self._blocks) - 1:
                    self._subtract(block)
                    del self._blocks[index]
                    self._has_forgotten = True
                return

    def _subtract(self, block: _Lines | Rich) -> None:
        if isinstance(block, Rich):
            self._rich_bytes -= rich_bytes(block)
        else:
            self.text_bytes -= block.size
