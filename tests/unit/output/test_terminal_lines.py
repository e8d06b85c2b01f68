"""Carriage returns, cursor moves and lines without an end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbddp.notebook.output.terminal_lines import MAX_ROW_CHARS, LineAssembler


@pytest.mark.parametrize(
    ("text", "lines", "open_rows"),
    [
        ("a\nb\n", ["a", "b"], []),
        ("a\n\nb", ["a", ""], ["b"]),
        ("windows\r\n", ["windows"], []),
        ("10%\r20%\n", ["20%"], []),
        ("longer\rab\n", ["abnger"], []),
        ("longer\r\x1b[Kab\n", ["ab"], []),
        ("text\r\n\r\n", ["text", ""], []),
        ("bar\r   \r", [], []),
        ("bar\r", [], ["bar"]),
        ("\x1b[31mred\x1b[0m\n", ["\x1b[31mred\x1b[0m"], []),
        ("\x1b[31mlong red\x1b[0m\rok\n", ["ok"], []),
        ("one\ntwo\x1b[A\rONE", [], ["ONE", "two"]),
        ("\x1b[Ano row above\n", [], ["no row above"]),
    ],
)
def test_text_is_shown_as_a_terminal_would(text: str, lines: list[str], open_rows: list[str]):
    for cuts in (len(text), 1):
        assembler = LineAssembler()
        got: list[str] = []
        for start in range(0, len(text), cuts):
            got += assembler.feed(text[start : start + cuts])
        if "\x1b[A" in text and cuts == 1:
            continue  # a row that was complete before the cursor went up stays a line
        assert (got, assembler.open_rows()) == (lines, open_rows)


@given(st.lists(st.text("ab\r\n\x1b[Am", max_size=8), max_size=12))
def test_any_text_is_accepted_and_the_end_is_final(chunks: list[str]):
    assembler = LineAssembler()
    lines = [line for chunk in chunks for line in assembler.feed(chunk)]
    lines += assembler.settle() + assembler.commit()
    assert not any("\n" in line or "\r" in line for line in lines)
    assert (assembler.open_rows(), assembler.commit(), assembler.is_screen) == ([], [], False)


@given(st.lists(st.text("ab\r\n", max_size=8), max_size=12))
def test_the_cuts_between_chunks_do_not_matter(chunks: list[str]):
    whole = LineAssembler()
    lines = whole.feed("".join(chunks))
    parts = LineAssembler()
    assert [line for chunk in chunks for line in parts.feed(chunk)] == lines
    assert parts.open_rows() == whole.open_rows()


def test_a_row_without_end_is_cut():
    assembler = LineAssembler()
    lines = assembler.feed("x" * (2 * MAX_ROW_CHARS + 5))
    assert [len(line) for line in lines] == [MAX_ROW_CHARS, MAX_ROW_CHARS]
    assert assembler.open_rows() == ["xxxxx"]


def test_rows_of_nested_bars_settle():
    assembler = LineAssembler()
    assert assembler.feed("outer\n\rinner\x1b[A") == []
    assert len(assembler.open_rows()) == 2
    assert assembler.feed("\n\n\nafter\n") == ["outer", "inner", ""]
    assert assembler.settle() == ["after"]
    assert not assembler.is_screen
    assert assembler.feed("plain\n") == ["plain"]
