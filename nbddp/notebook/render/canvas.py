"""A small canvas that becomes PNG bytes, with the standard library only.

For the pictures that a saved notebook keeps: neither matplotlib nor Pillow is a dependency of
nbddp, and what they would draw here is a few rectangles and short words. Lengths are those of the
page (CSS pixels); the picture holds `Picture.scale` times as many in each direction, so that it
is sharp on a good screen. The ground is transparent unless a colour is given: use `INK` on it, a
grey that can be read on white and on black.

Runs in: the notebook's process. Pure.
"""

import math
import struct
import zlib
from functools import cache
from typing import TypeAlias

from nbddp.notebook.render.font import COLUMNS, GLYPHS, UNKNOWN

#: Red, green, blue in 0-255, perhaps with an alpha.
Colour: TypeAlias = tuple[int, int, int] | tuple[int, int, int, int]
Point: TypeAlias = tuple[float, float]
_Segment: TypeAlias = tuple[float, float, float, float]

WHITE: Colour = (255, 255, 255)
BLACK: Colour = (0, 0, 0)
#: Can be read on a white and on a black ground.
INK: Colour = (122, 122, 122)

#: Sizes of text: the pitch of the 5 x 7 grid of a letter.
SMALL = 1.0
NORMAL = 1.25
LARGE = 1.5

_ADVANCE = COLUMNS + 1  # a letter and the gap behind it
_STROKE = 0.42  # half the width of a stroke, in pitches
_SHADES = 8  # of the edge of a stroke: more would not be seen, and make larger files
_MAX_SIDE = 16_384  # of the picture, in its own pixels


