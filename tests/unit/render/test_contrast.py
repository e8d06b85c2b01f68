"""Texts of nbddp can be read in both themes: a contrast of 4.5 : 1, as WCAG AA asks for.

The styles are found in the source, so that a new colour cannot miss the test.
"""

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

import nbddp
from nbddp.notebook.render import canvas
from nbddp.notebook.render.colours import RANK_COLOURS, colour_of, tint, tint_of
from nbddp.wire.rank_set import RankSet

_Rgb: TypeAlias = tuple[float, float, float]

AA = 4.5
#: The colour and the opacity of text, and the backgrounds, of JupyterLab's themes; GitHub's pages
#: and those of nbconvert are white, too.
THEMES: dict[str, tuple[_Rgb, float, list[_Rgb]]] = {
    "light": ((0, 0, 0), 0.87, [(255, 255, 255)]),
    "dark": ((255, 255, 255), 0.87, [(17, 17, 17), (33, 33, 33)]),
}
_TEXT_COLOUR = re.compile(r"(?<![-\w])color:\s*(.*?)\s*(?:;|\"|$)")
_OPACITY = re.compile(r"(?<!-)opacity:\s*([^;\"]*)")
_RGBA = re.compile(r"rgba\((\d+), ?(\d+), ?(\d+), ?([\d.]+)\)")
_SOURCES = sorted((Path(nbddp.__file__).parent / "notebook").rglob("*.py"))


def _texts(tree: ast.Module) -> Iterator[str]:
    """The texts of a module, without its docstrings; the values in one are ``{}``."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)
        if isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
            parts = (p.value if isinstance(p, ast.Constant) else "{}" for p in node.values)
            yield "".join(map(str, parts))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            yield node.value


_STYLE = re.compile(r"color|opacity|rgba")
STYLES = [
    (f"{path.parent.name}/{path.name}", text)
    for path in _SOURCES
    if _STYLE.search(source := path.read_text())
    for text in _texts(ast.parse(source))
    if _STYLE.search(text)
]


def _luminance(colour: _Rgb) -> float:
    parts = (c / 255 for c in colour)
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: _Rgb, other: _Rgb) -> float:
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def over(colour: _Rgb, opacity: float, background: _Rgb) -> _Rgb:
    red, green, blue = (
        opacity * c + (1 - opacity) * b for c, b in zip(colour, background, strict=True)
    )
    return red, green, blue


def lowest(*, opacity: float = 1.0, tint: tuple[_Rgb, float] | None = None) -> float:
    """The lowest contrast of the themes' text, fainter and on a tint."""
    found = []
    for ink, strength, backgrounds in THEMES.values():
        for page in backgrounds:
            behind = page if tint is None else over(*tint, page)
            found.append(contrast(over(ink, strength * opacity, behind), behind))
    return min(found)


def test_the_source_has_styles():
    assert len(STYLES) > 30
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((118, 118, 118), (255, 255, 255)) == pytest.approx(4.54, abs=0.01)


def test_texts_have_the_colour_of_the_page():
    """No fixed colour can be read in both themes."""
    best = max(
        min(contrast((grey,) * 3, page) for *_, pages in THEMES.values() for page in pages)
        for grey in range(256)
    )
    assert best < AA
    assert [(file, found) for file, text in STYLES for found in _TEXT_COLOUR.findall(text)] == []


def test_faint_texts_are_dark_enough():
    found = {(file, value) for file, text in STYLES for value in _OPACITY.findall(text)}
    assert len(found) > 10
    assert [(file, v) for file, v in found if lowest(opacity=float(v)) < AA] == []


def test_faint_texts_can_be_read_on_tints():
    tints = {
        (file, tuple(map(float, value)))
        for file, text in STYLES
        for value in _RGBA.findall(text)
    }  # fmt: skip
    tints |= {("tint", tuple(map(float, _RGBA.findall(tint(c))[0]))) for c in RANK_COLOURS}
    assert len(tints) > 12
    wrong = [
        (file, value)
        for file, value in tints
        if lowest(opacity=0.8, tint=((value[0], value[1], value[2]), value[3])) < AA
    ]
    assert wrong == []


def test_letters_in_pictures():
    """White letters stand on colours; the grey is the best one for a transparent background."""
    for colour in RANK_COLOURS:
        rgb = tuple(map(float, bytes.fromhex(colour[1:])))
        assert contrast((rgb[0], rgb[1], rgb[2]), (255, 255, 255)) >= AA
        assert contrast((rgb[0], rgb[1], rgb[2]), (17, 17, 17)) >= 3  # of a shape
    red, green, blue = canvas.INK[:3]
    assert contrast((red, green, blue), (255, 255, 255)) > 4.2
    assert contrast((red, green, blue), (17, 17, 17)) > 4.2


def test_the_colours_of_ranks_repeat():
    assert colour_of(0) == colour_of(len(RANK_COLOURS))
    assert len(set(itertools.islice(map(colour_of, range(99)), 8))) == 8
    assert tint_of(RankSet((0, 1))) == ""
