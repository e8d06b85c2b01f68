"""Values of real ranks are compared with ``Pool.diff``."""

from pathlib import Path

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.values.result import Difference
from nbddp.errors import BadOptionError, PoolBusyError, TransferError
from nbddp.notebook.render import diff_report as page
from nbddp.wire.values import pickling
from nbddp.wire.values.tensor_preview import MIME
from tests.support.values import FINGERPRINTS_KEPT, MODEL
from tests.support.views import begin_cell, run_cell


def text(pool: Pool, expression: str) -> str:
    return page.bundle(pool.diff(expression))["text/plain"]


def only(found: Difference) -> tuple[str, tuple[int, ...] | None, float | None]:
    """Path, index and size of the only difference."""
    (difference,) = found.differences
    (detail,) = difference.details
    return difference.path, detail.index, detail.max_abs


def test_equal_models_are_equal(pool: Pool):
    run_cell(pool, MODEL)
    for expression in ("model", "model.state_dict()", "[p for p in model.parameters()]"):
        comparison = pool.diff(expression)
        assert comparison.is_equal, expression
        assert comparison.n_tensors + comparison.n_values > 3


def test_one_different_weight_is_found(pool: Pool):
    run_cell(
        pool,
        f"{MODEL}\nwith torch.no_grad(): model[0].weight[3, 17] = 0.5 + (rank == 1) * 1e-6",
    )
    path, index, max_abs = only(pool.diff("model"))
    assert (path, index) == (".0.weight", (3, 17))
    assert max_abs == pytest.approx(1e-6, rel=0.1)
    assert "model.0.weight" in text(pool, "model")
    assert "ranks 0 and 1 differ" in text(pool, "model")


def test_ddp_and_optimizers_and_nested_values(pool: Pool):
    run_cell(
        pool,
        f"""{MODEL}
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
ddp(torch.ones(4, 40)).sum().backward()
optimizer.step()
mine = {{"step": 3, "nested": [1, {{"lr": 0.1 * (rank + 1)}}]}}
""",
    )
    assert pool.diff("ddp").is_equal
    assert pool.diff("optimizer").is_equal
    assert pool.diff("{'model': ddp, 'optimizer': optimizer.state_dict()}").is_equal
    (difference,) = pool.diff("mine").differences
    assert difference.path == "['nested'][1]['lr']"
    assert [has for _, has in difference.groups] == ["0.1", "0.2"]


def test_the_same_bits_are_what_counts(pool: Pool):
    assert pool.diff("torch.full((3,), float('nan'))").is_equal
    comparison = pool.diff("torch.zeros(3) * (-1 if rank else 1)")
    assert not comparison.is_equal
    assert comparison.differences[0].details[0].max_abs == 0
    assert "0.0 is not -0.0" in page.bundle(comparison)["text/plain"]


def test_the_first_element_far_inside_a_large_tensor(pool: Pool):
    run_cell(pool, "large = torch.zeros(3, 1_000_000)\nlarge[2, 7] = rank\nlarge[2, 8] = 3 * rank")
    assert only(pool.diff("large")) == ("", (2, 7), 3.0)
    run_cell(pool, "large = large.t()[1:]")  # another order in memory, not at its beginning
    assert only(pool.diff("large")) == ("", (6, 2), 3.0)


def test_another_structure(pool: Pool):
    run_cell(pool, "state = {'a': torch.ones(2 + rank), **({'b': 1} if rank else {})}")
    shape, missing = pool.diff("state").differences
    assert [has for _, has in shape.groups] == ["float32 (2,)", "float32 (3,)"]
    assert (missing.path, list(missing.missing)) == ("['b']", [0])


def test_the_generators_of_random_numbers(pool: Pool):
    run_cell(
        pool,
        "import random\nrandom.seed(1)\ntorch.manual_seed(1)\nimport numpy; numpy.random.seed(1)",
    )
    assert pool.diff("rng").is_equal
    run_cell(pool, "torch.rand(rank)")
    assert [each.path for each in pool.diff("rng").differences] == ["['torch']"]
    before = pool.pull("torch.initial_seed(), torch.get_rng_state().sum().item()")
    pool.diff("rng")
    assert pool.pull("torch.initial_seed(), torch.get_rng_state().sum().item()") == before


