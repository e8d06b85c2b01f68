"""A fresh rank gets the variables that it lacks, and the others keep theirs."""

import pytest

from nbddp.controller.catch_up import LeftOut, Reason
from nbddp.controller.pool import CatchUp, Pool
from nbddp.errors import BadOptionError, CellError
from nbddp.notebook.render.status_table import survey
from nbddp.wire.rank_set import NO_RANKS, RankSet
from tests.support.restarted_pool import restarted_pool
from tests.support.sampling import one_in
from tests.support.views import run_cell

shared_pool = restarted_pool(3, env={"NBDDP_PRELOAD": "torch._dynamo"})

MODEL = """
network = build()
model = DDP(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
"""
STEPS = """
def step_once(step):
    source = torch.Generator().manual_seed(100 * step + rank)
    optimizer.zero_grad()
    loss = model(torch.randn(8, 6, generator=source)).square().mean()
    loss.backward()
    optimizer.step()
"""
#: Without a `__main__` guard, as cells are.
BUILD = """
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

def build():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
"""


def run_cells(pool: Pool, *cells: str) -> None:
    for cell in cells:
        pool.run(cell)


def test_a_training_goes_on_with_a_fresh_rank(pool: Pool):
    train = "for step in range(4):\n    step_once(step)"
    run_cells(pool, BUILD, "torch.manual_seed(rank)", MODEL, STEPS, train)
    before = pool.pull("(id(model), id(network[0].weight), network[0].weight.sum().item())")
    pool.restart(1)
    result = pool.catch_up()
    assert (result.ranks, result.source) == (RankSet.of([1]), 0)
    assert result.cells == (1, 2, 3, 4)
    assert result.aside == RankSet.of([0, 2])
    assert result.synced == ("network", "model", "optimizer")
    assert result.left_out == ()
    assert result.copied == ("step",)
    after = pool.pull("(id(model), id(network[0].weight), network[0].weight.sum().item())")
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1][2] == before[0][2]
    assert pool.diff("optimizer").is_equal
    pool.run("for step in range(4, 8):\n    step_once(step)")
    assert pool.diff("network").is_equal
    assert pool.diff("optimizer").is_equal


def test_the_next_steps_are_those_of_a_run_without_a_failure(pool: Pool):
    def losses(pool: Pool, *, fails: bool) -> list[float]:
        run_cells(pool, "torch.manual_seed(0)", MODEL, "for i in range(3):\n    step_once(i)")
        if fails:
            pool.restart(0)
            assert pool.catch_up().source == 1
        pool.run("for i in range(3, 6):\n    step_once(i)")
        weights: list[float] = pool.pull("[p.sum().item() for p in network.parameters()]", ranks=0)
        return weights

    run_cells(pool, BUILD, STEPS)
    whole = losses(pool, fails=False)
    assert losses(pool, fails=True) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize(
    "hook",
    [
        "model.register_comm_hook(None, default_hooks.fp16_compress_hook)",
        "model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)",
    ],
)
def test_hooks_of_gradients_are_kept(pool: Pool, hook: str):
    imports = "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
    run_cells(pool, BUILD, imports + MODEL + hook, STEPS, "for i in range(3): step_once(i)")
    pool.restart(2)
    pool.catch_up()
    sent = len(pool.trace())
    pool.run("for i in range(3, 6): step_once(i)")
    assert pool.diff("network").is_equal
    reduced = [part for part in pool.trace()[sent:] if part["op"] == "all_reduce"]
    assert {part["nbytes"] for part in reduced} == {2 * (6 * 5 + 5 + 5 + 1)}


def test_cells_without_collectives_run_on_the_fresh_rank_only(pool: Pool):
    run_cells(pool, "runs = []", "runs.append(1); share = [rank] * 2\nprint(share)")
    pool.restart("1-2")
    result = pool.catch_up()
    assert (result.ranks, result.aside, result.cells) == (RankSet.of([1, 2]), NO_RANKS, (1, 2))
    assert pool.pull("runs, share") == [([1], [0, 0]), ([1], [1, 1]), ([1], [2, 2])]
    assert pool.catch_up("1-2") == CatchUp(result.ranks, others=RankSet.of([0]), source=0)


