"""The text that stands for a widget in a saved notebook."""

from typing import Any

import pytest

from nbddp.notebook.widgets import static_text
from nbddp.notebook.widgets.static_text import Model, Row


def models(**states: dict[str, Any]) -> dict[str, Model]:
    """Models by id; their kind is given without its ending."""
    return {
        model_id: Model(0, {**state, "_model_name": f"{state['kind']}Model"})
        for model_id, state in states.items()
    }


def box(kind: str, *children: str) -> dict[str, Any]:
    return {"kind": kind, "children": [f"IPY_MODEL_{child}" for child in children]}


BAR = {"kind": "FloatProgress", "min": 0, "max": 4, "value": 3, "bar_style": ""}
TQDM = models(
    top=box("HBox", "left", "bar", "right"),
    left={"kind": "HTML", "value": "load:\u2007 75%"},
    bar=BAR,
    right={"kind": "HTML", "value": "\u20073/4\u2007[00:01&lt;00:00]"},
)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"kind": "IntSlider", "description": "scale", "value": 3}, "scale: 3"),
        ({"kind": "FloatText", "description": "", "value": 0.5}, "0.5"),
        ({"kind": "FloatSlider", "description": "rate", "value": 0.1 + 0.2}, "rate: 0.3"),
        ({"kind": "Password", "description": "key", "value": "secret"}, "key: (hidden)"),
        ({"kind": "FileUpload", "value": [{"name": "a.csv", "content": b"x"}]}, "a.csv"),
        ({"kind": "Checkbox", "description": "on", "value": True}, "on: yes"),
        ({"kind": "Button", "description": "stop"}, "[stop]"),
        ({"kind": "HTML", "value": "<b>a</b> &amp; b"}, "a & b"),
        ({"kind": "Label", "value": "<b>"}, "<b>"),
        ({"kind": "Dropdown", "description": "op", "_options_labels": ["sum", "max"], "index": 1},
         "op: max"),
        ({"kind": "SelectMultiple", "_options_labels": ["a", "b", "c"], "index": [0, 2]}, "a, c"),
        ({"kind": "Dropdown", "_options_labels": [], "index": None}, ""),
        ({"kind": "IntProgress", "description": "load", "max": 4, "value": 1},
         "load: |█████               | 1/4"),
        ({"kind": "Canvas"}, "<Canvas at 0x7f>"),
    ],
)  # fmt: skip
def test_the_text_of_a_widget(state: dict[str, Any], text: str):
    assert static_text.text_of(models(one=state), "one", "<Canvas at 0x7f>") == text


def test_a_bar_of_tqdm_reads_as_in_a_terminal():
    assert static_text.text_of(TQDM, "top") == "load:  75%|███████████████     | 3/4 [00:01<00:00]"


def test_closed_widgets_are_left_out():
    rest = {key: model for key, model in TQDM.items() if key != "bar"}
    assert static_text.text_of(rest, "top") == "load:  75% 3/4 [00:01<00:00]"
    assert static_text.text_of({}, "top") == ""


def test_a_box_that_holds_itself_ends():
    found = models(a=box("VBox", "b"), b=box("HBox", "a"))
    assert static_text.text_of(found, "a") == ""
    assert static_text.parts_of(found, "a") == {"a", "b"}
    assert not static_text.is_finished(found, "a")


@pytest.mark.parametrize(
    ("change", "is_finished"),
    [
        ({}, False),
        ({"value": 4}, True),
        ({"bar_style": "danger"}, True),
        ({"bar_style": "info"}, False),
    ],
)
def test_finished_and_unfinished_bars(change: dict[str, Any], is_finished: bool):
    found = {**TQDM, **models(bar={**BAR, **change})}
    assert static_text.is_finished(found, "top") is is_finished


def test_a_control_never_finishes():
    done = models(
        top=box("VBox", "bar", "slider"),
        bar={**BAR, "value": 4},
        slider={"kind": "IntSlider", "value": 1},
    )
    assert not static_text.is_finished(done, "top")
    assert not static_text.is_finished(models(text={"kind": "HTML", "value": ""}), "text")


def test_rows_stand_behind_their_labels():
    bundle = static_text.bundle_of([Row("[0]  ", "a < b\nc"), Row("[1]  ", "d")])
    assert bundle["text/plain"] == "[0]   a < b\n      c\n[1]   d"
    assert "a &lt; b\n      c\n[1]   d</pre>" in bundle["text/html"]
    assert static_text.bundle_of([]) == {"text/plain": ""}
    assert static_text.bundle_of([Row("", "alone")])["text/plain"] == "alone"


def test_many_rows_are_folded_but_for_the_first():
    few = static_text.bundle_of([Row(f"[{n}]", "x") for n in range(16)])
    assert "<details" not in few["text/html"]
    many = static_text.bundle_of([Row(f"[{n}]", "x") for n in range(64)])
    page = many["text/html"]
    assert page.index("[7] x") < page.index("<details") < page.index("56 more ranks")
    assert page.index("56 more ranks") < page.index("[8] x") < page.index("[63] x")
    assert len(many["text/plain"].splitlines()) == 64


def test_the_text_of_an_output():
    shown = {
        "data": {"text/plain": "<IPython.core.display.HTML object>", "text/html": "<b>bold</b>"}
    }
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": "no end"},
        {"output_type": "display_data", **shown},
        {"output_type": "error", "ename": "ValueError", "evalue": "bad", "traceback": []},
    ]
    found = models(out={"kind": "Output", "outputs": outputs})
    assert static_text.text_of(found, "out") == "no end\nbold\nValueError: bad"


def test_pictures_of_an_output_stay():
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": "n is 2\n"},
        {
            "output_type": "display_data",
            "data": {"image/png": "iVBO\nRw0K", "text/plain": "<Figure>"},
            "metadata": {},
        },
    ]
    found = models(top=box("VBox", "out"), out={"kind": "Output", "outputs": outputs})
    assert static_text.text_of(found, "top") == "n is 2\n<Figure>"
    images = static_text.images_of(found, "top")
    assert images == ["data:image/png;base64,iVBORw0K"]
    page = static_text.bundle_of([Row("[0]", "n is 2", tuple(images)), Row("[1]", "x")])[
        "text/html"
    ]
    assert page.index("n is 2") < page.index("<img src=") < page.index("[1] x")


def test_a_bar_is_not_the_darkest_thing_on_the_page():
    page = static_text.bundle_of([Row("[0]", "|██▌ |")])["text/html"]
    assert '|<span style="opacity:0.65">██▌</span> |' in page