def test_a_name_that_one_rank_does_not_have(pool: Pool):
    run_cell(pool, "if rank == 0: only_here = 1\nelse: globals().pop('only_here', None)")
    comparison = pool.diff("only_here")
    assert {error: list(ranks) for error, ranks in comparison.errors.items()} == {
        "NameError: name 'only_here' is not defined": [1]
    }
    with pytest.raises(BadOptionError, match="has no value on any rank"):
        pool.diff("on_no_rank")


def test_sharded_parameters_and_tensors(pool: Pool):
    run_cell(
        pool,
        """
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
torch.manual_seed(0)
sharded = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
fully_shard(sharded, mesh=mesh)
table = distribute_tensor(torch.arange(8.0).view(4, 2), mesh, [Shard(0)])
copies = DTensor.from_local(torch.ones(3) + rank, mesh, [Replicate()], run_check=False)
""",
    )
    comparison = pool.diff("sharded")
    assert comparison.is_equal
    assert comparison.sharding == {"Shard(0) on mesh dp=2": 4}
    assert pool.diff("table").is_equal
    assert only(pool.diff("copies")) == ("", (0,), 1.0)
    (by_rank,) = pool.vars("table").values()
    assert [told and told["sharding"] for told in by_rank.values()] == ["Shard(0) on mesh dp=2"] * 2
    assert [told and told["shape"] for told in by_rank.values()] == ["(4, 2)"] * 2
    view = run_cell(pool, "import nbddp\nnbddp.show(table)")
    parts = [view.displays(rank)[0][MIME]["tensors"][0]["part"] for rank in (0, 1)]
    assert [part["offset"] for part in parts] == [[0, 0], [2, 0]]
    assert [part["shape"] for part in parts] == [[2, 2], [2, 2]]


def test_flat_shards_of_fsdp1_are_not_compared(pool: Pool):
    run_cell(
        pool,
        """
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
torch.manual_seed(0)
flat = FullyShardedDataParallel(nn.Linear(8, 8), device_id=torch.device("cpu"))
named = FullyShardedDataParallel(
    nn.Linear(8, 8), device_id=torch.device("cpu"), use_orig_params=True
)
""",
    )
    assert pool.diff("flat").is_equal
    assert pool.diff("flat").sharding == {"flat shard of FSDP": 1}
    assert pool.diff("named").is_equal
    assert pool.diff("named").sharding == {"flat shard of FSDP": 2}
    assert "flat shard of FSDP: only equal shards" in text(pool, "flat")


def test_groups_and_meshes_are_not_looked_into(pool: Pool):
    run_cell(
        pool,
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "mesh, group = init_device_mesh('cpu', (world_size,)), dist.group.WORLD\n"
        "work = dist.all_reduce(torch.ones(1), async_op=True)\nwork.wait()",
    )
    for name in ("mesh", "group", "work"):
        assert pool.diff(name).is_equal, name
        assert pool.diff(name).n_values == 1
    told = pool.vars("group", "work")
    for name, kind, value in (
        ("group", "ProcessGroup", "default group, ranks 0-1, gloo"),
        ("work", "Work", "all_reduce #"),
    ):
        for each in told[name].values():
            assert each is not None
            assert each["type"] == kind
            assert each["value"].startswith(value)
    run_cell(pool, "part = dist.new_group([0], group_desc='mine')")
    parts = pool.vars("part")["part"]
    assert [each and each["value"] for each in parts.values()] == [
        "group 'mine', rank 0, gloo",
        "-100 (no member)",
    ]


def test_one_element_of_any_stride_is_compared(pool: Pool):
    run_cell(pool, "x = (torch.arange(3.).view(1, 3) + 10 * rank)[:, 0]; y = torch.nn.Parameter(x)")
    for name in ("x", "y"):
        assert pool.diff(name).is_equal is False
        assert only(pool.diff(name))[2] == 10.0
    assert pool.diff("x * 0").is_equal


