"""Calls that torch refuses use up no number, also when a rank is late in one of them."""

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import CellError, MismatchError
from tests.support.views import run_cell

#: Ranks that are late go on when the others have issued their next operation, and wait for it.
_PRELUDE = """\
import time
group = dist.group.WORLD
late = world_size - 1
def come_late():
    for other in range(late):
        reader = group.recorder.board.reader_of(other)
        while reader.operations(1)[-1].signature.op != "all_reduce":
            time.sleep(0.01)
    time.sleep(0.5)  # longer than anybody waits because of a rank that seems to hang
def attempt(function, *args):
    try:
        function(*args)
    except Exception as error:
        return type(error).__name__
dist.barrier()
"""

#: nbddp sees nothing wrong with the call, and torch's group refuses it.
_REFUSES = """\
calls = dict(group._calls)
for name in {"reduce_scatter_single", "_reduce_scatter_base"}.intersection(calls):
    def refuse(*args):
        if is_late_inside and rank == late:
            come_late()
        raise RuntimeError("invalid arguments")
    group._calls[name] = refuse
"""

_LATE_INSIDE = f"""\
is_late_inside = True
{_REFUSES}
refused = attempt(dist.reduce_scatter_tensor, torch.zeros(2), torch.ones(2 * world_size))
group._calls = calls
dist.all_reduce(total := torch.ones(1))
print(refused, total.item())
"""

_LATE_BEFORE = f"""\
is_late_inside = False
{_REFUSES}
if rank == late:
    come_late()
refused = attempt(dist.reduce_scatter_tensor, torch.zeros(2), torch.ones(2 * world_size))
group._calls = calls
dist.all_reduce(total := torch.ones(1))
print(refused, total.item())
"""


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param(2, marks=pytest.mark.fresh_ranks(2)),
        pytest.param(3, marks=[pytest.mark.fresh_ranks(3), pytest.mark.full]),
    ],
)
@pytest.mark.parametrize("code", [_LATE_INSIDE, _LATE_BEFORE], ids=["inside", "before"])
def test_a_rank_that_is_late_in_a_call_that_torch_refuses(pool: Pool, code: str, ranks: int):
    view = run_cell(pool, _PRELUDE + code, timeout=30)
    assert view.texts() == dict.fromkeys(range(ranks), f"RuntimeError {ranks}.0\n")


_DISAGREE = """\
calls = dict(group._calls)
def taken_late(*args):
    time.sleep(1)
    return calls["broadcast"](*args)
group._calls["broadcast"] = taken_late
if rank == 0:
    reader = group.recorder.board.reader_of(1)
    while reader.operations(1)[-1].signature.op != "broadcast":
        time.sleep(0.01)
try:
    dist.broadcast(torch.ones(2), src=rank)
finally:
    group._calls = calls
"""


@pytest.mark.fresh_ranks(2)
def test_a_rank_that_is_late_in_a_call_that_torch_takes_is_told_by_the_rank_that_sees_it(
    pool: Pool,
):
    """Looks do not count it as waiting, and leave the verdict to the ranks, which know more."""
    view = run_cell(pool, _PRELUDE + _DISAGREE, timeout=30, check=False)
    assert isinstance(view.error, MismatchError), view.error
    for word in ("rank 0 and rank 1 disagree in root", "root=0", "root=1", "nothing was sent"):
        assert word in str(view.error)


@pytest.mark.parametrize("call", ["dist.recv(x, 1)", "dist.irecv(x, 1).wait()"])
def test_a_receive_from_itself_has_torchs_error_and_a_reason(pool: Pool, call: str):
    view = run_cell(pool, f"x = torch.zeros(2)\nif rank == 1: {call}", check=False)
    assert isinstance(view.error, CellError)
    assert [*view.error.by_rank] == [1]
    assert "perhaps this rank sends to or receives from itself" in str(view.error)
    code = "x = torch.full((2,), float(rank))\ndist.recv(x, 0) if rank else dist.send(x, 1)"
    assert run_cell(pool, f"{code}\nprint(x.sum().item())").text(1) == "0.0\n"
