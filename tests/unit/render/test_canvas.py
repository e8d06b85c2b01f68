"""The canvas: each shape is in the PNG at its place, and nowhere else."""

import io
import itertools
from collections.abc import Callable

import pytest
from PIL import Image, ImageFont

from nbddp.notebook.render import canvas as picture
from nbddp.notebook.render.canvas import BESIDE_ASCII, INK, WHITE, Picture, drawable
from tests.support.png import Pixels, Rgba, decode

RED = (200, 10, 20)
BLACK = (0, 0, 0)
CLEAR = (0, 0, 0, 0)
ASCII = "".join(map(chr, range(32, 127)))


def touched(pixels: Pixels) -> set[tuple[int, int]]:
    return {
        (column, row)
        for row, line in enumerate(pixels)
        for column, pixel in enumerate(line)
        if pixel != CLEAR
    }


def colours(pixels: Pixels) -> set[Rgba]:
    return set(itertools.chain.from_iterable(pixels))


def test_the_file_says_that_it_is_for_twice_as_many_pixels():
    with Image.open(io.BytesIO(Picture(30, 20).png())) as image:
        assert image.format == "PNG"
        assert image.mode == "P"
        assert image.size == (60, 40)
        assert image.info["dpi"] == pytest.approx((192, 192), abs=0.1)


def test_the_ground_is_clear():
    assert colours(decode(Picture(3, 2).png())) == {CLEAR}


def test_a_rectangle_is_where_it_was_drawn():
    canvas = Picture(10, 10)
    canvas.fill(2, 3, 4, 5, RED)
    pixels = decode(canvas.png())
    assert touched(pixels) == set(itertools.product(range(4, 12), range(6, 16)))
    assert pixels[6][4] == (*RED, 255)


def test_a_frame_is_hollow():
    canvas = Picture(10, 10)
    canvas.frame(1, 1, 8, 8, RED)
    inked = touched(decode(canvas.png()))
    assert (2, 2) in inked
    assert (17, 17) in inked
    assert (9, 9) not in inked
    assert (18, 18) not in inked


def test_a_translucent_rectangle_mixes_with_what_is_below():
    canvas = Picture(3, 2)
    canvas.fill(0, 0, 2, 2, WHITE)
    canvas.fill(1, 0, 2, 2, (0, 0, 0, 128))
    line = decode(canvas.png())[0]
    assert line[0] == (255, 255, 255, 255)
    assert line[2] == (127, 127, 127, 255)
    assert line[4] == (0, 0, 0, 128)


@pytest.mark.parametrize(
    "draw",
    [
        lambda canvas: canvas.fill(-50, -50, 500, 500, RED),
        lambda canvas: canvas.fill(-50, -50, 500, 500, (*RED, 40)),
        lambda canvas: canvas.fill(50, 50, 5, 5, RED),
        lambda canvas: canvas.fill(2, 2, 5, -3, RED),
        lambda canvas: canvas.frame(-5, -5, 20, 20, RED),
        lambda canvas: canvas.frame(5, 5, 1, 1, RED, thickness=1.5),
        lambda canvas: canvas.dot(0, 10, 3, RED),
        lambda canvas: canvas.dot(-10, 30, 3, RED),
        lambda canvas: canvas.hatch(-3, -3, 40, 40, RED),
        lambda canvas: canvas.hatch(50, 50, 5, 5, RED),
        lambda canvas: canvas.text(-8, -3, "outside", RED),
        lambda canvas: canvas.text(5, 95, "outside", RED),
        lambda canvas: canvas.text(0, 0, " ", RED),
        lambda canvas: canvas.text(0, 0, "\u200b", RED),
        lambda canvas: canvas.text(0, 0, "", RED),
    ],
)
def test_shapes_outside_are_not_drawn(draw: Callable[[Picture], None]):
    canvas = Picture(10, 10)
    draw(canvas)
    pixels = decode(canvas.png())
    assert (len(pixels), len(pixels[0])) == (20, 20)


def test_a_thin_rectangle_can_still_be_seen():
    canvas = Picture(10, 10)
    canvas.fill(2, 0, 0.01, 10, RED)
    canvas.fill(6, 0, 0.0, 10, RED)
    assert {column for column, _ in touched(decode(canvas.png()))} == {4}


def test_a_dot_is_round():
    canvas = Picture(10, 10)
    canvas.dot(5, 5, 8, RED)
    pixels = decode(canvas.png())
    assert pixels[10][10] == (*RED, 255)
    inked = touched(pixels)
    assert (min(inked), max(inked)) < ((3, 0), (17, 20))
    assert {(2, 2), (17, 17), (2, 17), (17, 2)}.isdisjoint(inked)


def test_hatching_covers_a_part_of_its_rectangle():
    canvas = Picture(20, 20)
    canvas.hatch(4, 4, 10, 10, RED)
    inked = touched(decode(canvas.png()))
    assert inked < set(itertools.product(range(8, 28), range(8, 28)))
    assert 60 < len(inked) < 300


