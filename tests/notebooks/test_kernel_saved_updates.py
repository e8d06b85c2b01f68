"""nbclient, and so papermill, saves the last state of a cell that changes after its end."""

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

_PANEL = "%ddp status --live"
_BACKGROUND = "%%ddp --async\nprint('from', rank)"
_CELLS = [
    "%load_ext nbddp\n%ddp start -n 2",
    _PANEL, "%%ddp\nx = 1", "%ddp status --live off",
    _BACKGROUND, "handle = _\nhandle.wait()",
    _PANEL, "%%ddp\nx = 2", "%ddp stop",
]  # fmt: skip


@pytest.fixture(scope="module")
def notebook() -> NotebookNode:
    """The notebook, with its outputs."""
    cells = [nbformat.v4.new_code_cell(each) for each in _CELLS]
    made: NotebookNode = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(made, timeout=120, kernel_name="python3").execute()
    return made


@pytest.mark.parametrize(
    ("number", "note"), [(0, "switched off"), (1, "the pool was stopped")], ids=["off", "stop"]
)
def test_the_last_table_of_the_live_panel_is_saved(notebook: NotebookNode, number: int, note: str):
    panels = [cell for cell in notebook.cells if cell.source == _PANEL]
    [table] = panels[number].outputs
    assert table.output_type == "display_data"
    text = table.data["text/plain"]
    assert note in text, text
    assert "idle" in text
    assert note in table.data["text/html"]


def test_the_state_of_a_background_cell_is_saved(notebook: NotebookNode):
    [cell] = [cell for cell in notebook.cells if cell.source == _BACKGROUND]
    shown = str([each.get("data", {}).get("text/plain") for each in cell.outputs])
    assert "running" not in shown, shown
