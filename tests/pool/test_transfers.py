"""Values from the notebook to ranks and back."""

import gc
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from nbddp.controller.pool.pool import Pool
from nbddp.errors import BadOptionError, CellError, TransferError
from nbddp.settings import Settings
from tests.support.polling import poll_until
from tests.support.views import run_cell

BIG = 3_000_000  # elements: several chunks, far above what goes inline


def arena_counts(pool: Pool) -> tuple[int, ...]:
    """Leased segments of the notebook, then of each rank."""
    code = (
        "import gc; from nbddp.wire.values.shared_memory import Arena; "
        "sum(a.leased_count for a in gc.get_objects() if isinstance(a, Arena))"
    )
    view = run_cell(pool, code)
    assert pool._processes.arena is not None
    ours = pool._processes.arena.leased_count
    return (ours, *(int(view.result(rank) or -1) for rank in range(pool.world_size)))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(10**40),
        1.5,
        "grün 🙂",
        b"\0\xff",
        [1, "two", {"three": (4, {5})}],
        {"nested": {"deeper": [None]}},
        range(3),
    ],
    ids=repr,
)
def test_plain_values_there_and_back(pool: Pool, value: Any):
    pool.push(value=value)
    assert pool.pull("value") == [value, value]
    assert run_cell(pool, "value").result(1) is not None or value is None


def test_one_rank_gives_a_value_several_give_a_list(pool: Pool):
    run_cell(pool, "mine = rank * 10")
    assert pool.pull("mine", ranks=1) == 10
    assert pool.pull("mine", ranks=[1]) == [10]
    assert pool.pull("mine", ranks="0-1") == [0, 10]
    assert pool.pull("mine") == [0, 10]
    assert pool.pull("mine + rank ** 2", ranks=1) == 11
    assert pool.pull("[n * mine for n in range(3)]", ranks=1) == [0, 10, 20]


def test_push_to_some_ranks(pool: Pool):
    pool.push({"target": "all"})
    pool.push({"target": "one"}, ranks=[1])
    assert pool.pull("target") == ["all", "one"]
    pool.push(ranks=0, target="zero", other=2)
    assert pool.pull("target") == ["zero", "one"]
    pool.push()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors(pool: Pool, dtype: torch.dtype):
    tensor = torch.arange(24).reshape(2, 3, 4).to(dtype)
    pool.push(tensor=tensor)
    for found in pool.pull("tensor"):
        assert found.dtype == dtype
        assert torch.equal(found, tensor)
    [found] = pool.pull("tensor[:, 1].t()", ranks=[1])
    assert torch.equal(found, tensor[:, 1].t())


def test_large_values(pool: Pool):
    check_large_values(pool)


@pytest.mark.full
def test_large_values_without_shared_memory(fresh_pool: Callable[..., Pool]):
    check_large_values(fresh_pool(2, settings=Settings(arena=False)))


def check_large_values(pool: Pool) -> None:
    array = np.arange(BIG, dtype=np.float64).reshape(1000, -1)
    values: dict[str, Any] = {
        "array": array,
        "nested": {"tensor": torch.from_numpy(array).float(), "text": "t"},
    }
    pool.push(values=values)
    for found in pool.pull("values"):
        assert np.array_equal(found["array"], array)
        assert torch.equal(found["nested"]["tensor"], values["nested"]["tensor"])
        assert found["nested"]["text"] == "t"
    run_cell(pool, "values['array'] += rank + 1")  # what was pushed is writable there
    found = pool.pull("values['array']")
    assert [float(a[0, 0]) for a in found] == [1.0, 2.0]
    found[0][:] = 7.0  # and what was pulled is writable here
    assert pool.pull("float(values['array'][0, 0])") == [1.0, 2.0]


def test_a_tensor_that_occurs_twice_stays_one(pool: Pool):
    run_cell(pool, "base = torch.zeros(200_000); pair = [base, base, base[:3]]")
    first, second, part = pool.pull("pair", ranks=1)
    assert first is second
    first.fill_(5)
    assert part.tolist() == [5.0] * 3
    part = pool.pull("base[:3]", ranks=1)
    assert part.untyped_storage().nbytes() == 12  # a view alone brings only what it shows