def test_cells_that_run_aside_change_nothing_elsewhere(pool: Pool):
    cell = "total = torch.ones(2)\ndist.all_reduce(total)\ncount = globals().get('count', 0) + 1"
    run_cells(pool, cell, "total += rank; count = 7; extra = 1")
    names = "sorted(name for name in globals() if not name.startswith('_'))"
    before = pool.pull(names, ranks=0)
    pool.restart(1)
    assert pool.catch_up(cells=[1]).cells == (1, 2)
    assert pool.pull("(total.tolist(), count)", ranks=0) == ([3.0, 3.0], 7)
    assert pool.pull("total.tolist()", ranks=1) == [4.0, 4.0]
    assert pool.pull(names, ranks=0) == before
    assert "get_ipython" not in pool.vars()


def test_the_other_side_of_a_message_runs_along(pool: Pool):
    cell = "got = torch.ones(2) * rank\nif rank == 0: dist.send(got + 5, 1)\n"
    run_cells(pool, cell + "if rank == 1: dist.recv(got, 0)")
    pool.restart(1)
    result = pool.catch_up()
    assert (result.cells, result.failed) == ((1,), ())
    assert pool.pull("got.tolist()", ranks=[0, 1]) == [[0.0, 0.0], [5.0, 5.0]]


def test_names_that_no_cell_makes_again(pool: Pool):
    pool.push(pushed=1)
    run_cell(pool, "globals()['odd'] = rank")
    with pytest.raises(CellError):
        pool.run("bad = rank; alike = 5\nif rank != 1: raise ValueError")
    pool.restart(1)
    result = pool.catch_up()
    assert result.copied == ("alike", "pushed")
    assert pool.pull("(alike, pushed)", ranks=1) == (5, 1)
    assert set(result.left_out) == {
        LeftOut(("odd",), Reason.NO_CELL, 0),
        LeftOut(("bad",), Reason.FAILED, 1),
    }


def test_what_all_ranks_must_make_of_a_cell_that_failed(pool: Pool):
    with pytest.raises(CellError):
        pool.run(f"{BUILD}{MODEL}alone = torch.nn.Linear(2, 2)\nif rank != 1: raise ValueError")
    pool.restart(1)
    (left,) = pool.catch_up().left_out
    assert left.joint == {"network", "model", "optimizer"}
    assert left.with_state > {"alone"}
    with pytest.raises(CellError, match="in a cell on all ranks: rank 1 alone would wait"):
        pool.run("model(torch.ones(8, 6))")


@pytest.mark.full
def test_names_of_cells_of_other_ranks_after_a_restart_of_all(pool: Pool):
    pool.restart()
    run_cell(pool, "keep = [7]", ranks=[0])
    number = max(cell.number for cell in pool.history)
    assert pool.catch_up(1).elsewhere == (("keep", number),)
    run_cell(pool, "keep = [7]", ranks=[1])
    assert pool.catch_up(1).elsewhere == ()


def test_an_object_of_a_class_is_not_copied(pool: Pool):
    run_cells(pool, "class Mine:\n    part = 0\nmine = Mine()")
    run_cell(pool, "setattr(mine, 'part', 1)")
    pool.restart(1)
    result = pool.catch_up()
    assert result.copied == ()
    assert "mine" not in [name for left in result.left_out for name in left.names]


def test_a_cell_that_fails_when_it_runs_again(pool: Pool):
    run_cells(pool, "import os\nx = 1 // (1 - int(os.environ.get('ONCE', 0)))", "y = x")
    pool.restart(1)
    run_cell(pool, "import os; os.environ['ONCE'] = '1'", ranks=[1])
    result = pool.catch_up(1)
    assert result.failed == (
        (1, "rank 1 raised ZeroDivisionError: integer division or modulo by zero"),
        (2, "rank 1 raised NameError: name 'x' is not defined"),
    )
    run_cell(pool, "os.environ['ONCE'] = '0'", ranks=[1])
    assert pool.catch_up(1).left_out == ()
    assert pool.pull("y") == [1, 1, 1]


def test_a_name_whose_cell_failed_when_it_ran_again_has_another_next_step(pool: Pool):
    run_cells(pool, "import os\nx = rank + 1 // (1 - int(os.environ.get('ONCE', 0)))")
    pool.restart(1)
    run_cell(pool, "import os; os.environ['ONCE'] = '1'", ranks=[1])
    assert pool.catch_up(1).left_out == (LeftOut(("x",), Reason.FAILS_NOW, 1),)
    with pytest.raises(CellError) as caught:
        pool.run("x + 1")
    assert (
        "%ddp catchup did not make x, as cell [1], which defines it, failed when it ran again"
        in (str(caught.value))
    )
    assert "%ddp catchup -r 1" not in str(caught.value)


