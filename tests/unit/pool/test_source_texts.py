"""The source of cells and files."""

from pathlib import Path

import pytest

from nbddp.controller.pool.source_texts import SourceTexts
from nbddp.wire.flight_recorder import Site


def cell_line(cell: int, line: int = 2) -> Site:
    return Site(file=f"<ipython-input-{cell}-abc>", line=line, cell=cell)


def test_lines_of_cells_count_as_in_the_notebook():
    sources = SourceTexts()
    sources.add_cell(3, "a()\nb()", first_line=2)
    code = sources(cell_line(3))
    assert code is not None
    assert (code.source(2), code.source(3)) == ("a()", "b()")
    assert sources(cell_line(3, line=3)) is code  # parsed once
    assert sources(cell_line(4)) is None


def test_a_cell_without_a_number_is_not_known():
    sources = SourceTexts()
    sources.add_cell(0, "a()", first_line=1)
    assert sources(Site(file="<console>", line=1, cell=-1)) is None


def test_a_number_that_is_used_again_is_the_new_cell():
    sources = SourceTexts()
    for text in ("old()", "new()"):
        sources.add_cell(3, text, first_line=2)
    code = sources(cell_line(3))
    assert code is not None
    assert code.source(2) == "new()"


def test_old_cells_and_trees_are_dropped():
    sources = SourceTexts()
    for number in range(1, 1202):
        sources.add_cell(number, f"a({number})", first_line=2)
    assert sources(cell_line(201)) is None
    first = sources(cell_line(202))
    assert first is not None
    for number in range(203, 208):
        assert sources(cell_line(number)) is not None
    assert sources(cell_line(202)) is not first


def test_lines_of_files(tmp_path: Path):
    file = tmp_path / "lib.py"
    file.write_bytes("# -*- coding: latin-1 -*-\nx = 'ä'\n".encode("latin-1"))
    site = Site(file=str(file), line=2, source="x = 'ä'")
    sources = SourceTexts()
    code = sources(site)
    assert code is not None
    assert code.source(2) == "x = 'ä'"
    file.write_text("\n\ny = 1\n")
    assert sources(site) is None  # it has changed since


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"# -*- coding: none -*-\n", b"", None])
def test_files_that_cannot_be_read(tmp_path: Path, content: bytes | None):
    file = tmp_path / "lib.py"
    if content is not None:
        file.write_bytes(content)
    assert SourceTexts()(Site(file=str(file), line=1, source="x")) is None
    assert SourceTexts()(Site(file=str(tmp_path), line=1, source="x")) is None
    assert SourceTexts()(Site(file="", line=1, source="x")) is None
    assert SourceTexts()(Site(file="a\0b", line=1, source="x")) is None
