"""Auto mode: the cells that go to the ranks, and the source that IPython gets instead."""

from contextlib import redirect_stdout
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from nbddp.controller.prompts import BreakPoints
from nbddp.errors import BadOptionError
from nbddp.notebook import session
from nbddp.notebook.magics import auto_mode
from nbddp.notebook.magics.verbs import VERBS, help_page


@pytest.mark.parametrize(
    "code",
    [
        "x",
        "x = 1\nx?",
        "!ls",
        "files = !ls",
        "name?",
        "%load_ext autoreload",
        "%config InlineBackend.figure_format = 'retina'",
        "%%time\nx",
        "%%timeit -n 1\nx",
        "%%capture out\nx",
        "await later()",
        ">>> x = 1",
        "  x = 1",
        "\n\nx",
        "x = 'no %ddp here'",
        "if True:\n    %ddp status",
        "import torch\n%ddp status",
        "quit_early = 3",
        "this is not Python",
        "'''\n%ddp stop\n'''",
    ],
)
def test_goes_to_the_ranks(code: str):
    assert auto_mode.goes_to_ranks(code)


@pytest.mark.parametrize(
    "code",
    [
        "",
        "\n  \n",
        "# only a comment\n",
        "%ddp status",
        "  %ddp status",
        "# why\n%ddp stop\n%ddp start -n 4 \\\n  --threads 2\n",
        "x = %ddp pull loss -r 0",
        "%ddp?",
        "%%local?",
        "%load_ext nbddp\n%ddp auto on",
        "%pip install einops",
        "%history -n",
        "%%ddp -r 0\nx",
        "%%local\nx",
        "%%html\n<b>x</b>",
        "%%writefile model.py\nx = 1",
        "%%bash\nls",
        "exit",
        "quit()",
    ],
)
def test_stays_in_the_notebook(code: str):
    assert not auto_mode.goes_to_ranks(code)


def test_magics_of_the_notebook_are_found_wherever_they_stand():
    code = "import torch\nif torch:\n    %ddp status\nx = %pip list\n'%ddp stop'\n%time x"
    assert sorted(auto_mode.notebook_magics(code)) == ["%ddp", "%pip"]


# --- the transformer -----------------------------------------------------------------------------


@pytest.fixture
def shell() -> InteractiveShell:
    """A shell of IPython as in a terminal."""
    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    shell = InteractiveShell(config=config)
    auto_mode.install(shell)
    return shell


def with_kernel(shell: InteractiveShell, code: str, **content: Any) -> None:
    header = {"msg_type": content.pop("msg_type", "execute_request")}
    request = {"header": header, "content": {"code": code, **content}}
    shell.__dict__["kernel"] = SimpleNamespace(get_parent=lambda: request)


def switch(shell: InteractiveShell, line: str = "") -> str:
    """The text that ``%ddp auto`` prints."""
    with redirect_stdout(StringIO()) as printed:
        VERBS["auto"].run(shell, line)
    return printed.getvalue()


def is_sent(shell: InteractiveShell, code: str) -> bool:
    return "'_ddp_auto'" in shell.transform_cell(code)


def test_off_on_off(shell: InteractiveShell):
    assert switch(shell).startswith("auto mode is off: only %%ddp cells")
    assert not is_sent(shell, "x")
    assert switch(shell, "on").startswith("auto mode is on: every cell runs on the ranks;")
    assert is_sent(shell, "x")
    assert "as below %%ddp -r 0,2 --trace;" in switch(shell, "on -r 0,2 --trace")
    assert "as below" in switch(shell)
    switch(shell, "off")
    assert not is_sent(shell, "x")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("of", "%ddp auto: 'of' is unknown; legal: on, off"),
        ("off now", "%ddp auto off takes no options, and got 'now'"),
        ("on --nonsense", "%%ddp: unknown: --nonsense"),
    ],
)
def test_bad_words_change_nothing(shell: InteractiveShell, line: str, said: str):
    switch(shell, "on")
    with pytest.raises(BadOptionError) as caught:
        switch(shell, line)
    assert said in str(caught.value)
    assert is_sent(shell, "x")


def test_the_source_is_sent_byte_by_byte(shell: InteractiveShell):
    switch(shell, "on")
    code = "\n\n  x = '\\n'  # \"ä\"\n  y = 1"
    with_kernel(shell, code)
    assert f", '', {code!r})" in shell.transform_cell(code)


def test_completeness_is_asked_of_the_cell_itself(shell: InteractiveShell):
    switch(shell, "on")
    assert shell.check_complete("x = 1") == ("complete", "")
    assert shell.check_complete("for i in range(3):") == ("incomplete", "    ")


def test_code_that_runs_within_a_cell_stays_there(shell: InteractiveShell):
    switch(shell, "on")
    shell.user_ns["shell"] = shell
    shell.run_cell("%%local\nshell.run_cell('y = 7')\n%time z = 8")
    assert (shell.user_ns["y"], shell.user_ns["z"]) == (7, 8)


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        ({}, True),
        ({"store_history": True, "silent": False}, True),
        ({"silent": True}, False),
        ({"store_history": False}, False),
        ({"msg_type": "complete_request"}, False),
    ],
)
def test_only_cells_that_the_user_runs_are_sent(
    shell: InteractiveShell, content: dict[str, Any], sent: bool
):
    switch(shell, "on")
    with_kernel(shell, "x", **content)
    assert is_sent(shell, "x") is sent
    assert not is_sent(shell, "y")  # something else than was asked for


