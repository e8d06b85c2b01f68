"""Cells with DDP models whose replicas differ, beside one that sends its gradients and is equal."""

from tests.cases.sanitized import replaced
from tests.cases.sanitized_ends import EndCell

_START = """\
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
def loss(f):
    return f(torch.randn(4, 2)).square().mean()
model, own = DDP(nn.Linear(2, 1)), DDP(nn.Linear(2, 1))
for each in own.parameters():
    each.data.add_(rank)
"""
_SENT = "loss(model).backward()\n"

#: They stay silent: no backward pass of `own` sends its gradients.
CORRECT_OTHER_MODELS = {
    name: _START + code
    for name, code in {
        "a model of equal shapes that each rank has for itself": _SENT,
        "a model of each rank that is only evaluated": f"""\
with torch.no_grad():
    own(torch.ones(1, 2))
loss(own)
{_SENT}""",
        "a model of each rank beside an update by hand": """\
for step in range(2):
    model.zero_grad()
    loss(model).backward()
    for each in model.parameters():
        each.data.sub_(0.1 * each.grad)
""",
        "a model of each rank beside one of another shape": """\
model = DDP(nn.Linear(5, 3))
model(torch.randn(4, 5)).square().mean().backward()
""",
        "a model that each rank trains without sending gradients": f"""\
for step in range(2):
    with own.no_sync():
        own.zero_grad()
        loss(own).backward()
    for each in own.parameters():
        each.data.sub_(0.1 * each.grad)
{_SENT}""",
        "two models of each rank": f"""\
more = DDP(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))
for each in more.parameters():
    each.data.add_(rank)
{_SENT}""",
        "a model of each rank without a name, in a cycle that is not collected yet": f"""\
cycle = [own]
cycle.append(cycle)
del cycle
own = model
{_SENT}""",
        "a model of each rank beside a static graph": """\
model = DDP(nn.Linear(2, 1), static_graph=True)
for step in range(3):
    loss(model).backward()
""",
        "a model of each rank beside buckets with a hook, and unused parameters": """\
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
layers = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
model = DDP(layers, find_unused_parameters=True, bucket_cap_mb=1e-6)
model.register_comm_hook(None, fp16_compress_hook)
loss(model).backward()
""",
    }.items()
}

_WRONG = f"{_START}{_SENT}loss(own).backward()\n"
_FIX = ("    each.data.add_(rank)\n", "    each.data.add_(1)\n")

OTHER_MODELS = [
    EndCell(
        "backward pass at weights of each rank, behind that of another model",
        _WRONG,
        replaced(_WRONG, _FIX),
        "parted-replicas",
        ("had different values in 'weight' and 1 more of Linear before line 9 gave all ranks",),
        (9,),
        next_words=("before line 9",),
    ),
    EndCell(
        "backward pass at weights of each rank, of a module that is wrapped again",
        f"{_START}own = DDP(own.module, init_sync=False)\nloss(own).backward()\n",
        f"{replaced(_START, _FIX)}own = DDP(own.module, init_sync=False)\nloss(own).backward()\n",
        "parted-replicas",
        ("had different values in 'weight' and 1 more of Linear before line 9 gave all ranks",),
        (9,),
        next_words=("before line 9",),
    ),
]
