"""A catch-up changes no rank that needs nothing, and no value that a rank has."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nbddp.controller.catch_up import LeftOut, Reason
from nbddp.controller.hub import WaitInterrupt
from nbddp.controller.pool import Pool, catch_up
from nbddp.controller.pool.view_protocol import SilentView
from nbddp.controller.values import Exchange
from nbddp.errors import (
    BadOptionError,
    CellError,
    CellInterruptedError,
    RankExitedError,
    TransferInterruptedError,
)
from nbddp.wire.rank_set import NO_RANKS, RankSet
from nbddp.wire.values import pickling
from tests.support.polling import poll_until
from tests.support.restarted_pool import restarted_pool
from tests.support.views import run_cell

shared_pool = restarted_pool(3, env={"NBDDP_PRELOAD": "torch._dynamo"})

MODEL = """
from torch.nn.parallel import DistributedDataParallel as DDP
torch.manual_seed(0)
model = DDP(torch.nn.Linear(4, 1)); opt = torch.optim.Adam(model.parameters(), lr)
history = []; steps = 0
"""
TRAIN = """
def train(count):
    global steps
    for _ in range(count):
        opt.zero_grad()
        loss = model(torch.randn(4, 4)).square().mean()
        loss.backward()
        opt.step()
        steps += 1
        history.append(round(loss.item(), 3))