def test_objects_without_a_value_are_told_as_not_compared(pool: Pool, tmp_path: Path):
    run_cell(
        pool,
        f"""
import io, threading
def count():
    yield from range(3)
steps = count()
if rank == 1: next(steps)
lock, file = threading.Lock(), open({str(tmp_path / "file")!r}, "w")
if rank == 1: lock.acquire()
class Job:
    pass
job = Job()
job.steps, job.lock, job.number = 3, lock, 1
buffer = io.StringIO("a" * rank)
""",
    )
    for name in ("steps", "lock", "file"):
        assert text(pool, name).startswith(f"{name}: not compared"), name
        assert pool.diff(name).is_equal is None
        assert not any(each["digest"] for each in pool.vars(name)[name].values() if each)
    assert text(pool, "job").splitlines()[0].startswith("job: equal on ranks 0-1 as far as")
    assert text(pool, "job").splitlines()[-1].endswith(": job.lock")
    assert not pool.diff("buffer").is_equal
    run_cell(pool, "file.close()")


def test_classes_of_cells_are_compared(pool: Pool):
    run_cell(
        pool,
        """
import enum
class Config:
    rate, sizes = 0.1, [1, rank]
    def step(self): return 1
    @property
    def twice(self): return 2
class Empty: pass
class Colour(enum.Enum): RED = 1
""",
    )
    assert [each.path for each in pool.diff("Config").differences] == [".sizes[1]"]
    for name in ("Empty", "Colour", "torch.nn.Linear"):
        assert pool.diff(name).is_equal, name


def test_nothing_is_kept_and_no_collective_is_called(pool: Pool):
    run_cell(pool, "held = torch.ones(5) + rank\ndist.all_reduce(torch.ones(3))")
    newest = _newest_operations(pool)
    assert not pool.diff("held").is_equal
    assert pool.pull(FINGERPRINTS_KEPT) == [0, 0]
    pool.vars()
    assert pool.pull(FINGERPRINTS_KEPT) == [0, 0]
    assert _newest_operations(pool) == newest


def _newest_operations(pool: Pool) -> dict[int, tuple[str, int]]:
    """The last operation of each rank; how many older ones a trace has depends on the moment."""
    records = sorted(pool.trace(), key=lambda record: record["created_ns"])
    return {record["rank"]: (record["op"], record["collective_seq_id"]) for record in records}


def test_objects_that_know_each_other_end(pool: Pool):
    run_cell(
        pool,
        """
class Node: pass
nodes = [Node() for _ in range(12)]
for node in nodes: node.name, node.others = rank, list(nodes)
""",
    )
    comparison = pool.diff("nodes[0]")
    assert comparison.is_cut
    assert not comparison.is_equal
    (by_rank,) = pool.vars("nodes").values()
    assert [told and told["digest"] for told in by_rank.values()] == ["", ""]


def test_gradients_are_compared_beside_the_weights(pool: Pool):
    run_cell(pool, f"{MODEL}\nmodel(torch.ones(4, 40) * (rank + 1)).sum().backward()")
    run_cell(pool, "for b in model.buffers(): b.zero_()")
    for expression in ("model", "[p for p in model.parameters()]", "{'model': model}"):
        comparison = pool.diff(expression)
        assert comparison.is_equal, expression
        assert comparison.gradients is not None
        assert not comparison.gradients.is_equal, expression
    gradients = pool.diff("model").to_dict()["gradients"]
    assert all(each["path"].endswith(".grad") for each in gradients["differences"])
    assert "weights equal on ranks 0-1; gradients differ: ranks 0 | 1" in text(pool, "model")
    run_cell(pool, "model.zero_grad()\nif rank: model[2].bias.grad = torch.ones(10)")
    comparison = pool.diff("model")
    assert comparison.gradients is not None
    (difference,) = comparison.gradients.differences
    assert difference.path == ".2.bias.grad"
    assert [has for _, has in difference.groups] == ["None", "float32 (10,)"]


def test_the_mode_of_a_module_is_compared(pool: Pool):
    run_cell(pool, f"{MODEL}\nif rank: model[1].eval()")
    assert text(pool, "model").startswith(
        "model: weights equal; train or eval mode differs: ranks 0 | 1\n"
    )
    assert [each.path for each in pool.diff("model").differences] == [".1"]


def test_a_list_is_no_tuple(pool: Pool):
    run_cell(pool, "v = [1, [2]] if rank else (1, [2])\nlong = 'x' * 100_000 + str(rank)")
    assert text(pool, "v").startswith("v: values equal; type differs: tuple / list\n")
    by_rank = pool.vars("v")["v"]
    assert len({told["digest"] for told in by_rank.values() if told}) == 2


