"""Loops in which each rank uses a part of the batches that all ranks read."""

import pytest

from nbddp.controller.diagnosis.batch_parts import takes_part_by_rank
from nbddp.controller.diagnosis.control_flow import Code

_LOOP = "for x, y in loader:\n    "


@pytest.mark.parametrize(
    "code",
    [
        _LOOP + "x, y = x[rank::4], y[rank::4]",
        _LOOP + "x = x.chunk(4)[rank]",
        _LOOP + "loss = model(torch.chunk(x, 4)[dist.get_rank()])",
        _LOOP + "x = x.narrow(0, rank * 8, 8)",
        _LOOP + "x = x[8 * rank : 8 * rank + 8]",
        _LOOP + "z = x.float()\n    loss = model(z[rank::4])",
        "for batch in loader:\n    x, y = (one.chunk(4)[rank] for one in batch)",
        "for n, batch in enumerate(loader):\n    x = batch['x'][mesh.get_local_rank('tp') :: 2]",
    ],
)
def test_a_part_by_rank(code: str):
    assert takes_part_by_rank(Code(code), 1)


def test_a_part_by_a_name_that_is_made_of_the_rank():
    code = "half = mesh.get_local_rank('tp')\npart = slice(half, None, 2)\n" + _LOOP + "x = x[part]"
    assert takes_part_by_rank(Code(code), 3)


@pytest.mark.parametrize(
    "code",
    [
        _LOOP + "loss = model(x)",
        _LOOP + "if rank == 0: print(x[0])",
        _LOOP + "losses[rank] = model(x).sum()",
        _LOOP + "scores = gather(model(x))\n    print(scores[rank])",
        _LOOP + "x = x.to(devices[rank])",
        "model = models[rank]\n" + _LOOP + "x = x[0]",
        "x[rank]",
    ],
)
def test_no_part_by_rank(code: str):
    line = code.splitlines().index(_LOOP.splitlines()[0]) + 1 if _LOOP in code else 1
    assert not takes_part_by_rank(Code(code), line)


def test_a_cell_with_an_error_has_no_loop():
    assert not takes_part_by_rank(Code("for x in (:"), 1)
