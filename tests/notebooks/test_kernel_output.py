"""The output of a running cell: when it is seen, and where."""

import re
from pathlib import Path

from tests.support.kernel import Cell, Kernel

#: Text may come in any number of stream messages; progress and unfinished lines are displays.
_LIVE = "nbddp-live"


def _live_texts(cell: Cell) -> list[str]:
    return [m.text for m in cell.messages if (m.display_id or "").startswith(_LIVE)]


def test_a_line_is_seen_before_the_cell_ends(kernel: Kernel):
    cell_id = kernel.execute("%%ddp\nprint('first')\nimport time\nwhile True: time.sleep(0.02)")
    kernel.wait_text(cell_id, "first")
    assert not kernel.cells[cell_id].is_idle
    kernel.interrupt()
    cell = kernel.finish(cell_id)
    assert "KeyboardInterrupt" in cell.error


def test_an_unfinished_line_is_seen_too_and_is_no_rest_in_the_end(kernel: Kernel):
    cell_id = kernel.execute(
        "%%ddp\nimport sys, time\nsys.stdout.write('half a line')\n"
        "try:\n    while True: time.sleep(0.02)\nexcept KeyboardInterrupt: print(', and the rest')"
    )
    kernel.wait_for(lambda: any("half a line" in t for t in _live_texts(kernel.cells[cell_id])))
    kernel.interrupt()
    cell = kernel.finish(cell_id)
    assert [m.text for m in cell.page] == ["[0-1] half a line, and the rest\n"]


#: Imports a module of a library that waits for a file.
_SLOW_IMPORT = """%%ddp
import importlib.util, os, sys, sysconfig
from importlib.machinery import SourceFileLoader

class Slow(SourceFileLoader):
    def get_code(self, name):
        path = os.path.join(sysconfig.get_path("stdlib"), "nbddp_slow.py")
        source = "import os, time\\nwhile not os.path.exists({path!r}): time.sleep(0.02)"
        return compile(source, path, "exec")

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "nbddp_slow":
            return importlib.util.spec_from_loader(name, Slow(name, "nbddp_slow.py"))

sys.meta_path.append(Finder)
import nbddp_slow
sys.meta_path.remove(Finder)
del sys.modules["nbddp_slow"]
"""


def test_a_long_import_is_named(kernel: Kernel, tmp_path: Path):
    path = tmp_path / "go on"
    cell_id = kernel.execute(_SLOW_IMPORT.replace("{path!r}", f"'{path}'"))
    told = "| the ranks import nbddp_slow (first use)…"
    kernel.wait_for(lambda: any(told in text for text in _live_texts(kernel.cells[cell_id])))
    path.touch()
    cell = kernel.finish(cell_id)
    assert (cell.error, cell.page) == ("", [])


def test_prints_and_displays_keep_their_order_in_every_cell(kernel: Kernel):
    for number in range(60):
        cell = kernel.ok(
            # On one rank: whether two fold in time is not what this is about.
            f"%%ddp -r {number % 2}\nfrom IPython.display import display, Markdown\n"
            f"print('before {number}'); display(Markdown('{number}')); print('after {number}')"
        )
        texts = "".join(m.text + "\n" for m in cell.page)
        found = re.findall("(before|Markdown|after)", texts)
        assert found == ["before", "Markdown", "after"], f"cell {number}: {texts}"


def test_text_does_not_overtake_a_display_that_the_rank_could_not_send_yet(kernel: Kernel):
    cell = kernel.ok(
        "%%ddp -r 0\nimport ctypes, sys\nfrom IPython.display import Markdown, display\n"
        "holding_the_gil, switch_s = ctypes.PyDLL(None), sys.getswitchinterval()\n"
        "sys.setswitchinterval(5)\n"
        "display(Markdown('first'))\n"
        "holding_the_gil.puts(b'second')\n"
        "holding_the_gil.usleep(200_000)\n"
        "sys.setswitchinterval(switch_s)"
    )
    texts = "".join(m.text for m in cell.page)
    assert re.findall("Markdown|second", texts) == ["Markdown", "second"]


def test_output_of_a_subprocess_and_of_c_code_comes_in_its_place(kernel: Kernel):
    cell = kernel.ok(
        "%%ddp -r 0\nimport ctypes\nprint('python')\n!echo shell\nctypes.CDLL(None).puts(b'c')\n"
        "print('python again')"
    )
    assert cell.lines == ["[0]   python", "[0]   shell", "[0]   c", "[0]   python again"]


