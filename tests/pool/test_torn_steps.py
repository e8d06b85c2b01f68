"""A step of a sharded model may be interrupted anywhere: the next step is correct."""

from collections.abc import Collection, Iterable
from itertools import product
from typing import Any

import pytest
import torch

from nbddp.controller.pool.pool import Pool
from tests.cases.torn_steps import KINDS, PRELUDE
from tests.support.polling import poll_until
from tests.support.views import begin_cell, run_cell

_LIMIT_S = 60.0
_TOGETHER = "fsdp2, modules together"
_EQUAL = {0: "equal\n", 1: "equal\n"}
#: Shares of the lines of FSDP in a step, after which it is left. None is between two microbatches
#: (0.45), where torch's gradients wait for more.
_PLACES = (0.01, 0.2, 0.4, 0.6, 0.8, 0.97)
#: Not in the first step of a model, which sets it up; there are no gradients, as in `leave`.
_COUNT = "result(state)\nstate.zero_grad()\nwith Lines() as lines: step(state)"
#: FSDP works in hooks: a step is left before or after each of them.
_HOOKS = """
def leave_at(model, place, index, who=None):
    module = dict(model.named_modules())[index]
    def raises(*_):
        if who is None or rank == who:
            raise Left(place)
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x): return x.clone()
        @staticmethod
        def backward(ctx, gradient): raises()
    handle = {
        "before forward": lambda: module.register_forward_pre_hook(raises),
        "after forward": lambda: module.register_forward_hook(raises),
        "before backward": lambda: module.register_full_backward_pre_hook(raises),
        "after backward": lambda: module.register_full_backward_hook(raises),
        "in backward": lambda: module.register_forward_hook(
            lambda module, args, output: Fails.apply(output)),
    }[place]()
    try:
        model.zero_grad()
        step(model)
    finally:
        handle.remove()
"""
_HOOK_PLACES = (
    "before forward", "after forward", "before backward", "in backward", "after backward",
)  # fmt: skip


def begin(pool: Pool, kind: str) -> None:
    if kind == _TOGETHER and torch.__version__ < "2.13":
        pytest.skip(f"torch {torch.__version__} raises in such modules, also on stock groups")
    run_cell(pool, PRELUDE + _HOOKS + KINDS[kind], timeout=_LIMIT_S)
    run_cell(pool, "expected = result(make())\nstate = make()", timeout=_LIMIT_S)


def check(pool: Pool) -> None:
    assert run_cell(pool, "check(state)", timeout=_LIMIT_S).texts() == _EQUAL


#: `make test` leaves steps of one kind at any line, and those of each wrapper at one hook; the rest
#: is left to `make test-full`, and kinds whose parts are in another kind to `make test-slow`.
_QUICK = ("fsdp2",)
_SLOW = ("fsdp2, not resharded", "fsdp2, mixed precision", "fsdp2, accumulation", "fsdp1, nested")
_MARKS = {kind: [pytest.mark.slow if kind in _SLOW else pytest.mark.full] for kind in KINDS}
_BEFORE_FSDP1 = ("fsdp1, nested", "before forward")
_AT_ANY_LINE = [pytest.param(kind, marks=[] if kind in _QUICK else _MARKS[kind]) for kind in KINDS]


def _first(kinds: Iterable[str]) -> list[Any]:
    """The first kind for `make test`, and all for `make test-full`."""
    return [
        pytest.param(kind, marks=[pytest.mark.full] if number else [])
        for number, kind in enumerate(kinds)
    ]


def _places(
    kinds: Iterable[str], places: Iterable[str], quick: Collection[tuple[str, str]]
) -> list[Any]:
    """Each kind at each place; those that are not `quick` are left to `make test-full`."""
    return [
        pytest.param(*pair, marks=[] if pair in quick else [pytest.mark.full])
        for pair in product(kinds, places)
    ]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", _AT_ANY_LINE)