def test_hatching_of_rectangles_side_by_side_meets():
    whole, parts = Picture(30, 20), Picture(30, 20)
    whole.hatch(2, 2, 25, 15, RED)
    parts.hatch(2, 2, 9, 15, RED)
    parts.hatch(11, 2, 16, 7, RED)
    parts.hatch(11, 9, 16, 8, RED)
    assert decode(parts.png()) == decode(whole.png())


# --- letters -------------------------------------------------------------------------------------


def test_every_letter_is_drawn_and_each_differently():
    seen = {}
    for letter in ASCII + BESIDE_ASCII:
        canvas = Picture(20, 20)
        canvas.text(2, 4, letter, BLACK)
        seen[letter] = canvas.png()
    assert len(set(seen.values())) == len(seen)
    assert touched(decode(seen[" "])) == set()


def test_no_letter_is_the_box_of_a_font_that_lacks_it():
    font = ImageFont.load_default(26)
    box = bytes(font.getmask("\uffff"))  # never a letter
    assert bytes(font.getmask("\u68af")) == box, "what is lacking can be told by it"
    assert [letter for letter in ASCII + BESIDE_ASCII if bytes(font.getmask(letter)) == box] == []


def test_any_text_has_letters_of_the_font():
    everything = map(chr, (*range(0xD800), *range(0xE000, 0x20000)))
    assert set("".join(map(drawable, everything))) <= {*ASCII, *BESIDE_ASCII}


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("all_reduce on rank 0…", "all_reduce on rank 0…"),
        ("grad → mean", "grad -> mean"),
        ("θ, Δw₁", "theta, deltaw1"),
        ("\u03d5 and ά", "phi and alpha"),
        ("1\N{MULTIPLICATION SIGN}½ − 10⁻³ µs", "1x1/2 - 10-3 us"),  # noqa: RUF001
        ("naïve x̂", "naive x"),
        ("a\nb\xa0c", "a b c"),
        ("梯度 🔥 한", "?? ? ?"),
    ],
)
def test_letters_that_the_font_lacks_are_spelled_or_a_question_mark(text: str, drawn: str):
    assert drawable(text) == drawn
    written, spelled = Picture(200, 20), Picture(200, 20)
    written.text(1, 1, text)
    spelled.text(1, 1, drawn)
    assert written.png() == spelled.png()
    assert picture.text_width(text) == picture.text_width(drawn)


@pytest.mark.parametrize("size", [picture.TINY, picture.SMALL, picture.NORMAL, picture.LARGE])
def test_text_stays_in_its_width_and_height(size: float):
    canvas = Picture(100, 30)
    canvas.text(10, 10, "MHX", BLACK, size=size)
    inked = touched(decode(canvas.png()))
    columns, rows = {x / 2 for x, _ in inked}, {y / 2 for _, y in inked}
    assert min(columns) == pytest.approx(10, abs=1.5)
    assert max(columns) == pytest.approx(10 + picture.text_width("MHX", size), abs=1.5)
    assert min(rows) == pytest.approx(10, abs=0.5)
    assert max(rows) == pytest.approx(10 + picture.text_height(size), abs=1)


def test_edges_of_letters_are_smooth_and_of_their_colour_on_a_clear_ground():
    canvas = Picture(60, 20)
    canvas.text(2, 4, "rank 0", INK)
    inked = colours(decode(canvas.png())) - {CLEAR}
    assert {colour[:3] for colour in inked} == {INK}
    assert len(inked) > 3


def test_letters_over_two_grounds_mix_with_each():
    canvas = Picture(40, 20)
    canvas.fill(0, 0, 10, 20, WHITE)
    canvas.text(2, 4, "MMM", BLACK)
    pixels = decode(canvas.png())
    assert {colour[3] for line in pixels for colour in line[:20]} == {255}
    assert {colour[:3] for line in pixels for colour in line[20:]} == {BLACK}


# --- colours -------------------------------------------------------------------------------------


def test_a_colour_for_which_the_palette_has_no_room_is_the_nearest_one():
    canvas = Picture(300, 1)
    for shade in range(256):
        canvas.fill(shade, 0, 1, 1, (shade, 0, 0))
    canvas.fill(256, 0, 1, 1, (77, 0, 1))
    line = decode(canvas.png())[0]
    assert [colour[0] for colour in line[: 2 * 255 : 2]] == list(range(255))
    assert line[2 * 256] == (77, 0, 0, 255)


@pytest.mark.parametrize("size", [(0, 5), (5, 0), (-1, 5), (100_000, 5)])
def test_a_picture_without_area_is_refused(size: tuple[int, int]):
    with pytest.raises(ValueError, match="cannot be made"):
        Picture(*size)
