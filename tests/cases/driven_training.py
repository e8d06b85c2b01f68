"""Programs that train, driven by commands of ``%%ddp --step``. See `tests.cases.driven`."""

from tests.cases.driven import Driven

FUNCTIONS = [
    Driven(
        "functional collectives",
        "step -r 0 | print x | step | step -r 1 | continue",
        """
import torch.distributed._functional_collectives as funcol
x = range_of(4)
total = funcol.all_reduce(x, "sum", dist.group.WORLD)
whole = funcol.all_gather_tensor(x, 0, dist.group.WORLD)
share = funcol.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD)
result = [funcol.wait_tensor(each) for each in (total, whole, share)]
""",
    ),
    Driven(
        "a collective with a gradient",
        "step -r 1 | step | where | step -r 0 | step",
        """
from torch.distributed.nn.functional import all_reduce
x = range_of(3).requires_grad_()
loss = (all_reduce(x * (rank + 1)) ** 2).sum()
loss.backward()
result = [loss, x.grad]
""",
    ),
]

TRAINING = [
    Driven(
        "ddp",
        "step 2 | step -r 0 | step | print loss | step -r 1 | where | continue",
        """
model = DDP(net())
optimizer = torch.optim.Adam(model.parameters(), 0.01)
losses = []
for batch in batches(2):
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
result = [losses, weights(model)]
""",
    ),
    Driven(
        "ddp in no_sync",
        "step 3 | step -r 1 | step | step -r 0 | step | continue",
        """
model = DDP(net())
for turn, batch in enumerate(batches(4)):
    if turn % 2:
        model(batch).square().mean().backward()
    else:
        with model.no_sync():
            model(batch).square().mean().backward()
result = [plainly(parameter.grad) for parameter in model.parameters()]
""",
    ),
    Driven(
        "ddp with two buckets and a hook",
        "step 3 | step -r 0 | step -r 0 | step -r 1 | step | continue",
        """
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
model = DDP(net(), bucket_cap_mb=0.0003)
model.register_comm_hook(None, fp16_compress_hook)
result = train(model, data=batches(2))
""",
    ),
    Driven(
        "gradient hooks by hand",
        "step -r 1 | step -r 1 | print len(works) | step -r 0 | step 2 | continue",
        """
model, works = net(), []
def average(parameter):
    parameter.grad /= world_size
    works.append(dist.all_reduce(parameter.grad, async_op=True))
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(average)
model(batches(1)[0]).square().mean().backward()
for work in works:
    work.wait()
result = [plainly(parameter.grad) for parameter in model.parameters()]
""",
    ),
    Driven(
        "models averaged every other step",
        "print step | step -r 0 | step | show parameter | ranks | step 2 | continue",
        """
model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step, batch in enumerate(batches(4)):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    if step % 2:
        for parameter in model.parameters():
            dist.all_reduce(parameter.data, dist.ReduceOp.SUM)
            parameter.data /= world_size
result = weights(model)
""",
    ),
    Driven(
        "ddp with buffers",
        "step -r 0 | step | step -r 1 | where | step 2 | continue",
        """
model = DDP(nn.Sequential(net(), nn.BatchNorm1d(8)))
result = [train(model, data=batches(2)), [plainly(buffer) for buffer in model.buffers()]]
""",
    ),
]

SHARDED = [
    Driven(
        "fsdp2",
        "step -r 0 | step | print turn | step -r 1 | hold -r 0 | step -r 1 | release | continue",
        """
from torch.distributed.fsdp import fully_shard
model = net()
fully_shard(model[0])
fully_shard(model)
losses = []
for turn, batch in enumerate(batches(2)):
    loss = model(batch).square().mean()
    loss.backward()
    losses.append(loss.item())
result = [losses, [plainly(parameter.grad) for parameter in model.parameters()]]
""",
    ),
    Driven(
        "tensor parallel",
        "step -r 1 | step | step -r 0 | continue",
        """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, parallelize_module,
)
plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
model = parallelize_module(net(), init_device_mesh("cpu", (2,)), plan)
torch.manual_seed(3)
loss = model(torch.randn(4, 8)).square().mean()
loss.backward()
result = [plainly(loss), [plainly(parameter.grad) for parameter in model.parameters()]]
""",
    ),
    Driven(
        "a pipeline",
        "step -r 0 | step -r 0 | step | waits | step -r 1 | step 2 | continue",
        """
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
model = net()
stage = PipelineStage(model[:1] if rank == 0 else model[1:], rank, 2, torch.device("cpu"))
schedule = ScheduleGPipe(stage, 2, loss_fn=lambda output, target: (output - target).square().mean())
x = torch.randn(4, 8, generator=torch.Generator().manual_seed(5))
losses = []
out = schedule.step(x, target=x, losses=losses) if rank == 0 else (
    schedule.step(target=x, losses=losses))
result = [out, losses, [plainly(parameter.grad) for parameter in stage.submod.parameters()]]
""",
    ),
]
