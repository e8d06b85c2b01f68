"""The items of ranks' output that wait in the queues of `LineFolder`.

Runs in: the notebook's main thread. Pure: no clock, no I/O.
"""

from collections import deque
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from nbddp.notebook.output import progress_bars, torch_log
from nbddp.notebook.output.excerpt import TAIL, Excerpt, Limit
from nbddp.notebook.output.line_folder import Item
from nbddp.notebook.output.number_ranges import pattern_of, with_ranges
from nbddp.notebook.output.shows import Rich, rich_bytes
from nbddp.notebook.render.html import size
from nbddp.wire.messages import Stream


class Line(Item):
    """Text of one rank: a line, or several that stay together."""

    __slots__ = ("is_bar", "is_free", "is_log", "stream", "text")

    def __init__(self, stream: Stream, text: str, arrived: float, *, is_free: bool = False) -> None:
        size = len(text)
        log_key = torch_log.key_of(text)
        bar_key = progress_bars.bar_key(text)
        self.key = (stream, log_key or (text if bar_key is None else bar_key))
        self.arrived = arrived
        self.text_bytes = 0 if is_free else size
        self.memory_bytes = size
        self.is_held = False
        self.stream = stream
        self.text = text
        self.is_log = log_key is not None
        self.is_bar = bar_key is not None
        self.is_free = is_free  # does not count towards the budget

    def fold_numbers(self) -> None:
        """Fold with lines of other ranks that differ from this one in numbers only."""
        pattern = None if self.is_log or self.is_bar else pattern_of(self.text)
        if pattern is not None:
            self.key = (self.stream, pattern)


def rows_of(ranks: Sequence[int], lines: Sequence[Item]) -> list[tuple[tuple[int, ...], str]]:
    """Return the rows that show lines with one key, each with its ranks."""
    text_lines = [line for line in lines if isinstance(line, Line)]
    if not text_lines[0].is_bar:
        return [(tuple(ranks), text_of(ranks, text_lines))]
    rows = progress_bars.ended(ranks, [line.text for line in text_lines])
    return [((rank,), text) for rank, text in rows]


def text_of(ranks: Sequence[int], lines: Sequence[Item]) -> str:
    """Return the text that shows lines with one key."""
    first, *others = [line for line in lines if isinstance(line, Line)]
    if not others:
        return first.text
    texts = [first.text, *(line.text for line in others)]
    return torch_log.merged(texts) if first.is_log else with_ranges(ranks, texts)


class Bundle(Item):
    """A MIME bundle.

    Args:
        rich: the bundle.
        arrived: time of its arrival.
        place: n for the n-th display of its rank that fits in a grid: it waits for those of other
            ranks, whatever they show. None: it waits for equal ones.
    """

    __slots__ = ("place", "rich")

    def __init__(self, rich: Rich, arrived: float, place: int | None = None) -> None:
        key: object = (rich.kind, freeze(rich.data), freeze(rich.metadata))
        if place is not None:
            key = ("place", place)
        elif rich.display_id:  # it can be updated, so it never folds
            key = ("updated", rich.display_id, id(self))
        super().__init__(key, arrived, memory_bytes=2 * rich_bytes(rich))
        self.rich = rich
        self.place = place


class Gap(Item):
    """Text of one rank that is not shown: its amount, and its last lines.

    While it is held, it is the last item of the rank's queue and takes the text of the rank.
    """

    __slots__ = ("_streams", "dropped_bytes", "recent_bytes", "since", "text")

    def __init__(self, now: float, tail_bytes: int) -> None:
        super().__init__(None, now, memory_bytes=2 * tail_bytes)
        self.is_held = True
        self.text = Excerpt(head=Limit(0), tail=TAIL._replace(chars=tail_bytes))
        self._streams: deque[Stream] = deque(maxlen=TAIL.lines)  # of the last lines of ``text``
        self.dropped_bytes = 0  #: bytes that the agent left out; their lines are not known
        self.since = now  #: begin of the time in which ``recent_bytes`` came
        self.recent_bytes = 0

    @property
    def tail(self) -> list[tuple[Stream, str]]:
        """The last lines, which are shown, each with its stream."""
        backwards = zip(reversed(self._streams), reversed(self.text.tail), strict=False)
        return list(backwards)[::-1]

    @property
    def left_out_bytes(self) -> int:
        """Number of bytes that are not shown."""
        return self.dropped_bytes + self.text.left_out_chars

    def add(self, stream: Stream, lines: Sequence[str]) -> None:
        """Add the next lines."""
        self.text.add(lines)
        self._streams.extend(repeat(stream, len(lines)))

    def merge(self, later: "Gap") -> None:
        """Add the text of a later gap."""
        self.text.extend(later.text)
        self._streams += later._streams
        self.dropped_bytes += later.dropped_bytes

    def skip(self, text: str) -> tuple[int, int]:
        """Skip a chunk but its last lines; return the numbers of skipped lines and characters."""
        self.recent_bytes += len(text)
        return self.text.skip_all_but_the_end(text)


class Notice(Item):
    """A line about left out text; it folds for ranks with the same amount."""

    __slots__ = ("_bytes", "_lines")

    def __init__(self, gap: Gap, now: float) -> None:
        self._lines, self._bytes = gap.text.left_out_lines, gap.left_out_bytes
        super().__init__(("notice", self._lines, self._bytes), now)

    def text(self, log_paths: Sequence[str]) -> str:
        """Return ``... 99,000 lines (1.2 MB) left out here; the whole output: /path/rank2.log``."""
        amount = size(self._bytes)
        if self._lines:
            amount = f"{self._lines:,} line{'' if self._lines == 1 else 's'} ({amount})"
        if not log_paths:
            return f"... {amount} left out here"
        return f"... {amount} left out here; the whole output: {path_range(log_paths)}"


def path_range(paths: Sequence[str]) -> str:
    """Return the first and the last path in few words.

    >>> path_range(["/x/rank0.log", "/x/rank3.log"])
    '/x/rank0.log to rank3.log'
    >>> path_range(["a:/x/rank0.log", "b:/y/rank3.log"])
    'a:/x/rank0.log to b:/y/rank3.log'
    """
    first, last = paths[0], paths[-1]
    if len(paths) == 1:
        return first
    folder, _, name = last.rpartition("/")
    return f"{first} to {name if first.rpartition('/')[0] == folder else last}"


def utf8_len(text: str) -> int:
    """Return the length of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def freeze(value: Any) -> object:
    """Return a hashable stand-in, equal only for equal values of equal types."""
    if isinstance(value, dict):
        # Sorted by their text: keys of different types have no order.
        items = sorted(value.items(), key=lambda item: repr(item[0]))
        return tuple((type(key).__name__, key, freeze(item)) for key, item in items)
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return (type(value).__name__, value)
