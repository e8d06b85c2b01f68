"""What is seen of a display where no JavaScript runs."""

from typing import Any

import pytest

from nbddp.notebook.render import static_page

PLOTLY = "application/vnd.plotly.v1+json"
LIBRARY = '\n<!-- plotly -->  <script type="module">\nimport "a";\n</script><SCRIPT>b()</SCRIPT>\n'
FIGURE = '<div style="height:525px"><script>draw()</script></div>'


@pytest.mark.parametrize(
    ("data", "is_unseen"),
    [
        ({"text/html": LIBRARY}, True),
        ({"text/html": "<style>p {}</style>", "text/plain": "<HTML object>"}, True),
        ({"application/javascript": "1", "text/plain": "<Javascript object>"}, True),
        ({"text/html": FIGURE}, False),
        ({"text/html": f"{LIBRARY}and more"}, False),
        ({"text/html": LIBRARY, "image/png": "..."}, False),
        ({PLOTLY: {}}, False),
        ({"text/plain": "1"}, False),
        ({}, False),
    ],
)
def test_displays_that_show_nothing(data: dict[str, Any], is_unseen: bool):
    assert static_page.is_unseen(data) == is_unseen


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({PLOTLY: {}}, "plotly figure: needs JavaScript"),
        ({PLOTLY: {}, "text/html": FIGURE}, "plotly figure: needs JavaScript"),
        ({"text/html": FIGURE}, "output: needs JavaScript"),
        ({"application/json": {}}, "output: needs JavaScript"),
    ],
)
def test_a_note_where_all_needs_javascript(data: dict[str, Any], text: str):
    assert static_page.with_note(data) == {**data, "text/plain": text}


@pytest.mark.parametrize(
    "data",
    [
        {"text/html": LIBRARY},
        {"text/html": "<b>1</b>"},
        {PLOTLY: {}, "image/png": "..."},
        {PLOTLY: {}, "text/plain": "Figure"},
        {"application/pdf": "..."},
    ],
)
def test_no_note_where_something_is_seen_or_nothing_ever(data: dict[str, Any]):
    assert static_page.with_note(data) == data
