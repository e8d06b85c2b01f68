"""Programs that train with DDP and its hooks. See `tests.cases.fidelity`."""

from tests.cases.fidelity import Program

TRAINING = [
    Program(
        "DDP's logging data",
        """
model = DDP(net())
train(model)
found = model._get_ddp_logging_data()
result = {name: found[name] for name in sorted(found)
          if "time" not in name and name != "master_port"}
""",
    ),
    Program(
        "ddp",
        """
result = [train(DDP(net(), **options)) for options in (
    {}, {"static_graph": True}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 0.0001},
    {"broadcast_buffers": False}, {"find_unused_parameters": True},
    {"process_group": dist.new_group()}, {"init_sync": False},
)]
""",
    ),
    Program(
        "ddp constructed from other weights",
        """
torch.manual_seed(rank)
model = DDP(nn.Linear(3, 2))
result = [weights(model), train(model, data=batches(2, features=3))]
torch.manual_seed(rank)
other = DDP(nn.BatchNorm1d(8), process_group=dist.new_group())
other(batches(1)[0]).sum().backward()
result.append([plainly(buffer) for buffer in other.buffers()])
""",
    ),
    Program(
        "ddp no_sync",
        """
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
result = []
for step, batch in enumerate(batches(6)):
    if step % 3 < 2:
        with model.no_sync():
            model(batch).sum().backward()
        result.append(plainly([p.grad for p in model.parameters()]))
    else:
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
result.append(weights(model))
""",
    ),
    Program(
        "ddp join with uneven inputs",
        """
from torch.distributed.algorithms.join import Join
result = []
for options in ({}, {"divide_by_initial_world_size": False}):
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with model.join(**options):
        for batch in batches(2 + 2 * rank):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
    result.append(weights(model))
model = DDP(net())
def stopped():
    with model.join(throw_on_early_termination=True):
        for batch in batches(2 + 2 * rank):
            model(batch).sum().backward()
result.append(attempt(stopped))
with Join([DDP(net())]):
    pass
""",
    ),
    Program(
        "ddp with unused parameters",
        """
class Partial(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = net(), net()
    def forward(self, x, use):
        return self.left(x) if use else self.right(x)
model = DDP(Partial(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step, batch in enumerate(batches(4)):
    optimizer.zero_grad()
    model(batch, (step + rank) % 2 == 0).sum().backward()
    optimizer.step()
result = [weights(model)]
model = DDP(Partial())
def without():
    for batch in batches(2):
        model(batch, True).sum().backward()
error = attempt(without)
result.append(error[:80])
""",
    ),
    Program(
        "ddp communication hooks",
        """
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks
calls = []
def counting(state, bucket):
    calls.append((bucket.index(), bucket.is_last(), bucket.buffer().numel()))
    future = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return future.then(lambda done: done.value()[0] / 2)
def hooked(hook, state=None, **options):
    model = DDP(net(), **options)
    model.register_comm_hook(state, hook)
    return train(model, data=batches(5))
result = [
    hooked(default_hooks.allreduce_hook), hooked(default_hooks.fp16_compress_hook),
    attempt(hooked, default_hooks.bf16_compress_hook), hooked(counting), calls,
    hooked(default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)),
    hooked(counting, bucket_cap_mb=0.0001), len(calls),
]
state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
result.append(hooked(powerSGD_hook.powerSGD_hook, state))
model = DDP(net())
model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
result.append(train(model))
""",
    ),
    Program(
        "ddp with several buckets, a loop, and a second model",
        """
first, second = DDP(net(), bucket_cap_mb=0.0001), DDP(net(), bucket_cap_mb=0.0002)
optimizer = torch.optim.AdamW([*first.parameters(), *second.parameters()], 0.01)
losses = []
for batch in batches(5):
    optimizer.zero_grad()
    loss = (second(first(batch)) - batch).abs().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
with torch.no_grad():
    result = [losses, weights(first), weights(second), plainly(first(batch))]
result += [sorted(first.state_dict()), first.device_ids]
""",
    ),
    Program(
        "gradient clipping, accumulation, schedulers",
        """
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
result = []
for batch in batches(4):
    optimizer.zero_grad()
    model(batch).square().sum().backward()
    result.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
    optimizer.step()
    scheduler.step()
result.append(weights(model))
""",
    ),
    Program(
        "sync batch norm",
        """
model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
result = [attempt(lambda: plainly(model(batches(1)[0]))), str(model[1])]
model.eval()
result.append(plainly(model(batches(1)[0])))
""",
    ),
    Program(
        "sampler and loader",
        """
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
dataset = TensorDataset(torch.arange(11.0))
result = []
for workers in (0, 2):
    for shuffle in (False, True):
        sampler = DistributedSampler(dataset, shuffle=shuffle, seed=3)
        sampler.set_epoch(1)
        loader = DataLoader(dataset, 2, sampler=sampler, num_workers=workers,
                            generator=torch.Generator().manual_seed(1))
        found = []
        for (batch,) in loader:
            total = batch.sum()
            dist.all_reduce(total)
            found.append((batch.tolist(), total.item()))
        result.append(found)
""",
    ),
    Program(
        "zero redundancy optimizer",
        """
from torch.distributed.optim import ZeroRedundancyOptimizer
result = []
for options in ({}, {"parameters_as_bucket_view": True}):
    model = DDP(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01, **options)
    result.append(train(model, optimizer))
    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        result.append(len(optimizer.state_dict()["state"]))
""",
    ),
    Program(
        "zero overlapped with ddp",
        """
from torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook import hook_with_zero_step
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
model = DDP(net(), static_graph=True)
def overlapped():
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1,
                                        overlap_with_ddp=True)
    model.register_comm_hook(None, hook_with_zero_step(allreduce_hook, model, optimizer))
    return train(model, optimizer, batches(5))
result = attempt(overlapped)
""",
    ),
    Program(
        "post-local SGD and averaging",
        """
import torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook as local
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
own, _ = dist.new_subgroups(1)
model = DDP(net())
model.register_comm_hook(local.PostLocalSGDState(None, own, 2), local.post_localSGD_hook)
averager = PeriodicModelAverager(period=2, warmup_steps=2)
optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), 0.1), averager)
result = train(model, optimizer, batches(6))
""",
    ),
    Program(
        "optimizer in backward, checkpointing",
        """
from torch.utils.checkpoint import checkpoint
class Saving(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = net(), net()
    def forward(self, x):
        return self.outer(checkpoint(self.inner, x, use_reentrant=False))
result = [train(DDP(Saving())), train(DDP(Saving(), static_graph=True))]
""",
    ),
    Program(
        "accelerate",
        """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
dataset = torch.utils.data.TensorDataset(torch.cat(batches(6)))
loader = torch.utils.data.DataLoader(dataset, 4)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for (batch,) in loader:
    with accelerator.accumulate(model):
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    losses.append(accelerator.gather_for_metrics(loss.detach()).mean().item())
result = [losses, weights(model), str(accelerator.distributed_type), accelerator.num_processes,
          type(model).__name__, plainly(accelerator.reduce(torch.ones(2) * rank)),
          accelerator.is_main_process, plainly(accelerator.gather(range_of(2)))]
accelerator.wait_for_everyone()
accelerator.free_memory()
""",
    ),
]
