"""The operations of a stepped cell, with a column for each rank."""

from nbddp.controller.prompts import OperationRow, Progress
from nbddp.notebook.render import step_panel
from nbddp.wire.flight_recorder import Site

SITE = Site(cell=3, line=4, source="dist.all_reduce(x < 2)")


def row(progress: dict[int, Progress]) -> OperationRow:
    return OperationRow("all_reduce #7", SITE, progress)


def test_ranks_are_columns_and_signs_have_words():
    bundle = step_panel.bundle([row({0: Progress.WAITS, 1: Progress.BEFORE})], 3)
    assert bundle["text/plain"] == (
        "ranks          0  1  2\n"
        "all_reduce #7  ◌  ●     cell [3], line 4: `dist.all_reduce(x < 2)`\n"
        "● stopped before it   ◌ waits in it"
    )
    page = bundle["text/html"]
    assert page.count('scope="col"') == 4
    assert 'title="rank 1: stopped before it">●</td>' in page
    assert "x &lt; 2" in page


def test_neighbours_with_equal_fields_share_a_column_where_there_are_many():
    progress = dict.fromkeys(range(64), Progress.PASSED) | {17: Progress.BEFORE}
    head, fields, _ = step_panel.bundle([row(progress)], 64)["text/plain"].split("\n")
    assert head.split() == ["ranks", "0-16", "17", "18-63"]
    assert fields.split()[2:5] == ["✓", "●", "✓"]
