"""A `continue` in an `except` skips a call wherever it moves: all ranks skip it together."""

import pytest

from nbddp.controller.diagnosis import Finding
from tests.support.looks import CELL, Ranks, only

_BEHIND_TRY = """\
for name in names:
    try:
        v = table[name]
    except KeyError:
        continue
    dist.all_reduce(x)"""
_AGREE = (
    "Let all ranks take the `continue` in line 5, inside `except KeyError:` (line 4), in the same "
    "iteration"
)


def left_out(source: str) -> Finding:
    """What is found when rank 1 of two left out the second call in line 6."""
    pool = Ranks(2)
    pool.code[CELL] = source
    for rank in range(2):
        pool[rank].done(line=6)
    pool[0].blocked(line=6)
    pool[1].finished()
    return only(pool)


def test_a_continue_in_an_except_is_taken_by_all_ranks_together():
    finding = left_out(_BEHIND_TRY)
    assert finding.next_step == (
        f"{_AGREE}: end the `try` with `ok = torch.tensor(1, device=device)`, put "
        "`ok = torch.tensor(0, device=device)` in the place of the `continue`, and "
        "`dist.all_reduce(ok, op=dist.ReduceOp.MIN)` and `if not ok: continue` behind the `try`."
    )


@pytest.mark.parametrize(
    "other",
    [
        _BEHIND_TRY.replace("v = ", "ok = "),
        _BEHIND_TRY.replace("        v = table[name]", "        v = dist.broadcast(x, 0)"),
        f"{_BEHIND_TRY}\n    ok = 1",
    ],
)
def test_an_exchange_is_not_shown_where_it_may_not_work(other: str):
    finding = left_out(other)
    assert finding.next_step == f"{_AGREE}, or none of them."
