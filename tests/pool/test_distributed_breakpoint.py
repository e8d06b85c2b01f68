"""``torch.distributed.breakpoint``: a prompt on one rank, in the user's frame."""

from nbddp.controller.pool.pool import Pool
from tests.support.views import run_cell

_CODE = """\
def work(secret):
    dist.breakpoint(rank=1)
    return secret + rank
print("went on", work(41))
"""


def test_the_prompt_is_in_the_frame_of_the_user_and_the_others_wait(pool: Pool):
    view = run_cell(pool, _CODE, answers=["p secret + 1", "n", "p rank", "c"])
    assert {request.rank for request in view.asked} == {1}
    lines = [request.debugger.line for request in view.asked if request.debugger is not None]
    assert lines == [2, 2, 3, 3]
    assert "ATTENTION" not in view.text(1)
    assert "\n42\n" in view.text(1)
    assert view.text(0) == "went on 41\n"
    assert view.text(1).endswith("went on 42\n")


def test_leaving_the_prompt_frees_the_others(pool: Pool):
    view = run_cell(pool, _CODE, answers=["q"], check=False)
    assert "CellInterruptedError: rank 1 left the debugger\n" in str(view.error)
    assert run_cell(pool, "x = torch.ones(1)\ndist.all_reduce(x)\nx").result(0) == "tensor([2.])"


def test_skipped_calls_and_a_rank_that_does_not_exist_open_nothing(pool: Pool):
    code = "for step in range(4):\n    dist.breakpoint(0, skip=3)\ndist.breakpoint(7)"
    view = run_cell(pool, code, answers=["p step", "c"])
    assert "3\n" in view.text(0)
    assert len(view.asked) == 2


def test_a_cell_of_one_rank_has_nobody_to_wait_for(pool: Pool):
    view = run_cell(pool, _CODE, ranks="1", answers=["p secret", "c"])
    assert view.text(1).endswith("41\nwent on 42\n")
