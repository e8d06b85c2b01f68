"""The things that ranks show, as they wait in the folder, and what is kept of their text.

Runs in: the notebook's main thread. Pure: no clock, no I/O.
"""

import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from nbddp.notebook.output.budget import Gap
from nbddp.notebook.output.line_folder import Item
from nbddp.notebook.output.screen import Rich, rich_bytes
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
        key: object = (rich.kind, freeze(rich.data), freeze(rich.metadata))
        if rich.display_id:  # its own, which is updated; it waits to be shown in the order of ranks
            key = ("updated", rich.display_id, id(self))
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

    __slots__ = ("_crc", "_crc_by_stream", "_head_chars", "head", "is_cut", "is_lost", "tail",
                 "total")  # fmt: skip

    def __init__(self) -> None:
        self.head: list[str] = []
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.total = 0
        self.is_cut = False  #: not all lines came here
        self.is_lost = False  #: nor did all text: it cannot be compared
        self._crc_by_stream: dict[str, int] = {}
        self._head_chars = _HEAD_CHARS
        self._crc = 0

    def hear(self, stream: str, text: str, dropped_bytes: int = 0) -> None:
        """Text as it was printed, also where its lines are left out."""
        before = self._crc_by_stream.get(stream, 0)
        self._crc_by_stream[stream] = zlib.crc32(text.encode(errors="replace"), before)
        self.is_lost |= dropped_bytes > 0
        self.is_cut |= dropped_bytes > 0

    def add_word(self, word: str) -> None:
        """In place of something that is not text."""
        self.hear("shown", word)
        self.add([word])

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
        """Equal for ranks that printed the same lines, if all of them came here."""
        return (self.total, self._crc)

    @property
    def printed(self) -> object:
        """Equal for ranks that printed the same text, wherever some of it was left out."""
        return tuple(sorted(self._crc_by_stream.items()))

    @property
    def left_out(self) -> int:
        """Lines between the first and the last ones."""
        return self.total - len(self.head) - len(self.tail)


def keys_of(text_by_rank: Mapping[int, RankText], *, is_cut: bool = False) -> dict[int, object]:
    """Equal for ranks that printed the same, whatever was left out of each."""
    is_cut = is_cut or any(text.is_cut for text in text_by_rank.values())
    return {
        rank: ("lost", rank) if text.is_lost else text.printed if is_cut else text.key
        for rank, text in text_by_rank.items()
    }


def utf8_len(text: str) -> int:
    """Its bytes."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def freeze(value: Any) -> object:
    """A hashable stand-in, equal only for equal values of equal types."""
    if isinstance(value, dict):
        # By their text: keys of several types have no order.
        items = sorted(value.items(), key=lambda item: repr(item[0]))
        return tuple((type(key).__name__, key, freeze(item)) for key, item in items)
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return (type(value).__name__, value)