def test_a_pulled_tensor_outlives_the_pool(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool(1)
    [tensor] = pool.pull(f"torch.arange({BIG})")
    pool.stop()
    assert int(tensor.sum()) == BIG * (BIG - 1) // 2
    tensor += 1
    del tensor
    gc.collect()


def test_memory_is_used_again(fresh_pool: Callable[..., Pool]):
    pool = fresh_pool(2)
    run_cell(pool, f"tensor = torch.ones({BIG})")
    count_fds = (
        "import os; sum('memfd' in os.readlink(f'/proc/self/fd/{f}') "
        "for f in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{f}') "
        "or os.path.islink(f'/proc/self/fd/{f}'))"
    )
    segments = []
    for _ in range(4):
        tensors = pool.pull("tensor")
        pool.push(pushed=tensors[0])
        del tensors
        run_cell(pool, "del pushed")
        poll_until(lambda: arena_counts(pool) == (0, 0, 0))
        segments.append(run_cell(pool, count_fds).result(1))
    assert len(set(segments)) == 1
    kept = [pool.pull("tensor", ranks=1) for _ in range(3)]
    assert arena_counts(pool)[2] == 3
    assert all(float(tensor[-1]) == 1.0 for tensor in kept)
    del kept
    poll_until(lambda: arena_counts(pool) == (0, 0, 0))


class OnlyOnRankZero:
    pass


def test_a_value_that_one_rank_cannot_build_is_bound_on_none(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(OnlyOnRankZero, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "OnlyOnRankZero", OnlyOnRankZero, raising=False)
    run_cell(pool, "class OnlyOnRankZero: pass", ranks=[0])
    run_cell(pool, "value = 'old'")
    with pytest.raises(TransferError, match=r"rank 1: 'OnlyOnRankZero' is .* only: define it"):
        pool.push(value=OnlyOnRankZero(), fresh=1)
    assert pool.pull("(value, 'fresh' in globals())") == [("old", False)] * 2


def test_a_function_of_a_cell_cannot_be_pulled_and_says_so(pool: Pool):
    run_cell(pool, "def only_there(): pass")
    with pytest.raises(TransferError, match="only_there"):
        pool.pull("only_there", ranks=0)


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("missing_name", "NameError: name 'missing_name' is not defined"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("1 +", "SyntaxError"),
        ("lambda: 1", "lambda"),
        ("(n for n in [])", "cannot pickle 'generator' object"),
        ("__import__('sys').exit(3)", "SystemExit: 3"),
    ],
)
def test_values_that_cannot_be_pulled(pool: Pool, expression: str, words: str):
    with pytest.raises(TransferError) as caught:
        pool.pull(expression)
    assert words in str(caught.value)
    assert repr(expression) in str(caught.value)
    assert run_cell(pool, "rank").result(1) == "1"


@pytest.mark.parametrize("wrong", [5, None, b"x", ["x"]])
def test_an_expression_has_to_be_text(pool: Pool, wrong: Any):
    for ask in (pool.pull, pool.diff, pool.vars):
        with pytest.raises(BadOptionError, match=f"is of type {type(wrong).__name__}; legal: str"):
            ask(wrong)


def test_a_value_that_cannot_be_pulled_from_one_rank(pool: Pool):
    run_cell(pool, "if rank == 1: only_here = 1\nelse: globals().pop('only_here', None)")
    with pytest.raises(TransferError, match="rank 0"):
        pool.pull("only_here")
    assert pool.pull("only_here", ranks=1) == 1


def test_a_value_that_cannot_be_pushed_changes_nothing(pool: Pool):
    pool.push(a="old")
    with pytest.raises(TransferError, match="cannot be pickled"):
        pool.push(a="new", b=lambda: 1)
    assert pool.pull("a") == ["old", "old"]
    with pytest.raises(CellError):
        run_cell(pool, "b")


class OnlyHere:
    """Pickled by reference to a module that the ranks cannot import."""


OnlyHere.__module__ = "no_such_module_on_ranks"


def test_a_value_that_the_ranks_cannot_build_changes_nothing(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    import sys
    import types

    module: Any = types.ModuleType("no_such_module_on_ranks")
    module.OnlyHere = OnlyHere
    monkeypatch.setitem(sys.modules, module.__name__, module)
    pool.push(a="old")
    with pytest.raises(TransferError, match="no_such_module_on_ranks"):
        pool.push(a="new", c=OnlyHere())
    assert pool.pull("a") == ["old", "old"]


def test_bad_names_and_ranks(pool: Pool):
    for name in ("not a name", "1x", "", "class"):
        with pytest.raises(BadOptionError, match="is not a name that a variable can have"):
            pool.push({name: 1})
    with pytest.raises(BadOptionError, match="'rank' is another number on each rank"):
        pool.push(rank=0, x=1)
    for ranks in (2, [0, 5], "7", -1):
        with pytest.raises(BadOptionError, match="legal: 'all', a rank, or a list"):
            pool.pull("rank", ranks=ranks)
        with pytest.raises(BadOptionError, match="legal: 'all', a rank, or a list"):
            pool.push(ranks=ranks, x=1)
