"""The canvas: what is drawn is there in the PNG, and nowhere else."""

import itertools
import struct
import zlib
from collections.abc import Callable

import pytest

from nbddp.notebook.render import canvas as picture
from nbddp.notebook.render.canvas import BLACK, WHITE, Picture
from nbddp.notebook.render.font import GLYPHS

RED = (200, 10, 20)
CLEAR = (0, 0, 0, 0)
Pixels = list[list[tuple[int, int, int, int]]]


def decode(png: bytes) -> Pixels:
    """Read a PNG of 8 bits, RGBA, without filters; checks every chunk."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    at, chunks = 8, {}
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        kind, content = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        (check,) = struct.unpack_from(">I", png, at + 8 + length)
        assert check == zlib.crc32(kind + content)
        chunks[kind] = content
        at += 12 + length
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert rest == [8, 6, 0, 0, 0]
    assert list(chunks)[-1] == b"IEND"
    rows = zlib.decompress(chunks[b"IDAT"])
    assert len(rows) == height * (1 + 4 * width)
    found = []
    for row in range(height):
        line = rows[row * (1 + 4 * width) :][: 1 + 4 * width]
        assert line[0] == 0
        found.append([(*line[at : at + 4],) for at in range(1, len(line), 4)])
    return found


def touched(pixels: Pixels) -> set[tuple[int, int]]:
    return {
        (column, row)
        for row, line in enumerate(pixels)
        for column, pixel in enumerate(line)
        if pixel != CLEAR
    }


def test_the_ground_is_clear_or_has_its_colour():
    assert touched(decode(Picture(3, 2).png())) == set()
    pixels = decode(Picture(3, 2, background=WHITE).png())
    assert (len(pixels), len(pixels[0])) == (4, 6)  # two pixels for each shown one
    assert {pixel for line in pixels for pixel in line} == {(255, 255, 255, 255)}


def test_a_rectangle_is_where_it_was_drawn():
    canvas = Picture(10, 10)
    canvas.fill(2, 3, 4, 5, RED)
    pixels = decode(canvas.png())
    assert touched(pixels) == set(itertools.product(range(4, 12), range(6, 16)))
    assert pixels[6][4] == (*RED, 255)


def test_a_frame_is_hollow():
    canvas = Picture(10, 10)
    canvas.frame(1, 1, 8, 8, RED)
    found = touched(decode(canvas.png()))
    assert (2, 2) in found
    assert (17, 17) in found
    assert (9, 9) not in found
    assert (18, 18) not in found


def test_a_translucent_rectangle_mixes_with_what_is_below():
    canvas = Picture(2, 2, background=WHITE)
    canvas.fill(0, 0, 1, 2, (0, 0, 0, 128))
    pixels = decode(canvas.png())
    assert pixels[0][0] == (127, 127, 127, 255)
    assert pixels[0][3] == (255, 255, 255, 255)


@pytest.mark.parametrize(
    "draw",
    [
        lambda canvas: canvas.fill(-50, -50, 500, 500, RED),
        lambda canvas: canvas.fill(50, 50, 5, 5, RED),
        lambda canvas: canvas.frame(-5, -5, 20, 20, RED),
        lambda canvas: canvas.line((-50, -50), (60, 70), RED),
        lambda canvas: canvas.hatch(-3, -3, 40, 40, RED),
        lambda canvas: canvas.text(-8, -3, "outside", RED),
        lambda canvas: canvas.text(5, 95, "outside", RED),
    ],
)
def test_what_lies_outside_is_not_drawn(draw: Callable[[Picture], None]):
    canvas = Picture(10, 10)
    draw(canvas)
    pixels = decode(canvas.png())
    assert (len(pixels), len(pixels[0])) == (20, 20)


def test_a_thin_rectangle_can_still_be_seen():
    canvas = Picture(10, 10)
    canvas.fill(2, 0, 0.01, 10, RED)
    canvas.fill(6, 0, 0.0, 10, RED)
    assert {column for column, _ in touched(decode(canvas.png()))} == {4}


def test_a_line_goes_from_end_to_end():
    canvas = Picture(20, 20)
    canvas.line((2, 2), (18, 10), RED, thickness=2)
    pixels = decode(canvas.png())
    for x, y in ((2, 2), (10, 6), (18, 10)):
        assert pixels[y * 2][x * 2] == (*RED, 255)
    assert pixels[30][10] == CLEAR


def test_hatching_covers_a_part_of_its_rectangle():
    canvas = Picture(20, 20)
    canvas.hatch(4, 4, 10, 10, RED)
    found = touched(decode(canvas.png()))
    assert found < set(itertools.product(range(8, 28), range(8, 28)))
    assert 60 < len(found) < 300


def test_every_letter_is_drawn_and_each_differently():
    assert "".join(GLYPHS) == "".join(map(chr, range(32, 127)))
    seen = {}
    for letter in GLYPHS:
        canvas = Picture(10, 14)
        canvas.text(1, 1, letter, BLACK)
        seen[letter] = canvas.png()
    assert len(set(seen.values())) == 95
    assert touched(decode(seen[" "])) == set()


def test_what_has_no_letter_is_a_question_mark():
    wanted, found = Picture(10, 10), Picture(10, 10)
    wanted.text(1, 1, "?")
    found.text(1, 1, "\u2190")
    assert wanted.png() == found.png()


@pytest.mark.parametrize("size", [picture.SMALL, picture.NORMAL, picture.LARGE])
def test_text_stays_in_its_width_and_height(size: float):
    canvas = Picture(100, 30)
    canvas.text(10, 10, "MHX", BLACK, size=size)
    found = touched(decode(canvas.png()))
    columns, rows = {x / 2 for x, _ in found}, {y / 2 for _, y in found}
    assert min(columns) == pytest.approx(10, abs=1)
    assert max(columns) == pytest.approx(10 + picture.text_width("MHX", size), abs=1)
    assert max(rows) == pytest.approx(10 + picture.text_height(size), abs=1)


def test_shortened_fits():
    assert picture.shortened("all_reduce", 1000) == "all_reduce"
    for width in range(0, 80, 7):
        cut = picture.shortened("all_reduce", width)
        assert picture.text_width(cut) <= width
    assert picture.shortened("all_reduce", picture.text_width("all_r")) == "all.."


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (-1, 5), (100_000, 5)])
def test_a_picture_without_area_is_refused(size: tuple[int, int]):
    with pytest.raises(ValueError, match="cannot be made"):
        Picture(*size)
