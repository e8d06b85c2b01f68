r"""The order of a rank's standard output and standard error, which are two pipes.

A rank that prints to one stream after the other writes a mark with the same number into both pipes,
before its text. So the reader knows what came first, however late it reads one of them. Text
without marks, as of C code and of children, has its place by the time of its arrival.

    stdout: epoch 0 |1|          |2| epoch 1
    stderr:         |1| warning  |2|
"""

_HEAD, _END = b"\x1b_nbddp:", b"\x07"
_MAX_BYTES = 32


def mark(number: int) -> bytes:
    """Return the mark of one change between the streams."""
    return b"%s%d%s" % (_HEAD, number, _END)


class MarkReader:
    """Takes the marks out of one stream."""

    def __init__(self) -> None:
        self.number = 0  #: of the last mark
        self._begun = b""  # the end of the last chunk: perhaps the begin of a mark

    def feed(self, chunk: bytes) -> list[tuple[int, bytes]]:
        """Return the text of a chunk, each part with the number of the mark before it."""
        chunk = self._begun + chunk
        at = chunk.rfind(_HEAD[:1], max(0, len(chunk) - _MAX_BYTES))
        self._begun = chunk[at:] if at >= 0 and _is_begun(chunk[at:]) else b""
        if self._begun:
            chunk = chunk[:at]
        first, *others = chunk.split(_HEAD)
        parts = [(self.number, first)] if first else []
        for other in others:
            digits, end, text = other.partition(_END)
            if not end or not digits.isdigit() or len(digits) > _MAX_BYTES:
                text = _HEAD + other  # the user's own bytes
            else:
                self.number = max(self.number, int(digits))
            if text:
                parts.append((self.number, text))
        return parts

    def end(self) -> list[tuple[int, bytes]]:
        """Return the rest: no more bytes come, or they belong to another cell."""
        rest, self._begun = self._begun, b""
        return [(self.number, rest)] if rest else []


def _is_begun(end: bytes) -> bool:
    """Return whether the end of a chunk may be the begin of a mark."""
    return _HEAD.startswith(end) or (end.startswith(_HEAD) and end[len(_HEAD) :].isdigit())
