"""A canvas that becomes PNG bytes: rectangles, hatching and short words, drawn by Pillow.

A saved notebook keeps these pictures. Lengths are those of the page (CSS pixels); the PNG holds
`SCALE` times as many in each direction, so that it is sharp on a good screen, and its tag has to
name the width and height. The background is transparent: use `INK` on it, a grey that can be read
on white and on black. The letters are those of the font inside Pillow (Aileron), which is the same
on every machine. A font draws a meaningless box for a letter that it lacks, and this one has ASCII
and a few more: accents are left out, signs and Greek letters are spelled as in source code, and
every other letter becomes ``?``. The text form beside each picture keeps the letters themselves.

A pixel is the index of a colour in a palette, here as in the PNG: with four bytes for each pixel
the file would be three times as large.

    shape or words --Pillow--> mask --_cover--> indexes of blended colours --Pillow--> PNG

Runs in: the notebook's process. Pure. Imports Pillow when the first picture is drawn.
"""

import io
import itertools
import math
import unicodedata
from functools import cache, lru_cache
from typing import TYPE_CHECKING, TypeAlias, cast

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

#: Red, green, blue in 0-255; a fourth number is the alpha.
Colour: TypeAlias = tuple[int, int, int] | tuple[int, int, int, int]
_Rgba: TypeAlias = tuple[int, int, int, int]
_Box: TypeAlias = tuple[int, int, int, int]  # left, top, right, bottom, in pixels of the PNG

WHITE: Colour = (255, 255, 255)
#: The grey with the most contrast on a white and on a black background: 4.3 and 4.4 : 1.
INK: Colour = (122, 122, 122)

#: Sizes of text, in CSS pixels.
TINY = 10.0
SMALL = 12.0
NORMAL = 13.0
LARGE = 15.0

#: Pixels of the PNG for each CSS pixel, in each direction.
SCALE = 2

_MAX_SIDE = 16_384  # of the PNG, in its own pixels
_MAX_COLOURS = 256
_SHADES = 6  # of an edge: more are invisible, and do not fit into the palette
_DOT_DETAIL = 8  # a dot is drawn this many times larger, then reduced


