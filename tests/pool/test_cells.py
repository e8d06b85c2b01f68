"""Ordinary cells on two ranks: state, output, results, magics, functions, threads."""

from pathlib import Path

import pytest

from nbddp.controller.hub.listeners import BackgroundEvent
from nbddp.controller.pool.pool import Pool
from nbddp.errors import CellError
from nbddp.wire.messages import Output, RankAt
from tests.support.polling import poll_until
from tests.support.views import run_cell


def test_each_rank_runs_the_cell(pool: Pool):
    view = run_cell(pool, "print('I am', rank, 'of', world_size)")
    assert view.texts() == {0: "I am 0 of 2\n", 1: "I am 1 of 2\n"}


def test_some_ranks_only(pool: Pool):
    assert run_cell(pool, "print(rank)", ranks=[1]).texts() == {1: "1\n"}
    assert run_cell(pool, "print(rank)", ranks="0").texts() == {0: "0\n"}


def test_the_last_expression_is_the_result(pool: Pool):
    view = run_cell(pool, "x = rank * 10\nx + 1")
    assert [view.result(rank) for rank in (0, 1)] == ["1", "11"]
    assert run_cell(pool, "x;").result() is None
    assert run_cell(pool, "None").result() is None
    assert run_cell(pool, "y = 1").result() is None


def test_results_are_remembered_as_in_ipython(pool: Pool):
    run_cell(pool, "_ = None\ndel _  # IPython leaves alone what a cell has bound")
    run_cell(pool, "rank + 40", execution_count=31)
    view = run_cell(pool, "_, _31, Out[31]", execution_count=32)
    assert view.result(1) == "(41, 41, 41)"


def test_state_persists(pool: Pool):
    run_cell(pool, "state = [rank]")
    run_cell(pool, "state.append('more')")
    assert run_cell(pool, "state").result(1) == "[1, 'more']"


def test_predefined_names(pool: Pool):
    view = run_cell(pool, "rank, world_size, local_rank, local_world_size, device")
    assert view.result(1) == "(1, 2, 1, 2, device(type='cpu'))"
    assert (
        run_cell(pool, "torch.__name__, dist.__name__").result() == "('torch', 'torch.distributed')"
    )
    assert run_cell(pool, "dist.get_rank(), dist.get_backend()").result(1) == "(1, 'gloo')"
    assert "torch" not in str(run_cell(pool, "%who_ls module").result())


def test_output_of_every_kind_arrives_in_order(pool: Pool):
    view = run_cell(
        pool,
        """
import ctypes, os, subprocess, sys
print("python")
ctypes.CDLL(None).puts(b"C")
os.write(1, b"descriptor\\n")
subprocess.run(["echo", "child"])
!echo shell
print("no line end", end="")
""",
        ranks=[0],
    )
    lines = view.text().splitlines()
    # A child writes by itself; what this process writes keeps its order.
    assert sorted(lines) == sorted(["python", "C", "descriptor", "child", "shell", "no line end"])
    ours = [line for line in lines if line in ("python", "C", "no line end")]
    assert ours == ["python", "C", "no line end"]
    assert run_cell(pool, "print('e', file=sys.stderr)", ranks=[0]).text(0, "stderr") == "e\n"


def test_both_streams_keep_the_order_in_which_python_printed(pool: Pool):
    code = """
import sys
for number in range(20):
    print(number)
    sys.stderr.write(f"{number}\\n")
"""
    view = run_cell(pool, code)
    for rank in (0, 1):
        found = [each for each in view.events if isinstance(each, Output) and each.rank == rank]
        lines = [(each.stream, line) for each in found for line in each.text.splitlines()]
        assert lines == [(name, str(n)) for n in range(20) for name in ("stdout", "stderr")]


def test_text_comes_before_what_is_displayed_after_it(pool: Pool):
    code = """
from IPython.display import HTML, display
for number in range(20):
    print(number)
    display(HTML(f"<b>{number}</b>"))
"""
    view = run_cell(pool, code)
    for rank in (0, 1):
        kinds = view.kinds(rank)
        assert kinds == ["RunStarted", *["Output", "Display"] * 20, "RunFinished"]