def test_streams_stay_apart(kernel: Kernel):
    cell = kernel.ok("%%ddp -r 1\nimport sys\nprint('out')\nprint('err', file=sys.stderr)")
    assert (cell.stdout, cell.stderr) == ("[1]   out\n", "[1]   err\n")


def test_a_display_is_updated_in_place(kernel: Kernel):
    cell = kernel.ok(
        "%%ddp -r 0\nfrom IPython.display import HTML, display\n"
        "shown = display(HTML('<b>one</b>'), display_id=True)\nprint('between')\n"
        "for n in range(50): shown.update(HTML(f'<b>{n}</b>'))"
    )
    html = [m.content["data"]["text/html"] for m in cell.page if m.kind.endswith("display_data")]
    assert "<b>49</b>" in html
    assert "<b>one</b>" not in html
    assert len(cell.of("update_display_data")) < 50


def test_a_display_is_updated_from_a_later_cell(kernel: Kernel):
    first = kernel.ok(
        "%%ddp -r 0\nfrom IPython.display import HTML, display\n"
        "shown = display(HTML('early'), display_id='mine')"
    )
    kernel.ok("%%ddp -r 0\nshown.update(HTML('late'))")
    htmls = [m.content["data"]["text/html"] for m in first.page if m.display_id]
    assert htmls == ["late"]


def test_clear_output_leaves_what_comes_after_it(kernel: Kernel):
    cell = kernel.ok(
        "%%ddp\nfrom IPython.display import clear_output\n"
        "for n in range(5):\n    clear_output(wait=True)\n    print('step', n)"
    )
    assert "".join(m.text for m in cell.page) == "[0-1] step 4"


def test_html_that_is_equal_on_all_ranks_is_shown_once(kernel: Kernel):
    cell = kernel.ok("%%ddp\nfrom IPython.display import HTML, display\ndisplay(HTML('<i>x</i>'))")
    html = [str(m.content["data"].get("text/html")) for m in cell.of("display_data")]
    assert html.count("<i>x</i>") == 1
    assert any("[0-1]" in text for text in html)


def test_a_picture_of_matplotlib_comes_under_its_rank(kernel: Kernel):
    cell = kernel.ok(
        "%%ddp -r 1\nimport matplotlib.pyplot as plt\nprint('before')\nplt.plot([1, 2]); plt.show()"
    )
    kinds = ["png" if "image/png" in str(m.content) else m.text.strip() for m in cell.page]
    assert kinds[0] == "[1]   before"
    assert kinds[-1] == "png"
    assert "[1]" in kinds[1:]


def test_a_figure_without_show_is_drawn_at_the_end_of_the_cell(kernel: Kernel):
    cell = kernel.ok("%%ddp -r 1\nimport matplotlib.pyplot as plt\nfigure = plt.plot([1, 2])")
    assert any("image/png" in m.content["data"] for m in cell.of("display_data"))
    assert not any("image/png" in str(m.content) for m in kernel.ok("%%ddp\npass").messages)


def test_tqdm_does_not_flood(kernel: Kernel):
    cell = kernel.ok(
        "%%ddp\nfrom tqdm import tqdm\nfor n in tqdm(range(20_000), mininterval=0): pass"
    )
    assert len(cell.messages) < 100
    page = "".join(m.text for m in cell.page)
    assert "20000/20000" in page
    assert len(page.splitlines()) <= 2


def _id_of(cell: Cell) -> str:
    """The id of the live lines."""
    return next(m.display_id for m in cell.messages if (m.display_id or "").startswith(_LIVE)) or ""


def test_the_progress_line_disappears(kernel: Kernel, tmp_path: Path):
    inside = tmp_path / "inside"
    cell_id = kernel.execute(
        "%%ddp\nimport pathlib, time\nif rank == 1:\n    try:\n"
        f"        pathlib.Path({str(inside)!r}).touch()\n"
        "        while True: time.sleep(0.02)\n    except KeyboardInterrupt: pass"
    )
    cell = kernel.cells[cell_id]
    kernel.wait_for(inside.exists)
    kernel.wait_for(lambda: any("1/2 ranks done" in text for text in _live_texts(cell)))
    assert any("waiting for rank 1" in text for text in _live_texts(cell))
    rows = [m.content["data"]["text/html"] for m in cell.messages if m.display_id == _id_of(cell)]
    assert 'title="rank 0: done"' in rows[-1]
    assert 'title="rank 1: runs' in rows[-1]
    kernel.interrupt()
    kernel.finish(cell_id)
    assert _live_texts(cell)[-1] == ""
    assert cell.page == []