def test_plain_data_that_the_others_have_alike_is_copied(pool: Pool):
    run_cells(pool, "step = 0; share = rank; text = 'a'", "step += 5")
    run_cell(pool, "globals()['step'] = 7")
    pool.restart(1)
    result = pool.catch_up()
    assert result.copied == ("step",)
    assert pool.pull("(step, share, text)") == [(7, rank, "a") for rank in range(3)]


def test_a_cell_that_defined_the_names_of_one_rank_again(pool: Pool):
    run_cells(pool, "x = rank")
    run_cell(pool, "x = 10; y = 1", ranks=[0])
    pool.restart(1)
    result = pool.catch_up()
    assert (result.cells, result.left_out) == ((1,), ())
    assert pool.pull("x") == [10, 1, 2]


def test_a_rank_that_has_caught_up_is_no_longer_fresh(pool: Pool):
    run_cells(pool, "step = 0; share = rank")
    pool.restart(1)
    pool.catch_up()
    run_cell(pool, "globals().update(step=5, share=share + 10)")
    pool.restart(0)
    result = pool.catch_up()
    assert (result.ranks, result.source) == (RankSet.of([0]), 1)
    assert pool.pull("(step, share)") == [(5, 0), (5, 11), (5, 12)]


def test_pools_without_fresh_ranks_or_without_others(pool: Pool):
    with pytest.raises(BadOptionError, match=r"no rank has a variable.*Next: run the cells again"):
        pool.catch_up()
    pool.run("x = 1")
    with pytest.raises(BadOptionError, match="no fresh rank lacks"):
        pool.catch_up()
    with pytest.raises(
        BadOptionError, match=r"has not run cell \[9\]; it has run \d+\. Next: name some"
    ):
        pool.catch_up(1, cells=[9])
    assert pool.catch_up(1).cells == ()
    pool.restart("0-1")
    with pytest.raises(BadOptionError, match=r"no rank is left .*%ddp catchup -r 0-1$"):
        pool.catch_up("0-2")


def test_a_module_with_buffers_that_was_evaluated(pool: Pool):
    """A forward without gradients lets the next one leave out the broadcast of the buffers."""
    model = "model = DDP(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))"
    step = "model(torch.ones(4, 3) * rank).sum().backward()"
    evaluation = "with torch.no_grad(): model(torch.ones(4, 3))"
    run_cells(pool, BUILD, model, step, evaluation)
    pool.restart(1)
    assert pool.catch_up().synced == ("model",)
    run_cells(pool, step, step)
    assert pool.diff("[each.grad for each in model.parameters()]").is_equal


def test_a_state_that_fits_nowhere_else(pool: Pool):
    """A method froze parameters, which no syntax tree shows; the other states are given."""
    optimizer = "optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)"
    freeze = "net[0].requires_grad_(False)"
    run_cells(pool, f"{BUILD}\ntorch.manual_seed(rank)\nnet = build()", freeze, optimizer)
    pool.restart(1)
    result = pool.catch_up()
    assert result.synced == ("net",)
    ((name, error),) = result.not_synced
    assert (name, error.partition(": ")[0]) == ("optimizer", "rank 1 raised ValueError")
    assert pool.diff("net", ranks=[0, 1]).is_equal
    again = pool.catch_up(cells=[2, 3])
    assert (again.ranks, again.not_synced) == (RankSet.of([1]), ())
    assert "optimizer" in again.synced


# --- side effects, random numbers, groups, deleted names -----------------------------------------


def test_names_that_a_cell_has_deleted_are_deleted_again(pool: Pool):
    run_cells(pool, "a = 1; b = rank; only = {1: 5} if rank == 1 else 0", "c = a + 1", "del a")
    pool.restart(1)
    run_cell(pool, "mine = 1", ranks=[1])
    result = pool.catch_up(1)
    assert (result.cells, result.deleted) == ((1, 2), ("a",))
    names = "sorted(name for name in ('a', 'b', 'c', 'mine') if name in globals())"
    assert pool.pull(names) == [["b", "c"], ["b", "c", "mine"], ["b", "c"]]


