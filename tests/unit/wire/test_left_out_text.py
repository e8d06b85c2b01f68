"""Text that is not passed on: its size, and its end."""

import pytest

from nbddp.wire.left_out_text import LeftOutText

LINE = "x" * 99 + "\n"


def test_a_short_text_is_all_end():
    left_out = LeftOutText()
    left_out.add("a\n")
    left_out.add("b")
    assert left_out.take_with_end() == (0, "a\nb")
    assert left_out.take_with_end() == (0, "")


def test_the_end_begins_with_a_whole_line():
    left_out = LeftOutText()
    left_out.add(LINE * 1000)
    left_out.add("the end\n")
    size, end = left_out.take_with_end()
    assert size + len(end) == 100 * 1000 + 8
    assert end == LINE * 40 + "the end\n"


@pytest.mark.parametrize("pieces", [1, 7, 10_000])
def test_the_pieces_of_a_text_do_not_matter(pieces: int):
    left_out, text = LeftOutText(), "".join(f"line {n}\n" for n in range(3000))
    step = -(-len(text) // pieces)
    for begin in range(0, len(text), step):
        left_out.add(text[begin : begin + step])
    size, end = left_out.take_with_end()
    assert text[size:] == end
    assert text[size - 1] == "\n"


def test_a_line_without_end_keeps_its_end():
    left_out = LeftOutText()
    left_out.add("y" * 10_000 + "z")
    size, end = left_out.take_with_end()
    assert size + len(end) == 10_001
    assert end.endswith("yz")


def test_text_is_no_end_if_some_is_lost_behind_it():
    left_out = LeftOutText()
    left_out.add("long ago\n")
    left_out.add("at last\n", lost_before=70)
    assert left_out.take_with_end() == (79, "at last\n")
    left_out.add("at last\n")
    left_out.add("", lost_before=5)
    assert left_out.take_with_end() == (13, "")


def test_sizes_are_bytes():
    left_out = LeftOutText()
    left_out.add("äöü\n")
    assert left_out.take() == 7
    left_out.add("ä" * 5000)
    size, end = left_out.take_with_end()
    assert size + len(end.encode()) == 10_000


def test_what_is_taken_is_gone():
    left_out = LeftOutText()
    left_out.add("a\n")
    assert left_out.take() == 2
    left_out.add("b\n")
    assert left_out.take_with_end() == (0, "b\n")
