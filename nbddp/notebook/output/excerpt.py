"""The first and the last lines of a long text, and how much stands between them.

Runs in: the notebook's main thread. Pure: no clock, no I/O.
"""

import sys
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class Limit(NamedTuple):
    """So many lines, of so many characters in all. The end of a line is a character."""

    lines: int
    chars: int = sys.maxsize

    def less(self, lines: Sequence[str]) -> "Limit":
        """The room that is left after ``lines``, which hold their ends."""
        return Limit(self.lines - len(lines), self.chars - sum(map(len, lines)))


#: The beginning of a cell's output, which is shown as it comes.
HEAD = Limit(80, 24_000)
#: The end of a long text.
TAIL = Limit(20)
#: A longer line is cut in a tail: only its end is kept.
LINE_CHARS = 2000
_CUT = "..."
#: At most this much of a chunk is looked through for its last lines.
_READ_CHARS = 64 * 1024


class Excerpt:
    """The first and the last lines of a text that comes bit by bit, in bounded memory.

    Promises:
        - ``head`` is the longest beginning of the text, in whole lines, within its limit.
        - ``tail`` is the longest end of the rest within its limit, but at least the last line.
          Of a line longer than `LINE_CHARS` it holds the end, behind ``...``.
        - All that is in neither is counted as left out, to the character.

    Args:
        head: limit of the first lines.
        tail: limit of the last lines.
    """

    __slots__ = ("_head_chars", "_head_limit", "_is_head_open", "_tail_chars", "_tail_limit",
                 "chars", "head", "lines", "tail")  # fmt: skip

    def __init__(self, head: Limit, tail: Limit) -> None:
        self.head: list[str] = []
        self.tail: deque[str] = deque()
        self.lines = 0  #: of the whole text
        self.chars = 0  #: of the whole text
        self._head_limit = head
        self._tail_limit = tail
        self._head_chars = 0
        self._tail_chars = 0  # of the text, so without the signs of a cut
        self._is_head_open = True

    @property
    def left_out_lines(self) -> int:
        """Lines that are in neither part."""
        return self.lines - len(self.head) - len(self.tail)

    @property
    def left_out_chars(self) -> int:
        """Characters that are in neither part, those of cut lines included."""
        return self.chars - self._head_chars - self._tail_chars

    def add(self, lines: Sequence[str]) -> None:
        """Take the next lines."""
        self.lines += len(lines)
        self.chars += sum(map(len, lines)) + len(lines)
        limit = self._tail_limit
        in_head = self._fill_head(lines) if self._is_head_open else 0
        for line in lines[max(in_head, len(lines) - max(1, limit.lines)) :]:
            self.tail.append(line if len(line) <= LINE_CHARS else _CUT + line[-LINE_CHARS:])
            self._tail_chars += min(len(line), LINE_CHARS) + 1
        while len(self.tail) > 1 and (
            len(self.tail) > limit.lines or self._tail_chars > limit.chars
        ):
            self._tail_chars -= min(len(self.tail.popleft()), LINE_CHARS) + 1

    def _fill_head(self, lines: Sequence[str]) -> int:
        """Put lines into the head until it is full. Gives their number."""
        limit = self._head_limit
        for number, line in enumerate(lines):
            chars = self._head_chars + len(line) + 1
            if len(self.head) >= limit.lines or chars > limit.chars:
                self._is_head_open = False
                return number
            self.head.append(line)
            self._head_chars = chars
        return len(lines)

    def skip(self, lines: int, chars: int) -> None:
        """Count text that came next, and is left out.

        Args:
            lines: how many lines ended in it.
            chars: how long it was, with the ends of its lines.
        """
        self._is_head_open = False
        if lines:
            self.tail.clear()
            self._tail_chars = 0
        self.lines += lines
        self.chars += chars

    def skip_all_but_the_end(self, text: str) -> tuple[int, int]:
        """Skip the beginning of a chunk that is too long: a flood costs what `str.count` does.

        Returns:
            How many lines and characters were skipped. The rest of the chunk is still to be added.
        """
        start = len(text)
        for _ in range(self._tail_limit.lines + 1):
            start = text.rfind("\n", 0, start)
            if start < 0:
                break
        chars = max(start + 1, len(text) - _READ_CHARS)
        lines = text.count("\n", 0, chars)
        if chars:
            self.skip(lines, chars)
        return lines, chars

    def extend(self, later: "Excerpt") -> None:
        """Take the text that came next, of which ``later`` is an excerpt."""
        lines, chars = self.lines + later.lines, self.chars + later.chars
        self.add(later.head)
        if later.left_out_chars:
            self.skip(later.left_out_lines, 0)
        self.add(list(later.tail))
        self.lines, self.chars = lines, chars  # lines that ``later`` has cut are counted whole
