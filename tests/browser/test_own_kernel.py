"""The kernel whose cells all run on the ranks, in JupyterLab and Notebook 7, with its debugger."""

from tests.support.browser import Book
from tests.support.polling import poll_until

CELL = "x = rank + 1\ny = 2 * x\nz = y + 1\nprint('z is', z)"


def test_every_cell_is_distributed_except_local_ones(own_book: Book):
    # Before it stands a line about the ranks, if the cell had to wait for their start.
    assert own_book.run("print('rank', rank)").text.endswith("[0]   rank 0\n[1]   rank 1\n")
    assert own_book.run("%%local\nprint('rank' in globals())").text == "False\n"


def test_tab_completes_by_the_names_of_a_rank(own_book: Book):
    own_book.run("class Only:\n    inhabitant = rank\n\nonly = Only()")
    cell = own_book.add("only.inhab")
    cell.press("Tab")
    own_book.page.locator(".jp-Completer-item").wait_for()
    own_book.page.keyboard.press("Enter")
    poll_until(lambda: cell.source == "only.inhabitant")


def test_the_stop_button_ends_a_cell_and_keeps_the_variables(own_book: Book):
    own_book.run("kept = 40 + rank")
    cell = own_book.start("import time\n\nprint('begun')\nwhile True:\n    time.sleep(0.01)")
    cell.wait_text("[0-1] begun")
    own_book.press_stop()
    assert "KeyboardInterrupt" in cell.wait_done().text
    assert own_book.run("print(kept)").printed == "[0]   40\n[1]   41\n"


def test_the_ranks_are_new_after_a_restart(own_book: Book):
    own_book.run("kept = rank")
    own_book.press_restart()
    cell = own_book.run("print('kept' in globals())\nprint('rank', rank)")
    assert cell.text.endswith("[0-1] False\n[0]   rank 0\n[1]   rank 1\n")


def test_the_debugger_stops_a_rank_shows_its_variables_and_continues(own_book: Book):
    page = own_book.page
    cell = own_book.add(CELL)
    page.locator(".jp-DebuggerBugButton").click()
    if own_book.app == "notebooks":  # View, Right Sidebar, Show Debugger
        panel = {"side": "right", "title": "Debugger", "id": "jp-debugger-sidebar"}
        own_book.command("application:toggle-panel", **panel)
    page.locator(".jp-DebuggerSidebar").wait_for()
    cell.node.locator(".cm-breakpoint-gutter .cm-gutterElement").nth(3).click()
    page.locator(".jp-DebuggerBreakpoints-body .jp-DebuggerBreakpoint").first.wait_for()
    cell.start()
    variables = page.locator(".jp-DebuggerVariables-body").first
    poll_until(lambda: "y" in variables.inner_text() and "2" in variables.inner_text())
    cell.wait_text("[1]   z is 5")  # only rank 0 is in the debugger
    assert "[0]" not in cell.text
    own_book.command("debugger:continue")
    cell.wait_done()
    cell.wait_text("[0]   z is 3")
    page.locator(".jp-DebuggerBugButton").click()
    assert own_book.run("print('next')").printed == "[0-1] next\n"
