"""A model of DDP goes on after a rank left its first step, or a block of ``Join``, by an error."""

import pytest

from nbddp.controller.pool.pool import Pool
from tests.support.views import run_cell

_LIMIT_S = 60.0
_BEGIN = """
from torch.nn.parallel import DistributedDataParallel as DDP

def make():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
    model = DDP(model, bucket_cap_mb=0.0001)
    return model, torch.optim.SGD(model.parameters(), 0.1)

def batch(number):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * number + rank))

def fit(model, optimizer, numbers):
    for number in numbers:
        optimizer.zero_grad()
        model(batch(number)).square().mean().backward()
        optimizer.step()

def equal():
    fit(*reference, range(3))
    fit(*state, range(3))
    print(all(map(torch.equal, reference[0].parameters(), state[0].parameters())))

reference, state = make(), make()
"""
_EQUAL = {0: "True\n", 1: "True\n"}
_JOINED = "with state[0].join():\n    fit(*state, range(2 + rank))"
_ENTERED = f"if rank == 1:\n    missing\n{_JOINED}"


@pytest.mark.parametrize(
    "left",
    [
        "if rank == 1: missing\nstate[0](batch(0)).sum().backward()",
        "loss = state[0](batch(0)).sum()\nif rank == 1: missing\nloss.backward()",
    ],
    ids=["before its forward", "before its backward"],
)
def test_a_rank_that_left_the_first_step(pool: Pool, left: str):
    """The others have noted an order of gradients that they would sort by, and it has not."""
    run_cell(pool, _BEGIN, timeout=_LIMIT_S)
    assert "NameError" in str(run_cell(pool, left, check=False, timeout=_LIMIT_S).error)
    assert run_cell(pool, "equal()", timeout=_LIMIT_S).texts() == _EQUAL


@pytest.mark.parametrize(
    "left",
    [
        _ENTERED,
        f"{_JOINED}\n    if rank == 1: missing",
        f"{_JOINED}\nif rank == 1: missing\ndist.barrier()",
        _ENTERED.replace("    fit", "    missing\n    fit"),
    ],
    ids=["before it", "in it", "after it", "some in it, some before it"],
)
def test_a_rank_that_left_a_join(pool: Pool, left: str):
    run_cell(pool, _BEGIN, timeout=_LIMIT_S)
    assert "NameError" in str(run_cell(pool, left, check=False, timeout=_LIMIT_S).error)
    run_cell(pool, "fit(*state, range(2))", timeout=_LIMIT_S)
    run_cell(pool, _JOINED, timeout=_LIMIT_S)


def test_a_loop_without_join_after_one_with_it(pool: Pool):
    """Its card has no word on Join, which the cell does not use."""
    run_cell(pool, f"{_BEGIN}\n{_JOINED}", timeout=_LIMIT_S)
    view = run_cell(pool, "fit(*state, range(2 + rank))", check=False, timeout=_LIMIT_S)
    report = view.outcome.report if view.outcome is not None else None
    assert report is not None
    assert report.findings[0].headline.startswith("Rank 0 never came to gradient averaging in ")
    assert "Join" not in str(report.to_dict()["ranks"])
