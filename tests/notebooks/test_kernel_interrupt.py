"""The stop button in a real kernel."""

from pathlib import Path

import pytest

from tests.support.kernel import Kernel

_BLOCKED = {
    "sleep": "import time\nprint('in')\ntime.sleep(100)",
    "loop": "print('in')\nwhile True: pass",
    "await": "import asyncio\nprint('in')\nawait asyncio.sleep(100)",
    "await in a loop": "import asyncio\nprint('in')\nwhile True: await asyncio.sleep(0)",
    "child": "!echo in; sleep 100",
    "lock": "import threading\nprint('in')\nx = threading.Lock()\nwith x: x.acquire()",
    "flood": "print('in')\nwhile True: print('x' * 50)",
}


@pytest.mark.parametrize("where", _BLOCKED)
def test_one_interrupt_ends_python_code_on_all_ranks(kernel: Kernel, where: str):
    kernel.ok("%%ddp\nkept = rank + 10")
    cell_id = kernel.execute(f"%%ddp\n{_BLOCKED[where]}")
    kernel.wait_text(cell_id, "in")
    kernel.interrupt()
    cell = kernel.finish(cell_id)
    assert cell.error or where == "child"
    assert cell.error.count("CellInterruptedError") <= 1
    after = kernel.ok("%%ddp\nprint('kept', kept - rank)")
    assert after.text == "[0-1] kept 10\n"


def test_an_interrupt_while_nothing_runs_is_nothing(kernel: Kernel):
    kernel.interrupt()
    assert kernel.ok("%%ddp\nprint('here')").text == "[0-1] here\n"


_ENDLESS = """
class Endless:
    def __init__(self): self.tensor = torch.ones(1000) + rank
    def __len__(self):
        if rank == 1:
            print('in', flush=True)
            while True: pass
        return 1
    __repr__ = lambda self: str(len(self))
    __getstate__ = __len__
    @property
    def state_dict(self): len(self)
endless = Endless()
"""


@pytest.mark.parametrize(
    ("line", "doing"),
    [
        ("%ddp vars endless", "looking at 'endless'"),
        ("%ddp diff endless", "comparing 'endless'"),
        ("%ddp pull len(endless)", "pulling 'len(endless)'"),
        ("import nbddp\nnbddp.pool().pull('len(endless)')", "pulling 'len(endless)'"),
    ],
)
def test_one_interrupt_ends_a_question_about_values(kernel: Kernel, line: str, doing: str):
    kernel.ok(f"%%ddp{_ENDLESS}")
    cell_id = kernel.execute(line)
    kernel.wait_text(cell_id, "in")
    kernel.interrupt()
    cell = kernel.finish(cell_id)
    (first, *more) = cell.error.splitlines()[::-1]
    assert first.startswith(f"TransferInterruptedError: {doing} was interrupted: "), cell.error
    assert "rank 1" in first
    assert "No variable was changed" in first
    place = ["", f"----> 2 {line.splitlines()[-1]}", "Cell, line 2"]
    assert more == ([] if line.startswith("%ddp") else place), cell.error
    assert kernel.ok("%%ddp\nprint('on')").text == "[0-1] on\n"
    kernel.ok("%%ddp\nendless = rank")
    assert "ranks 0 and 1 differ" in kernel.ok("%ddp diff endless").page[0].text


def test_values_and_cells_are_refused_while_a_background_cell_runs(kernel: Kernel):
    cell = kernel.ok("%%ddp --async\nimport time\nwhile True: time.sleep(0.02)")
    for line in ("%ddp vars", "%ddp diff rank", "%ddp pull rank", "%%ddp\n1"):
        error = kernel.run(line).error
        assert f"cell [{cell.number}] is still running on ranks 0-1" in error
        assert f"Next: Out[{cell.number}].wait() if it has --async, or %ddp interrupt" in error
    kernel.ok("%ddp interrupt")
    assert "KeyboardInterrupt" in kernel.run(f"Out[{cell.number}].wait()").error
    assert "world_size: equal" in kernel.ok("%ddp diff world_size").page[0].text


def test_awaiting_a_background_cell_can_be_interrupted_and_the_cell_continues(kernel: Kernel):
    kernel.ok("%%ddp --async\nimport time\nwhile True: time.sleep(0.02)")
    kernel.ok("handle = _")
    waiting = kernel.execute("print('in')\nawait handle")
    kernel.wait_text(waiting, "in")
    kernel.interrupt()
    assert kernel.finish(waiting).status == "error"
    assert "running" in kernel.value("handle.state")
    kernel.ok("%ddp interrupt")
    assert "KeyboardInterrupt" in kernel.run("handle.wait(10)").error


_LATE = """%%ddp
import pathlib, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("in", flush=True)
while not pathlib.Path({path!r}).exists():
    pass
print("late word", flush=True)
"""


def test_late_output_of_a_cell_that_was_given_up_is_not_in_the_next_one(
    kernel: Kernel, tmp_path: Path
):
    go_on = tmp_path / "go"
    old_id = kernel.execute(_LATE.format(path=str(go_on)))
    kernel.wait_text(old_id, "in")
    kernel.interrupt()
    kernel.wait_text(old_id, "stop again")
    kernel.interrupt()
    kernel.finish(old_id)
    new_id = kernel.execute(f"import pathlib\npathlib.Path({str(go_on)!r}).touch()\nimport time\n"
                            "time.sleep(1)")  # fmt: skip
    assert kernel.finish(new_id).text == ""
    kernel.wait_text(old_id, "late word")
    assert kernel.ok("%%ddp\nprint('here')").text == "[0-1] here\n"
