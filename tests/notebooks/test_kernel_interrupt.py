"""The stop button, wherever the ranks are."""

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


def test_an_interrupt_ends_the_wait_for_a_value(kernel: Kernel):
    kernel.ok("%%ddp\ndef slow():\n    print('in', flush=True)\n    import time; time.sleep(1)")
    cell_id = kernel.execute("%ddp pull slow() + 'unused'")
    kernel.wait_text(cell_id, "in")
    kernel.interrupt()
    cell = kernel.finish(cell_id)
    assert "KeyboardInterrupt" in cell.error


def test_awaiting_a_background_cell_can_be_interrupted_and_it_goes_on(kernel: Kernel):
    kernel.ok("%%ddp --async\nimport time\nwhile True: time.sleep(0.02)")
    kernel.ok("handle = _")
    waiting = kernel.execute("print('in')\nawait handle")
    kernel.wait_text(waiting, "in")
    kernel.interrupt()
    assert kernel.finish(waiting).status == "error"
    assert "running" in kernel.value("handle.state")
    kernel.ok("%ddp interrupt")
    assert "KeyboardInterrupt" in kernel.run("handle.wait(10)").error
