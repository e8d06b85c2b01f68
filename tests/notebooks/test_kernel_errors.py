"""Errors of cells as a notebook shows them: one error, in terms of the cell."""

import re

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from nbddp.line_breaks import with_line_breaks
from tests.support.kernel import Kernel


def test_a_traceback_has_the_number_and_line_of_the_notebook(kernel: Kernel):
    cell = kernel.run("%%ddp\n\n# a comment\nvalue = 1\n\nvalue / 0\n")
    assert f"Cell In[{cell.number}], line 6" in cell.error
    assert "----> 6 value / 0" in cell.error
    place = f"cell [{cell.number}], line 6"
    assert f"ranks 0-1 raised ZeroDivisionError at {place}" in cell.error


def test_a_traceback_reaches_into_a_function_of_an_earlier_cell(kernel: Kernel):
    first = kernel.ok("%%ddp\ndef half(x):\n    return x / 0\n")
    second = kernel.run("%%ddp\n\nhalf(3)")
    assert f"Cell In[{first.number}], line 3" in second.error
    assert f"Cell In[{second.number}], line 3" in second.error
    assert "return x / 0" in second.error


def test_lines_below_a_magic_that_runs_a_cell(kernel: Kernel):
    cell = kernel.run("%%ddp\n%%capture out\nif rank == 1:\n    1 / 0")
    assert f"Cell In[{cell.number}], line 4" in cell.error
    assert "----> 4     1 / 0" in cell.error
    cell = kernel.run("%%ddp\n%%capture out\nif rank == 1:\n    dist.barrier()")
    assert f"cell [{cell.number}], line 4: dist.barrier()" in cell.page[0].text
    assert "Line 4 is inside `if rank == 1:` (line 3)" in cell.error
    cell = kernel.run("%%ddp\n1 / 0")
    assert f"Cell In[{cell.number}], line 2" in cell.error


def test_frames_of_nbddp_are_hidden(kernel: Kernel):
    cell = kernel.run("%%ddp\nraise KeyError('lost')")
    assert "nbddp/" not in cell.error
    assert "ipykernel" not in cell.error


def test_frames_of_libraries_are_one_click_away(kernel: Kernel):
    cell = kernel.run("%%ddp\nnet = torch.nn.Linear(8, 1)\nif rank:\n    net(torch.ones(3, 7))")
    assert "----> 4     net(torch.ones(3, 7))" in cell.error
    assert re.search(r"\n… \d frames of torch: see %ddp output -r 1\n", cell.error)
    assert "linear.py" not in cell.error
    [page] = [each for each in cell.of("display_data") if "linear.py" in str(each.content)]
    assert page.text == ""
    assert "<details>" in page.content["data"]["text/html"]
    assert "linear.py" in kernel.run("%ddp output -r 1").text
    cell = kernel.run("%%ddp\n%xmode Verbose\nnet(torch.ones(3, 7))")
    kernel.ok("%%ddp\n%xmode Context")
    assert "linear.py" in cell.error


def test_different_errors_are_separate_parts_of_one_output(kernel: Kernel):
    cell = kernel.run("%%ddp\nraise ValueError('zero') if rank == 0 else TypeError('one')")
    assert len(cell.of("error")) == 1
    assert cell.status == "error"
    assert "ValueError: zero" in cell.error
    assert "TypeError: one" in cell.error


def test_an_error_of_one_rank_names_it_and_the_others(kernel: Kernel):
    cell = kernel.run("%%ddp\nif rank == 1: raise ValueError('only here')")
    assert "rank 1 raised ValueError at " in cell.error
    assert "ValueError: only here\n" in cell.error  # right above, and not said twice
    assert cell.error.endswith("line 2")
    assert "rank 0 finished" in cell.error


