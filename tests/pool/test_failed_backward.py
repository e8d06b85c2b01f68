"""DDP goes on after a backward that failed where no rank waited for another."""

import pytest

from nbddp.controller.pool.pool import Pool
from tests.support.polling import poll_until
from tests.support.views import begin_cell, run_cell

_LIMIT_S = 60.0
_BEGIN = """
import time
from torch.nn.parallel import DistributedDataParallel as DDP

def make():
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
    model = DDP(model, bucket_cap_mb=0.0001, **options)
    return model, torch.optim.SGD(model.parameters(), 0.1)

def batch(number):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * number + rank))

def fit(model, optimizer, first, last):
    for number in range(first, last):
        optimizer.zero_grad()
        model(batch(number)).square().mean().backward()
        optimizer.step()

def fail(model, action):
    handle = next(model.parameters()).register_hook(action)
    try:
        model(batch(99)).sum().backward()
    finally:
        handle.remove()

def raises(gradient):
    raise ValueError("in the backward")

def sleeps(gradient):
    print("sleeps", flush=True)
    time.sleep(600)

state = make()
fit(*state, 0, 2)
"""
_CHECK = """
fit(*state, 2, 5)
reference = make()
fit(*reference, 0, 5)
for mine, right in zip(state[0].parameters(), reference[0].parameters()):
    torch.testing.assert_close(mine, right)
print("equal")
"""
_OPTIONS = {
    "plain": "{}",
    "static graph": "dict(static_graph=True)",
    "bucket views": "dict(gradient_as_bucket_view=True)",
    "unused parameters": "dict(find_unused_parameters=True)",
    "in a sub-group": "dict(process_group=dist.new_group())",
}
_EQUAL = {0: "equal\n", 1: "equal\n"}


def begin(pool: Pool, options: str = "{}") -> None:
    run_cell(pool, f"options = {options}\n{_BEGIN}", timeout=_LIMIT_S)


@pytest.mark.parametrize("name", _OPTIONS)
def test_training_continues_after_an_error_on_all_ranks(pool: Pool, name: str):
    begin(pool, _OPTIONS[name])
    view = run_cell(pool, "fail(state[0], raises)", check=False, timeout=_LIMIT_S)
    assert "ValueError: in the backward" in str(view.error)
    assert run_cell(pool, _CHECK, timeout=_LIMIT_S).texts() == _EQUAL


def test_training_continues_after_an_interrupt(pool: Pool):
    begin(pool)
    cell = begin_cell(pool, "fail(state[0], sleeps)")
    cell_texts = {0: "sleeps\n", 1: "sleeps\n"}
    poll_until(lambda: cell.view.texts() == cell_texts, _LIMIT_S)
    pool.interrupt()
    cell.join(_LIMIT_S)
    assert run_cell(pool, _CHECK, timeout=_LIMIT_S).texts() == _EQUAL


def test_training_continues_after_an_error_that_the_cell_has_caught(pool: Pool):
    begin(pool)
    run_cell(
        pool, "try:\n    fail(state[0], raises)\nexcept ValueError:\n    pass", timeout=_LIMIT_S
    )
    assert run_cell(pool, _CHECK, timeout=_LIMIT_S).texts() == _EQUAL


def test_one_rank_may_fail_when_all_gradients_were_reduced(pool: Pool):
    """DDP rebuilds its buckets in a collective: on all ranks in the same step, or on none."""
    begin(pool)
    code = """
x = batch(99).requires_grad_()
if rank == 1:
    x.register_hook(raises)
state[0](x * 1).sum().backward()
"""
    view = run_cell(pool, code, check=False, timeout=_LIMIT_S)
    assert view.error is not None
    assert list(view.error.by_rank) == [1]
    assert run_cell(pool, _CHECK, timeout=_LIMIT_S).texts() == _EQUAL


def test_a_step_in_two_cells_continues_after_another_error(pool: Pool):
    begin(pool)
    run_cell(pool, "state[1].zero_grad()\nloss = state[0](batch(2)).square().mean()")
    run_cell(pool, "1 / 0", check=False)
    run_cell(pool, "loss.backward()\nstate[1].step()", timeout=_LIMIT_S)
    check = _CHECK.replace("fit(*state, 2, 5)", "fit(*state, 3, 5)")
    assert run_cell(pool, check, timeout=_LIMIT_S).texts() == _EQUAL


def check_that_a_step_in_two_cells_continues(pool: Pool, who: str) -> None:
    """Another module fails between the forward and the backward, on these ranks.

    Otherwise gradients would silently stay as they are.
    """
    begin(pool)
    run_cell(
        pool, "other = make()[0]\nstate[1].zero_grad()\nloss = state[0](batch(2)).square().mean()"
    )
    leave = f"x = batch(99).requires_grad_()\nif {who}: x.register_hook(raises)"
    view = run_cell(pool, f"{leave}\nother(x * 1).sum().backward()", check=False, timeout=_LIMIT_S)
    assert "ValueError: in the backward" in str(view.error)
    run_cell(pool, "loss.backward()\nstate[1].step()", timeout=_LIMIT_S)
    check = _CHECK.replace("fit(*state, 2, 5)", "fit(*state, 3, 5)")
    assert run_cell(pool, check, timeout=_LIMIT_S).texts() == _EQUAL
    run_cell(pool, "other(batch(2)).sum().backward()", timeout=_LIMIT_S)


@pytest.mark.parametrize("who", ["rank == 1", "True"])
def test_the_step_of_another_module_continues(pool: Pool, who: str):
    check_that_a_step_in_two_cells_continues(pool, who)


@pytest.mark.breaks_pool
@pytest.mark.parametrize("who", [pytest.param("rank == 1", marks=pytest.mark.full), "True"])
def test_the_step_of_another_module_continues_also_beside_a_fresh_rank(pool: Pool, who: str):
    """The ranks have made different numbers of modules."""
    begin(pool)
    pool.restart(1)
    check_that_a_step_in_two_cells_continues(pool, who)


@pytest.mark.breaks_pool
def test_the_step_of_another_module_continues_after_a_constructor_that_failed(pool: Pool):
    begin(pool)
    fails = (
        "net = torch.nn.Linear(8, 8)\n"
        "class Late(DDP):\n    def _ddp_init_helper(self, *args):\n"
        "        if rank == 1: raise ValueError('in the constructor')\n"
        "        super()._ddp_init_helper(*args)\n"
        "Late(net)"
    )
    view = run_cell(pool, fails, check=False, timeout=_LIMIT_S)
    assert "in the constructor" in str(view.error)
    check_that_a_step_in_two_cells_continues(pool, "rank == 1")


def test_the_error_about_unused_parameters_comes_each_time(pool: Pool):
    begin(pool)
    run_cell(pool, "state[0].module[0] = torch.nn.Tanh()")
    step = "state[0](batch(2)).sum().backward()"
    run_cell(pool, step, timeout=_LIMIT_S)
    for _ in range(2):
        view = run_cell(pool, step, check=False, timeout=_LIMIT_S)
        assert "Expected to have finished reduction in the prior iteration" in str(view.error)