class Picture:
    """A canvas of ``width`` x ``height``; what is drawn later covers what was drawn before.

    What lies outside the canvas is not drawn::

        picture = Picture(120, 40)
        picture.fill(10, 10, 60, 20, (33, 102, 172))
        picture.text(14, 16, "rank 0", WHITE)
        png = picture.png()

    Args:
        width: of the picture as shown.
        height: likewise.
        background: colour of the ground; None is transparent.
        scale: pixels of the picture for each shown one.

    Raises:
        ValueError: the picture has no area, or is too large to be shown.
    """

    def __init__(
        self, width: float, height: float, *, background: Colour | None = None, scale: int = 2
    ) -> None:
        self.width = math.ceil(width)
        self.height = math.ceil(height)
        self.scale = scale
        self._columns = self.width * scale
        self._rows = self.height * scale
        if not (0 < self._columns <= _MAX_SIDE and 0 < self._rows <= _MAX_SIDE):
            raise ValueError(f"a picture of {width} x {height} cannot be made")
        ground = bytes(4) if background is None else bytes(_with_alpha(background))
        self._pixels = bytearray(ground * (self._columns * self._rows))

    def fill(self, x: float, y: float, width: float, height: float, colour: Colour) -> None:
        """Draw a filled rectangle."""
        left, right = self._span(x, width, self._columns)
        top, bottom = self._span(y, height, self._rows)
        if left >= right:
            return
        rgba = _with_alpha(colour)
        if rgba[3] == 255:
            run = bytes(rgba) * (right - left)
            for row in range(top, bottom):
                start = (row * self._columns + left) * 4
                self._pixels[start : start + len(run)] = run
            return
        for row in range(top, bottom):
            start, end = (row * self._columns + left) * 4, (row * self._columns + right) * 4
            below = self._pixels[start : start + 4]
            if self._pixels[start:end] == below * (right - left):  # as nearly always
                self._blend(left, row, rgba, 1.0)
                self._pixels[start:end] = self._pixels[start : start + 4] * (right - left)
                continue
            for column in range(left, right):
                self._blend(column, row, rgba, 1.0)

    def frame(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        colour: Colour,
        *,
        thickness: float = 1.0,
    ) -> None:
        """Draw the border of a rectangle, inside of it."""
        self.fill(x, y, width, thickness, colour)
        self.fill(x, y + height - thickness, width, thickness, colour)
        self.fill(x, y + thickness, thickness, height - 2 * thickness, colour)
        self.fill(x + width - thickness, y + thickness, thickness, height - 2 * thickness, colour)

    def line(self, start: Point, end: Point, colour: Colour, *, thickness: float = 1.0) -> None:
        """Draw a line with smooth edges and round ends."""
        rgba = _with_alpha(colour)
        x0, y0, x1, y1 = (value * self.scale for value in (*start, *end))
        half = thickness * self.scale / 2
        reach = half + 1
        columns = range(
            max(0, math.floor(min(x0, x1) - reach)),
            min(self._columns, math.ceil(max(x0, x1) + reach)),
        )
        top = max(0, math.floor(min(y0, y1) - reach))
        bottom = min(self._rows, math.ceil(max(y0, y1) + reach))
        for row in range(top, bottom):
            for column in columns:
                coverage = half + 0.5 - _distance(column + 0.5, row + 0.5, (x0, y0, x1, y1))
                if coverage > 0:
                    self._blend(column, row, rgba, min(1.0, coverage))

    def hatch(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        colour: Colour,
        *,
        gap: float = 5.0,
        thickness: float = 1.0,
    ) -> None:
        """Draw slanted lines in a rectangle; those of two rectangles side by side meet."""
        left, right = self._span(x, width, self._columns)
        top, bottom = self._span(y, height, self._rows)
        rgba = _with_alpha(colour)
        period = gap * math.sqrt(2) * self.scale
        half = thickness * self.scale / math.sqrt(2)
        reach = math.ceil(half + 0.5)
        for row in range(top, bottom):
            first = math.floor((left + row + 1) / period) - 1
            last = math.ceil((right + row + 1) / period) + 1
            for number in range(first, last + 1):
                middle = number * period - row - 1  # of a line, in this row
                around = range(math.floor(middle) - reach, math.ceil(middle) + reach + 1)
                for column in around:
                    coverage = half + 0.5 - abs(column - middle)
                    if coverage > 0 and left <= column < right:
                        self._blend(column, row, rgba, min(1.0, coverage))

    def text(
        self, x: float, y: float, text: str, colour: Colour = INK, *, size: float = NORMAL
    ) -> None:
        """Write one line; ``x``, ``y`` is the left upper corner of its capitals.

        What is not printable ASCII becomes ``?``.
        """
        rgba = _with_alpha(colour)
        pitch = size * self.scale
        top = round(y * self.scale)
        for index, letter in enumerate(text):
            left = round(x * self.scale + index * _ADVANCE * pitch)
            if left >= self._columns:
                return
            for column, row, coverage in _mask(letter, pitch):
                if 0 <= left + column < self._columns and 0 <= top + row < self._rows:
                    self._blend(left + column, top + row, rgba, coverage)

    def png(self) -> bytes:
        """The picture as the bytes of a PNG file."""
        stride = self._columns * 4
        rows = b"".join(
            b"\0" + self._pixels[start : start + stride]  # each row without a filter
            for start in range(0, len(self._pixels), stride)
        )
        header = struct.pack(">IIBBBBB", self._columns, self._rows, 8, 6, 0, 0, 0)
        dots_per_metre = round(96 * self.scale / 0.0254)
        return b"".join(
            (
                b"\x89PNG\r\n\x1a\n",
                _chunk(b"IHDR", header),
                _chunk(b"pHYs", struct.pack(">IIB", dots_per_metre, dots_per_metre, 1)),
                _chunk(b"IDAT", zlib.compress(rows, 9)),
                _chunk(b"IEND", b""),
            )
        )

    # --- pixels --------------------------------------------------------------------------------

    def _span(self, start: float, length: float, limit: int) -> tuple[int, int]:
        first = round(start * self.scale)
        last = round((start + length) * self.scale)
        if length > 0:
            last = max(last, first + 1)  # what is there can be seen
        return max(0, first), min(limit, last)

    def _blend(
        self, column: int, row: int, rgba: tuple[int, int, int, int], coverage: float
    ) -> None:
        """Put a colour over a pixel."""
        at = (row * self._columns + column) * 4
        pixels = self._pixels
        share = coverage * rgba[3] / 255
        if share == 1.0:
            pixels[at : at + 4] = bytes(rgba)
            return
        below = pixels[at + 3] / 255 * (1 - share)
        alpha = share + below
        if alpha <= 0:
            return
        for channel in range(3):
            mixed = (rgba[channel] * share + pixels[at + channel] * below) / alpha
            pixels[at + channel] = round(mixed)
        pixels[at + 3] = round(alpha * 255)


