"""``docs/magics.md`` has each verb with an example, each option, and nothing that is not there."""

import argparse

import pytest

from nbddp.notebook.magics.cell_line import CELL
from nbddp.notebook.magics.verb import Line
from nbddp.notebook.magics.verbs import VERBS
from tests.support.magics_page import PAGE, examples, is_alike, rewritten, sections

LINES: dict[str, Line] = {
    "%%ddp": CELL,
    **{f"%ddp {name}": verb for name, verb in VERBS.items()},
}


def test_each_magic_has_a_section():
    assert set(sections()) == {*LINES, "%%local"}


@pytest.mark.parametrize("magic", [*LINES, "%%local"])
def test_each_section_has_an_example_that_uses_its_magic(magic: str):
    codes = [example.code for example in examples(sections()[magic])]
    assert any(f"{magic} " in code.replace("\n", " ") for code in codes), codes


@pytest.mark.parametrize("magic", LINES)
def test_each_option_and_each_of_its_values_is_explained(magic: str):
    text = sections()[magic]
    for action in LINES[magic].parser.arguments():
        options = action.option_strings
        if action.help == argparse.SUPPRESS:  # it goes with every `-r`, and is explained once
            assert f"`{options[-1]} NAME`" in PAGE.read_text(encoding="utf-8")
            continue
        assert not options or any(f"`{option}" in text for option in options), options
        for value in action.choices or ():
            assert f"`{options[-1]} {value}`" in text, value


def test_outputs_are_compared_but_for_what_differs_from_run_to_run():
    quoted = "rank  pid  at\n0     12   1.5 ms\n...\nlogs: /tmp/nbddp-abc/rank0.log"
    assert (
        is_alike(quoted, "rank  pid   at\n0     1234  250 µs\nlogs: /home/x/nbddp-d_e/rank0.log")
        is False
    )
    assert is_alike(
        quoted, "rank  pid   at\n0     1234  250 µs\na\nb\nlogs: /x/nbddp-d_e/rank0.log"
    )
    assert not is_alike("Out: tensor([3., 3.])", "Out: array([3., 3.])")
    assert not is_alike("0.1", "")


def test_an_example_is_rewritten_whole_or_left_whole():
    page = "text\n```python\n%ddp a\n```\n```\nold\n```\n"
    (example,) = examples(page)
    assert rewritten(page, example, "old") == page
    assert rewritten(page, example, "new") == page.replace("old", "new")

    page = "```python\n%ddp a\n```\n```\nbefore\n(step) print x\nold\n```\n"
    (example,) = examples(page)
    assert rewritten(page, example, "before\nold") == page
    with pytest.raises(ValueError, match="by hand"):
        rewritten(page, example, "before\nnew")