def test_a_card_names_variables_that_may_hold_partial_results(kernel: Kernel):
    """The card alone must say it."""
    kernel.ok("%%ddp\nlarge = torch.full((2_000_000,), float(rank))")
    cell = kernel.run(
        "%%ddp\nif rank == 1:\n"
        "    dist.broadcast(large, 0)\n"
        "    raise ValueError('bad')\n"
        "dist.broadcast(large, 0)\n"
        "dist.all_reduce(large)"
    )
    card, error = (message.text for message in cell.page)
    assert "rank 1 raised ValueError: bad; rank 0 waits for it" in card
    told = "but the tensors of all_reduce"
    assert f"It keeps every variable, {told}" in " ".join(card.split())
    assert "partial   the tensors of all_reduce" in error
    assert "on rank 0: no copy of them was kept" in error
    cell = kernel.run("%%ddp\nif rank == 0: dist.barrier()\nelse: raise ValueError('bad')")
    assert [each.kind for each in cell.page] == ["error"]
    traceback, after = cell.error.split("\nValueError: bad\n")
    assert traceback.startswith("rank 1\n")
    lines = [line for line in after.splitlines() if line]
    assert re.match(r"rank 0 waited in barrier \(cell \[\d+\], line 2\) and was freed", lines[0])
    assert "rank 0" not in "".join(lines[1:])


def test_output_before_an_error_is_shown_before_it(kernel: Kernel):
    cell = kernel.run("%%ddp\nprint('so far so good')\n1 / 0")
    assert [m.kind for m in cell.page] == ["stream", "error"]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("%%ddp\nprint('never')\nif True print(1)", "SyntaxError"),
        ("%%ddp\n  x = 1\n y = 2", "IndentationError"),
        ("%%ddp\nreturn 3", "'return' outside function"),
    ],
)
def test_a_syntax_error_is_found_once_and_nothing_runs(kernel: Kernel, code: str, words: str):
    cell = kernel.run(code)
    assert words in cell.error
    assert f"Cell In[{cell.number}], line " in cell.error
    assert (cell.text, len(cell.of("error"))) == ("", 1)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("%%ddp -r 7\npass", "legal"),
        ("%%ddp --nonsense\npass", "unknown"),
        ("%%ddp --timeout soon\npass", "not a positive number"),
        ("%ddp dance", "legal: start, status"),
        ("%ddp start -n 0", "0"),
        ("%ddp start -n 3", "%ddp restart"),
        ("%ddp push no_such_name", "no variable 'no_such_name'"),
        ("%ddp pull no_such_name", "no_such_name"),
        ("%ddp pull rank world_size", "Next: %ddp pull (rank, world_size)"),
        ("value = %ddp pull rank --foo", "unknown: --foo"),
        ("%ddp diff rank --rtol 1", "unknown: --rtol; legal: EXPRESSION ..., -r RANKS"),
        ("%ddp stop now", "takes no options"),
    ],
)
def test_a_wrong_command_says_what_is_legal_and_changes_nothing(
    kernel: Kernel, code: str, words: str
):
    cell = kernel.run(code)
    assert words in cell.error
    assert "Traceback" not in cell.error


def test_a_timeout_ends_the_cell_and_says_so(kernel: Kernel):
    cell = kernel.run("%%ddp --timeout 0.3\nimport time\nif rank: time.sleep(60)")
    assert "CellTimeoutError" in cell.error
    assert "--timeout" in cell.error


def test_a_cell_from_another_thread_is_refused(kernel: Kernel):
    cell = kernel.ok(
        "import threading\ncaught = []\n"
        "def go():\n"
        "    try: get_ipython().run_cell_magic('ddp', '', 'print(1)')\n"
        "    except Exception as error: caught.append(f'{type(error).__name__}: {error}')\n"
        "thread = threading.Thread(target=go); thread.start(); thread.join()\nprint(caught)"
    )
    assert "PoolBusyError" in cell.text
    assert "--async" in cell.text


def test_nbclient_stops_at_the_first_error_and_saves_one_output(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("NBDDP_PROGRESS_AFTER_S", "60")  # a slow machine would show a display
    notebook = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell("%load_ext nbddp\n%ddp start -n 2"),
            nbformat.v4.new_code_cell("%%ddp\nprint('said')\nassert rank == 5, 'not five'"),
            nbformat.v4.new_code_cell("never = 1"),
        ]
    )
    with pytest.raises(CellExecutionError, match="not five"):
        NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    outputs = notebook.cells[1].outputs
    assert [output.output_type for output in outputs] == ["stream", "error"]
    assert notebook.cells[2].execution_count is None
    nbformat.validate(notebook)