class Picture:
    """A canvas of ``width`` x ``height``; later shapes cover earlier ones.

    Parts of shapes outside the canvas are not drawn::

        picture = Picture(120, 40)
        picture.fill(10, 10, 60, 20, (33, 102, 172))
        picture.text(14, 16, "rank 0", WHITE)
        png = picture.png()

    There is room for 256 colours, those of smooth edges included; a further one becomes the
    nearest of them.

    Args:
        width: of the picture as shown, in CSS pixels.
        height: of the picture as shown, in CSS pixels.

    Raises:
        ValueError: the picture has no area, or is too large to be shown.
    """

    def __init__(self, width: float, height: float) -> None:
        from PIL import Image  # noqa: PLC0415 - `%load_ext nbddp` is quick

        self.width = math.ceil(width)
        self.height = math.ceil(height)
        size = (self.width * SCALE, self.height * SCALE)
        if not all(0 < side <= _MAX_SIDE for side in size):
            raise ValueError(f"a picture of {width} x {height} cannot be made")
        self._image = Image.new("L", size, 0)
        self._colours: list[_Rgba] = [(0, 0, 0, 0)]
        self._index_by_colour = {self._colours[0]: 0}
        self._blends: dict[tuple[int, _Rgba], list[int]] = {}

    def fill(self, x: float, y: float, width: float, height: float, colour: Colour) -> None:
        """Draw a filled rectangle."""
        box, rgba = self._box(x, y, width, height), _with_alpha(colour)
        if box is None:
            return
        if rgba[3] == 255:
            self._image.paste(self._index(rgba), box)
            return
        for index, where in _areas_by_index(self._image.crop(box)):
            blended = _over(rgba, 1.0, self._colours[index])
            self._image.paste(self._index(blended), box, where)

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
        """Draw the border of a rectangle, inside the rectangle."""
        self.fill(x, y, width, thickness, colour)
        self.fill(x, y + height - thickness, width, thickness, colour)
        self.fill(x, y + thickness, thickness, height - 2 * thickness, colour)
        self.fill(x + width - thickness, y + thickness, thickness, height - 2 * thickness, colour)

    def hatch(
        self, x: float, y: float, width: float, height: float, colour: Colour, *, gap: float = 5.0
    ) -> None:
        """Draw slanted lines in a rectangle; the lines of adjacent rectangles meet."""
        from PIL import Image  # noqa: PLC0415

        box = self._box(x, y, width, height)
        if box is None:
            return
        left, top, right, bottom = box
        columns, line = right - left, _hatched_line(gap)
        lines = line * (columns // len(line) + 2)
        starts = ((left + row) % len(line) for row in range(top, bottom))
        shares = b"".join(lines[start : start + columns] for start in starts)
        self._cover(Image.frombytes("L", (columns, bottom - top), shares), left, top, colour)

    def dot(self, x: float, y: float, diameter: float, colour: Colour = INK) -> None:
        """Draw a filled circle around a point."""
        mask = _dot_mask(diameter)
        left, top = x * SCALE - mask.width / 2, y * SCALE - mask.height / 2
        self._cover(mask, round(left), round(top), colour)

    def text(
        self, x: float, y: float, text: str, colour: Colour = INK, *, size: float = NORMAL
    ) -> None:
        """Write one line; ``x``, ``y`` is the upper left corner of its capitals."""
        line = drawable(text)
        if line.strip():
            mask, left, top = _text_mask(line, size)
            self._cover(mask, round(x * SCALE) + left, round(y * SCALE) + top, colour)

    def png(self) -> bytes:
        """The picture as the bytes of a PNG file."""
        image = self._image.copy()
        image.putpalette(bytes(itertools.chain.from_iterable(self._colours)), "RGBA")
        written = io.BytesIO()
        image.save(written, "PNG", compress_level=9, dpi=(96 * SCALE, 96 * SCALE))
        return written.getvalue()

    # --- pixels --------------------------------------------------------------------------------

    def _box(self, x: float, y: float, width: float, height: float) -> _Box | None:
        """The pixels of a rectangle inside the canvas; None if there are none."""
        left, right = _span(x, width, self._image.width)
        top, bottom = _span(y, height, self._image.height)
        return (left, top, right, bottom) if left < right and top < bottom else None

    def _cover(self, mask: "Image", left: int, top: int, colour: Colour) -> None:
        """Put a colour over the picture; the mask says how much of each pixel it covers, 0-255."""
        box = (left, top, left + mask.width, top + mask.height)
        for index, where in _areas_by_index(self._image.crop(box)):
            blended = mask.point(self._blended(index, _with_alpha(colour)))
            self._image.paste(blended, box, where)

    def _blended(self, below: int, rgba: _Rgba) -> list[int]:
        """Indexes of a colour over another one, by the covered part of the pixel, 0-255."""
        indexes = self._blends.get((below, rgba))
        if indexes is None:
            shares = [shade / _SHADES for shade in range(_SHADES + 1)]
            shades = [self._index(_over(rgba, share, self._colours[below])) for share in shares]
            indexes = [shades[round(covered * _SHADES / 255)] for covered in range(256)]
            self._blends[below, rgba] = indexes
        return indexes

    def _index(self, rgba: _Rgba) -> int:
        index = self._index_by_colour.get(rgba)
        if index is None and len(self._colours) < _MAX_COLOURS:
            index = len(self._colours)
            self._colours.append(rgba)
            self._index_by_colour[rgba] = index
        elif index is None:
            distances = [math.dist(rgba, other) for other in self._colours]
            index = distances.index(min(distances))
        return index


def text_width(text: str, size: float = NORMAL) -> float:
    """The width of a text that `Picture.text` writes, in CSS pixels."""
    return _font(size).getlength(drawable(text)) / SCALE


@cache
def text_height(size: float = NORMAL) -> float:
    """The height of capitals and digits, in CSS pixels; descenders are a third of that."""
    return -_font(size).getbbox("H", anchor="ls")[1] / SCALE


def _with_alpha(colour: Colour) -> _Rgba:
    return colour if len(colour) == 4 else (*colour, 255)


def _over(rgba: _Rgba, covered: float, below: _Rgba) -> _Rgba:
    """A colour over another one, in a pixel of which it covers a part."""
    above_share = covered * rgba[3] / 255
    below_share = below[3] / 255 * (1 - above_share)
    alpha = above_share + below_share
    if alpha == 0:
        return below
    red, green, blue = (
        round((over * above_share + under * below_share) / alpha)
        for over, under in zip(rgba[:3], below[:3], strict=True)
    )
    return red, green, blue, round(alpha * 255)


def _span(start: float, length: float, limit: int) -> tuple[int, int]:
    first = round(start * SCALE)
    last = round((start + length) * SCALE)
    if length > 0:
        last = max(last, first + 1)  # every shape can be seen
    return max(0, first), min(limit, last)


def _areas_by_index(image: "Image") -> list[tuple[int, "Image | None"]]:
    """Each index that is in an image, and a mask of its pixels, to be pasted in this order.

    The first one has no mask: the others are pasted over it.
    """
    counts = enumerate(image.histogram())
    first, *others = sorted(((count, index) for index, count in counts if count), reverse=True)
    masks = [
        (index, image.point([255 * (other == index) for other in range(_MAX_COLOURS)]))
        for _, index in others
    ]
    return [(first[1], None), *masks]


# --- masks: the covered part of each pixel, 0-255 ------------------------------------------------


@cache
def _font(size: float) -> "FreeTypeFont":
    from PIL import ImageFont  # noqa: PLC0415

    return cast("FreeTypeFont", ImageFont.load_default(size * SCALE))  # since a size is given


@lru_cache(maxsize=256)
def _text_mask(text: str, size: float) -> tuple["Image", int, int]:
    """The mask of a text, and its offset from the upper left corner of the capitals."""
    from PIL import Image, ImageDraw  # noqa: PLC0415

    font = _font(size)
    left, top, right, bottom = map(int, font.getbbox(text, anchor="ls"))
    mask = Image.new("L", (right - left, bottom - top), 0)
    ImageDraw.Draw(mask).text((-left, -top), text, fill=255, font=font, anchor="ls")
    return mask, left, top + round(text_height(size) * SCALE)


@cache
def _dot_mask(diameter: float) -> "Image":
    from PIL import Image, ImageDraw  # noqa: PLC0415

    pixels = diameter * SCALE
    side = math.ceil(pixels)
    edge = (side - pixels) * _DOT_DETAIL / 2
    last = side * _DOT_DETAIL - 1 - edge
    mask = Image.new("L", (side * _DOT_DETAIL, side * _DOT_DETAIL), 0)
    ImageDraw.Draw(mask).ellipse((edge, edge, last, last), fill=255)
    return mask.reduce(_DOT_DETAIL)


@cache
def _hatched_line(gap: float) -> bytes:
    """A row of pixels through slanted lines one CSS pixel thick, up to the next line."""
    pixels = round(gap * math.sqrt(2) * SCALE)
    half = SCALE / math.sqrt(2)
    shares = (half + 0.5 - min(column, pixels - column) for column in range(pixels))
    return bytes(round(255 * min(1.0, max(0.0, share))) for share in shares)


# --- letters -------------------------------------------------------------------------------------

#: Characters of the font beside ASCII; `tests/unit/render/test_canvas.py` checks them.
BESIDE_ASCII = "…·±°\u2018\u2019\u201c\u201d"  # the last four: quotation marks

_SPELLED = {
    "→": "->",
    "←": "<-",
    "↔": "<->",
    "⇒": "=>",
    "\N{MULTIPLICATION SIGN}": "x",
    "\N{MINUS SIGN}": "-",
    "\N{FRACTION SLASH}": "/",  # in ½, taken apart
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "≈": "~",
    "µ": "u",  # the sign of units; the Greek letter is another character
    "∞": "inf",
    "∇": "nabla",
    "∂": "d",
    "∑": "sum",
    "√": "sqrt",
}
#: Accents and joiners; dashes; spaces and control characters.
_BY_CATEGORY = {"Mn": "", "Me": "", "Cf": "", "Pd": "-", "Zs": " ", "Cc": " "}


def drawable(text: str) -> str:
    """Return the text in letters of the font.

    >>> drawable("∇θ → naïve, 梯度")
    'nablatheta -> naive, ??'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spell(letter) for letter in text)


def _spell(letter: str) -> str:
    if " " <= letter <= "~" or letter in BESIDE_ASCII:
        return letter
    if letter in _SPELLED:
        return _SPELLED[letter]
    parts = unicodedata.normalize("NFKD", letter)
    if parts != letter:
        spelled = drawable(parts)
        return "?" if "?" in spelled else spelled
    kind, _, name = unicodedata.name(letter, "").partition(" LETTER ")
    if kind.startswith("GREEK") and name:
        return name.split()[-1].lower()
    return _BY_CATEGORY.get(unicodedata.category(letter), "?")
