"""The text of each rank, kept to compare ranks and to show them one by one.

Runs in: the notebook's main thread. Pure: no clock, no I/O.
"""

import zlib
from collections.abc import Mapping, Sequence

from nbddp.notebook.output.excerpt import HEAD, TAIL, Excerpt

#: These lines are shown after the cell, and folded: their number is not limited.
_HEAD = HEAD._replace(lines=HEAD.chars)


class RankText:
    """The text of one rank in bounded memory: an excerpt, and checksums of the whole."""

    __slots__ = ("_crc", "_crc_by_stream", "excerpt", "is_cut", "is_lost")

    def __init__(self) -> None:
        self.excerpt = Excerpt(_HEAD, TAIL)
        self.is_cut = False  #: some lines were skipped
        self.is_lost = False  #: some text never came here: it cannot be compared
        self._crc_by_stream: dict[str, int] = {}
        self._crc = 0

    def note_printed(self, stream: str, text: str, dropped_bytes: int = 0) -> None:
        """Add text to the checksums, also if its lines are left out."""
        before = self._crc_by_stream.get(stream, 0)
        self._crc_by_stream[stream] = zlib.crc32(text.encode(errors="replace"), before)
        self.is_lost |= dropped_bytes > 0
        self.is_cut |= dropped_bytes > 0

    def add_word(self, word: str) -> None:
        """Add a word in place of a display."""
        self.note_printed("shown", word)
        self.add([word])

    def add(self, lines: Sequence[str]) -> None:
        """Add the next lines."""
        for line in lines:
            self._crc = zlib.crc32(line.encode(errors="replace"), self._crc + 1)
        self.excerpt.add(lines)

    def skip(self, lines: int, chars: int) -> None:
        """Count the next lines, which are left out, and their characters."""
        self.is_cut = True
        self.excerpt.skip(lines, chars)

    @property
    def key(self) -> object:
        """A key that is equal for ranks with equal lines, if none was skipped."""
        return (self.excerpt.lines, self._crc)

    @property
    def printed(self) -> object:
        """A key that is equal for ranks with equal text, also if some of it was left out."""
        return tuple(sorted(self._crc_by_stream.items()))


def keys_of(text_by_rank: Mapping[int, RankText], *, is_cut: bool = False) -> dict[int, object]:
    """Return a key for each rank, equal for ranks that printed the same text.

    Args:
        text_by_rank: the texts.
        is_cut: whether some text was left out, so that lines cannot be compared.
    """
    is_cut = is_cut or any(text.is_cut for text in text_by_rank.values())
    return {
        rank: ("lost", rank) if text.is_lost else text.printed if is_cut else text.key
        for rank, text in text_by_rank.items()
    }