def test_a_step_may_be_left_at_any_line(pool: Pool, kind: str):
    begin(pool, kind)
    run_cell(pool, _COUNT, timeout=_LIMIT_S)
    lines = min(pool.pull("lines.counted"))
    for share in _PLACES:
        code = f"leave(state, {int(share * lines)})"
        view = run_cell(pool, code, check=False, timeout=_LIMIT_S)
        assert "Left: " in str(view.error), share
        assert run_cell(pool, "check(state)", timeout=_LIMIT_S).texts() == _EQUAL, share


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("kind", "place"),
    _places(("fsdp2", "fsdp1, nested"), _HOOK_PLACES, {("fsdp2", "in backward"), _BEFORE_FSDP1}),
)
def test_a_step_may_be_left_at_any_hook(pool: Pool, kind: str, place: str):
    begin(pool, kind)
    blocks = [name for name in ("0", "1", "2", "") if not ("fsdp1" in kind and name)]
    for index in [*blocks, "_fsdp_wrapped_module.1"][: 4 if kind == "fsdp2" else 2]:
        code = f"leave_at(state, {place!r}, {index!r})"
        view = run_cell(pool, code, check=False, timeout=_LIMIT_S)
        assert f"Left: {place}" in str(view.error), index
        assert run_cell(pool, "check(state)", timeout=_LIMIT_S).texts() == _EQUAL, index


@pytest.mark.parametrize(
    ("kind", "place"),
    _places(
        ("fsdp2", "fsdp2, accumulation", "fsdp1, nested"),
        ("before forward", "in backward"),
        {("fsdp2", "in backward"), _BEFORE_FSDP1},
    ),
)
def test_one_rank_may_leave(pool: Pool, kind: str, place: str):
    begin(pool, kind)
    index = "_fsdp_wrapped_module.1" if "fsdp1" in kind else "1"
    code = f"leave_at(state, {place!r}, {index!r}, who=1)"
    view = run_cell(pool, code, check=False, timeout=_LIMIT_S)
    assert view.error is not None
    assert view.error.by_rank[1][0] == "Left"
    check(pool)


@pytest.mark.parametrize("kind", ["fsdp2", pytest.param("fsdp1, nested", marks=pytest.mark.full)])
def test_a_step_may_be_left_by_an_error_that_the_cell_has_caught(pool: Pool, kind: str):
    begin(pool, kind)
    for place in ("before forward", "in backward"):
        index = "_fsdp_wrapped_module.1" if "fsdp1" in kind else "1"
        code = f"try: leave_at(state, {place!r}, {index!r})\nexcept Left: print('caught')"
        assert run_cell(pool, code, timeout=_LIMIT_S).texts() == {0: "caught\n", 1: "caught\n"}
        check(pool)


@pytest.mark.parametrize("kind", _first(["fsdp2", "fsdp2, plain root", "fsdp1"]))
def test_a_step_may_be_stopped(pool: Pool, kind: str):
    begin(pool, kind)
    code = """
def sleeps(gradient):
    print("sleeps", flush=True)
    import time; time.sleep(600)
x = batch(1).requires_grad_()
handle = x.register_hook(sleeps)
state(x).sum().backward()
"""
    cell = begin_cell(pool, code)
    poll_until(lambda: cell.view.texts() == {0: "sleeps\n", 1: "sleeps\n"}, _LIMIT_S)
    pool.interrupt()
    cell.join(_LIMIT_S)
    check(pool)


def check_that_a_step_in_two_cells_continues(pool: Pool, kind: str) -> None:
    begin(pool, kind)
    run_cell(pool, "state.zero_grad()\nloss = state(batch(1)).square().mean()")
    run_cell(pool, "other = make()")
    index = "_fsdp_wrapped_module.1" if "fsdp1" in kind else "1"
    view = run_cell(pool, f"leave_at(other, 'in backward', {index!r})", check=False)
    assert "Left: in backward" in str(view.error)
    run_cell(
        pool, "loss.backward()\nstep = lambda model: loss.item()\nstate.zero_grad = lambda: None"
    )
    check(pool)


@pytest.mark.parametrize("kind", _first(["fsdp2", "fsdp2, not resharded", "fsdp1, nested"]))
def test_a_step_in_two_cells_continues_after_the_step_of_another_model(pool: Pool, kind: str):
    check_that_a_step_in_two_cells_continues(pool, kind)


@pytest.mark.breaks_pool
def test_a_step_in_two_cells_continues_also_beside_a_fresh_rank(pool: Pool):
    """The ranks have made different numbers of models."""
    begin(pool, "fsdp1, nested")
    pool.restart(1)
    check_that_a_step_in_two_cells_continues(pool, "fsdp1, nested")