def test_comments_and_empty_lines_may_stand_above_the_magic(kernel: Kernel):
    assert kernel.ok("\n# all ranks\n\n%%ddp\nprint(rank)").text == "[0]   0\n[1]   1\n"
    cell = kernel.run("\n# all ranks\n\n%%ddp\n\n1 / 0")
    assert f"Cell In[{cell.number}], line 6" in cell.error
    assert "----> 6 1 / 0" in cell.error


def test_a_cell_with_code_above_the_magic_is_refused_by_one_message(kernel: Kernel):
    words = (
        "%%ddp has to be the first line of its cell, below nothing but comments. Nothing was run"
    )
    for code in (
        "print(1)\n%%ddp\nprint(rank)",
        "if True:\n    %%ddp\n    print(rank)",
        "%%ddp\nprint(1)\n%%ddp",
    ):
        cell = kernel.run(code)
        assert words in cell.error
        assert cell.text == ""
    assert kernel.ok("text = '''\n%%ddp\n'''\nprint(len(text))").text == "7\n"


def test_a_name_that_only_the_ranks_have(kernel: Kernel):
    kernel.ok("%%ddp\nonly_there = 3")
    for name, words in {
        "rank": "rank is a variable of the ranks: begin the cell with %%ddp to run it there\n",
        "dist": "dist is imported on the ranks: begin the cell with %%ddp to run it there, or "
        "import torch.distributed as dist here\n",
        "only_there": "only_there is a variable of the ranks: begin the cell with %%ddp to run it "
        "there, or fetch its values: only_there = %ddp pull only_there\n",
        "nowhere": "",
    }.items():
        cell = kernel.run(f"print({name})")
        assert f"NameError: name {name!r} is not defined" in cell.error
        assert cell.text == with_line_breaks(words)
    assert kernel.run("1 / 0").text == ""


def test_a_name_that_only_the_notebook_has(kernel: Kernel):
    kernel.ok("notebook_value = 3\nimport json as json_here")
    cell = kernel.run("%%ddp\nif rank: notebook_value + 1")
    assert "NameError: name 'notebook_value' is not defined" in cell.error
    assert cell.text == with_line_breaks(
        "notebook_value is a variable of the notebook. Next: %ddp push notebook_value -r 1 gives "
        "it to rank 1\n"
    )
    assert kernel.run("%%ddp\njson_here.dumps(1)").text == (
        "json_here is imported in the notebook only. Next: import it in a %%ddp cell, too\n"
    )
    assert kernel.run("%%ddp\nnowhere").text == ""
    kernel.ok("%ddp push notebook_value")
    kernel.ok("%%ddp\nif rank: notebook_value + 1")


def test_a_name_of_the_notebook_that_the_other_ranks_have_from_a_cell(kernel: Kernel):
    kernel.ok("of_both = 3")
    kernel.ok("%%ddp\nof_both = 5")
    kernel.ok("%ddp restart -r 1")
    cell = kernel.run("%%ddp\nof_both")
    assert "%ddp catchup -r 1 runs such cells there" in cell.error
    assert "of the notebook" not in cell.text
    kernel.ok("%ddp catchup")


def test_a_magic_of_the_notebook_in_a_cell_of_the_ranks(kernel: Kernel):
    error = kernel.run("%%ddp -r 0\nprint('ran')\n%ddp status").error
    assert error == (
        "BadOptionError: %ddp works in the notebook's process, the rest of the cell on the ranks. "
        "Nothing was run. Next: run these 2 cells instead:\n\n"
        "%%ddp -r 0\nprint('ran')\n-------- next cell --------\n%ddp status"
    )
    assert kernel.ok("%%ddp\nprint('%ddp status')").text == "[0-1] %ddp status\n"
    assert "%%ddp stands twice" in kernel.run("%%ddp\n%%ddp -r 0\nprint(1)").error