"""
SEEN = "(steps, len(history), opt.param_groups[0]['params'][0] is model.module.weight)"


def run_cells(pool: Pool, *cells: str) -> None:
    for cell in cells:
        pool.run(cell)


def train_with_a_pushed_value(pool: Pool) -> None:
    pool.push(lr=0.05)
    run_cells(pool, MODEL, TRAIN, "train(5)")


def test_a_value_that_a_failed_cell_has_changed_elsewhere_is_told(pool: Pool):
    run_cells(pool, "q = torch.ones(2) + rank\nb = torch.zeros(2) + rank\ns = 'alike'")
    code = "q = q * 10\nb[0] += 1\nif rank == 1: os._exit(1)\ndist.barrier()\ns = 'never'"
    with pytest.raises(RankExitedError):
        pool.run(f"import os\n{code}")
    result = pool.catch_up()
    (number,) = {number for _, number in result.overtaken}
    assert result.overtaken == (("b", number), ("q", number))
    assert {"b", "q"} <= {*result.regained}
    assert not {"b", "q"} & {*result.initial}
    pool.run("q = q + 0\nb = b + 0")
    assert pool.pull("q[0].item()") == [10.0, 2.0, 30.0]


def test_cells_that_use_a_pushed_value_run_again(pool: Pool):
    """On the fresh rank, and aside on the others."""
    train_with_a_pushed_value(pool)
    pool.restart(1)
    result = pool.catch_up()
    assert (result.failed, result.left_out, result.aside) == ((), (), RankSet.of([0, 2]))
    assert result.copied == ("history", "lr", "steps")
    assert result.synced == ("model", "opt")
    assert pool.pull(SEEN) == [(5, 5, True)] * 3
    assert pool.diff("opt").is_equal
    run_cells(pool, "train(2)")
    assert pool.diff("model").is_equal


def test_a_pushed_value_that_one_survivor_has_is_copied(pool: Pool):
    pool.push(lr=0.05)
    run_cells(pool, "twice = 2 * lr")
    pool.restart("1-2")
    result = pool.catch_up()
    assert (result.copied, result.failed, result.left_out) == (("lr",), (), ())
    assert pool.pull("(lr, twice)") == [(0.05, 0.1)] * 3


def test_a_value_that_was_pushed_to_each_rank_is_not_that_of_another(pool: Pool):
    for rank in range(3):
        pool.push(share=rank, ranks=rank)
    pool.restart(1)
    result = pool.catch_up()
    assert (result.copied, result.left_out) == ((), (LeftOut(("share",), Reason.NO_CELL),))


def test_a_copied_value_is_not_lacking_where_it_was_not_pushed(pool: Pool):
    pool.push(big=[1, 2], ranks="0,2")
    run_cells(pool, "q = rank")
    pool.restart(2)
    assert pool.catch_up().copied == ("big",)
    pool.restart(1)
    result = pool.catch_up()
    assert (result.regained, result.copied) == (("q",), ())
    assert pool.pull("'big' in globals()") == [True, False, True]


def test_a_name_of_some_ranks_is_told_where_its_cell_ran_again(pool: Pool):
    pool.run("pair = rank", ranks="0-1")
    run_cells(pool, "x = 3")
    pool.restart("0,2")
    result = pool.catch_up()
    assert (result.regained, result.left_out) == (("pair", "x"), ())
    assert result.regained_in_part == (("pair", RankSet.of([0])),)
    assert pool.pull("'pair' in globals()") == [True, True, False]


def test_a_cell_changes_no_pushed_value_aside(pool: Pool):
    pool.push(sizes=[1])
    run_cells(pool, "sizes.append(rank)\ntotal = torch.ones(1)\ndist.all_reduce(total)")
    pool.restart(1)
    assert pool.catch_up().aside == RankSet.of([0, 2])
    assert pool.pull("sizes", ranks=[0, 2]) == [[1, 0], [1, 2]]


def restart_and_live_on(pool: Pool) -> None:
    """Rank 1 is replaced, catches up in two steps, and has values of its own."""
    train_with_a_pushed_value(pool)
    pool.restart(1)
    run_cell(pool, "import os; os.environ['ONCE'] = '1'", ranks=[1])
    pool.catch_up(1)
    run_cells(pool, "train(4)\nhistory.append(rank); steps += rank")


def test_a_rank_that_lives_on_after_it_was_replaced_is_left_alone(pool: Pool):
    restart_and_live_on(pool)
    before = pool.pull(SEEN), pool.pull("history", ranks=1)
    assert before[0] == [(9 + rank, 10, True) for rank in range(3)]
    pool.restart(0)
    result = pool.catch_up()
    assert (result.ranks, result.source) == (RankSet.of([0]), 1)
    assert (pool.pull(SEEN)[1:], pool.pull("history", ranks=1)) == (before[0][1:], before[1])


@pytest.mark.full
def test_a_catch_up_in_part_is_over_when_nothing_is_lacking(pool: Pool):
    run_cells(pool, "import os\nonce = 1 // (1 - int(os.environ.get('ONCE', 0)))", "steps = 0")
    pool.restart(1)
    run_cell(pool, "os = __import__('os'); os.environ['ONCE'] = '1'", ranks=[1])
    with pytest.raises(BadOptionError, match=r"has values of cells.*Next: %ddp catchup -r 1"):
        pool.catch_up()
    assert [cell for cell, _ in pool.catch_up(1).failed] == [1]
    pool.push(once=1, ranks=1)
    run_cell(pool, "globals()['steps'] = 10 + rank")
    pool.restart(0)
    assert pool.catch_up().ranks == RankSet.of([0])
    assert pool.pull("steps", ranks=[1, 2]) == [11, 12]


def test_a_rank_that_lives_on_is_changed_when_it_is_named(pool: Pool):
    """It gets what it lacks, and keeps the values that it has."""
    restart_and_live_on(pool)
    run_cells(pool, "a, best = rank, {}", "b = a + 1; best['own'] = rank")
    run_cell(pool, "del b", ranks=[1])
    ids = "(id(model), id(opt), id(history), id(best))"
    before = pool.pull(ids, ranks=1)
    result = pool.catch_up(1)
    assert (result.ranks, result.regained, result.synced) == (RankSet.of([1]), ("b",), ())
    assert pool.pull(f"(b, steps, best, {ids})", ranks=1) == (2, 10, {"own": 1}, before)


def test_plain_values_are_kept_where_a_model_is_made_again(pool: Pool):
    restart_and_live_on(pool)
    run_cell(pool, "del opt", ranks=[1])
    result = pool.catch_up(1)
    assert (result.synced, result.left_out) == (("model", "opt"), ())
    assert pool.pull(SEEN, ranks=1) == (10, 10, True)


ENDS = "import os\nif 'ENDS' in os.environ:\n    os._exit(3)\n"


def end_early(pool: Pool, ranks: int | None) -> None:
    """Catch up, while rank 0 exits."""
    run_cell(pool, "import os; os.environ['ENDS'] = '1'", ranks=[0])
    with pytest.raises(RankExitedError):
        pool.catch_up(ranks)


@pytest.mark.parametrize(
    "has_run_all",
    [
        pytest.param(False, id="in a cell"),
        pytest.param(True, id="in a state", marks=pytest.mark.full),
    ],
)
def test_a_catch_up_that_another_rank_ends_early_costs_no_module(pool: Pool, has_run_all: bool):
    """Without it the named rank had a new model, and no state of another rank."""
    make = "net = Net(2, 1)\nopt = torch.optim.SGD(net.parameters(), 0.1)\n"
    state = f"{ENDS}return super().state_dict(*args, **kwargs)".replace("\n", "\n        ")
    net = (
        f"class Net(torch.nn.Linear):\n    def state_dict(self, *args, **kwargs):\n        {state}"
    )
    in_cell = "" if has_run_all else ENDS
    run_cells(pool, net, f"{make}dist.barrier()\n{in_cell}")
    pool.restart(1)
    pool.catch_up()
    run_cell(pool, "net.weight.data.fill_(7); weight = net.weight; del opt", ranks=[1])
    end_early(pool, 1)
    seen = "(net.weight is weight, net.weight[0, 0].item(), 'opt' in globals())"
    assert pool.pull(seen, ranks=1) == (True, 7.0, False)


def test_a_rank_without_values_has_none_after_a_catch_up_that_ended_early(pool: Pool):
    """Otherwise it has those of the first cells, and no later catch-up takes them for old ones."""
    run_cells(pool, f"net = torch.nn.Linear(2, 1); steps = 0\ndist.barrier()\n{ENDS}")
    pool.restart(1)
    end_early(pool, None)
    assert pool.pull("[name in globals() for name in ('net', 'steps')]", ranks=1) == [False] * 2
    pool.restart(0)
    assert pool.catch_up().regained == ("net", "steps", "os")


@pytest.mark.full
def test_a_rank_without_values_has_none_after_an_interrupt(pool: Pool, tmp_path: Path):
    begun = tmp_path / "begun"
    waits = "while 'WAITS' in os.environ:\n    open(os.environ['WAITS'], 'w'); time.sleep(0.01)"
    run_cells(pool, f"import os, time; net = torch.nn.Linear(2, 1)\ndist.barrier()\n{waits}")
    pool.restart(1)
    run_cell(pool, f"os.environ['WAITS'] = {str(begun)!r}", ranks=[0])
    with ThreadPoolExecutor(1) as executor:
        answer = executor.submit(pool.catch_up)
        poll_until(begun.exists)
        pool.interrupt()
        error = answer.exception()
    assert isinstance(error, CellInterruptedError)
    text = str(error)
    assert text.startswith(
        "CellInterruptedError: %ddp catchup was interrupted: rank 1 still lacks net, os, time\n"
    )
    assert text.endswith("\n  next      run %ddp catchup again")
    assert "next cell" not in text
    assert pool.pull("'net' in globals()", ranks=1) is False
    run_cell(pool, "del os.environ['WAITS']", ranks=[0])
    assert pool.catch_up().synced == ("net",)


def test_objects_of_the_other_ranks_keep_their_states(pool: Pool):
    run_cells(pool, "net = torch.nn.Linear(2, 2)")
    run_cell(pool, "with torch.no_grad(): net.weight.fill_(rank)")
    pool.restart(1)
    assert pool.catch_up().synced == ("net",)
    assert pool.pull("net.weight[0, 0].item()") == [0.0, 0.0, 2.0]


# --- the answer ----------------------------------------------------------------------------------


def test_a_value_that_only_its_first_cell_has_made_is_told_apart(pool: Pool):
    pool.push(lr=0.1)
    run_cells(pool, MODEL, TRAIN, "best = {}; tag = f'rank-{rank}'; other = [rank]", "train(2)")
    run_cells(pool, "for _ in range(2): train(1)\nbest['own'] = rank; history.append(rank)")
    run_cells(pool, "for _ in range(2): train(1)\nsteps = 100 + rank", "print(tag, other)")
    pool.restart(0)
    result = pool.catch_up()
    assert result.initial == ("history", "steps", "best")
    assert result.left_out == ()
    assert pool.pull("(len(history), steps, best, tag)", ranks=0) == (0, 0, {}, "rank-0")


@pytest.mark.full
def test_a_group_without_the_fresh_rank_needs_nothing(pool: Pool):
    run_cells(pool, "g = dist.new_group([0, 1])")
    pool.restart(2)
    assert pool.catch_up().different == ()


@pytest.mark.full
def test_names_that_only_other_ranks_had_are_not_lacking(pool: Pool):
    run_cells(
        pool,
        "if rank == 0:\n    sent = []\n    for peer in (1, 2):\n"
        "        dist.send(torch.full((2,), float(peer)), peer)\n        sent.append(peer)\n"
        "else:\n    got = torch.zeros(2)\n    dist.recv(got, 0)",
    )
    pool.restart(1)
    assert pool.catch_up().left_out == (LeftOut(("got",), Reason.LOOP, 1),)
    result = pool.catch_up(1, cells=[1])
    assert (result.regained, result.left_out) == (("got",), ())
    assert pool.pull("got.tolist()", ranks=[1, 2]) == [[1.0, 1.0], [2.0, 2.0]]
    assert pool.catch_up(1).left_out == ()


def test_the_ranks_that_lack_a_name_are_told(pool: Pool):
    pool.push(lr=0.05, only=1)
    run_cells(pool, "x = lr")
    pool.restart("0-1")
    run_cell(pool, "only = 5", ranks=[1])
    run_cell(pool, "del only", ranks=[2])
    run_cell(pool, "globals()['odd'] = rank", ranks=[1, 2])
    result = pool.catch_up("0-1")
    (left,) = result.left_out
    assert (left.names, left.ranks, result.copied) == (("odd",), RankSet.of([0]), ("lr",))


@pytest.mark.full
def test_an_optimizer_that_is_lacking_is_not_to_be_copied(pool: Pool):
    run_cells(
        pool,
        "net = torch.nn.Linear(2, 1)",
        "globals()['opt'] = torch.optim.SGD(net.parameters(), 0.1)",
    )
    pool.restart(1)
    (left,) = pool.catch_up().left_out
    assert (left.names, left.copyable) == (("opt",), frozenset())
    with pytest.raises(CellError, match=r"then nbddp\.sync\(opt, src=0\)") as caught:
        pool.run("opt.step()")
    assert "%ddp pull" not in str(caught.value)


@pytest.mark.full
def test_a_loss_that_was_copied_once_is_copied_again(pool: Pool):
    loss = "net = torch.nn.Linear(2, 1)\nnet.weight.data.zero_()\nnet.bias.data.zero_()"
    run_cells(pool, loss, "for _ in range(2):\n    out = net(torch.ones(2)); dist.barrier()")
    for rank in (0, 1):
        pool.restart(rank)
        result = pool.catch_up()
        assert ("out" in result.copied, result.left_out) == (True, ())


@pytest.mark.full
def test_parameters_in_a_list_are_not_copied(pool: Pool):
    run_cells(pool, "net = torch.nn.Linear(2, 1)\nnet.bias.data.zero_(); net.weight.data.zero_()")
    run_cell(pool, "globals()['parts'] = [*net.parameters()]; globals()['sums'] = [torch.ones(2)]")
    pool.restart(1)
    result = pool.catch_up()
    assert (result.copied, result.aside) == (("sums",), NO_RANKS)
    assert [left.names for left in result.left_out] == [("parts",)]


@pytest.mark.full
def test_values_of_cells_that_were_changed_at_their_prompt_are_told(pool: Pool):
    look = "look = 1 + rank\ndist.barrier()"
    run_cell(pool, look, step=True, answers=["print look", "continue"], execution_count=2)
    left_out = "u = torch.ones(2) * (rank + 1)\ndist.all_reduce(u)\nv = u * 2\nalike = 1"
    run_cell(pool, left_out, step=True, answers=["skip"], execution_count=3)
    repaired = "g = torch.ones(3 + (rank == 1))\ndist.all_reduce(g)"
    answers = ["run g = g[:3]", "retry", "continue"]
    run_cell(pool, repaired, step=True, answers=answers, execution_count=4)
    with pytest.raises(RankExitedError):
        run_cell(pool, "if rank == 1: __import__('os')._exit(1)\ndist.barrier()", execution_count=5)
    result = pool.catch_up()
    assert {"look", "u", "v", "alike", "g"} == {*result.regained}
    assert (result.unrepeated, result.prompted) == ((("u", 3), ("v", 3)), (3, 4))
    assert (result.copied, result.failed) == (("g",), ())
    assert pool.pull("(look, v[0].item(), len(g))") == [(1, 2.0, 3), (2, 12.0, 3), (3, 6.0, 3)]


def test_the_stop_button_ends_a_catch_up_that_copies_a_value(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    run_cells(pool, "steps = 0; net = torch.nn.Linear(2, 1)")
    run_cell(pool, "globals()['steps'] = 7")
    pool.restart(1)

    def stopped(*args: object) -> None:
        raise WaitInterrupt(RankSet.of([0]), {}, RankSet.of([1]))

    monkeypatch.setattr(Exchange, "copy", stopped)
    with pytest.raises(TransferInterruptedError, match="copying 'steps' was interrupted"):
        pool.catch_up()
    monkeypatch.undo()
    assert pool.pull("[name in globals() for name in ('net', 'steps')]", ranks=1) == [False] * 2
    result = pool.catch_up()
    assert (result.synced, result.copied) == (("net",), ("steps",))


def test_the_notebook_does_not_build_what_ranks_copy(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    """It would import torch for a tensor, which takes seconds, and may not be installed."""
    run_cells(pool, "small = torch.zeros(3); large = torch.zeros(3000000)")
    run_cell(pool, "globals()['small'] += 1; globals()['large'] += 2")
    pool.restart(1)

    def built_here(*args: object) -> None:
        raise AssertionError("the notebook has built a value")

    monkeypatch.setattr(pickling, "decode_value", built_here)
    result = pool.catch_up()
    monkeypatch.undo()
    assert result.copied == ("large", "small")
    assert pool.diff("small, large").is_equal
    assert pool.pull("float(small.sum() + large[-1])", ranks=1) == 5


def test_each_step_is_told_before_it_is_done(pool: Pool):
    steps: list[str] = []
    for cell in ("layer = torch.nn.Linear(2, 2)", "dist.barrier()\nx = 3", "x += 1"):
        pool.run(cell)
    pool.restart(2)
    catch_up(pool, None, (), 99, lambda pool, run: SilentView(), say=steps.append)
    assert steps == [
        "runs cell [1] again on rank 2 (1 of 3); ranks 0-1 run along",
        "runs cell [2] again on rank 2 (2 of 3); ranks 0-1 run along",
        "runs cell [3] again on rank 2 (3 of 3); ranks 0-1 run along",
        "copies the state of layer from rank 0 to rank 2",
        "compares variables of rank 2 with those of other ranks",
    ]


@pytest.mark.full
def test_the_value_of_an_old_cell_is_no_value_of_the_loop_that_is_left_out(pool: Pool):
    loop = "mine = torch.full((2,), rank)\nfor i in range(2): dist.barrier()"
    pool.run("mine = torch.ones(3) * rank; other = [rank]")
    pool.run(loop)
    pool.restart(1)
    result = pool.catch_up()
    assert result.regained == ("other", "i")
    assert result.left_out == (LeftOut(("mine",), Reason.LOOP, 2),)
    assert pool.pull("'mine' in globals()", ranks=1) is False
    result = pool.catch_up(1, cells=[2])
    assert pool.pull("(mine.tolist(), other)", ranks=1) == ([1, 1], [1])


def test_a_name_that_the_rank_alone_had_is_told_and_made_again_if_its_cell_is_named(pool: Pool):
    pool.run("keep = rank * 10")
    pool.run("only = 10", ranks=[1])
    pool.restart(1)
    result = pool.catch_up()
    assert (result.regained, result.cells) == (("keep",), (1,))
    assert result.left_out == (LeftOut(("only",), Reason.ALONE, 2),)
    with pytest.raises(CellError, match=r"(?s)did so on no other rank.*catchup -r 1 --cells 2, to"):
        pool.run("only", ranks=[1])
    result = pool.catch_up(1, cells=[2])
    assert (result.left_out, pool.pull("(keep, only)", ranks=1)) == ((), (10, 10))
