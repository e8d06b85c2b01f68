"""The first and the last lines of a long text, and the amount of text between them.

Runs in: the notebook's main thread. Pure: no clock, no I/O.
"""

import sys
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class Limit(NamedTuple):
    """A maximum of lines, and of all their characters. The end of a line is a character."""

    lines: int
    chars: int = sys.maxsize

    def less(self, lines: Sequence[str]) -> "Limit":
        """Return the room that is left after ``lines``, which include their line ends."""
        return Limit(self.lines - len(lines), self.chars - sum(map(len, lines)))


#: The beginning of a cell's output, which is shown at once.
HEAD = Limit(80, 24_000)
#: The end of a long text.
TAIL = Limit(20)
#: A longer line is cut in a tail: only its end is kept.
LINE_CHARS = 2000
_CUT = "..."
#: The end of a chunk that is searched for its last lines.
_READ_CHARS = 64 * 1024


class Excerpt:
    """The first and the last lines of a text that comes in chunks, in bounded memory.

    Promises:
        - ``head`` is the longest beginning of the text, in whole lines, within its limit.
        - ``tail`` is the longest end of the rest within its limit, but at least the last line.
          It keeps only the end of a line longer than `LINE_CHARS`, after ``...``.
        - All other text is counted as left out, to the character.

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
        self._tail_chars = 0  # without the ``...`` of cut lines
        self._is_head_open = True

    @property
    def left_out_lines(self) -> int:
        """Number of lines in neither part."""
        return self.lines - len(self.head) - len(self.tail)

    @property
    def left_out_chars(self) -> int:
        """Number of characters in neither part, including those of cut lines."""
        return self.chars - self._head_chars - self._tail_chars

    def add(self, lines: Sequence[str]) -> None:
        """Add the next lines."""
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
        """Add lines to the head until it is full, and return their number."""
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
        """Count the next text, which is left out.

        Args:
            lines: number of lines that end in it.
            chars: number of its characters, with the line ends.
        """
        self._is_head_open = False
        if lines:
            self.tail.clear()
            self._tail_chars = 0
        self.lines += lines
        self.chars += chars

    def skip_all_but_the_end(self, text: str) -> tuple[int, int]:
        """Skip the beginning of a long chunk, at the cost of `str.count`.

        Returns:
            The numbers of lines and characters that were skipped. The caller adds the rest.
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
        """Add the excerpt of the next text."""
        lines, chars = self.lines + later.lines, self.chars + later.chars
        self.add(later.head)
        if later.left_out_chars:
            self.skip(later.left_out_lines, 0)
        self.add(list(later.tail))
        self.lines, self.chars = lines, chars  # count lines that ``later`` has cut in full