def test_magics(pool: Pool):
    view = run_cell(pool, "%time sum(range(10))", ranks=[0])
    assert view.result() == "45"
    assert "Wall time" in view.text()
    assert "1 loop each" in run_cell(pool, "%timeit -n1 -r1 1", ranks=[0]).text()
    view = run_cell(pool, "%%capture caught\nprint('quiet')", ranks=[0])
    assert view.text() == ""
    assert run_cell(pool, "caught.stdout", ranks=[0]).result() == "'quiet\\n'"
    assert run_cell(pool, "files = !echo one; echo two\nfiles", ranks=[0]).result() == (
        "['one', 'two']"
    )
    assert "builtin" in str(run_cell(pool, "len?", ranks=[0]).displays()[0]["text/plain"])


def test_a_wrong_magic_is_an_error(pool: Pool):
    with pytest.raises(CellError, match="UsageError"):
        run_cell(pool, "%no_such_magic")


def test_run_of_a_file(pool: Pool, tmp_path: Path):
    path = tmp_path / "job.py"
    path.write_text("import sys\nprint(__name__, sys.argv[1:])\nfrom_file = 5\n")
    view = run_cell(pool, f"%run {path} a b")
    assert view.text(1) == "__main__ ['a', 'b']\n"
    assert run_cell(pool, "from_file").result(1) == "5"


def test_top_level_await(pool: Pool):
    code = "import asyncio\nvalue = await asyncio.sleep(0, result=rank + 5)\nvalue"
    assert run_cell(pool, code).result(1) == "6"
    view = run_cell(pool, "await asyncio.gather(*[asyncio.sleep(0, n) for n in range(3)])")
    assert view.result() == "[0, 1, 2]"
    with pytest.raises(CellError) as caught:
        run_cell(pool, "await asyncio.sleep(0)\n1 / 0")
    assert caught.value.by_rank[1] == ("ZeroDivisionError", "division by zero")


def test_functions_and_classes_of_a_cell(pool: Pool):
    run_cell(
        pool,
        """
import inspect, pickle
def double(x):
    return 2 * x
class Point:
    def __init__(self, x):
        self.x = x
""",
        execution_count=40,
    )
    source = run_cell(pool, "print(inspect.getsource(double), end='')", execution_count=41)
    assert source.text(1) == "def double(x):\n    return 2 * x\n"
    # Python finds no source of a class in any notebook: it looks for a file of __main__.
    method = run_cell(pool, "print(inspect.getsource(Point.__init__), end='')")
    assert method.text(1) == "    def __init__(self, x):\n        self.x = x\n"
    assert run_cell(pool, "pickle.loads(pickle.dumps(double))(4)").result(1) == "8"
    assert run_cell(pool, "pickle.loads(pickle.dumps(Point(7))).x").result(1) == "7"
    assert run_cell(pool, "Point.__module__, __name__").result() == "('__main__', '__main__')"


def test_tracebacks_have_the_numbers_of_the_notebook(pool: Pool):
    with pytest.raises(CellError) as caught:
        run_cell(pool, "def f():\n    return 1 / 0\n\nf()", execution_count=17, first_line=3)
    text = str(caught.value)
    assert "Cell In[17], line 6" in text
    assert "Cell In[17], line 4, in f()" in text
    assert "raised ZeroDivisionError at cell [17], line 4: division by zero" in text
    assert "nbddp/" not in text
    assert caught.value.by_rank == dict.fromkeys((0, 1), ("ZeroDivisionError", "division by zero"))


def test_an_error_on_one_rank_leaves_the_others(pool: Pool):
    with pytest.raises(CellError) as caught:
        run_cell(pool, "kept = rank\nif rank == 1: raise ValueError('only here')")
    assert caught.value.by_rank == {1: ("ValueError", "only here")}
    assert "rank 0 finished" in str(caught.value)
    assert run_cell(pool, "kept").result(1) == "1"