def text_width(text: str, size: float = NORMAL) -> float:
    """How wide `Picture.text` writes it, without the gap behind the last letter."""
    return max(0.0, (len(text) * _ADVANCE - 1) * size)


def text_height(size: float = NORMAL) -> float:
    """How high capitals and digits are; what hangs below the line needs one pitch more."""
    return 7 * size


def shortened(text: str, width: float, size: float = NORMAL) -> str:
    """The text, cut with two dots at its end where it would be wider than this."""
    if text_width(text, size) <= width:
        return text
    letters = int((width / size + 1) // _ADVANCE)
    return text[: letters - 2] + ".." if letters >= 3 else text[: max(letters, 0)]


def _with_alpha(colour: Colour) -> tuple[int, int, int, int]:
    return colour if len(colour) == 4 else (*colour, 255)


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)


@cache
def _mask(letter: str, pitch: float) -> tuple[tuple[int, int, float], ...]:
    """Pixels of a letter: column, row, and how much of each is covered.

    The dots of the 5 x 7 grid are joined to their neighbours by round strokes, which reads far
    better than squares, at any size.
    """
    dots = GLYPHS.get(letter, UNKNOWN)
    centre = {(c, r): ((c + 0.5) * pitch, (r + 0.5) * pitch) for c, r in dots}
    half = max(_STROKE * pitch, 0.5)
    strokes = []
    for column, row in dots:
        at = centre[column, row]
        around = {(column + dc, row + dr) for dc in (-1, 0, 1) for dr in (-1, 0, 1)}
        if len(around & dots) == 1:
            strokes.append((*at, *at, 1.5 * half))  # a full stop; else it would be too faint
        for dc, dr in ((1, 0), (0, 1), (1, 1), (-1, 1)):
            other = (column + dc, row + dr)
            is_corner = dc and dr and ((column + dc, row) in dots or (column, row + dr) in dots)
            if other in dots and not is_corner:
                strokes.append((*at, *centre[other], half))
    covered: dict[tuple[int, int], float] = {}
    for x0, y0, x1, y1, radius in strokes:
        reach = radius + 1
        columns = range(math.floor(min(x0, x1) - reach), math.ceil(max(x0, x1) + reach))
        for row in range(math.floor(y0 - reach), math.ceil(y1 + reach)):
            for column in columns:
                share = radius + 0.5 - _distance(column + 0.5, row + 0.5, (x0, y0, x1, y1))
                if share > covered.get((column, row), 0.0):
                    covered[column, row] = min(1.0, share)
    return tuple(
        (column, row, math.ceil(share * _SHADES) / _SHADES)
        for (column, row), share in sorted(covered.items())
    )


def _distance(x: float, y: float, segment: _Segment) -> float:
    """From a point to a piece of a line."""
    x0, y0, x1, y1 = segment
    dx, dy = x1 - x0, y1 - y0
    length = dx * dx + dy * dy
    along = 0.0 if length == 0 else ((x - x0) * dx + (y - y0) * dy) / length
    along = min(1.0, max(0.0, along))
    return math.hypot(x - x0 - along * dx, y - y0 - along * dy)
