"""The output area of one cell: its contents, for redraws, and the shows that come next.

Runs in: the notebook's main thread. Pure: no clock, no I/O.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from nbddp.settings import Settings
from nbddp.wire.messages import Stream
from nbddp.wire.rank_set import RankSet

#: Rich bundles are kept for a redraw up to this total size.
RICH_MEMORY_BYTES = 32 * 1024 * 1024
#: Bundles of a cell beyond this total size are not shown.
RICH_TOTAL_BYTES = 128 * 1024 * 1024
#: Redraws and updates of one display come at most this often; the last state always comes.
REDRAW_INTERVAL_S = 0.1
_BLOCK_OVERHEAD_BYTES = 256
#: Redraws may send this many times ``notebook_bytes_per_s``: they replace the contents.
_REDRAW_RATE = 4
_REMEMBERED_UPDATES = 1000


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


@dataclass
class _Lines:
    """Consecutive lines of the same ranks and stream."""

    ranks: tuple[int, ...]
    stream: Stream
    lines: list[str] = field(default_factory=list)
    size: int = _BLOCK_OVERHEAD_BYTES


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


class Screen:
    """Collects shows, in order, and limits the rate of redraws and updates.

    Promises: `take` returns the shows since the last call. While a redraw is due, it returns no
    other show, since the redraw contains them all. Redraws and the updates of one display come at
    most every `REDRAW_INTERVAL_S`, large redraws less often; the last state always comes.
    """

    def __init__(self, settings: Settings, labels: Labels) -> None:
        self._redraw_bytes_per_s = 1 + _REDRAW_RATE * settings.notebook_bytes_per_s
        self._blocks = ShownBlocks(labels=labels, text_limit_bytes=settings.notebook_total_bytes)
        self._shows: list[Show] = []
        self._parts: list[str] = []  # lines of ``_parts_stream``, not yet in ``_shows``
        self._parts_stream: Stream = "stdout"
        self._redraw_due: float | None = None
        self._next_redraw = float("-inf")
        self._update_by_id: dict[str | None, Rich] = {}
        self._next_update_by_id: dict[str | None, float] = {}
        self._rich_bytes_left = RICH_TOTAL_BYTES
        self._has_said_no_rich = False

    def label(self, ranks: tuple[int, ...]) -> str:
        """Return ``[0-3]``, or nothing in a pool of one rank."""
        return self._blocks.label(ranks)

    def put_text(self, ranks: tuple[int, ...], stream: Stream, text: str) -> None:
        """Show lines."""
        if stream != self._parts_stream:
            self._end_text()
            self._parts_stream = stream
        self._parts.append(labelled(self._blocks.label(ranks), text))
        self._blocks.add_text(ranks, stream, text)

    def put_rich(self, rich: Rich) -> None:
        """Show a bundle, up to a total of `RICH_TOTAL_BYTES`."""
        self._rich_bytes_left -= rich_bytes(rich)
        if self._rich_bytes_left < 0:
            if not self._has_said_no_rich:
                self._has_said_no_rich = True
                limit = f"{RICH_TOTAL_BYTES // 1024**2} MB"
                notice = f"... more than {limit} of displays: no more are shown in this cell"
                self.put_text(rich.ranks.ranks, "stderr", notice)
            return
        self._end_text()
        self._shows.append(rich)
        self._blocks.add_rich(rich)

    def send_update(self, rich: Rich) -> None:
        """Show new content of an existing display."""
        self._blocks.update(rich)
        self._update_by_id[rich.display_id] = rich
        self._next_update_by_id.setdefault(rich.display_id, float("-inf"))

    def clear(self, rank: int, redraw_by: float) -> int:
        """Remove the output of ``rank``.

        Args:
            rank: the rank that called ``clear_output``.
            redraw_by: latest time of the redraw.

        Returns:
            The size of the removed text in bytes.
        """
        before = self._blocks.text_bytes
        if self._blocks.clear(rank):
            due = max(redraw_by, self._next_redraw)
            self._redraw_due = due if self._redraw_due is None else min(due, self._redraw_due)
        return before - self._blocks.text_bytes

    def deadline(self) -> float | None:
        """Return when to call `take` next, if nothing is put before; None: not needed."""
        times = [self._next_update_by_id[display_id] for display_id in self._update_by_id]
        return min([*times, self._redraw_due] if self._redraw_due is not None else times,
                   default=None)  # fmt: skip

    def take(self, now: float, *, is_settled: bool, is_end: bool = False) -> list[Show]:
        """Return the shows that are due.

        Args:
            now: monotonic time in seconds.
            is_settled: whether a redraw would be complete: no item is still waiting.
            is_end: whether all remaining shows must come.
        """
        self._end_text()
        shows, self._shows = self._shows, []
        if self._redraw_due is not None:
            if is_settled:
                self._redraw_due = min(self._redraw_due, max(now, self._next_redraw))
            shows = []
            if is_end or now >= self._redraw_due:
                self._redraw_due = None
                slow_s = self._blocks.size_bytes / self._redraw_bytes_per_s
                self._next_redraw = now + max(REDRAW_INTERVAL_S, slow_s)
                shows = [Redraw(self._blocks.render())]
        return shows + self._take_updates(now, is_end=is_end)

    def _take_updates(self, now: float, *, is_end: bool) -> list[Show]:
        next_by_id = self._next_update_by_id
        due = [i for i in self._update_by_id if is_end or next_by_id[i] <= now]
        for display_id in due:
            next_by_id[display_id] = now + REDRAW_INTERVAL_S
        if len(next_by_id) > _REMEMBERED_UPDATES:
            self._next_update_by_id = {i: next_by_id[i] for i in self._update_by_id if i not in due}
        return [self._update_by_id.pop(display_id) for display_id in due]

    def _end_text(self) -> None:
        if self._parts:
            self._shows.append(Text(self._parts_stream, "".join(self._parts)))
            self._parts = []


def rich_bytes(rich: Rich) -> int:
    """Return the approximate size of a bundle as JSON."""
    return _BLOCK_OVERHEAD_BYTES + _size(rich.data) + _size(rich.metadata)


def _size(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(_size(key) + _size(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return 8
