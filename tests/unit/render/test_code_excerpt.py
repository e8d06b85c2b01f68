"""Lines of code with the ranks in the margin."""

from nbddp.controller.diagnosis import CodeLine
from nbddp.notebook.render.code_excerpt import html, text
from nbddp.notebook.render.html import WIDTH
from nbddp.wire.flight_recorder import Site
from nbddp.wire.rank_set import RankSet


def code_line(
    line: int, source: str, ranks: str = "", *, cell: int = 3, file: str = ""
) -> CodeLine:
    site = Site(file=file or f"<cell {cell}>", line=line, source=source, cell=cell)
    return CodeLine(site, RankSet.parse(ranks, 64) if ranks else RankSet())


def test_nothing():
    assert text([]) == []
    assert html([]) == ""


def test_ranks_stand_in_the_margin_and_gaps_are_marked():
    lines = [
        code_line(9, "    for step in data:"),
        code_line(10, "        if rank == 2:"),
        code_line(12, "            dist.all_reduce(x)", "0-1,3"),
    ]
    assert text(lines) == [
        "    cell [3]",
        "                 9      for step in data:",
        "                10          if rank == 2:",
        "                                ...",
        "      [0-1,3] > 12              dist.all_reduce(x)",
    ]


def test_each_cell_and_file_has_a_title():
    lines = [
        code_line(2, "mean(x)", "0", cell=7),
        code_line(5, "    return dist.all_reduce(x)", "0", cell=0, file="/home/me/lib.py"),
    ]
    assert text(lines) == [
        "    cell [7]",
        "      [0] > 2  mean(x)",
        "    /home/me/lib.py",
        "      [0] > 5      return dist.all_reduce(x)",
    ]
    assert html(lines).count('<th colspan="3" scope="colgroup"') == 2
    assert html(lines).count('<th scope="row"') == 2


def test_html_tells_the_same_and_is_escaped():
    page = html([code_line(4, "if a < b and '<b>':"), code_line(5, "    f()", "1")])
    assert "if a &lt; b and &#x27;&lt;b&gt;&#x27;:" in page
    assert "<b>[1]</b>" in page
    assert ">    f()</code></b>" in page


def test_long_lines_and_control_characters():
    (_, row) = text([code_line(1, "x = '\x1b[31m" + "y" * 300 + "'", "0-63")])
    assert len(row) <= WIDTH
    assert "\x1b" not in row
    assert "\t" not in "".join(text([code_line(1, "\tx = 1\t+ 1")]))