@pytest.mark.full
def test_the_last_of_modules_together_may_run_in_another_cell(pool: Pool):
    """The modules do not show whether a call was interrupted or its backward is still to come."""
    begin(pool, _TOGETHER)
    code = "state.zero_grad()\nhidden = state(batch(1))\nfound = hidden.detach().requires_grad_()\n"
    code += "first, second = found.chunk(2)\nloss = state.head(first).square().mean()"
    run_cell(pool, code, timeout=_LIMIT_S)
    run_cell(pool, "1 / 0", check=False)
    run_cell(
        pool,
        "def step(model):\n"
        "    loss.backward()\n"
        "    other = model.head(second).square().mean()\n"
        "    other.backward()\n"
        "    hidden.backward(found.grad)\n"
        "    return loss.item() + other.item()\n"
        "state.zero_grad = lambda: None",
    )
    check(pool)


@pytest.mark.parametrize("kind", _first(["fsdp1, nested", "fsdp2"]))
def test_a_step_of_a_thread_continues_when_a_cell_ends_in_it(pool: Pool, kind: str):
    begin(pool, kind)
    code = """
import threading
epoch = dist.group.WORLD.counters.epoch
ended, inside = threading.Event(), threading.Event()
module = list(state.modules())[3]
handle = module.register_forward_hook(lambda *_: (inside.set(), ended.wait(60)) and None)
thread = threading.Thread(target=lambda: (state.zero_grad(), step(state)))
thread.start()
print(inside.wait(60))
"""
    assert run_cell(pool, code, timeout=_LIMIT_S).texts() == {0: "True\n", 1: "True\n"}
    run_cell(pool, "groups = dist.group.WORLD.counters.epoch")
    run_cell(pool, "ended.set()\nthread.join(60)\nhandle.remove()", timeout=_LIMIT_S)
    view = run_cell(pool, "print(dist.group.WORLD.counters.epoch == groups == epoch)")
    assert view.texts() == {0: "True\n", 1: "True\n"}
    check(pool)


def test_gradients_of_microbatches_wait_for_theirs_while_another_model_is_left(pool: Pool):
    begin(pool, "fsdp2, accumulation")
    run_cell(pool, "state.set_requires_gradient_sync(False)\nonce(state, 2)", timeout=_LIMIT_S)
    run_cell(pool, "other = two()")
    view = run_cell(pool, "leave_at(other, 'in backward', '1')", check=False, timeout=_LIMIT_S)
    assert "Left: in backward" in str(view.error)
    run_cell(pool, "state.set_requires_gradient_sync(True)\nstep = once", timeout=_LIMIT_S)
    check(pool)


_LISTEN = """
said, shows = [], warnings.showwarning
warnings.simplefilter("always")
warnings.showwarning = lambda message, *rest, **others: said.append(str(message))
"""
_TELL = "warnings.showwarning = shows\nwarnings.simplefilter('ignore')\nprint(*said)"


def test_a_model_that_has_never_run_is_left_alone(pool: Pool):
    run_cell(pool, f"{PRELUDE}{_LISTEN}state = fully_shard(nn.Linear(4, 4))", timeout=_LIMIT_S)
    view = run_cell(pool, "if rank == 0: dist.barrier()", check=False, timeout=_LIMIT_S)
    assert view.error is not None
    assert run_cell(pool, _TELL, timeout=_LIMIT_S).texts() == {0: "\n", 1: "\n"}
    run_cell(pool, "state(torch.ones(2, 4)).sum().backward()", timeout=_LIMIT_S)


def test_state_that_cannot_be_restored_is_named(pool: Pool):
    begin(pool, "fsdp2")
    spoil = "from nbddp.rank.torch_private import fsdp2\nresets = fsdp2._reset_parameter\n"
    run_cell(pool, f"{_LISTEN}{spoil}fsdp2._reset_parameter = lambda parameter: None")
    run_cell(pool, "leave_at(state, 'in backward', '1')", check=False, timeout=_LIMIT_S)
    view = run_cell(pool, f"fsdp2._reset_parameter = resets\n{_TELL}\nstate = None")
    assert view.text() == (
        "the sharded model FSDPSequential was left in the middle of a step and could not be "
        "brought back to its beginning (RuntimeError: 3.weight is still gathered): create it "
        "again, because it would give wrong numbers\n"
    )
