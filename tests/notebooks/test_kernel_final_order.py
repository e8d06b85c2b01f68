"""What a cell leaves in the notebook depends on what the ranks showed, not on when."""

import pytest

from tests.support.kernel import Cell, Kernel

_CELL = """%%ddp
import random, time
from IPython.display import HTML, display
pause = lambda: time.sleep(random.choice([0, 0, 0.01, 0.1]))
for epoch in range(2):
    pause()
    print('epoch', epoch)
    pause()
    print('mine', rank)
    pause()
    display(HTML(f'<b>figure {rank}</b>'))
    pause()
    display(HTML('<b>equal</b>'))
if rank == 1:
    print('only here')
print('end')
"""


def _left(cell: Cell) -> list[str]:
    """The outputs, with the texts of streams that follow each other as one, as in a file."""
    outputs: list[str] = []
    is_text = False
    for message in cell.page:
        if message.kind == "stream" and is_text:
            outputs[-1] += message.text
        else:
            outputs.append(message.text)
        is_text = message.kind == "stream"
    return outputs


@pytest.mark.parametrize("times", [5, pytest.param(15, marks=pytest.mark.full)])
def test_slow_ranks_do_not_change_the_saved_output(kernel: Kernel, times: int):
    seen = {tuple(_left(kernel.ok(_CELL))) for _ in range(times)}
    html = "<IPython.core.display.HTML object>"
    epoch = "[0-1] epoch {0}\n[0]   mine 0\n[1]   mine 1\n"
    grid = f"[0] {html}\n[1] {html}"
    assert seen == {
        (
            epoch.format(0), grid, "[0-1]", html,
            epoch.format(1), grid, "[0-1]", html,
            "[1]   only here\n[0-1] end\n",
        )
    }  # fmt: skip


def test_output_that_the_cell_had_before_stays(kernel: Kernel):
    code = "for slow in range(2):\n    time.sleep(rank * 0.3)\n    print(slow, rank)"
    kernel.ok("%%ddp\nimport time")
    cell = kernel.ok(f"print('of the notebook')\nget_ipython().run_cell_magic('ddp', '', {code!r})")
    assert "clear_output" not in {message.kind for message in cell.messages}
    assert cell.lines[0] == "of the notebook"
    assert len(cell.lines) == 5


def test_figures_in_a_loop_that_clears_end_in_a_slot_for_each_rank(kernel: Kernel):
    cell = kernel.ok(
        "%%ddp\nimport time\nfrom IPython.display import HTML, clear_output, display\n"
        "for frame in range(4):\n    time.sleep(0.05 * rank)\n    clear_output(wait=True)\n"
        "    print('frame', frame)\n    display(HTML(f'<i>{rank}</i>'))"
    )
    assert len([m for m in cell.messages if m.kind == "clear_output"]) == 1
    html = "<IPython.core.display.HTML object>"
    assert [m.text for m in cell.page] == [f"[0]\nframe 3\n{html}\n[1]\nframe 3\n{html}"]
