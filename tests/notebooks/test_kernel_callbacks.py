"""Callbacks of widgets that fail, hang, or call a collective on one rank."""

from collections.abc import Iterator

import pytest

from tests.support.kernel import Kernel
from tests.support.widgets import WIDGET, FrontEnd, only_view, playing


@pytest.fixture
def front(shared_kernel: Kernel) -> Iterator[FrontEnd]:
    with playing(shared_kernel) as front:
        yield front


def test_an_observer_that_fails_says_so_and_the_rank_continues(front: FrontEnd):
    kernel = front.kernel
    shown = kernel.execute(
        "%%ddp\nimport ipywidgets as widgets\nslider = widgets.IntSlider()\n"
        "slider.observe(lambda change: 1 / 0, 'value')\nslider"
    )
    block = only_view(kernel.finish(shown))[WIDGET]["model_id"]
    front.move(front.of_rank(block, 0), 3)
    kernel.wait_text(shown, "ZeroDivisionError")
    assert kernel.ok("%%ddp\nprint('healthy')").text == "[0-1] healthy\n"


def test_an_observer_that_hangs_is_ended_by_the_stop_button(front: FrontEnd):
    kernel = front.kernel
    shown = kernel.execute(
        "%%ddp -r 0\nimport ipywidgets as widgets, time\n"
        "def hang(change):\n    print('begins')\n    while True: time.sleep(0.01)\n"
        "slider = widgets.IntSlider()\nslider.observe(hang, 'value')\nslider"
    )
    block = only_view(kernel.finish(shown))[WIDGET]["model_id"]
    front.move(front.of_rank(block, 0), 3)
    kernel.wait_text(shown, "begins")
    following = kernel.execute("%%ddp\nprint('next')")
    kernel.wait_text(following, "[1]   next")
    kernel.interrupt()
    assert "in hang(change)" in kernel.finish(following).text
    assert kernel.ok("%%ddp\nprint('after')").text == "[0-1] after\n"


def test_a_collective_in_an_observer_says_why_it_is_refused(front: FrontEnd):
    kernel = front.kernel
    shown = kernel.execute(
        "%%ddp\nimport ipywidgets as widgets\nslider = widgets.IntSlider()\nx = torch.ones(1)\n"
        "def changed(change):\n    dist.all_reduce(x)\nslider.observe(changed, 'value')\nslider"
    )
    cell = kernel.finish(shown)
    front.move(front.of_rank(only_view(cell)[WIDGET]["model_id"], 1), 3)
    kernel.wait_text(shown, "that all ranks run")
    lines = [line.removeprefix("[1]").strip() for line in cell.lines]
    assert lines == [
        f"Cell In[{cell.number}], line 6, in changed",
        "----> 6 dist.all_reduce(x)",
        "",
        "CollectiveRefusedError: rank 1 called all_reduce in a widget's callback, while no cell "
        "runs",
        "a callback runs on the one rank whose widget was touched: rank 0 would never make this "
        "call",
        "nothing was sent; every variable is kept",
        "next: set a variable in the callback, and call all_reduce in a %%ddp cell that all ranks "
        "run",
    ]
    assert kernel.ok("%%ddp\ndist.all_reduce(x)\nprint(x)").text == "[0-1] tensor([2.])\n"


def test_an_observer_that_hangs_is_seen_and_ended_by_the_magics(front: FrontEnd):
    kernel = front.kernel
    shown = kernel.execute(
        "%%ddp\nimport ipywidgets as widgets, time\nslider = widgets.IntSlider()\n"
        "def hang(change):\n    print('begins')\n    while True: time.sleep(0.01)\n"
        "slider.observe(hang, 'value')\nslider"
    )
    cell = kernel.finish(shown)
    front.move(front.of_rank(only_view(cell)[WIDGET]["model_id"], 1), 3)
    kernel.wait_text(shown, "begins")
    status = kernel.ok("%ddp status").page[0].text.splitlines()
    assert status[3].startswith("1     in a widget's callback")
    assert f"cell [{cell.number}], line 6, in hang" in status[3]
    assert "rank 1 in a widget's callback. Next: %ddp interrupt ends it" in status
    stacks = kernel.ok("%ddp stacks").page[0].text
    assert "rank 1: in a widget's callback, runs hang()\n" in stacks
    assert kernel.ok("%ddp interrupt").text == "interrupted: a widget's callback on rank 1\n"
    assert "[0-1] next\n" in kernel.ok("%%ddp\nprint('next')").text
    assert kernel.ok("%ddp interrupt").text == "no cell is running\n"