#: Ways to make groups, and an operation in one of them. Rank 1 is a member, and rank 0 is not
#: always.
GROUPS = {
    "two": ("g = dist.new_group([0, 1])", "if rank < 2: dist.all_reduce(t, group=g)"),
    "not the source": ("g = dist.new_group([1, 2])", "if rank: dist.all_reduce(t, group=g)"),
    "of the fresh rank": ("g = dist.new_group([1])", "if rank == 1: dist.barrier(group=g)"),
    "mesh": (
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "mesh = init_device_mesh('cpu', (3, 1), mesh_dim_names=('a', 'b'))",
        "dist.all_reduce(t, group=mesh['a'].get_group())\n"
        "dist.all_reduce(t, group=mesh['b'].get_group())",
    ),
    "alike": (
        "gs = [dist.new_group([0, 1]) for _ in range(3)]\nh, g = gs[:2]",
        "if rank < 2: dist.all_reduce(t, group=g); dist.all_reduce(t, group=h)",
    ),
    "used at once": (
        "g = dist.new_group([0, 1])\nif rank < 2: dist.barrier(group=g)",
        "if rank < 2: dist.all_reduce(t, group=g)",
    ),
    "ddp": (
        f"{BUILD}g = dist.new_group([0, 1])\n"
        "model = DDP(build(), process_group=g) if rank < 2 else None",
        "if rank < 2: model(torch.ones(1, 6)).sum().backward()",
    ),
    "local": (
        "g = dist.new_group([0, 1], use_local_synchronization=True) if rank < 2 else None",
        "if rank < 2: dist.all_reduce(t, group=g)",
    ),
    "all": ("g = dist.new_group()", "dist.all_reduce(t, group=g)"),
    "enumeration": (
        "g, gs = dist.new_subgroups_by_enumeration([[0, 1], [2]])",
        "dist.all_reduce(t, group=g)",
    ),
}


@pytest.mark.parametrize("name", one_in(3, GROUPS))
def test_groups_that_cells_made_are_those_of_the_other_ranks(pool: Pool, name: str):
    make, use = GROUPS[name]
    run_cells(pool, "t = torch.ones(1)", "other = dist.new_group([0, 1])", make, use)
    pool.restart(1)
    result = pool.catch_up()
    assert (result.failed, result.left_out) == ((), ())
    assert "g" not in result.copied  # all others may have the number that says "no member"
    run_cells(pool, use, "t += rank; dist.barrier()")
    pool.restart(0)  # the source, with rank 1 as a survivor
    assert pool.catch_up().failed == ()
    run_cells(pool, use)


@pytest.mark.full
def test_groups_of_fresh_ranks_only_are_made_anew(pool: Pool):
    run_cells(pool, "g = dist.new_group([0, 1]); h = dist.new_group()")
    pool.restart("0-1")
    result = pool.catch_up()
    assert (result.failed, result.copied) == ((), ())
    run_cells(pool, "if rank < 2: dist.barrier(group=g)\ndist.barrier(group=h)")


def test_an_object_that_only_the_fresh_rank_has_is_kept(pool: Pool):
    run_cells(pool, "import io\nlog = io.StringIO() if rank == 1 else None")
    pool.restart(1)
    result = pool.catch_up()
    assert (result.copied, result.different) == ((), ())
    assert pool.pull("log is None") == [True, False, True]


@pytest.mark.full
def test_a_group_that_was_destroyed_is_made_again(pool: Pool):
    run_cells(pool, "g = dist.new_group([0, 1])", "if rank < 2: dist.destroy_process_group(g)")
    pool.restart(1)
    assert pool.catch_up().failed == ()
    pool.run("dist.barrier()")


DRAWS = "import random; drawn = (random.random(), torch.rand(1).item())"


def test_random_numbers_of_ranks_that_draw_alike_go_on(pool: Pool):
    run_cells(pool, "import random; random.seed(rank)\ntorch.manual_seed(5)", DRAWS, DRAWS)
    before = pool.pull("torch.rand(3).tolist()", ranks=[0, 2])
    assert before[0] == before[1]
    pool.restart(1)
    result = pool.catch_up()
    assert (result.alike_random, result.seeding) == (("torch",), (1,))
    assert result.reseeded == ("random",)
    drawn = pool.pull("(torch.rand(3).tolist(), random.random())")
    assert drawn[0][0] == drawn[1][0] == drawn[2][0] != before[0]
    assert len({number for _, number in drawn}) == 3


def test_a_rank_with_numbers_of_its_own_begins_at_its_seed(pool: Pool):
    run_cells(pool, "torch.manual_seed(100 + rank)", "x = torch.rand(1).item()")
    drawn = pool.pull("x")
    pool.run("y = torch.rand(1).item()")
    after = pool.pull("torch.get_rng_state().sum().item()", ranks=[0, 2])
    pool.restart(1)
    result = pool.catch_up()
    assert (result.cells, result.alike_random, result.seeding) == ((1, 2, 3), (), (1,))
    assert pool.pull("x") == drawn
    assert pool.pull("torch.get_rng_state().sum().item()", ranks=[0, 2]) == after


