"""Kinds of training that must continue after a deadlock with the same results: one table.

A kind is code that defines ``make()``, which gives a state, and ``step(state, number)``, which
gives a loss. `PRELUDE` is run once in each pool before; `fit` there trains for some steps.
"""

from dataclasses import dataclass

import pytest

PRELUDE = '''\
import warnings
import torch.nn as nn
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel as DDP
warnings.simplefilter("ignore")

class Left(Exception):
    """The last rank leaves in the middle."""

class Gate(torch.autograd.Function):
    leaves = ""

    @staticmethod
    def forward(ctx, x):
        if Gate.leaves == "forward": raise Left("forward")
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if Gate.leaves == "backward": raise Left("backward")
        return gradient

class Gated(nn.Module):
    def forward(self, x):
        return Gate.apply(x)

def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), Gated(), nn.Linear(16, 8), nn.Linear(8, 8))

def batch(number, source=None):
    """Others on each rank, unless a source is given."""
    seed = 1000 * number + (rank if source is None else source)
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))

def update(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())

def fit(state, first, last, way=""):
    """Train; in the last step the last rank leaves, if a way is given."""
    losses = []
    for number in range(first, last):
        if way and number == last - 1 and rank == world_size - 1:
            if way == "missing":
                return losses
            Gate.leaves = way
        try:
            losses.append(step(state, number))
        finally:
            Gate.leaves = ""
    return losses
'''

#: Defaults that a kind may replace.
DEFAULTS = '''\
def weights(state):
    """Sums of what each rank has, in full."""
    found = []
    for module in state:
        for parameter in module.parameters() if isinstance(module, nn.Module) else ():
            whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
            found.append(whole.detach().double().sum().item())
    return found

def step(state, number):
    model, optimizer = state[:2]
    return update(model, optimizer, batch(number))
'''

#: All process groups but the default one; the next kind makes its own.
CLEAN_UP = """\
for _group in list(dist.distributed_c10d._world.pg_map):
    if _group is not dist.group.WORLD:
        dist.destroy_process_group(_group)
state = reference = None
"""


@dataclass(frozen=True)
class Kind:
    """A way to train."""

    name: str
    code: str
    ranks: int = 2
    #: How the last rank leaves. The others must then be stuck, not at the end of the step.
    ways: tuple[str, ...] = ("missing", "forward", "backward")
    #: Its operations are those of another kind: left to `make test-full`.
    is_variant: bool = False


def _ddp(options: str = "", after: str = "") -> str:
    return f"""
def make():
    model = DDP(net(), bucket_cap_mb=0.0005{options})
    {after or "pass"}
    return model, torch.optim.AdamW(model.parameters(), 0.01)
"""


_FSDP2 = """
def make():
    mesh = init_device_mesh("cpu", {shape}, mesh_dim_names=("r", "s")[-len({shape}):])
    model = net()
    for layer in (model[0], model[3], model[4]):
        fully_shard(layer, mesh=mesh{options})
    fully_shard(model, mesh=mesh{options})
    return model, torch.optim.AdamW(model.parameters(), 0.01)
"""

