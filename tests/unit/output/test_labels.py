"""The labels in front of the lines of ranks."""

from collections.abc import Sequence

import pytest

from nbddp.notebook.output.shows import Labels, labelled


@pytest.mark.parametrize(
    ("world_size", "ranks", "line"),
    [
        (1, [0], "text\n"),
        (2, [0, 1], "[0-1] text\n"),
        (2, [1], "[1]   text\n"),
        (4, [0, 1, 2, 3], "[0-3] text\n"),
        (4, [3], "[3]   text\n"),
        (4, [0, 2], "[0,2] text\n"),
        (4, [0, 2, 3], "[0,2-3] text\n"),
        (16, range(16), "[0-15] text\n"),
        (16, [7], "[7]    text\n"),
        (16, [12], "[12]   text\n"),
        (16, [1, 2], "[1-2]  text\n"),
        (16, [10, 12, 13], "[10,12-13] text\n"),
        (100, range(100), "[0-99] text\n"),
        (100, [5], "[5]    text\n"),
        (100, [99], "[99]   text\n"),
        (100, [98, 99], "[98-99] text\n"),
    ],
)
def test_text_lines_up_behind_the_label_of_all_ranks(
    world_size: int, ranks: Sequence[int], line: str
):
    assert labelled(Labels(world_size).of(tuple(ranks)), "text") == line


@pytest.mark.parametrize(("world_size", "has_labels"), [(1, False), (2, True), (100, True)])
def test_a_pool_of_one_rank_needs_no_labels(world_size: int, has_labels: bool):
    assert bool(Labels(world_size)) is has_labels


def test_every_line_has_a_label_and_blank_lines_have_no_trailing_spaces():
    assert labelled(Labels(4).of((2,)), "a\n\n  b\n") == "[2]   a\n[2]\n[2]     b\n[2]\n"
