"""Cells that do unusual things to the shell: each ends with a message, and the next one works."""

from pathlib import Path

import pytest
from IPython.utils.path import compress_user

from nbddp.controller.pool.pool import Pool
from nbddp.errors import CellInterruptedError, TransferError
from tests.support.polling import poll_until
from tests.support.views import begin_cell, run_cell

_CLONE = Path(__file__).resolve().parents[2]

UNPRINTABLE = """
class Bad(Exception):
    def __str__(self): raise Bad()
    __repr__ = __str__
"""


def error_text(pool: Pool, code: str) -> str:
    """The error that the notebook would raise for this cell; the cell after it must work."""
    error = run_cell(pool, code, check=False).error
    assert run_cell(pool, "print('next')").texts() == {0: "next\n", 1: "next\n"}
    return "" if error is None else str(error)


def test_an_exception_that_cannot_be_printed(pool: Pool):
    assert "Bad" in error_text(pool, UNPRINTABLE + "raise Bad()")
    with pytest.raises(TransferError, match="cannot be printed"):
        pool.pull("(_ for _ in ()).throw(Bad())")


@pytest.mark.parametrize("call", ["start(2)", "pool()"])
def test_a_cell_on_the_ranks_starts_no_pool_of_its_own(pool: Pool, call: str):
    text = error_text(pool, f"if rank == 1:\n    nbddp.{call}")
    assert text.endswith(
        f"rank 1 raised NbddpError at cell [1], line 2: nbddp.{call.partition('(')[0]} works in "
        "the notebook, and this is a rank of a pool. Next: call it in a cell without %%ddp, or "
        "in a %%local cell"
    )


def test_a_script_that_fails_fails_the_cell(pool: Pool, tmp_path: Path):
    script = tmp_path / "fails.py"
    script.write_text("1/0\n")
    text = error_text(pool, f"%run {script}")
    assert "ZeroDivisionError: division by zero" in text
    assert "fails.py" in text


def test_a_repr_that_raises_fails_the_cell(pool: Pool):
    code = "class R:\n    def __repr__(self): return 1/0\nR()"
    assert "ZeroDivisionError" in error_text(pool, code)


@pytest.mark.parametrize(
    "damage",
    [
        "import sys; del sys.stdout",
        "import sys; sys.stdout = None",
        "import sys; sys.stdout.close()",
        """
import sys
class Stream:
    def write(self, text): return len(text)
    def flush(self): raise RuntimeError("no")
sys.stdout = Stream()
""",
        """
import sys
from IPython.display import display
class Stream:
    def write(self, text): return len(text)
    def flush(self): display("from flush")
sys.stdout = Stream()
""",
    ],
)
@pytest.mark.breaks_pool  # the streams stay as the user made them
def test_a_stream_of_the_user_cannot_hang_a_rank(pool: Pool, damage: str):
    run_cell(pool, damage, check=False)
    assert run_cell(pool, "rank").result(1) == "1"


def test_a_huge_error_is_cut(pool: Pool):
    text = error_text(pool, "raise ValueError('x' * 3_000_000)")
    assert "characters left out here" in text
    assert len(text) < 100_000


def test_an_exception_group_shows_its_parts_and_the_cell(pool: Pool):
    text = error_text(pool, "raise ExceptionGroup('both', [ValueError('one'), KeyError('two')])")
    for words in ("ValueError: one", "KeyError: 'two'", "Cell In[", "ExceptionGroup: both"):
        assert words in text
    assert "interactiveshell.py" not in text


_IN_BACKWARD = """
def fail(gradient):
    if raised: raise raised
    1 / 0
x = torch.ones(2, requires_grad=True)
y = x * 2
y.register_hook(fail)
y.sum().backward()
"""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (f"raised = None\n{_IN_BACKWARD}", ["y.sum().backward()", "1 / 0", "_engine_run_backward"]),
        (f"raised = ExceptionGroup('two', [KeyError(1)])\n{_IN_BACKWARD}", ["fail", "KeyError: 1"]),
        (
            f"raised = None\ntry:{_IN_BACKWARD.replace(chr(10), chr(10) + '    ')}\n"
            "except ZeroDivisionError as error: raise ValueError('while training') from error",
            ["1 / 0", "direct cause", "ValueError: while training"],
        ),
        # Torch says why it cannot be described; the internal error of nbddp is left out.
        ("dist.broadcast(torch.ones(2), src=5)", ["dist.broadcast", "invalid root rank"]),
        (
            "try: 1 / 0\nexcept ZeroDivisionError: dist.broadcast(torch.ones(2), src=5)",
            ["ZeroDivisionError", "invalid root rank"],
        ),
    ],
)
def test_files_of_nbddp_are_in_no_traceback(pool: Pool, code: str, words: list[str]):
    text = error_text(pool, code)
    for word in words:
        assert word in text
    for clone in (str(_CLONE), compress_user(str(_CLONE))):  # it may be in a folder nbddp, too
        text = text.replace(f"{clone}/", "")
    assert "nbddp/" not in text
    assert "IndexError" not in text


def test_reset_keeps_what_is_always_there(pool: Pool):
    run_cell(pool, "mine = 1")
    run_cell(pool, "%reset -f")
    assert run_cell(pool, "rank, world_size, 'mine' in globals()").result(1) == "(1, 2, False)"


def test_the_source_of_classes_is_found(pool: Pool):
    run_cell(pool, "class WithMethod:\n    def method(self):\n        return 1\n")
    run_cell(pool, "class Without:\n    value = 1\n")
    view = run_cell(pool, "import inspect; print(inspect.getsource(WithMethod))", ranks=[0])
    assert "def method(self):" in view.text()
    view = run_cell(pool, "print(inspect.getsource(Without))", ranks=[0])
    assert view.text().startswith("class Without:\n    value = 1\n")
    assert run_cell(pool, "inspect.getsource(int)", ranks=[0], check=False).error is not None


def test_a_warning_of_the_compiler_comes_once(pool: Pool):
    view = run_cell(pool, "x = 1\nif x is 1: pass", ranks=[0])
    assert view.text(stream="stderr").count("SyntaxWarning") == 1


def test_dataloader_workers_find_a_dataset_defined_in_a_cell(pool: Pool):
    view = run_cell(
        pool,
        """
from torch.utils.data import DataLoader, Dataset
class Numbers(Dataset):
    def __len__(self): return 4
    def __getitem__(self, i): return torch.tensor(i)
[batch.tolist() for batch in DataLoader(Numbers(), batch_size=2, num_workers=1)]
""",
    )
    assert view.result() == "[[0, 1], [2, 3]]"


def test_no_resolver_options_of_nbddp_are_in_the_environment(pool: Pool):
    assert run_cell(pool, "import os; 'RES_OPTIONS' in os.environ").result() == "False"


def test_a_widget_is_shown_as_text(pool: Pool):
    view = run_cell(pool, "import ipywidgets; ipywidgets.IntSlider(3)", ranks=[0])
    assert view.result() == "IntSlider(value=3)"


def test_a_task_that_never_waits_is_interrupted(pool: Pool):
    code = """
import asyncio
async def spin():
    print("spinning", flush=True)
    while True: pass
await asyncio.gather(spin())
"""
    waiting = begin_cell(pool, code)
    poll_until(lambda: set(waiting.view.texts()) == {0, 1}, 10)
    pool.interrupt()
    assert isinstance(waiting.join().error, CellInterruptedError)
    assert run_cell(pool, "print('next')").texts() == {0: "next\n", 1: "next\n"}
