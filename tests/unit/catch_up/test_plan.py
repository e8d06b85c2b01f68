"""The cells that a fresh rank runs again."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from nbddp.controller.catch_up import (
    CatchUpPlan,
    LeftOut,
    PastCell,
    Reason,
    make_plan,
    with_joint_names,
)
from nbddp.controller.catch_up.plan import leaves_loops, loops_of
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values.value_questions import NameKind

ALL, ONE = RankSet.of([0, 1]), RankSet.of([1])


def cell(number: int, code: str, *, ok: bool = True, operations: bool = False) -> PastCell:
    return PastCell(number, code, 2, ALL, is_ok=ok, has_operations=operations)


def plan_of(
    cells: list[PastCell], lacking: Mapping[str, NameKind], wanted: tuple[int, ...] = ()
) -> CatchUpPlan:
    return make_plan(cells, lacking, RankSet.of([1]), wanted)


def numbers(plan: CatchUpPlan) -> list[int]:
    return [each.number for each in plan.cells]


def test_the_last_cell_that_binds_a_name_and_those_that_it_uses():
    cells = [
        cell(1, "import torch.nn as nn"),
        cell(2, "size = 4"),
        cell(3, "net = nn.Linear(8, 8)"),
        cell(4, "net = nn.Linear(size, size)"),
        cell(5, "print(net)"),
    ]
    plan = plan_of(cells, {"net": "state"})
    assert numbers(plan) == [1, 2, 4]
    assert not plan.has_peers
    assert plan.left_out == ()


def test_methods_of_tensors_that_change_them_in_place():
    cells = [
        cell(1, "import torch.nn.functional as F"),
        cell(2, "w = F.relu(x)"),
        cell(3, "w.mul_(2)"),
        cell(4, "F.relu_(y)"),
        cell(5, "w.__init__(); w.sum()"),
        cell(6, "w.add_(1); bad()", ok=False),
    ]
    cells[5] = replace(cells[5], run_above=4.0)  # its first line is the second of the notebook's
    plan = plan_of(cells, {"w": "data"})
    assert numbers(plan) == [1, 2, 3]
    assert plan.makers({"w"}) == (("w", (2, 3)),)
    assert plan.overtaken == (("w", 6),)


def test_a_loop_that_is_left_out_has_changed_a_value():
    loop = "for i in range(3):\n    dist.all_reduce(t)\n    "
    cells = [
        cell(1, "w = torch.ones(2); u = [0]; v = 1"),
        cell(2, f"{loop}w.add_(t); u[0] += 1; v = 2", operations=True),
        replace(cell(3, "w.mul_(2)"), ranks=RankSet.of([0])),  # never on the fresh rank
    ]
    plan = plan_of(cells, {"w": "data", "u": "plain"})
    assert numbers(plan) == [1]
    assert plan.overtaken == (("u", 2), ("w", 2))


def test_cells_that_change_a_value_in_place():
    cells = [
        cell(1, "net = build()"),
        cell(2, "net.head = Head()"),
        cell(3, "def build(): pass"),
        cell(4, "class Head: pass"),
    ]
    assert numbers(plan_of(cells, {"net": "state"})) == [1, 2, 3, 4]


def test_a_name_that_is_bound_from_its_own_last_value():
    cells = [cell(1, "x = 1"), cell(2, "x = x + 1"), cell(3, "y = 1")]
    assert numbers(plan_of(cells, {"x": "data"})) == [1, 2]


def test_a_cell_does_not_need_the_names_that_it_makes_itself():
    training = "from data import Loader\nn = 1\nloader = Loader(n)\nfor x in loader: step(x)"
    cells = [
        cell(1, training, operations=True),
        cell(2, "from data import Loader\nm = 2\nloader = Loader(m)"),
    ]
    plan = plan_of(cells, dict.fromkeys(("Loader", "loader", "m"), "data"))
    assert numbers(plan) == [2]
    assert plan.left_out == ()


def test_cells_with_collectives_need_the_other_ranks():
    cells = [
        cell(1, "net = Net()"),
        cell(2, "model = DDP(net)", operations=True),
        cell(3, "def Net(): pass"),
    ]
    plan = plan_of(cells, {"model": "state", "net": "state", "Net": "definition"})
    assert numbers(plan) == [1, 2, 3]
    assert plan.has_peers


def test_a_training_loop_is_left_out_and_may_be_wanted():
    loop = "for step in range(3):\n    loss = model(x)"
    cells = [cell(1, "model = Net()"), cell(2, loop, operations=True), cell(3, "best = loss")]
    lacking: dict[str, NameKind] = {
        "model": "state",
        "step": "data",
        "loss": "data",
        "best": "data",
    }
    plan = plan_of(cells, lacking)
    assert numbers(plan) == [1]
    assert not plan.has_peers
    assert plan.left_out == (
        LeftOut(("step", "loss"), Reason.LOOP, 2),
        LeftOut(("best",), Reason.NEEDS, 3),
    )
    plan = plan_of(cells, lacking, wanted=(2,))
    assert numbers(plan) == [1, 2, 3]
    assert plan.left_out == ()


def test_a_loop_in_a_function_is_a_loop():
    train = "def train(steps):\n    for step in range(steps):\n        model(step)\n    return step"
    cells = [
        cell(1, train),
        cell(2, "loss = train(3)", operations=True),
        cell(3, "torch.manual_seed(1)\ntrain(1)", operations=True),
        cell(4, "model = Net()\nfirst = train(1)", operations=True),
    ]
    lacking: dict[str, NameKind] = {"train": "definition", "loss": "data", "model": "state"}
    plan = plan_of(cells, lacking)
    assert numbers(plan) == [1, 4]
    assert plan.left_out == (LeftOut(("loss",), Reason.LOOP, 2),)


@pytest.mark.parametrize("kind", ["state", "data"])
def test_a_loop_runs_again_where_a_model_is_built_from_its_names(kind: NameKind):
    cells = [
        cell(1, "for x in batches:\n    mean = reduced(x)", operations=True),
        cell(2, "size = mean * 2"),
        cell(3, "net = Net(size)"),
    ]
    plan = plan_of(cells, {"mean": "data", "size": "data", "net": kind})
    assert numbers(plan) == ([1, 2, 3] if kind == "state" else [])
    assert [left.reason for left in plan.left_out] == (
        [] if kind == "state" else [Reason.LOOP, Reason.NEEDS, Reason.NEEDS]
    )


ONCE = "def f(v):\n    return v\nfor it in range(2):\n    r = f(1)\nprint(r)"


def test_a_cell_whose_loop_binds_what_it_uses_does_not_need_the_cell_before():
    """The same cell, edited and run again: the loop of the first one is no reason to leave it."""
    cells = [cell(4, ONCE, operations=True), cell(5, ONCE, operations=True)]
    plan = plan_of(cells, {"f": "definition", "it": "data", "r": "data"})
    assert (numbers(plan), plan.left_out) == ([5], ())


def test_what_a_cell_surely_uses_of_a_loop_is_named_with_the_loop():
    cells = [
        cell(1, "for x in data:\n    mean = reduced(x)", operations=True),
        cell(2, "def f(): return mean"),
        cell(3, "y = f()"),
    ]
    lacking: dict[str, NameKind] = {"f": "definition", "y": "data"}
    left = plan_of(cells, lacking).left_out
    assert [(each.cell, each.uses, each.loops) for each in left] == [
        (2, ("mean",), (1,)),
        (3, ("f",), (1,)),
    ]
    assert numbers(plan_of(cells, lacking, wanted=(1,))) == [1, 2, 3]


def test_a_name_that_very_many_cells_have_made_from_its_last_value():
    cells = [cell(1, "n = 0"), *(cell(number, "n += 1") for number in range(2, 3000))]
    assert loops_of("n", cells, ONE) == ()


def test_the_value_of_an_old_cell_is_stale_where_the_last_one_is_left_out():
    cells = [
        cell(1, "mine = 1; other = 2; old = 3"),
        cell(2, "mine = 2\nfor x in range(3): dist.all_reduce(x)", operations=True),
        cell(3, "old = mine + 1"),
    ]
    lacking: dict[str, NameKind] = dict.fromkeys(("mine", "other", "old", "x"), "data")
    plan = plan_of(cells, lacking)
    assert numbers(plan) == [1]
    assert plan.stale == {"mine", "old"}
    assert plan_of(cells, lacking, wanted=(2,)).stale == set()


def test_a_cell_that_the_user_names_runs_though_others_do_not():
    cells = [
        cell(1, "for x in data:\n    mean = reduced(x)", operations=True),
        cell(2, "size = mean * 2"),
    ]
    plan = plan_of(cells, {"mean": "plain", "size": "data"}, wanted=(2,))
    assert numbers(plan) == [2]
    assert plan.needs == {"mean"}, "it is copied, if it can be"


@pytest.mark.parametrize(
    ("code", "loops"),
    [
        ("v = 1\nfor x in range(3): dist.all_reduce(x)", (2,)),
        ("def v(): 1\nfor x in range(3): dist.all_reduce(x)", ()),
        ("dist.all_reduce(v := 1)", ()),
    ],
)
def test_the_loops_that_a_catch_up_for_a_name_has_to_name(code: str, loops: tuple[int, ...]):
    cells = [cell(2, code, operations=True), cell(3, "w = v")]
    assert loops_of("v", cells, ONE) == loops_of("w", cells, ONE) == loops
    assert leaves_loops(cells, ONE) == bool(loops)


def test_a_loop_without_collectives_or_one_that_makes_a_module_is_no_training_loop():
    loop = "data = []\nfor i in range(3):\n    data.append(i)"
    assert numbers(plan_of([cell(1, loop)], {"data": "data", "i": "data"})) == [1]
    shared = "net = Net()\nfor p in net.parameters():\n    dist.broadcast(p, 0)"
    plan = plan_of([cell(1, shared, operations=True)], {"net": "state", "p": "data"})
    assert numbers(plan) == [1]


def test_names_of_failed_cells_and_of_no_cell():
    cells = [cell(1, "x = 1"), cell(2, "x = 2\ny = 2", ok=False)]
    plan = plan_of(cells, {"x": "data", "y": "data", "z": "data"})
    assert numbers(plan) == [1]
    assert plan.left_out == (
        LeftOut(("y",), Reason.FAILED, 2),
        LeftOut(("z",), Reason.NO_CELL, 0),
    )


def test_a_cell_of_other_ranks_only_gives_a_fresh_rank_nothing():
    only_0 = PastCell(1, "x = 1", 2, RankSet.of([0]), is_ok=True)
    nothing = CatchUpPlan((), has_peers=False, elsewhere=(("x", 1),))
    assert plan_of([only_0], {"x": "data"}) == nothing


def test_cells_that_make_groups_need_the_other_ranks():
    group = PastCell(1, "group = dist.new_group([0, 1])", 2, ALL, is_ok=True, makes_groups=True)
    assert plan_of([group], {"group": "data"}).has_peers


def test_names_that_were_deleted_since():
    cells = [
        cell(1, "a = 1; b = 2; c = 3"),
        cell(2, "d = a"),
        cell(3, "del a, b"),
        cell(4, "del c", ok=False),
        cell(5, "b = 4"),
    ]
    plan = plan_of(cells, {"b": "data", "c": "data", "d": "data"})
    assert numbers(plan) == [1, 2, 5]
    assert plan.deleted == {"a"}


def test_cells_that_seed_random_numbers_run_with_the_others():
    cells = [
        cell(1, "torch.manual_seed(rank)"),
        cell(2, "x = 1"),
        cell(3, "for _ in range(9):\n    torch.manual_seed(0)", operations=True),
        cell(4, "torch.manual_seed(bad)", ok=False),
    ]
    assert numbers(plan_of(cells, {"x": "data"})) == [1, 2]
    assert numbers(plan_of(cells, {})) == []


def test_star_imports_may_bind_anything():
    cells = [cell(1, "from helpers import *"), cell(2, "x = helper()")]
    assert numbers(plan_of(cells, {"x": "data"})) == [1, 2]


def test_names_that_two_cells_use_from_each_other():
    cells = [cell(1, "def f(): return g()"), cell(2, "def g(): return f()")]
    assert numbers(plan_of(cells, {"f": "definition"})) == [1, 2]


def test_names_that_no_good_cell_binds_are_needed():
    cells = [
        cell(1, "rate = 1", ok=False),
        cell(2, "def build(): return size"),
        cell(3, "net = build(); size = 3"),
        cell(4, "opt = Optimizer(net, lr, rate)"),
    ]
    plan = plan_of(cells, {"opt": "state"})
    assert numbers(plan) == [2, 3, 4]
    assert plan.needs == {"Optimizer", "lr", "rate"}


def test_a_cell_that_binds_a_name_at_once_is_before_one_whose_function_does():
    cells = [cell(1, "steps = 0"), cell(2, "def train():\n    global steps\n    steps += 1")]
    assert numbers(plan_of(cells, {"steps": "plain"})) == [1]
    assert numbers(plan_of(cells[1:], {"steps": "plain"})) == [2]


def test_names_whose_values_may_have_changed_since():
    cells = [
        cell(1, "steps, losses, seen, tag, best = 0, [], {}, '', {}"),
        cell(2, "def train():\n    global steps\n    steps += 1\n    losses.append(1)"),
        cell(3, "for i in x: train()\nbest['a'] = i; seen.update(a=1)", operations=True),
        cell(4, "print(tag)"),
    ]
    lacking: dict[str, NameKind] = dict.fromkeys(("steps", "losses", "train"), "plain")
    assert plan_of(cells[:2], lacking).rebound == set()
    plan = plan_of([*cells[:2], cells[3]], lacking)
    assert plan.rebound == {"steps"}
    assert plan.touched == {"steps", "losses"}
    plan = plan_of(cells, lacking)
    assert plan.rebound == {"steps"}
    assert plan.touched == {"steps", "losses", "best", "seen"}


def test_a_branch_that_a_fresh_rank_does_not_take_changes_nothing_of_it():
    cells = [
        cell(1, "p, q, seen = rank, rank, []"),
        cell(2, "if rank == 0:\n    p = 20\n    seen.append(1)\nelse:\n    q = 2"),
        cell(3, "def f():\n    if rank == 0:\n        global p\n        p = 1\nf()"),
    ]
    lacking: dict[str, NameKind] = dict.fromkeys(("p", "seen"), "plain")
    plan = make_plan(cells, lacking, RankSet.of([1]), (), 2)
    assert plan.rebound == {"q"}
    assert plan.touched == set()
    of_others = PastCell(4, "if rank:\n    p = 2", 2, RankSet.of([0]), is_ok=True)
    assert make_plan([cells[0], of_others], lacking, RankSet.of([1]), (), 2).rebound == {"p"}


def test_names_of_cells_of_other_ranks_are_told_apart():
    cells = [
        cell(1, "x = 1"),
        replace(cell(2, "keep = [7]"), ranks=RankSet.of([0])),
        replace(cell(3, "keep.x = 1; y = keep = [8]"), ranks=RankSet.of([0])),
    ]
    plan = plan_of(cells, {"x": "plain", "keep": "plain"}, wanted=(3,))
    assert (numbers(plan), plan.left_out, plan.elsewhere) == ([1], (), (("keep", 3),))


def test_an_optimizer_is_joint_with_the_model_that_is_lacking():
    """If the rank has the model, it can make the optimizer alone."""
    roots = {"model": ("model",), "opt": ("model",), "opt2": ("model2",), "model2": ("model2",)}
    left = LeftOut(("model", "opt", "x"), Reason.FAILED, 3), LeftOut(("opt2",), Reason.FAILED, 4)
    assert [each.joint for each in with_joint_names(left, roots)] == [{"model", "opt"}, set()]
