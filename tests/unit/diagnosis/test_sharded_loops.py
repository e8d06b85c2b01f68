"""Loops whose iterations the code divides among the ranks."""

import pytest
from msgspec.structs import replace

from tests.support.looks import Ranks

_AROUND = """\
for i, (x, y) in enumerate(loader):
    {}
    if {}:
        model(x).sum().backward()
"""
_CONTINUE = """\
for i, (x, y) in enumerate(loader):
    {}
    if {}:
        continue
    model(x).sum().backward()
"""


def is_divided(code: str, *, before: str = "", function: str = "") -> bool:
    """Ranks 0 and 1 have taken turns, and rank 1 has one turn less: the card names the sharding."""
    pool = Ranks(2)
    pool.code = {2: before, 3: code}
    line = next(n for n, each in enumerate(code.splitlines(), 1) if "backward()" in each)
    for rank, state in enumerate(pool):
        for i in (rank, rank + 2):
            state.done(line=line, iteration=(("i", i),))
    pool[0].blocked(line=line, iteration=(("i", 4),))
    pool[1].finished()
    for state in pool:
        state.operations[:] = [
            replace(each, site=replace(each.site, function=function or each.site.function))
            for each in state.operations
        ]
    (hang, _) = pool.diagnose().findings
    return hang.next_step.startswith("Let ") and "equally many iterations" in hang.next_step


@pytest.mark.parametrize(
    "condition",
    [
        "i % world_size == rank",
        "i % dist.get_world_size() == dist.get_rank()",
        "rank == i % n",
        "i % n == rank % n",
        "(i + rank) % 2",
        "(i + rank) % 2 == 0 and x is not None",
        "not i % 2 != self.rank",
        "rank * 4 <= i < (rank + 1) * 4",
        "first <= i and i < first + 4",
        "i in mine",
        "i in range(rank, 8, world_size)",
        "owners[i] == rank",
        "is_mine(i, rank)",
        "int(y) % n == rank",
        "i % n == me",
        "mask[i]",
        "store.add(f'item {i}', 1) == 1",
        "store.compare_set(str(i), '', str(rank)) == str(rank)",
    ],
)
def test_conditions_that_divide_the_iterations_among_the_ranks(condition: str):
    before = (
        "mine = list(range(8))[rank::world_size]\nme = dist.get_rank()\n"
        "first = rank * 4\n"
        "mask = [k % 2 == rank for k in range(8)]\n"
    )
    assert is_divided(_AROUND.format("pass", condition), before=before)
    assert is_divided(_CONTINUE.format("pass", f"not ({condition})"), before=before)


@pytest.mark.parametrize(
    ("line", "condition"),
    [
        ("owner = i % world_size", "owner != rank"),
        ("skip = i % world_size != rank", "skip"),
        ("is_mine = i % world_size == rank", "not is_mine"),
        ("count += 1", "count % world_size != rank"),
        ("taken = store.add(f'item {i}', 1)", "taken != 1"),
    ],
)
def test_conditions_are_followed_through_names(line: str, condition: str):
    assert is_divided(_CONTINUE.format(line, condition))


@pytest.mark.parametrize(
    ("line", "condition"),
    [
        ("pass", "rank == 1 and i == 2"),
        ("pass", "(rank == 1) & (i == 2)"),
        ("pass", "(rank, i) == (1, 2)"),
        ("pass", "(rank, i) in skipped"),
        ("pass", "i % 2 == 0 and rank > 0"),
        ("pass", "rank == 1"),
        ("pass", "i + 2 * rank > 3"),
        ("pass", "i == 2"),
        ("pass", "y.isnan()"),
        ("skip = rank == 1 and i == 2", "skip"),
        ("loss = model(x.to(rank))", "loss.isnan()"),
        ("loss = model(x * rank).sum()", "loss > 3"),
        ("loss = model(x * rank) / i", "loss > rank"),
        ("loss = losses[i]", "not torch.isfinite(loss)"),
    ],
)
def test_other_conditions_divide_nothing(line: str, condition: str):
    assert not is_divided(_CONTINUE.format(line, condition))
    assert not is_divided(_AROUND.format(line, f"not ({condition})"))


def test_an_else():
    code = (
        "for i in range(8):\n    if i % world_size != rank:\n        pass\n    else:\n"
        "        loss.backward()\n"
    )
    assert is_divided(code)


def test_a_call_in_a_function():
    code = (
        "def step(x):\n    model(x).sum().backward()\n\n"
        "for i, x in enumerate(loader):\n    if i % world_size == rank:\n        step(x)\n"
    )
    assert is_divided(code, function="step")
    assert not is_divided(code.replace("i % world_size == rank", "good(x)"), function="step")


def test_a_deadlock_at_the_end_of_such_a_loop():
    pool = Ranks(2)
    pool.code[3] = _AROUND.format("pass", "i % world_size == rank")
    for rank, state in enumerate(pool):
        state.done(line=4, iteration=(("i", rank),))
    pool[0].blocked(line=4, iteration=(("i", 2),))
    pool[1].finished()
    hang = pool.diagnose().findings[0]
    assert hang.kind == "missing-rank"
    assert hang.change is None
    assert hang.next_step == (
        "Let `if i % world_size == rank:` (line 3) give all ranks equally many iterations, for "
        "example by a number of iterations that is a multiple of the number of ranks, or use "
        "`torch.distributed.algorithms.Join`: rank 1 has fewer than rank 0."
    )
    pool.code[3] = _CONTINUE.format("pass", "i % world_size != rank").replace("    pass\n", "")
    hang = pool.diagnose().findings[0]
    assert hang.next_step.startswith("Let `if i % world_size != rank:` (line 2) give all ranks")
    pool.code[3] = _AROUND.format("pass", "rank == 0 or i != 2")
    assert pool.diagnose().findings[0].next_step.startswith("Line 4 is inside `if rank == 0 or i")


def test_a_function_of_the_loop_divides_them_by_a_parameter():
    code = (
        "def step(i, x):\n    if i % world_size != rank:\n        return\n"
        "    model(x).sum().backward()\n\n"
        "for i, x in enumerate(loader):\n    step(i, x)\n"
    )
    assert is_divided(code, function="step")
    assert not is_divided(
        code.replace("i % world_size != rank", "rank == 1 and i == 2"), function="step"
    )
    assert not is_divided(code.replace("i, x", "rank, x").replace("rank, x in", "i, x in"))
