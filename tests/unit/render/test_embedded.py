"""MIME bundles as HTML inside of HTML, and grids of them."""

import base64
import struct
from typing import Any

import pytest

from nbddp.notebook.render import rank_grid
from nbddp.notebook.render.embedded import embedded, is_embeddable
from nbddp.wire.rank_set import RankSet

_HEAD = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 160, 90)
PNG = base64.b64encode(_HEAD + b"rest").decode()


@pytest.mark.parametrize(
    ("data", "is_possible"),
    [
        ({"text/html": "<table></table>", "text/plain": "a"}, True),
        ({"image/png": PNG}, True),
        ({"image/svg+xml": "<svg/>"}, True),
        ({"text/plain": "a"}, True),
        ({"text/html": "<SCRIPT>alert(1)</SCRIPT>"}, False),
        ({"text/html": "<iframe src='x'></iframe>"}, False),
        ({"text/latex": "$x$", "text/plain": "x"}, False),
        ({"text/markdown": "*x*", "text/plain": "x"}, False),
        ({"application/vnd.jupyter.widget-view+json": {}, "text/plain": "x"}, False),
        ({"text/html": ["not", "text"]}, False),
        ({}, False),
    ],
)
def test_what_can_stand_inside_of_html(data: dict[str, Any], is_possible: bool):
    assert is_embeddable(data, {}) is is_possible


def test_an_isolated_bundle_stays_alone():
    assert not is_embeddable({"image/svg+xml": "<svg/>"}, {"image/svg+xml": {"isolated": True}})


def test_a_picture_has_its_size_before_it_is_decoded():
    html = embedded({"image/png": PNG, "text/plain": "<Figure>"}, {})
    assert 'width="160" height="90"' in html
    assert 'alt="&lt;Figure&gt;"' in html
    assert 'width="80" height="45"' in embedded(
        {"image/png": PNG}, {"image/png": {"width": 80, "height": 45}}
    )


@pytest.mark.parametrize("broken", ["", "AAAA", "!" * 40])
def test_a_broken_picture_has_no_size(broken: str):
    assert "width=" not in embedded({"image/png": broken}, {})


def test_text_is_escaped_and_has_no_codes():
    html = embedded({"text/plain": "\x1b[31m<b>\x1b[0m"}, {})
    assert "&lt;b&gt;" in html
    assert "\x1b" not in html


@pytest.mark.parametrize(
    ("slots", "rows"),
    [(1, [1]), (2, [2]), (3, [2, 1]), (4, [2, 2]), (9, [3, 3, 3]), (16, [4, 4, 4, 4])],
)
def test_the_slots_of_a_grid_stand_in_rows(slots: int, rows: list[int]):
    bundle = rank_grid.bundle(
        [rank_grid.Slot(RankSet((rank,)), f"<i>{rank}</i>", f"{rank}") for rank in range(slots)]
    )
    html = bundle["text/html"]
    assert [row.count("<td") for row in html.split("<tr")[1:]] == rows
    places = [html.index(f"<i>{rank}</i>") for rank in range(slots)]
    assert places == sorted(places)
    assert bundle["text/plain"].splitlines() == [f"[{rank}] {rank}" for rank in range(slots)]
    assert "<details" not in html


def test_more_than_sixteen_slots_are_folded():
    bundle = rank_grid.bundle(
        [rank_grid.Slot(RankSet((rank,)), f"<i>{rank}</i>", "") for rank in range(20)]
    )
    shown, folded = bundle["text/html"].split("<details")
    assert shown.count("<i>") == 16
    assert folded.count("<i>") == 4
    assert "ranks 16-19: 4 more" in folded
