"""The things that ranks show, as they wait in the folder, and what is kept of their text.

Runs in: the notebook's main thread. Pure: no clock, no I/O.
"""

import zlib
from collections import deque
from collections.abc import Sequence
from typing import Any

from nbddp.notebook.budget import Gap
from nbddp.notebook.folding import Item
from nbddp.notebook.shown import Rich, rich_bytes
from nbddp.wire.messages import Stream

_HEAD_CHARS = 24_000
_TAIL_LINES = 20
_TAIL_LINE_CHARS = 2000


class Line(Item):
    """Text of one rank: a line, or several that stay together."""

    __slots__ = ("is_free", "stream", "text")

    def __init__(self, stream: Stream, text: str, arrived: float, *, is_free: bool = False) -> None:
        size = len(text)
        self.key = (stream, text)
        self.arrived = arrived
        self.text_bytes = 0 if is_free else size
        self.memory_bytes = size
        self.is_held = False
        self.stream = stream
        self.text = text
        self.is_free = is_free  # does not count towards the budget


class Bundle(Item):
    """A MIME bundle."""

    __slots__ = ("rich",)

    def __init__(self, rich: Rich, arrived: float) -> None:
        key = None if rich.display_id else (rich.kind, freeze(rich.data), freeze(rich.metadata))
        super().__init__(key, arrived, memory_bytes=2 * rich_bytes(rich))
        self.rich = rich


class Notice(Item):
    """Says what is missing here; several ranks may miss the same amount."""

    __slots__ = ("gap",)

    def __init__(self, gap: Gap, now: float) -> None:
        super().__init__(("notice", gap.left_out_lines, gap.left_out_bytes), now)
        self.gap = gap


class RankText:
    """The text of one rank in bounded memory: its first lines, its last ones, their number."""

    __slots__ = ("_crc", "_head_chars", "head", "is_cut", "tail", "total")

    def __init__(self) -> None:
        self.head: list[str] = []
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.total = 0
        self.is_cut = False  #: not all lines came here
        self._head_chars = _HEAD_CHARS
        self._crc = 0

    def add(self, lines: Sequence[str]) -> None:
        """Lines that came after the others."""
        self.total += len(lines)
        for line in lines:
            self._crc = zlib.crc32(line.encode(errors="replace"), self._crc + 1)
            if self._head_chars > 0:
                self.head.append(line[: self._head_chars])
                self._head_chars -= len(line) + 1
            else:
                self.tail.append(line[-_TAIL_LINE_CHARS:])

    def counted(self, lines: int) -> "RankText":
        """With the right number, where not all lines came here."""
        if self.is_cut:
            self.total = lines
        return self

    @property
    def key(self) -> object:
        """Equal for ranks that printed the same."""
        return (self.total, *self.tail) if self.is_cut else (self.total, self._crc)

    @property
    def left_out(self) -> int:
        """Lines between the first and the last ones."""
        return self.total - len(self.head) - len(self.tail)


def freeze(value: Any) -> object:
    """A hashable stand-in, equal only for equal values of equal types."""
    if isinstance(value, dict):
        # By their text: keys of several types have no order.
        items = sorted(value.items(), key=lambda item: repr(item[0]))
        return tuple((type(key).__name__, key, freeze(item)) for key, item in items)
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return (type(value).__name__, value)