def test_capture_takes_everything(kernel: Kernel):
    shown = kernel.ok(
        "%%capture caught\nget_ipython().run_cell_magic('ddp', '', "
        '\'from IPython.display import HTML\\nprint("hidden")\\ndisplay(HTML("<u>h</u>"))\')'
    )
    assert shown.page == []
    assert kernel.value("caught.stdout") == "'[0-1] hidden\\n'"
    assert "<u>h</u>" in kernel.value("[o.data for o in caught.outputs]")


def test_output_of_a_background_cell_goes_to_the_cell_that_started_it(kernel: Kernel):
    started = kernel.execute(
        "%%ddp --async\nimport time\nprint('early')\n"
        "try:\n    while True: time.sleep(0.02)\nexcept KeyboardInterrupt: print('late')"
    )
    kernel.finish(started)
    kernel.ok("handle = _")
    assert "running" in kernel.value("handle.state")
    kernel.wait_text(started, "early")
    other = kernel.ok("print('of the notebook')")
    refused = kernel.run("%%ddp\nprint('never')")
    assert "PoolBusyError" in refused.error
    ended = kernel.ok("handle.interrupt()\n(await handle).ranks('ok')")
    kernel.wait_text(started, "late")
    assert "early" not in other.text + ended.text
    assert "late" not in other.text + ended.text
    assert "done" in kernel.value("handle.state")


def test_an_error_of_a_background_cell_comes_with_await(kernel: Kernel):
    kernel.ok("%%ddp --async\nraise ValueError(f'bad {world_size}')")
    kernel.ok("handle = _")
    failed = kernel.run("await handle")
    assert "ValueError: bad 2" in failed.error
    assert len(failed.of("error")) == 1
    assert "failed" in kernel.value("handle.state")


def test_the_error_of_a_background_cell_is_shown_without_await(kernel: Kernel):
    code = "raise ValueError(f'bad {world_size}')"
    first = kernel.execute(f"%%ddp --async\nif rank == 1: {code}")
    kernel.finish(first)
    kernel.wait_for(lambda: "failed" in kernel.cells[first].page[0].text)
    (shown,) = kernel.cells[first].page
    assert re.match(r"<cell .*: failed after [0-9.]+ s>\nrank 1\n", shown.text)
    told = f"rank 1 raised ValueError at cell [{kernel.cells[first].number}], line 2"
    assert shown.text.endswith(f"\nrank 0 finished\nCellError: {told}")
    opened = shown.content["data"]["text/html"].partition("<details>")[0]
    assert f"</b>: {told}" in opened
    assert "Traceback" not in opened
    # Here the handle is no value that IPython shows.
    quiet = kernel.execute(f"h = get_ipython().run_cell_magic('ddp', '--async', {code!r})")
    kernel.finish(quiet)
    kernel.wait_for(lambda: kernel.cells[quiet].page)
    (shown,) = kernel.cells[quiet].page
    assert re.search(r"\nCellError: ranks 0-1 raised ValueError at cell .*, line 2$", shown.text)


def test_threads_print_into_the_cell_that_was_started_last(kernel: Kernel):
    first = kernel.execute(
        "%%ddp -r 0\nimport threading, time\nleave = threading.Event()\n"
        "def talk():\n    while not leave.wait(0.02): print('from the thread')\n"
        "thread = threading.Thread(target=talk); thread.start()"
    )
    kernel.finish(first)
    kernel.wait_text(first, "from the thread")
    last = kernel.execute("print('own')")
    kernel.finish(last)
    kernel.wait_text(last, "[0]   from the thread")
    kernel.ok("%%ddp -r 0\nleave.set(); thread.join()")


def test_warnings_of_torch_about_connections_are_one_line_for_the_pool(kernel: Kernel):
    warning = "[rank{rank}]:[W1125 03:15:00.1 socket.cpp:{line}] [c10d] no name of 4{rank}"
    code = f"%%ddp\nimport os\nline = LINE\nos.write(2, f'{warning}\\n'.encode())\nprint('said')"
    cell = kernel.ok(code.replace("LINE", "207"))
    assert cell.stderr == ""
    (shown,) = cell.of("display_data")
    assert "torch's log has 1 line about the connections of the ranks" in shown.text
    assert "socket.cpp:207] [c10d] no name of 40,41" in shown.content["data"]["text/html"]
    later = kernel.ok(code.replace("LINE", "755"))
    assert later.stderr == ""
    assert not later.of("display_data")
    (update,) = cell.of("update_display_data")  # the helper knows where the display stands
    assert update.display_id == shown.display_id
    assert "has 2 lines" in update.text
