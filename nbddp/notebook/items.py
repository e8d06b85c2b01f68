"""The things that ranks show, as they wait in the folder.

Runs in: the notebook's main thread. Pure: no clock, no I/O.
"""

from typing import Any

from nbddp.notebook.budget import Gap
from nbddp.notebook.folding import Item
from nbddp.notebook.shown import Rich, rich_bytes
from nbddp.wire.messages import Stream


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
        key = None if rich.display_id else (rich.kind, _freeze(rich.data), _freeze(rich.metadata))
        super().__init__(key, arrived, memory_bytes=2 * rich_bytes(rich))
        self.rich = rich


class Notice(Item):
    """Says what is missing here; several ranks may miss the same amount."""

    __slots__ = ("gap",)

    def __init__(self, gap: Gap, now: float) -> None:
        super().__init__(("notice", gap.left_out_lines, gap.left_out_bytes), now)
        self.gap = gap


def _freeze(value: Any) -> object:
    """A hashable stand-in, equal only for equal values of equal types."""
    if isinstance(value, dict):
        # By their text: keys of several types have no order.
        items = sorted(value.items(), key=lambda item: repr(item[0]))
        return tuple((type(key).__name__, key, _freeze(item)) for key, item in items)
    if isinstance(value, list | tuple):
        return tuple(_freeze(item) for item in value)
    return (type(value).__name__, value)
