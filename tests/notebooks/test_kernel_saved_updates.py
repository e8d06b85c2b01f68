"""nbclient, and so papermill, saves the last state of a cell that changes after its end."""

import nbformat
import pytest
from nbclient import NotebookClient


@pytest.mark.parametrize(
    ("end", "note"),
    [("%ddp status --live off", "switched off"), ("%ddp stop", "the pool was stopped")],
)
def test_the_last_table_of_the_live_panel_is_saved(end: str, note: str):
    cells = ["%load_ext nbddp", "%ddp start -n 2", "%ddp status --live", "%%ddp\nx = 1", end]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    [table] = notebook.cells[2].outputs
    assert table.output_type == "display_data"
    text = table.data["text/plain"]
    assert note in text, text
    assert "idle" in text
    assert note in table.data["text/html"]


def test_the_state_of_a_background_cell_is_saved():
    cells = [
        "%load_ext nbddp", "%ddp start -n 2", "%%ddp --async\nprint('from', rank)",
        "handle = _\nhandle.wait()", "%ddp stop",
    ]  # fmt: skip
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in cells])
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = str([each.get("data", {}).get("text/plain") for each in notebook.cells[2].outputs])
    assert "running" not in shown, shown