# --- %%local -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["on", "off"])
def test_local_runs_here_and_keeps_the_numbers_of_lines(shell: InteractiveShell, mode: str):
    switch(shell, mode)
    assert shell.transform_cell("%%local\nx\n") == "\nx\n"
    assert shell.transform_cell("%%local  # why\n\nx\n") == "\n\nx\n"
    assert shell.transform_cell("%%local\n").strip() == ""
    assert shell.transform_cell("%time x\n").startswith("get_ipython()")


def test_local_leaves_the_first_line_to_another_magic(shell: InteractiveShell):
    switch(shell, "on")
    assert shell.transform_cell("%%local\n\n%%time\nx\n").startswith(
        "\n\nget_ipython().run_cell_magic('time'"
    )


def test_local_takes_no_options(shell: InteractiveShell):
    result = shell.run_cell("%%local -r 0\nx = 1")
    assert "%%local takes no options, and got '-r 0'" in str(result.error_before_exec)


# --- in and out ----------------------------------------------------------------------------------


def test_installing_twice_is_installing_once(shell: InteractiveShell):
    auto_mode.install(shell)
    found = [
        each for each in shell.input_transformers_cleanup if isinstance(each, auto_mode.AutoMode)
    ]
    assert len(found) == 1


def test_loading_again_leaves_the_mode_as_it_is(shell: InteractiveShell):
    switch(shell, "on")
    auto_mode.install(shell)
    assert is_sent(shell, "x")


def test_uninstalling_leaves_nothing(shell: InteractiveShell):
    switch(shell, "on")
    auto_mode.uninstall(shell)
    assert not is_sent(shell, "x")
    assert shell.transform_cell("y\n") == "y\n"
    assert shell.input_transformers_post == []
    assert not {"local", "_ddp_auto"} & set(shell.magics_manager.magics["cell"])


def test_a_cell_with_a_magic_of_the_notebook_in_it_is_refused(shell: InteractiveShell):
    switch(shell, "on")
    result = shell.run_cell("x = 1\n%pip list")
    assert str(result.error_in_exec) == (
        "auto mode: %pip works in the notebook's process, the rest of the cell on the ranks. "
        "Nothing was run. Next: run these 2 cells instead:\n\n"
        "x = 1\n-------- next cell --------\n%pip list"
    )


@pytest.mark.parametrize(
    ("code", "cells"),
    [
        (
            "y = 10\nz = %ddp pull y\nprint(z)",
            ["y = 10", "%%local\nz = %ddp pull y\nprint(z)"],
        ),
        (
            "\n# first\ny = rank\n\n# to here\nz = %ddp pull y\ntotal = sum(z)\n"
            "print(total)\ny += 1",
            [
                "# first\ny = rank",
                "%%local\n# to here\nz = %ddp pull y\ntotal = sum(z)\nprint(total)",
                "y += 1",
            ],
        ),
        ("z = %ddp pull y\nz = rank\nprint(z)", ["z = %ddp pull y", "z = rank\nprint(z)"]),
        (
            "def f():\n    return 1\n%ddp status\nf()",
            ["def f():\n    return 1", "%ddp status", "f()"],
        ),
        ("z = %ddp pull y\nprint(z)", ["%%local\nz = %ddp pull y\nprint(z)"]),
    ],
)
def test_the_refusal_has_the_cells_to_run_instead(
    shell: InteractiveShell, code: str, cells: list[str]
):
    switch(shell, "on")
    told = str(shell.run_cell(code).error_in_exec)
    assert told.partition("instead:\n\n")[2].split("\n-------- next cell --------\n") == cells


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("for i in range(3):\n    %ddp status", "%ddp works in the notebook's process, and stands "
         "inside a `for` that the ranks would run. Nothing was run. Next: give %ddp a cell"),
        ("async def f():\n    x = %ddp pull y", "stands inside a `def`"),
        ("x = 1; y = 2\n%ddp status", "Next: give %ddp a cell of its own"),
        ("%ddp start \\\n  -n 4\nx = 1\n%ddp status", "Next: give %ddp a cell of its own"),
    ],
)  # fmt: skip
def test_a_refusal_without_cells(shell: InteractiveShell, code: str, words: str):
    switch(shell, "on")
    assert words in str(shell.run_cell(code).error_in_exec)


def test_the_help_tells_of_it():
    assert "%ddp auto on [options]" in help_page()
    assert "%%local" in help_page()


def test_line_1_of_a_cell_is_code_while_the_mode_is_on(
    shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(session, "break_points", BreakPoints())
    VERBS["break"].run(shell, "line 1")
    assert "line 1 of a cell with %%ddp is the line of %%ddp" in capsys.readouterr().out
    switch(shell, "on")
    assert shell.history_manager is not None
    shell.history_manager.input_hist_raw.append("%ddp break line 1")
    VERBS["break"].run(shell, "line 1")
    assert capsys.readouterr().out.splitlines() == [
        "break point 2: ranks of later cells stop before each operation at line 1"
    ]
