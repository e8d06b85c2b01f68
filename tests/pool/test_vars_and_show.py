"""Variables of real ranks are described with ``Pool.vars``, tensors with ``nbddp.show``."""

from pathlib import Path

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import BadOptionError
from nbddp.notebook.render import variables_table
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values.tensor_preview import MIME
from nbddp.wire.values.value_questions import RandomStates, RandomStatesOf
from tests.support.values import MODEL
from tests.support.views import run_cell

# --- vars -----------------------------------------------------------------------------------------


def test_states_of_random_generators_are_compared_by_digests(pool: Pool):
    run_cell(pool, "import random; random.seed(rank); torch.manual_seed(5)")
    ranks = RankSet.of([0, 1])
    told = pool.answers(ranks, "random generators", RandomStatesOf(), RandomStates)
    first, second = (each.digest_by_generator for each in told)
    assert {"random", "torch"} <= first.keys()
    assert first["torch"] == second["torch"]
    assert first["random"] != second["random"]


def test_names_of_the_user_are_told_and_no_others(pool: Pool):
    run_cell(pool, "%reset -f")
    run_cell(
        pool,
        f"""{MODEL}
import math
def helper(a, b=2): pass
loss, _hidden, name = torch.tensor(0.5 + rank), 1, "run"
if rank: extra = [1, 2]
""",
    )
    told = pool.vars()
    assert list(told) == ["model", "loss", "name", "extra"]
    model = told["model"][0]
    assert model is not None
    assert (model["type"], model["shape"]) == ("Sequential", "1,600 parameters")
    assert [each and each["value"] for each in told["loss"].values()] == ["0.5", "1.5"]
    assert told["extra"][0] is None
    assert told["name"][0] == told["name"][1]
    run_cell(pool, "third, near = 0.1 * 3, [0.1 * 3 if rank else 0.3]")
    told = pool.vars("third", "near")
    assert [each and each["value"] for each in told["third"].values()] == ["0.3", "0.3"]
    assert told["near"][0] != told["near"][1]  # by their digests
    (helper,) = pool.vars("helper").values()
    assert helper[0] is not None
    assert helper[0]["value"] == "helper(a, b=2)"


def test_names_that_are_not_defined_or_not_legal(pool: Pool):
    with pytest.raises(BadOptionError, match="ranks 0-1 have no variable 'nowhere'"):
        pool.vars("nowhere")
    with pytest.raises(BadOptionError, match="is not a name"):
        pool.vars("a.b")


def test_a_class_of_the_user_that_raises_does_not_hide_the_others(pool: Pool):
    run_cell(
        pool,
        """
class Bad:
    def __init__(self): self.a = 1
    def __repr__(self): raise ZeroDivisionError("bad")
    @property
    def state_dict(self): raise ValueError("worse")
bad, good = Bad(), 1
""",
    )
    told = pool.vars("bad", "good")
    assert told["good"][0] is not None
    assert told["bad"][0] is not None
    assert "worse" in told["bad"][0]["value"]
    run_cell(
        pool,
        """
class Exits:
    def __repr__(self): raise SystemExit(3)
class Hides:
    __class__ = property(lambda self: 1 / 0)
exits, hides = Exits(), Hides()
""",
    )
    told = pool.vars()
    assert {"bad", "good", "exits", "hides"} <= set(told)
    described = told["exits"][1]
    assert described is not None
    assert "SystemExit: 3" in described["value"]
    text = variables_table.bundle(pool.told_variables(["bad", "good"]), ("bad", "good"))[
        "text/plain"
    ]
    assert "good  all" in text


# --- show -----------------------------------------------------------------------------------------


def test_calls_of_all_ranks_have_the_same_key_and_their_own_numbers(pool: Pool):
    view = run_cell(
        pool,
        """
import nbddp
x = torch.arange(3.0) * rank
for _ in range(2):
    if rank == 1: nbddp.show(x)
    with nbddp.show(x, title="sum"):
        dist.all_reduce(x)
""",
    )
    by_rank = [[bundle[MIME] for bundle in view.displays(rank)] for rank in (0, 1)]
    assert [call["stage"] for call in by_rank[0]] == ["now", "opened", "after"] * 2
    keys = [[call["key"] for call in calls] for calls in by_rank]
    assert set(keys[0]) < set(keys[1])
    assert len(set(keys[0])) == 2
    assert len(set(keys[1])) == 4
    before, _, after = by_rank[0][:3]
    assert before["tensors"][0]["name"] == "x"
    assert before["tensors"][0]["grids"][0]["texts"] == [["0", "0", "0"]]
    assert after["tensors"][0]["grids"][0]["texts"] == [["0", "1", "2"]]


def test_an_operation_that_continues_after_the_block_is_told(pool: Pool, tmp_path: Path):
    view = run_cell(
        pool,
        f"""
import nbddp, os, time
x, flag = torch.ones(2), {str(tmp_path / "flag")!r}
if rank == 1:
    while not os.path.exists(flag): time.sleep(0.01)
with nbddp.show(x):
    work = dist.all_reduce(x, async_op=True)
open(flag, "w").close()
work.wait()
with nbddp.show(x):
    dist.all_reduce(x, async_op=True).wait()
""",
    )
    calls = [bundle[MIME] for bundle in view.displays(0)]
    assert [call["open"] for call in calls if call["stage"] == "after"] == [["all_reduce"], []]


def test_show_refuses_values_that_are_no_tensors(pool: Pool):
    view = run_cell(pool, "import nbddp\nnbddp.show([1, 2])", check=False)
    assert "tensors and lists of tensors, and got a list of int" in str(view.error)
    view = run_cell(pool, "import nbddp\nnbddp.show(())", check=False)
    assert "tensors and lists of tensors, and got an empty tuple" in str(view.error)
    view = run_cell(pool, "nbddp.show()", check=False)
    assert "nbddp.show needs at least one tensor" in str(view.error)


def test_show_draws_the_tensors_of_a_list_one_below_the_other(pool: Pool):
    code = "import nbddp\nparts = [torch.ones(2), torch.ones(3) * rank]\nnbddp.show(parts)"
    (call,) = [bundle[MIME] for bundle in run_cell(pool, code).displays(0)]
    names = [(tensor["name"], tensor["shape"]) for tensor in call["tensors"]]
    assert names == [("parts[0]", [2]), ("parts[1]", [3])]
    code = "many = (torch.ones(1),) * 64\nnbddp.show(many)"
    (call,) = [bundle[MIME] for bundle in run_cell(pool, code).displays(0)]
    assert (len(call["tensors"]), call["title"]) == (16, "the first 16 of 64 tensors")
