"""Names whose values depend on the rank: a fresh rank keeps what its cells make."""

import pytest

from nbddp.controller.catch_up import PastCell
from nbddp.controller.catch_up.values_by_rank import ValuesByRank
from nbddp.wire.rank_set import RankSet


def values(*codes: str, operations: bool = False) -> ValuesByRank:
    return ValuesByRank(
        PastCell(number, code, 2, RankSet.all(3), is_ok=True, has_operations=operations)
        for number, code in enumerate(codes, 1)
    )


@pytest.mark.parametrize(
    "code",
    [
        "x = rank == 0",
        "x = 10 if rank == 0 else 0",
        "x = torch.arange(3.) if rank == 0 else torch.empty(3).zero_()",
        "is_main = rank == 0\nx = 'main' if is_main else 'worker'",
        "if rank == 0: x = 'boss'\nelse: x = 'worker'",
        "is_main = not dist.get_rank()\nif is_main:\n    x = 1\nelse:\n    x = 0",
        "def mine(): return rank == 0\nx = mine()",
        "def mine():\n    if rank == 0:\n        return 1\n    return 0\nx = [mine()]",
        "mine = lambda: rank == 0\nx = mine()",
        "class Role:\n    def __init__(self): self.main = rank == 0\nx = Role().main",
        "import os\nx = int(os.environ['LOCAL_RANK']) == 0",
        "x = []\nx.append(rank == 0)",
        "x = {}\nx['main'] = rank == 0",
        "rank = dist.get_rank()\nx = rank > 1",
        "with torch.no_grad():\n    x = rank == 0",
        "x = 0\nif rank == 0: x = 1\nx += 1",
    ],
)
def test_values_that_depend_on_the_rank(code: str):
    assert values(code).is_own("x", "int")


@pytest.mark.parametrize(
    "code",
    [
        "x = 1",
        "x = rank == 0\nx = 1",
        "def mine(rank): return rank == 0\nx = mine(2)",
        "for rank in range(4): x = rank",
        "def train():\n    if rank == 0: print('begin')\n    return 3\nx = train()",
        "torch.manual_seed(rank)\nx = torch.ones(2)",
        "x = 0\nfor part in parts[rank]:\n    x += 1",
        "if rank == 0: print('begin')\nx = 1",
        "model = Net().to(rank)\nx = evaluate(model)",
        "x = torch.zeros(1, device=local_rank)",
        "device = torch.device('cuda', local_rank)\nx = torch.zeros(1).to(device)",
    ],
)
def test_values_that_do_not(code: str):
    assert not values(code).is_own("x", "int")


@pytest.mark.parametrize(
    "code",
    [
        "x = torch.ones(2) * rank\ndist.all_reduce(x)",
        "for i in range(3):\n    x = torch.ones(2) * rank\n    dist.all_reduce(x)",
        "x = [rank]\ndist.broadcast_object_list(x)",
        "box = [rank]\ndist.broadcast_object_list(box)\nx = box[0]",
        "def mean(t):\n    dist.all_reduce(t)\n    return t\nx = mean(torch.ones(2) * rank)",
        "def mean_(t): dist.all_reduce(t)\nx = torch.ones(2) * rank\nmean_(x)",
        "x = model(data * rank)",
        "x = torch.ones(2) * rank\ndist.all_reduce(op=dist.ReduceOp.SUM, tensor=x)",
        "x = {'a': torch.ones(2) * rank}\ndist.all_reduce(x['a'])",
    ],
)
def test_what_a_collective_makes_alike_is_no_such_value(code: str):
    assert not values(code, operations=True).is_own("x", "Tensor")


def test_a_function_with_collectives_leaves_a_number_as_it_is():
    code = "def train(flag):\n    dist.barrier()\nmain = rank == 0\ntrain(main)"
    assert values(code, operations=True).is_own("main", "bool")


def test_the_tensors_that_a_scatter_takes_depend_on_the_rank():
    code = "parts = [torch.ones(1)] if rank == 1 else None\ndist.scatter(sc, parts, src=1)"
    assert values(code, operations=True).is_own("parts", "list")


def test_a_value_that_is_lacking_is_one_only_if_no_function_made_it():
    found = values("main = rank == 0\nx = helper(rank)\ny = 'a' if main else 'b'")
    assert [found.is_own(name, "") for name in ("main", "x", "y")] == [True, False, True]


def test_the_names_that_a_value_was_made_from():
    found = values("def best(): return max(losses)", "b = best()", "x = b if rank == 0 else None")
    assert {"b", "best", "losses"} <= found.uses("x")
    assert found.uses("other") == set()
