"""Turns chunks of text into lines, as a terminal would show them.

Runs in: the notebook's main thread. Pure: no clock, no I/O.

    chunks --> LineAssembler.feed --> complete lines
                     |
                     +--> open_rows(): rows without a newline (prompts, progress bars)
"""

import re

#: A row without an end is cut at this length, so that memory stays bounded.
MAX_ROW_CHARS = 64 * 1024
_MAX_ROWS_UP = 16
_CODE_CHARS = 6
_UP = re.compile(r"\x1b\[(\d*)A")
_MOVES = re.compile(r"(\n|\x1b\[\d*A)")
_ERASE = re.compile(r"\x1b\[[02]?K")
_BEGUN_CODE = re.compile(r"\x1b(\[\d*)?\Z")


class LineAssembler:
    r"""Cuts the text of one stream of one rank into lines.

    - ``\n`` and ``\r\n`` end a line. ``\r`` returns to its start: the next text overwrites it,
      and a longer rest of it stays, as on a terminal. With colours or other codes in either text,
      all of the line is replaced, because columns are then not characters.
    - ``ESC [A`` (cursor up; nested tqdm bars) moves to the row above, which is then overwritten.
      For that, as many rows stay open as the cursor ever moved up, until `settle`; rows that are
      already gone cannot be reached, and the code is dropped. The column is not kept: programs
      that move up begin with ``\r``.
    - A row longer than `MAX_ROW_CHARS` is cut there, as by a newline.
    """

    def __init__(self) -> None:
        self._rows = [""]  # open rows as written; only the last ``\r`` of each is kept
        self._cursor = 0
        self._height = 0  # rows kept open above the cursor
        self._begun_code = ""  # the end of the last chunk: perhaps half of a cursor-up code

    @property
    def is_screen(self) -> bool:
        """Whether rows above the last one are open, because the cursor moved up."""
        return self._height > 0

    def feed(self, text: str) -> list[str]:
        """Process a chunk, and return the lines that it completes, without newlines."""
        text = self._begun_code + text
        begun = _BEGUN_CODE.search(text, max(0, len(text) - _CODE_CHARS))
        self._begun_code = begun[0] if begun else ""
        if begun:
            text = text[: begun.start()]
        if self._height or _UP.search(text):
            return self._feed_screen(text)
        rows = (self._rows[0] + text).split("\n")
        last = rows.pop()
        if "\r" in last or any("\r" in row for row in rows):
            rows = [_resolve(row) for row in rows]
            last = _compact(last)
        if len(last) > MAX_ROW_CHARS:
            visible = _resolve(last)
            while len(visible) > MAX_ROW_CHARS:
                rows.append(visible[:MAX_ROW_CHARS])
                visible = visible[MAX_ROW_CHARS:]
            last = visible
        self._rows[0] = last
        return rows

    def open_rows(self) -> list[str]:
        """Return the rows that have no end yet and are not blank, as a terminal shows them now."""
        return [row for row in map(_resolve, self._rows) if row.strip()]

    def commit(self) -> list[str]:
        """End every open row, and return the lines; rows that progress bars left blank are none."""
        self._rows[self._cursor] += self._begun_code
        self._begun_code = ""
        rows = [_resolve(row) for row in self._rows if row]
        is_plain = len(self._rows) == 1 and "\r" not in self._rows[0]
        self._rows, self._cursor, self._height = [""], 0, 0
        return rows if is_plain else [row for row in rows if row.strip()]

    def settle(self) -> list[str]:
        """End the rows above the cursor, which has not moved up for a while, and return them."""
        rows = self._take_rows(self._cursor)
        self._height = 0 if len(self._rows) == 1 else self._height
        return rows

    def _feed_screen(self, text: str) -> list[str]:
        lines: list[str] = []
        upward = _MAX_ROWS_UP if _UP.search(text) else self._height  # rows that it may still reach
        for index, piece in enumerate(_MOVES.split(text)):
            if index % 2 == 0:
                if piece:
                    self._rows[self._cursor] = _compact(self._rows[self._cursor] + piece)
                    if len(self._rows[self._cursor]) > MAX_ROW_CHARS:
                        self._rows[self._cursor] = _resolve(self._rows[self._cursor])
                        lines += [*self._take_rows(self._cursor), self._rows[0][:MAX_ROW_CHARS]]
                        self._rows[0] = self._rows[0][MAX_ROW_CHARS:]
            elif piece == "\n":
                self._cursor += 1
                if self._cursor == len(self._rows):
                    self._rows.append("")
                    lines += self._take_rows(self._cursor - upward)
            else:
                count = _UP.fullmatch(piece)
                rows = min(int((count and count[1]) or 1), _MAX_ROWS_UP)
                self._cursor = max(0, self._cursor - rows)
                self._height = max(self._height, min(len(self._rows) - 1, _MAX_ROWS_UP), 1)
        lines += self._take_rows(self._cursor - self._height)
        return lines

    def _take_rows(self, count: int) -> list[str]:
        """Remove the first ``count`` open rows, and return them as lines."""
        if count <= 0:
            return []
        taken, self._rows = self._rows[:count], self._rows[count:]
        self._cursor -= count
        return [_resolve(row) for row in taken]


def _resolve(row: str) -> str:
    r"""Return the row that a terminal shows after ``row``, which may hold ``\r``."""
    if "\r" not in row:
        return row
    shown = ""
    for segment in reversed(row.split("\r")):
        if "\x1b" in segment:
            return shown or _ERASE.sub("", segment)
        if len(segment) > len(shown):
            shown += segment[len(shown) :]
    return shown


def _compact(row: str) -> str:
    r"""Return an equal row with at most one ``\r``."""
    before, back, after = row.rpartition("\r")
    return f"{_resolve(before)}\r{after}" if back else row
