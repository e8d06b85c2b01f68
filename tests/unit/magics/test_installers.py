"""``%pip`` in a cell of the ranks runs once, in the notebook's process."""

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from nbddp.notebook.magics import installers


@pytest.fixture
def installed() -> list[str]:
    return []


@pytest.fixture
def shell(installed: list[str]) -> InteractiveShell:
    traits = Config()
    traits.HistoryManager.enabled = False
    shell = InteractiveShell(config=traits)
    for name in ("pip", "conda"):
        shell.magics_manager.register_function(installed.append, "line", name)
    return shell


CELLS = {
    "%pip install einops": (["install einops"], "pass"),
    "import torch\n  \n%pip install -q a b\n%conda list\nx = 1": (
        ["install -q a b", "list"],
        "import torch\n  \npass\npass\nx = 1",
    ),
    "if rank == 0:\n    %pip list": ([], "if rank == 0:\n    %pip list"),
    "x = '''\n%pip list\n'''": ([], "x = '''\n%pip list\n'''"),
    "print('%pip')": ([], "print('%pip')"),
    "x = 1": ([], "x = 1"),
    "%time x = 1": ([], "%time x = 1"),
    "x = = 1\n%pip list": ([], "x = = 1\n%pip list"),
}


@pytest.mark.parametrize("cell", CELLS)
def test_an_installer_runs_once_and_its_line_is_left(
    shell: InteractiveShell, installed: list[str], cell: str
):
    lines, code = CELLS[cell]
    assert installers.run_once(shell, cell) == code
    assert installed == lines


@pytest.mark.parametrize(
    ("cell", "has_note"),
    [
        ("%pip install -U einops\n%pip install rich", True),
        ("%conda update numpy", True),
        ("%pip list", False),
        ("x = 1", False),
    ],
)
def test_a_note_says_what_the_ranks_need(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str], cell: str, has_note: bool
):
    installers.run_once(shell, cell)
    printed = capsys.readouterr().out
    assert printed.count("For the ranks: they import new packages at once.") == has_note
    assert printed.count("%ddp restart") == has_note