def test_the_first_difference_of_two_long_texts_is_shown(pool: Pool):
    run_cell(pool, "long = 'x' * 600_000 + str(rank)\nnumbers = [*range(200), rank]")
    found = text(pool, "long").splitlines()
    assert found[3].split() == [
        "1",
        "str",
        "of",
        "600,001",
        "characters",
        "[600000]",
        "…'xxxxxxxxxxxx1'",
    ]
    assert ", 198, 199, 1]" in text(pool, "numbers")


def test_quantized_tensors_are_compared_as_the_numbers_they_stand_for(pool: Pool):
    run_cell(
        pool,
        """
numbers = torch.arange(6.0).view(2, 3) / 4
q = torch.quantize_per_tensor(numbers + rank, 0.25, 3, torch.qint8)
scales = torch.tensor([0.1, 0.2])
channels = torch.quantize_per_channel(numbers, scales + rank, torch.zeros(2), 0, torch.qint8)
small = torch.quantize_per_tensor(numbers, 0.25, 3, torch.quint4x2)
""",
    )
    assert only(pool.diff("q")) == ("", (0, 0), 1.0)
    assert not pool.diff("channels").is_equal
    assert pool.diff("small").is_equal
    assert list(pool.vars("q", "channels", "small")) == ["q", "channels", "small"]


def test_a_busy_pool_refuses(pool: Pool):
    cell = begin_cell(pool, "import time\nwhile True: time.sleep(0.01)")
    try:
        with pytest.raises(PoolBusyError, match="Next: wait for it, or %ddp interrupt"):
            pool.diff("rank")
        with pytest.raises(PoolBusyError):
            pool.vars()
    finally:
        pool.interrupt()
        cell.join()


def test_nothing_is_unpickled_to_compare(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise AssertionError("a value was unpickled")

    run_cell(pool, "tensor, text = torch.arange(4.0) + rank, 'x' * 99 + str(rank)")
    monkeypatch.setattr(pickling, "decode_value", refuse)
    assert only(pool.diff("tensor")) == ("", (0,), 1.0)
    assert pool.diff("text").differences[0].details[0].index == (99,)
    assert list(pool.vars("tensor", "text")) == ["tensor", "text"]


def test_an_exit_inside_an_expression_is_told(pool: Pool):
    with pytest.raises(TransferError) as caught:
        pool.diff("exit(3)")
    assert str(caught.value).startswith("could not compare 'exit(3)' (ranks 0-1: SystemExit")
    assert pool.diff("world_size").is_equal


def test_odd_types_of_the_user_are_an_error_and_no_rank_waits(pool: Pool):
    run_cell(
        pool,
        f"""{MODEL}
class Odd(torch.Tensor):
    nbytes = property(lambda self: "many")
odd = torch.ones(3).as_subclass(Odd)
model.training = 1 + rank
""",
    )
    with pytest.raises(TransferError, match=r"could not compare 'odd' .*not a valid message"):
        pool.diff("odd")
    assert pool.diff("model").is_equal  # both train


def test_one_rank_alone(pool: Pool):
    assert "nothing to compare with" in page.verdict(pool.diff("rank", ranks=[1]))


@pytest.mark.parametrize(
    "made",
    [
        "import random; v = random.Random({seed})",
        "import numpy; v = numpy.random.default_rng({seed})",
        "import numpy; v = numpy.random.RandomState({seed})",
        "class Slotted: __slots__ = ('x',)\nv = Slotted(); v.x = torch.ones(3) * {seed}",
        "v = (lambda n: lambda: n)({seed})",
        "exec(f'def v(): return {{{seed}}}')",
        "v = memoryview(bytes([{seed}]))",
    ],
    ids=["random", "generator", "random state", "slots", "closure", "constant", "memoryview"],
)
def test_values_other_than_tensors_are_compared(pool: Pool, made: str):
    run_cell(pool, made.format(seed="rank"))
    assert not pool.diff("v").is_equal
    run_cell(pool, made.format(seed="3"))
    assert pool.diff("v").is_equal
