"""The summary of an exception: the line of the cell that raised it, and its text."""

import linecache
from collections.abc import Callable

import pytest

from nbddp.errors import CollectiveAbortedError
from nbddp.rank import code_sites
from nbddp.rank.exception_text import error_info, exit_lines, summary_line
from nbddp.stack_text import cell_number, frames, with_named_cells
from nbddp.wire.flight_recorder.schema import CONSOLE, ExceptionLine, Site

_CELL = "<ipython-input-3-0a1b2c>"
_CODE = """\
def fails(kind):
    raise kind("no\\nmore")

def calls(kind):
    [fails(kind) for _ in range(1)]
"""


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Exception]:
    """Raises an exception in a file, called from a cell or not; gives it."""
    monkeypatch.setattr(code_sites, "_known", [])

    def raised(kind: type[Exception] = ValueError, file: str = _CELL) -> Exception:
        monkeypatch.setitem(linecache.cache, file, (1, None, _CODE.splitlines(True), file))
        names: dict[str, Callable[..., None]] = {}
        exec(compile(_CODE, file, "exec"), names)
        try:
            names["calls"](kind)
        except kind as error:
            return error
        raise AssertionError

    return raised


def test_the_innermost_line_of_a_cell_is_told(cell: Callable[..., Exception]):
    assert error_info(cell()).site == Site(
        file=_CELL, line=2, function="fails", source='raise kind("no\\nmore")', cell=3
    )


def test_a_cell_may_have_been_called_by_no_cell_and_may_call_none(
    cell: Callable[..., Exception],
):
    assert error_info(cell(file="train.py")).site is None
    assert error_info(None).site is None


def test_input_of_a_console_is_a_cell_without_a_number(cell: Callable[..., Exception]):
    site = error_info(cell(file="<ipython-input-0-0a1b2c>")).site
    assert site is not None
    assert (site.cell, str(site)) == (CONSOLE, "console cell, line 2, in fails")


def test_the_shell_knows_cells_under_the_names_that_a_debugger_wants(
    cell: Callable[..., Exception],
):
    code_sites.know_cells({"/tmp/ipykernel_7/1.py": 9}.get)  # type: ignore[arg-type]  # None is no cell
    site = error_info(cell(file="/tmp/ipykernel_7/1.py")).site
    assert site is not None
    assert (site.cell, site.line) == (9, 2)
    assert error_info(cell()).site is not None  # by its name


def test_an_exception_summary_line(cell: Callable[..., Exception]):
    found = summary_line(cell())
    assert (found.name, found.text) == ("ValueError", "no")
    assert str(found) == "ValueError: no (cell [3], line 2)"
    assert str(ExceptionLine(name="KeyError")) == "KeyError"
    assert ExceptionLine(name="KeyboardInterrupt").is_interrupt


def test_an_exception_that_is_being_handled_is_told_with_the_operation(
    cell: Callable[..., Exception],
):
    try:
        try:
            raise cell()
        except ValueError:
            raise CollectiveAbortedError("freed")  # noqa: B904 - as a collective in an `except` does
    except CollectiveAbortedError as error:
        handled = error_info(error).handling
    assert handled is not None
    assert str(handled) == "ValueError: no (cell [3], line 2)"
    assert error_info(cell()).handling is None


def test_an_exit_is_told_with_its_line(cell: Callable[..., Exception]):
    found = SystemExit("done")
    found.__traceback__ = cell().__traceback__
    assert exit_lines(found) == ["Cell In[3], line 2", "SystemExit: done"]
    assert exit_lines(SystemExit()) == ["SystemExit"]


# --- as Python and faulthandler write them -------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "number"),
    [(_CELL, 3), ("<ipython-input-0-ab>", 0), ("train.py", None), (f"/tmp/{_CELL}", None)],
)
def test_names_of_cells(file: str, number: int | None):
    assert cell_number(file) == number


def test_lines_of_tracebacks_name_cells():
    assert with_named_cells(f'  File "{_CELL}", line 2, in f') == "  Cell In[3], line 2, in f"
    assert with_named_cells('  File "<ipython-input-0-ab>", line 2') == "  Console cell, line 2"
    assert with_named_cells('  File "a.py", line 2') == '  File "a.py", line 2'


def test_frames_of_faulthandler():
    text = f'Fatal Python error\n\n  File "{_CELL}", line 4 in <module>\n  ...\nFile "x" line\n'
    assert [(frame.cell, frame.line, frame.function) for frame in frames(text)] == [
        (3, 4, "<module>")
    ]
