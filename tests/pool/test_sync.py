"""``nbddp.sync`` gives all ranks the state of one of them."""

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import CellError
from tests.support.views import run_cell

PRELUDE = """
import nbddp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

def same(value):
    found = [None] * world_size
    dist.all_gather_object(found, value)
    return all(str(each) == str(found[0]) for each in found)

def values(module):
    return {name: tensor.tolist() for name, tensor in module.state_dict().items()}
"""


@pytest.fixture(autouse=True)
def prelude(pool: Pool) -> None:
    run_cell(pool, PRELUDE)


TENSORS = {
    "float": "torch.full((2, 3), float(rank))",
    "no dimension": "torch.tensor(float(rank))",
    "empty": "torch.ones(0, 3)",
    "bool": "torch.tensor([rank == 0, rank == 1])",
    "int64": "torch.arange(3) + rank",
    "int16": "torch.arange(3, dtype=torch.int16) + rank",
    "bfloat16": "torch.full((3,), float(rank), dtype=torch.bfloat16)",
    "complex": "torch.full((3,), complex(rank, 1))",
    "transposed": "(torch.arange(6.0).reshape(2, 3) + 10 * rank).t()",
    "every other": "(torch.arange(24.0).reshape(4, 6) + 100 * rank)[:, ::2]",
    "parameter": "nn.Parameter(torch.full((3,), float(rank)))",
    "needs gradients": "torch.full((3,), float(rank), requires_grad=True)",
}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor(pool: Pool, name: str):
    code = f"""
t = {TENSORS[name]}
before, pointer = t.detach().clone(), t.data_ptr()
wanted = [before.tolist()]
dist.broadcast_object_list(wanted, src=1)
nbddp.sync(t, src=1)
t.tolist() == wanted[0], t.data_ptr() == pointer, t.requires_grad == ({TENSORS[name]}).requires_grad
"""
    view = run_cell(pool, code)
    assert view.result(0) == view.result(1) == "(True, True, True)"


MODULES = {
    "network": "nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))",
    "ddp": "DDP(nn.Linear(3, 1), init_sync=False)",
    "shared weights": "tied()",
    "half": "nn.Linear(3, 1).half()",
    "transposed parameter": "transposed()",
    "nothing in it": "nn.ReLU()",
}
SHAPES = """
def tied():
    one = nn.Linear(3, 3)
    two = nn.Linear(3, 3)
    two.weight = one.weight
    return nn.Sequential(one, two)
def transposed():
    module = nn.Linear(3, 4)
    module.weight = nn.Parameter(torch.randn(3, 4).t())
    return module
torch.manual_seed(rank)
"""


@pytest.mark.parametrize("name", MODULES)
def test_a_module(pool: Pool, name: str):
    code = f"""{SHAPES}
model = {MODULES[name]}
parameters = list(model.parameters())
wanted = [values(model)]
dist.broadcast_object_list(wanted, src=0)
nbddp.sync(model)
values(model) == wanted[0], [p is q for p, q in zip(parameters, model.parameters())].count(False)
"""
    view = run_cell(pool, code)
    assert view.result(0) == view.result(1) == "(True, 0)"


OPTIMIZERS = ("SGD(model.parameters(), 0.1, momentum=0.9)", "Adam(model.parameters(), 0.1)",
              "AdamW([{'params': model[0].parameters(), 'lr': 0.5}, "
              "{'params': model[1].parameters()}], 0.1)")  # fmt: skip


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("source", [0, 1])
def test_training_continues_in_step(pool: Pool, optimizer: str, source: int):
    """One rank has made steps, the other is new: afterwards both make the same ones."""
    code = f"""
torch.manual_seed(rank)
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
optimizer = torch.optim.{optimizer}
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
def step():
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().sum().backward()
    optimizer.step()
    scheduler.step()
if rank == {source}:
    for _ in range(3): step()
nbddp.sync(model, optimizer, scheduler, src={source})
for _ in range(3): step()
same(values(model)), same(scheduler.get_last_lr()), same(optimizer.state_dict()["param_groups"])
"""
    view = run_cell(pool, code)
    assert view.result(0) == view.result(1) == "(True, True, True)"


def test_many_things_and_a_group(pool: Pool):
    code = """
class Counter:
    def __init__(self): self.found = {"list": [torch.ones(2) * rank, (rank, "text")], "none": None}
    def state_dict(self): return self.found
    def load_state_dict(self, state): self.found = state
group = dist.new_group([1, 0])
counter, t = Counter(), torch.tensor(rank)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0 + rank)
nbddp.sync(counter, t, scaler, src=1, group=group)
found = counter.found["list"][0].tolist(), counter.found["list"][1], t.item(), scaler.get_scale()
dist.destroy_process_group(group)
found
"""
    view = run_cell(pool, code)
    assert view.result(0) == view.result(1) == "([1.0, 1.0], (1, 'text'), 1, 3.0)"


WRONG = {
    "nbddp.sync()": "at least one object",
    "nbddp.sync(5)": "argument 1, a int, has no state",
    "import os; nbddp.sync(os)": "argument 1, a module of Python, has no state",
    "nbddp.sync(torch.ones(1), {})": "argument 2, a dict, has no state",
    "nbddp.sync(torch.ones(1), src=7)": r"src=7 is no member; legal: \[0, 1\]",
    "nbddp.sync(sharded())": "sharded",
    "nbddp.sync(torch.optim.SGD(sharded().parameters(), 0.1))": "sharded",
    "nbddp.sync(older())": "sharded",
    "nbddp.sync(nn.Sequential(older()))": "sharded",
    "nbddp.sync(zero())": "sharded",
}
_SHARDED = """
def sharded():
    from torch.distributed.fsdp import fully_shard
    return fully_shard(nn.Linear(4, 4))
def older():
    from torch.distributed.fsdp import FullyShardedDataParallel
    return FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
def zero():
    from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer(nn.Linear(4, 4).parameters(), torch.optim.SGD, lr=0.1)
"""


@pytest.mark.parametrize("code", WRONG)
def test_a_value_that_sync_cannot_send_is_refused_on_all_ranks(pool: Pool, code: str):
    with pytest.raises(CellError, match=WRONG[code]) as caught:
        run_cell(pool, _SHARDED + code)
    assert {name for name, _ in caught.value.by_rank.values()} == {"BadOptionError"}
    assert set(caught.value.by_rank) == {0, 1}


def test_sync_in_the_notebook_says_that_it_belongs_in_a_cell():
    import nbddp
    from nbddp.errors import NbddpError

    with pytest.raises(NbddpError, match="%%ddp cell"):
        nbddp.sync(5)
