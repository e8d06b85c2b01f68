"""Auto mode in a real kernel: every cell runs on the ranks."""

import re
from collections.abc import Iterator

import pytest

from tests.support.kernel import LIMIT_S, Kernel


@pytest.fixture
def auto_kernel(kernel: Kernel) -> Iterator[Kernel]:
    kernel.ok("%ddp auto on")
    yield kernel
    kernel.ok("%ddp auto off")


def test_cells_run_on_the_ranks_and_local_ones_do_not(auto_kernel: Kernel):
    kernel = auto_kernel
    kernel.ok("shared = rank * 10")
    assert kernel.ok("shared").lines == ["[0]   Out: 0", "[1]   Out: 10"]
    assert "NameError" in kernel.run("%%local\nshared").error
    assert kernel.ok("import asyncio\nawait asyncio.sleep(0)\nprint('in')").lines == ["[0-1] in"]
    assert kernel.value("%%local\nimport asyncio\nawait asyncio.sleep(0)\n'here'") == "'here'"
    kernel.ok("pulled = %ddp pull shared")
    assert kernel.value("%%local\npulled") == "[0, 10]"
    assert kernel.ok("%%ddp -r 1\nshared").lines == ["[1]   Out: 10"]


def test_magics_and_commands(auto_kernel: Kernel):
    kernel = auto_kernel
    assert "[0-1] hi" in kernel.ok("!echo hi").lines
    timed = kernel.ok("%%time\nprint(rank)").stdout
    labels = re.findall(r"^(\S+) +Wall time", timed, re.MULTILINE)
    assert labels in (["[0]", "[1]"], ["[1]", "[0]"], ["[0-1]"])  # the times may be equal
    assert kernel.ok("%%capture caught\nprint(rank)").text == ""
    assert kernel.ok("print(caught.stdout)").lines[:1] == ["[0]   0"]
    assert kernel.ok("%%html\n<b>one</b>").of("display_data")[0].content["data"]["text/html"]
    assert "[0-1] int([x]) -> integer" in kernel.ok("n = 3\nn?").text
    assert kernel.ok("# nothing to do").messages == []
    assert "run these 2 cells instead" in kernel.run("import torch\n%ddp status").error
    error = kernel.run("own = 10\npulled = %ddp pull own\nprint(pulled)").error
    kernel.ok("own = 10")
    local = error.partition("-------- next cell --------\n")[2]
    assert kernel.ok(local).text == "[10, 10]\n"


def test_errors_name_the_line_of_the_cell(auto_kernel: Kernel):
    cell = auto_kernel.run("\nfirst = 1\n1 / 0")
    assert f"Cell In[{cell.number}], line 3" in cell.error
    assert "----> 3 1 / 0" in cell.error
    cell = auto_kernel.run("first = 1\nif first:\n  (")
    assert f"Cell In[{cell.number}], line 3" in cell.error
    cell = auto_kernel.run("%%local\n\n1 / 0")
    assert f"Cell In[{cell.number}], line 3" in cell.error


def test_the_error_of_a_local_cell_quotes_what_the_user_wrote(auto_kernel: Kernel):
    cell = auto_kernel.run("%%local\nfirst = 1\n1 / 0")
    assert "      2 first = 1\n----> 3 1 / 0" in cell.error
    assert "local" not in cell.error
    cell = auto_kernel.run("%%local\n%%time\n1 / 0")
    # Below %%time IPython 8.18 names no cell, ours or not.
    assert f"Cell In[{cell.number}], line 2" in cell.error or "<timed eval>:1" in cell.error


def test_tab_offers_magics_of_the_notebook_and_of_the_ranks(auto_kernel: Kernel):
    def matches(code: str) -> list[str]:
        reply = auto_kernel.client.complete(code, reply=True, timeout=LIMIT_S)
        found: list[str] = reply["content"]["matches"]
        return [code[: reply["content"]["cursor_start"]] + match for match in found]

    assert matches("%dd") == ["%ddp", "%%ddp"]
    assert matches("found = %dd") == ["found = %ddp", "found = %%ddp"]
    assert matches("%%loc") == ["%%local"]
    assert matches("%timei") == ["%timeit", "%%timeit"]
    auto_kernel.ok("from IPython.core.magic import register_line_magic\n"
                   "@register_line_magic\ndef dd_of_ranks(line): pass")  # fmt: skip
    assert matches("%dd") == ["%dd_of_ranks", "%ddp", "%%ddp"]


def test_silent_requests_of_the_front_end_stay_in_the_notebook(auto_kernel: Kernel):
    kernel = auto_kernel
    kernel.ok("%%local\nmine = 5")
    reply = kernel.client.execute("mine", store_history=False, user_expressions={"it": "mine + 1"},
                                  reply=True, timeout=20)  # fmt: skip
    assert reply["content"]["user_expressions"]["it"]["data"] == {"text/plain": "6"}
    kernel.client.execute("mine = 7", silent=True, reply=True, timeout=20)
    assert kernel.value("%%local\nmine") == "7"


@pytest.mark.parametrize(
    ("code", "status"),
    [("x = 1", "complete"), ("for i in range(3):", "incomplete"), ("x = = 1", "invalid")],
)
def test_is_complete(auto_kernel: Kernel, code: str, status: str):
    msg_id = auto_kernel.client.is_complete(code)
    reply = auto_kernel.client.get_shell_msg(timeout=20)
    while reply["parent_header"]["msg_id"] != msg_id:
        reply = auto_kernel.client.get_shell_msg(timeout=20)
    assert reply["content"]["status"] == status


def test_options_hold_for_every_cell(auto_kernel: Kernel):
    auto_kernel.ok("%ddp auto on -r 1")
    assert auto_kernel.ok("print(rank)").lines == ["[1]   1"]
    assert "as below %%ddp -r 1" in auto_kernel.ok("%ddp auto").text


def test_options_that_no_cell_could_have_are_refused(auto_kernel: Kernel):
    assert "rank 9 is out of range" in auto_kernel.run("%ddp auto on -r 9").error
    assert auto_kernel.ok("print(rank > 5)").lines == ["[0-1] False"]


def test_an_interrupt_reaches_the_ranks(auto_kernel: Kernel):
    cell_id = auto_kernel.execute("import time\nprint('in')\nwhile True: time.sleep(0.02)")
    auto_kernel.wait_text(cell_id, "in")
    auto_kernel.interrupt()
    assert "CellInterruptedError" in auto_kernel.finish(cell_id).error
    assert auto_kernel.ok("print('well')").lines == ["[0-1] well"]


def test_names_are_completed_by_those_of_the_ranks(auto_kernel: Kernel):
    auto_kernel.ok("only_on_ranks = 1")
    msg_id = auto_kernel.client.complete("only_on_r")
    reply = auto_kernel.client.get_shell_msg(timeout=20)
    while reply["parent_header"]["msg_id"] != msg_id:
        reply = auto_kernel.client.get_shell_msg(timeout=20)
    assert reply["content"]["matches"] == ["only_on_ranks"]


def test_names_are_those_of_the_ranks_that_the_options_name(auto_kernel: Kernel):
    auto_kernel.ok("%ddp auto on -r 1")
    auto_kernel.ok("only_on_one = 1")
    reply = auto_kernel.client.complete("only_on_o", reply=True, timeout=20)
    assert reply["content"]["matches"] == ["only_on_one"]