def test_ranks_that_take_part_aside_keep_their_random_numbers(pool: Pool):
    run_cells(
        pool,
        "import random, numpy\ntorch.manual_seed(rank)\nrandom.seed(rank)\n"
        "numpy.random.seed(rank)\ndist.barrier()",
        # The sizes agree only if the numbers of the cell before go on aside.
        "torch.manual_seed(7)",
        "size = int(torch.randint(1, 1000, ()))\nt = torch.ones(size)\ndist.all_reduce(t)",
        "torch.manual_seed(rank)",
    )
    numpy = "numpy.random.get_state()[1].tolist()"
    state = f"(torch.get_rng_state().tolist(), random.getstate(), {numpy})"
    before = pool.pull(state, ranks=[0, 2])
    pool.restart(1)
    result = pool.catch_up()
    assert (result.failed, result.aside) == ((), RankSet.of([0, 2]))
    assert pool.pull(state, ranks=[0, 2]) == before
    assert pool.diff("size").is_equal


def test_generators_in_variables_begin_again_or_go_on(pool: Pool):
    run_cells(
        pool,
        "import random, numpy\n"
        "own, alike = torch.Generator().manual_seed(rank), torch.Generator().manual_seed(7)\n"
        "dice, bits, idle = random.Random(rank), numpy.random.default_rng(rank), random.Random(1)",
        "torch.rand(2, generator=own), dice.random(), bits.random()",
        "torch.rand(2, generator=alike)",
    )
    pool.restart(1)
    assert pool.catch_up().restarted == ("bits", "dice", "own")
    numbers = pool.pull("torch.rand(2, generator=alike).tolist()")
    assert numbers[0] == numbers[1] == numbers[2]


def test_generators_that_got_the_state_of_the_others_are_not_told_to_differ(pool: Pool):
    draws = "[torch.rand(1, generator=net_rng).item(), bits.random(), dice.random()]"
    run_cells(
        pool,
        "import random, numpy\nnet_rng = torch.Generator().manual_seed(11)\n"
        "bits, dice = numpy.random.default_rng(3), random.Random(4)",
        draws,
    )
    pool.restart(1)
    result = pool.catch_up()
    assert (result.different, result.restarted) == ((), ())
    numbers = pool.pull(draws)
    assert numbers[0] == numbers[1] == numbers[2]


def test_values_that_were_drawn_without_a_seed_are_told(pool: Pool):
    run_cells(
        pool,
        "import random; random.seed(rank)\n"
        "seeded = random.random()\n"
        "share = [rank] * 2\n"
        "def permuted(): return torch.randperm(1000)\n"
        "order = permuted(); half = order[:500]\n"
        "deck = list(range(100)); torch.rand(1)\n"
        "net = torch.nn.Linear(2, 2)",
        "order2 = list(range(1000))\nimport numpy.random\nnumpy.random.shuffle(order2)",
        "fixed = torch.rand(2, generator=torch.Generator().manual_seed(rank))",
    )
    drawn = pool.pull("(seeded, fixed.tolist())")
    pool.restart(1)
    assert pool.catch_up().drawn == ("half", "order", "order2")
    assert pool.pull("(seeded, fixed.tolist())") == drawn


def test_the_status_marks_a_rank_as_fresh_as_long_as_a_catch_up_is_about_it(pool: Pool):
    def marked() -> list[str]:
        return [row.state for row in survey(pool).rows]

    run_cells(pool, "x = rank + 10")
    pool.restart(1)
    with pytest.raises(CellError, match="NameError"):
        pool.run("print(x)")
    run_cells(pool, "dist.barrier()")
    assert marked() == ["idle", "idle, fresh", "idle"]
    assert any(note.startswith("rank 1 is fresh: it was restarted") for note in survey(pool).notes)
    assert pool.catch_up().ranks == RankSet.of([1])
    assert marked() == ["idle"] * 3
    pool.restart(2)
    assert marked() == ["idle", "idle", "idle, fresh"]
    run_cells(pool, "y = 1")  # from now on it has values of its own
    assert marked() == ["idle"] * 3
    with pytest.raises(BadOptionError, match=r"Next: %ddp catchup -r 2"):
        pool.catch_up()
