"""The parts of a cell's output as they are shown: text, bundles, redraws; labels of lines.

Runs in: the notebook's main thread. Pure: no clock, no I/O.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from nbddp.wire.messages import Stream
from nbddp.wire.rank_set import RankSet

#: Bytes of a block beside its content.
BLOCK_OVERHEAD_BYTES = 256


@dataclass(frozen=True)
class Text:
    """Complete lines to print, with their labels."""

    stream: Stream
    text: str


@dataclass(frozen=True)
class Rich:
    """A MIME bundle of one rank, or of several with equal ones."""

    ranks: RankSet
    kind: Literal["display", "result"]
    data: dict[str, Any]
    metadata: dict[str, Any]
    display_id: str | None = None
    update: bool = False  #: it replaces the display with this ``display_id``


@dataclass(frozen=True)
class Redraw:
    """Clear the cell's output and show these instead: a rank called ``clear_output``."""

    blocks: tuple[Text | Rich, ...]


Show: TypeAlias = Text | Rich | Redraw


class Labels:
    """The labels of lines: ``[0-3]`` and ``[2]  ``, padded so that the text is aligned.

    A pool of one rank needs none. ``[0,2-3]`` is wider than the others, and rare.
    """

    def __init__(self, world_size: int) -> None:
        self._width = len(f"[0-{world_size - 1}]") if world_size > 1 else 0

    def __bool__(self) -> bool:
        return self._width > 0

    def of(self, ranks: tuple[int, ...]) -> str:
        """Return the label of these ranks, padded; empty in a pool of one rank."""
        return _label(ranks).ljust(self._width) if self._width else ""


@lru_cache(maxsize=4096)
def _label(ranks: tuple[int, ...]) -> str:
    return f"[{RankSet.of(ranks)}]"


def labelled(label: str, text: str) -> str:
    """Return the lines of ``text`` with a label and a newline each; blank lines get no padding."""
    if not label:
        return text + "\n"
    lines = text.split("\n") if "\n" in text else (text,)
    return "".join([f"{label} {line}\n" if line else f"{label.rstrip()}\n" for line in lines])


def rich_bytes(rich: Rich) -> int:
    """Return the approximate size of a bundle as JSON."""
    return BLOCK_OVERHEAD_BYTES + _size(rich.data) + _size(rich.metadata)


def _size(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(_size(key) + _size(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return 8