@pytest.mark.parametrize(
    "code",
    [
        "exit",  # IPython calls it where it is all of the cell
        "quit()\nassert False",
        "import sys\nsys.exit()\nassert False",
        "raise SystemExit(0)\nassert False",
    ],
)
def test_an_exit_that_says_all_is_well_ends_the_cell(pool: Pool, code: str):
    pid = run_cell(pool, "import os; os.getpid()").result()
    run_cell(pool, code)
    assert run_cell(pool, "os.getpid()").result() == pid


@pytest.mark.parametrize(
    ("code", "evalue"),
    [("sys.exit(3)", "3"), ("exit(3)", "3"), ("sys.exit('no data')", "no data")],
)
def test_an_exit_with_a_reason_is_an_error(pool: Pool, code: str, evalue: str):
    with pytest.raises(CellError) as caught:
        run_cell(pool, f"import sys\nif rank == 1: {code}\nprint('on')")
    assert caught.value.by_rank == {1: ("SystemExit", evalue)}
    assert "rank 1 raised SystemExit" in str(caught.value)
    assert "Cell In[1], line 2\nSystemExit: " in str(caught.value)
    assert run_cell(pool, "1").result(1) == "1"


def test_a_forked_child_does_not_become_a_rank(pool: Pool):
    code = """
import os
child = os.fork()
if child == 0:
    print("in the child")
else:
    os.waitpid(child, 0)
    print("in the rank")
"""
    view = run_cell(pool, code)
    for rank in (0, 1):
        assert sorted(view.text(rank).splitlines()) == ["in the child", "in the rank"]
        assert view.kinds(rank).count("RunFinished") == 1
    assert run_cell(pool, "rank").result(1) == "1"


def test_a_thread_that_prints_between_cells(pool: Pool):
    seen: list[BackgroundEvent] = []
    pool.listeners.background = lambda event: seen.append(event) if event else None
    try:
        run_cell(
            pool,
            """
import threading
go = threading.Event()
thread = threading.Thread(target=lambda: (go.wait(10), print("later", rank)))
thread.start()
""",
        )
        run_cell(pool, "_timer = threading.Timer(0.05, go.set); _timer.start()")
        found = poll_until(lambda: {(e.rank, e.run_id) for e in seen} if len(seen) == 2 else None)
        assert found == {(0, None), (1, None)}
        run_cell(pool, "thread.join(); _timer.join()")
    finally:
        pool.listeners.background = lambda event: None


def test_display_of_something_that_no_message_can_hold_is_an_error_of_the_cell(pool: Pool):
    code = "from IPython.display import display\ndisplay({'application/json': object()}, raw=True)"
    with pytest.raises(CellError, match="Encoding objects of type object is unsupported"):
        run_cell(pool, code)
    assert run_cell(pool, "rank").result(1) == "1"


def test_an_error_with_text_that_utf8_cannot_hold(pool: Pool):
    with pytest.raises(CellError) as caught:
        run_cell(pool, r"raise ValueError('\udc80')")
    assert caught.value.by_rank[0] == ("ValueError", r"\udc80")
    assert run_cell(pool, "rank").result(1) == "1"


def test_input(pool: Pool):
    view = run_cell(
        pool,
        "import getpass\ngot = (input('name? '), getpass.getpass('key? ')) if rank else ''\ngot",
        answers=["Ann", "secret"],
    )
    assert view.result(1) == "('Ann', 'secret')"
    asked = [(request.rank, request.prompt, request.password) for request in view.asked]
    assert asked == [(1, "name? ", False), (1, "key? ", True)]


def test_input_without_anyone_to_ask(pool: Pool):
    with pytest.raises(CellError) as caught:
        run_cell(pool, "input('name? ')")
    assert caught.value.by_rank[1] == ("EOFError", "the test has no more answers")
    assert run_cell(pool, "import sys; sys.stdin.read()").result() == "''"


def test_the_places_of_ranks_come_while_a_cell_runs(pool: Pool):
    code = """
import time
for step in range(8):
    dist.all_reduce(torch.ones(1))
    time.sleep(0.1)
"""
    view = run_cell(pool, code)
    for rank in (0, 1):
        found = [each for each in view.events if isinstance(each, RankAt) and each.rank == rank]
        assert [variable.name for variable in found[0].iteration] == ["step"]
        assert found[0].line in (3, 4, 5)