KINDS = [
    Kind("ddp", _ddp()),
    Kind("ddp, static graph", _ddp(", static_graph=True")),
    Kind("ddp, bucket views", _ddp(", gradient_as_bucket_view=True")),
    Kind("ddp, unused parameters", _ddp(", find_unused_parameters=True")),
    Kind("ddp in a sub-group", _ddp(", process_group=dist.new_group()"), is_variant=True),
    Kind(
        "ddp, python hook",
        _ddp(
            after="""def hook(state, bucket):
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0] / world_size)
    model.register_comm_hook(None, hook)"""
        ),
    ),
    Kind(
        "ddp, accumulation",
        _ddp()
        + """
def step(state, number):
    model, optimizer = state
    optimizer.zero_grad()
    with model.no_sync():
        model(batch(number + 100)).square().mean().backward()
    loss = model(batch(number)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()
""",
    ),
    Kind(
        "zero redundancy optimizer",
        """
from torch.distributed.optim import ZeroRedundancyOptimizer
def make():
    model = DDP(net())
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
""",
        is_variant=True,
    ),
    Kind("fsdp2", _FSDP2.format(shape="(2,)", options="")),
    Kind(
        "fsdp2, not resharded", _FSDP2.format(shape="(2,)", options=", reshard_after_forward=False")
    ),
    Kind("fsdp2 on two dimensions", _FSDP2.format(shape="(2, 2)", options=""), ranks=4),
    Kind(
        "fsdp1",
        """
from torch.distributed.fsdp import FullyShardedDataParallel
def make():
    model = FullyShardedDataParallel(net(), use_orig_params=True, device_id=torch.device("cpu"))
    return model, torch.optim.SGD(model.parameters(), 0.1)
def weights(state):
    with FullyShardedDataParallel.summon_full_params(state[0]):
        return [p.detach().sum().item() for p in state[0].parameters()]
""",
        is_variant=True,
    ),
    Kind(
        "tensor parallel",
        """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
def make():
    mesh = init_device_mesh("cpu", (2,))
    model = parallelize_module(net(), mesh, {"0": ColwiseParallel(), "3": RowwiseParallel()})
    return model, torch.optim.AdamW(model.parameters(), 0.01)
def step(state, number):
    return update(*state, batch(number, 0))
""",
        ways=("missing", "forward"),
    ),
    Kind(
        "tensor parallel inside of fsdp2",
        """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
def make():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    plan = {"0": ColwiseParallel(), "3": RowwiseParallel()}
    model = parallelize_module(net(), mesh["tp"], plan)
    fully_shard(model, mesh=mesh["dp"])
    return model, torch.optim.AdamW(model.parameters(), 0.01), mesh["dp"].get_local_rank()
def step(state, number):
    return update(*state[:2], batch(number, state[2]))
""",
        ranks=4,
        ways=("missing", "forward"),
    ),
    Kind(
        "distributed tensors",
        """
def make():
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    return [distribute_tensor(torch.randn(8, 8), mesh, [Shard(0)]).requires_grad_()]
def step(state, number):
    x = distribute_tensor(batch(number, 0), state[0].device_mesh, [Replicate()])
    loss = (x @ Gate.apply(state[0])).redistribute(placements=[Replicate()]).square().mean()
    loss.backward()
    with torch.no_grad():
        state[0] = (state[0] - 0.1 * state[0].grad).detach().requires_grad_()
    return loss.full_tensor().item()
def weights(state):
    return [state[0].full_tensor().sum().item()]
""",
        ways=("missing", "forward"),
        is_variant=True,
    ),
    Kind(
        "groups by hand",
        """
def make():
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    pair = dist.new_group([0, 3])
    return [net(), mesh, mesh.get_group("a"), mesh.get_group("b"), pair]
def step(state, number):
    model, mesh, *groups = state
    model.zero_grad()
    loss = model(batch(number)).square().mean()
    loss.backward()
    for parameter in model.parameters():
        for group in groups:
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.all_reduce(parameter.grad, group=group)
        parameter.data -= 0.01 * parameter.grad
    if rank in (0, 3):
        t = torch.tensor([loss.item()])
        other = torch.zeros(1)
        works = dist.batch_isend_irecv([dist.P2POp(dist.isend, t, 3 - rank),
                                        dist.P2POp(dist.irecv, other, 3 - rank)])
        for work in works: work.wait()
        return other.item()
    return loss.item()
""",
        ranks=4,
    ),
    Kind(
        "functional collectives",
        """
def make():
    return [net()]
def step(state, number):
    (model,) = state
    model.zero_grad()
    x = functional.all_gather_tensor_autograd(model(batch(number)), 0, dist.group.WORLD)
    loss = functional.all_reduce(x.square().mean(), "sum", dist.group.WORLD)
    x.square().mean().backward()
    for parameter in model.parameters():
        gradient = functional.all_reduce(parameter.grad, "avg", dist.group.WORLD)
        parameter.data -= 0.1 * gradient
    return loss.item()
""",
    ),
    Kind(
        "compiled",
        """
name = dist.group.WORLD.group_name
def objective(x):
    return functional.all_reduce(x.square().mean(), "sum", name)
def make():
    model = net()
    compiled = torch.compile(objective, backend="eager", fullgraph=True)
    return model, torch.optim.SGD(model.parameters(), 0.1), compiled
def step(state, number):
    model, optimizer, compiled = state
    optimizer.zero_grad()
    output = model(batch(number))
    with torch.no_grad():
        loss = compiled(output)
    output.square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    return loss.item()
""",
        is_variant=True,
    ),
    Kind(
        "pipeline",
        """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
def make():
    part = net()[:2] if rank == 0 else net()[2:]
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 2, loss_fn=lambda out, target: (out - target).square().mean())
    return part, torch.optim.SGD(part.parameters(), 0.1), schedule
def step(state, number):
    part, optimizer, schedule = state
    optimizer.zero_grad()
    losses = []
    if rank == 0:
        schedule.step(batch(number, 0))
    else:
        schedule.step(target=batch(number, 1), losses=losses)
    optimizer.step()
    return sum(loss.item() for loss in losses)
""",
        is_variant=True,
    ),
]


def parametrize(kinds: list[Kind]) -> pytest.MarkDecorator:
    """A test for each kind, those with equally many ranks together.

    A variant, whose name has a comma, is left to `make test-slow`. One of four ranks, which has
    parts of others, and one whose operations are those of another kind are left to
    `make test-full`.
    """
    ordered = sorted(kinds, key=lambda kind: kind.ranks)
    cases = [pytest.param(kind, id=kind.name, marks=_marks(kind)) for kind in ordered]
    return pytest.mark.parametrize("kind", cases)


def _marks(kind: Kind) -> list[pytest.MarkDecorator]:
    if "," in kind.name:
        return [pytest.mark.slow]
    return [pytest.mark.full] if kind.ranks > 2 or kind.is_variant else []
