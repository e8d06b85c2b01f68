"""Text of ranks keeps its colours and loses every other control code of a terminal."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbddp.errors import CellError, PoolStartError
from nbddp.notebook.output.gatherer import Gatherer, Text
from nbddp.printable import harmless
from nbddp.wire.messages import Output, Result
from tests.support.output_specs import spec_of

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
#: Text that terminals obey, with the part that must stay.
CODES = {
    "\x1b[2J": "",
    "\x1b[H\x1b[3J": "",
    "\x1b[10;10Hhere": "here",
    "\x1b[?1049h": "",
    "\x1b[6n": "",
    "\x1b]0;title\x07": "",
    "\x1b]0;title\x1b\\": "",
    "\x1b]8;;http://elsewhere\x1b\\link\x1b]8;;\x1b\\": "link",
    "\x1b]52;c;Y2xpcA==\x07": "",
    "\x1bPq#0;2;0;0;0\x1b\\": "",
    "\x1b_G\x1b\\text": "text",
    "\x1bc": "",
    "\x1b(0": "",
    "\x9b2J": "",
    "\x9d0;title\x9c": "",
    "a\x07b\x00c\x7fd": "abcd",
    "ab\x08c": "ac",
    "\x08\x08\x08[1] forged": "[1] forged",
    "a\x0bb\x0cc": "abc",
    "unfinished \x1b": "unfinished ",
    "unfinished \x1b[12": "unfinished ",
    "unfinished \x1b]0;no end": "unfinished ",
    "\x1b\x1b[31m": "\x1b[31m",
    "\x1b[\x1b[2J31m": "31m",
}


@pytest.mark.parametrize("text", CODES)
def test_codes_are_left_out(text: str):
    assert harmless(text) == CODES[text]


@pytest.mark.parametrize(
    "text", ["", "plain", "tab\tand\nline", "é 中 \u202e", "\x1b[1;31mred\x1b[0m"]
)
def test_harmless_text_stays(text: str):
    assert harmless(text) == text


@given(st.lists(st.sampled_from([*CODES, "\x1b[31m", "m", "[", "]", "\\", "\n", "0;", "a"])))
def test_only_colours_stay(parts: list[str]):
    left = harmless("".join(parts))
    assert harmless(left) == left
    assert all(each.isprintable() or each in "\n\t" for each in _COLOUR.sub("", left))


def shown(*events: Output | Result) -> str:
    gatherer = Gatherer(spec_of(2))
    shows = [show for event in events for show in gatherer.add(event, 0.0)]
    shows += gatherer.end(0.0)
    return "".join(show.text for show in shows if isinstance(show, Text))


@pytest.mark.parametrize("text", CODES)
def test_printed_lines_and_results_of_ranks(text: str):
    printed = Output(run_id="r", rank=1, stream="stdout", text=f"<{text}>\n")
    assert shown(printed) == f"[1]   {harmless(f'<{text}>')}\n"
    result = Result(run_id="r", rank=1, data={"text/plain": text}, metadata={})
    assert shown(result) == f"[1]   {harmless(f'Out: {text}')}\n"


def test_codes_in_pieces():
    pieces = ["a\x1b", "[2", "Jb\x1b]0;", "title", "\x07c\n"]
    events = [Output(run_id="r", rank=1, stream="stdout", text=piece) for piece in pieces]
    assert shown(*events) == "[1]   abc\n"


@pytest.mark.parametrize("text", CODES)
def test_errors(text: str):
    assert str(PoolStartError(text)) == harmless(text)
    error = CellError(f"\x1b[31m{text}\x1b[0m", {})
    assert error._render_traceback_() == [harmless(f"\x1b[31m{text}\x1b[0m")]
    assert "\x1b" not in str(error)
