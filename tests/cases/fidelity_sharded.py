"""Programs that shard a model: FSDP, DTensor, pipelines. See `tests.cases.fidelity`."""

from tests.cases.fidelity import Program

_IMPORTS = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import (
    DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor,
)
def sharded(mesh, **options):
    model = net()
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)
"""

SHARDED = [
    Program(
        "fsdp2",
        _IMPORTS
        + """
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy
mesh = init_device_mesh("cpu", (2,))
result = [train(sharded(mesh)), train(sharded(mesh, reshard_after_forward=False))]
half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
result.append(train(sharded(mesh, mp_policy=half)))
model = sharded(mesh)
for step, batch in enumerate(batches(4)):
    model.set_requires_gradient_sync(step % 2 == 1)
    model(batch).sum().backward()
result.append([plainly(p.grad) for p in model.parameters()])
model.unshard()
result.append(plainly(next(model.parameters()).detach()))
model.reshard()
with torch.no_grad():
    result.append(plainly(model(batches(1)[0])))
""",
    ),
    Program(
        "fsdp2 on a mesh of two dimensions",
        _IMPORTS
        + """
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
result = [train(sharded(mesh)), train(sharded(mesh["shard"]))]
norm = nn.utils.clip_grad_norm_(sharded(mesh).parameters(), 1.0)
result.append(plainly(norm))
""",
        ranks=4,
    ),
    Program(
        "fsdp1",
        """
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
def old(strategy):
    model = FullyShardedDataParallel(net(), sharding_strategy=strategy, use_orig_params=True,
                                     device_id=torch.device("cpu"))
    return train(model)
result = [attempt(old, strategy) for strategy in (
    ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP, ShardingStrategy.NO_SHARD)]
""",
    ),
    Program(
        "replicate",
        """
from torch.distributed._composable.replicate import replicate
result = train(replicate(net()))
""",
    ),
    Program(
        "distributed tensors",
        _IMPORTS
        + """
mesh = init_device_mesh("cpu", (world_size,))
torch.manual_seed(0)
whole = torch.arange(24.0).reshape(6, 4)
rows, columns = (distribute_tensor(whole, mesh, [Shard(dim)]) for dim in (0, 1))
copies = distribute_tensor(whole, mesh, [Replicate()])
result = [
    plainly(rows), plainly(rows.to_local()), plainly(rows + columns.redistribute(mesh, [Shard(0)])),
    plainly(rows.redistribute(mesh, [Replicate()]).to_local()), plainly(rows.sum()),
    plainly(rows.sum(0)), plainly((rows @ copies.t())), plainly(columns @ rows.t()),
    plainly(rows.redistribute(mesh, [Shard(1)]).to_local()), plainly(rows.mean(1)),
    plainly(DTensor.from_local(range_of(2), mesh, [Partial()]).full_tensor()),
    plainly(DTensor.from_local(range_of(2), mesh, [Partial("max")]).full_tensor()),
    plainly(DTensor.from_local(range_of(4), mesh, [Partial()]).redistribute(mesh, [Shard(0)])),
    plainly(torch.softmax(columns, 1)), plainly(rows.t() @ rows), plainly(rows.norm()),
]
grad = distribute_tensor(whole.clone(), mesh, [Shard(0)]).requires_grad_()
(grad * 2).sum().backward()
result.append(plainly(grad.grad))
module = distribute_module(nn.Linear(4, 2), mesh)
module(copies).sum().backward()
result += [plainly(module.weight.grad), attempt(lambda: rows + torch.ones(6, 4))]
ones = torch.distributed.tensor.ones(4, 4, device_mesh=mesh, placements=[Shard(0)])
result += [plainly(ones), attempt(torch.distributed.tensor.rand, 4, 4, device_mesh=mesh)]
""",
        ranks=3,
    ),
    Program(
        "tensors on a mesh of two dimensions",
        _IMPORTS
        + """
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
whole = torch.arange(16.0).reshape(4, 4)
found = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
result = [plainly(found.to_local()), plainly(found @ found), plainly(found.sum()),
          plainly(found.redistribute(mesh, [Replicate(), Shard(0)]).to_local()),
          plainly(found.redistribute(mesh, [Shard(1), Replicate()]).to_local()),
          plainly(distribute_tensor(whole, mesh["b"], [Shard(0)]).full_tensor())]
""",
        ranks=4,
    ),
    Program(
        "tensor parallel",
        _IMPORTS
        + """
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, loss_parallel,
    parallelize_module,
)
mesh = init_device_mesh("cpu", (2,))
same = [torch.randn(4, 8, generator=torch.Generator().manual_seed(i)) for i in range(3)]
model = parallelize_module(net(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
result = [train(model, data=same)]
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.body = nn.LayerNorm(8), net()
    def forward(self, x):
        return self.body(self.norm(x))
torch.manual_seed(0)
model = parallelize_module(Block(), mesh, {
    "norm": SequenceParallel(),
    "body": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    "body.0": ColwiseParallel(), "body.2": RowwiseParallel(output_layouts=Replicate()),
})
result.append(train(model, data=[x.reshape(2, 2, 8) for x in same]))
logits = distribute_tensor(same[0], mesh, [Shard(1)]).requires_grad_()
with loss_parallel():
    loss = nn.functional.cross_entropy(logits, torch.tensor([0, 3, 5, 7]))
    loss.backward()
result += [plainly(loss), plainly(logits.grad)]
""",
    ),
    Program(
        "tensor parallel inside of fsdp2",
        _IMPORTS
        + """
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
model = parallelize_module(net(), mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
fully_shard(model, mesh=mesh["dp"])
generator = torch.Generator().manual_seed(mesh["dp"].get_local_rank())
result = train(model, data=[torch.randn(4, 8, generator=generator) for _ in range(3)])
""",
        ranks=4,
    ),
    Program(
        "pipelines",
        """
from torch.distributed.pipelining import (
    PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B, SplitPoint, pipeline,
)
loss_of = lambda output, target: (output - target).square().mean()
x = torch.randn(8, 8, generator=torch.Generator().manual_seed(5))
result = []
def run(schedule, stages):
    losses = []
    for _ in range(2):
        for stage in stages:
            stage.submod.zero_grad()
        if rank == 0:
            out = schedule.step(x, target=x, losses=losses)
        else:
            out = schedule.step(target=x, losses=losses)
    return [plainly(out), plainly(losses),
            [plainly(p.grad) for stage in stages for p in stage.submod.parameters()]]
for kind in (ScheduleGPipe, Schedule1F1B):
    model = net()
    stage = PipelineStage(model[:1] if rank == 0 else model[1:], rank, 2, torch.device("cpu"))
    result.append(run(kind(stage, 4, loss_fn=loss_of), [stage]))
models = [net() for _ in range(4)]
stages = [PipelineStage(models[index], index, 4, torch.device("cpu")) for index in (rank, rank + 2)]
def interleaved():
    schedule = ScheduleInterleaved1F1B(stages, 4, loss_fn=loss_of)
    losses = []
    if rank == 0:
        schedule.step(x)
    else:
        schedule.step(target=x, losses=losses)
    return [plainly(losses), [plainly(p.grad) for s in stages for p in s.submod.parameters()]]
result.append(attempt(interleaved))
split = pipeline(net(), (x[:2],), split_spec={"2": SplitPoint.BEGINNING})
stage = split.build_stage(rank, torch.device("cpu"))
result.append(run(ScheduleGPipe(stage, 4, loss_fn=loss_of), [stage]))
""",
        is_long=True,
    ),
    Program(
        "distributed checkpoints",
        _IMPORTS
        + """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
folder = shared_path("checkpoint")
mesh = init_device_mesh("cpu", (2,))
model = sharded(mesh)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
before = train(model, optimizer)
states, optimizer_states = get_state_dict(model, optimizer)
dcp.save({"model": states, "optimizer": optimizer_states, "step": 3}, checkpoint_id=folder)
other = sharded(mesh)
other_optimizer = torch.optim.Adam(other.parameters(), 0.01)
states, optimizer_states = get_state_dict(other, other_optimizer)
loaded = {"model": states, "optimizer": optimizer_states, "step": 0}
dcp.load(loaded, checkpoint_id=folder)
set_state_dict(other, other_optimizer, model_state_dict=states,
               optim_state_dict=optimizer_states)
result = [weights(other) == weights(model), loaded["step"], train(other, other_optimizer)]
plain_folder = shared_path("plain")
dcp.save({"t": range_of(2), "ddp": DDP(net()).state_dict()}, checkpoint_id=plain_folder)
found = {"t": torch.zeros(2)}
dcp.load(found, checkpoint_id=plain_folder)
result.append(plainly(found))
async_folder = shared_path("async")
future = dcp.async_save({"t": range_of(2)}, checkpoint_id=async_folder)
future.result()
dist.barrier()
result.append(sorted(os.listdir(async_folder)))
""",
        is_long=True,
    ),
    Program(
        "functional collectives",
        """
import torch.distributed._functional_collectives as functional
group = dist.group.WORLD
x = range_of(4)
reduced = functional.all_reduce(x, "sum", group)
result = [type(reduced).__name__, plainly(reduced + 0), plainly(functional.wait_tensor(reduced))]
result += [plainly(f + 0) for f in (
    functional.all_reduce(x, "avg", group), functional.all_reduce(x, "max", [0, 1]),
    functional.all_gather_tensor(x, 0, group), functional.broadcast(x, 1, group),
    functional.all_gather_tensor(range_of(2, 2), 1, group),
    functional.reduce_scatter_tensor(x, "sum", 0, group),
    functional.all_to_all_single(x, None, None, group),
    functional.all_to_all_single(x, [2, 2], [2, 2], group),
)]
result += [plainly([f + 0 for f in functional.all_reduce_coalesced([x, x + 1], "sum", group)])]
result += [plainly([f + 0 for f in functional.all_gather_into_tensor_coalesced([x, x], group)])]
result.append(attempt(lambda: plainly(
    [f + 0 for f in functional.reduce_scatter_tensor_coalesced([x, x], "sum", [0, 0], group)])))
y = range_of(4).requires_grad_()
functional.all_gather_tensor_autograd(y * 2, 0, group).pow(2).sum().backward()
result.append(plainly(y.grad))
y.grad = None
functional.reduce_scatter_tensor_autograd(y, "sum", 0, group).pow(2).sum().backward()
result.append(plainly(y.grad))
y.grad = None
functional.all_to_all_single_autograd(y, [2, 2], [2, 2], group).pow(2).sum().backward()
result.append(plainly(y.grad))
mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
result.append(plainly(functional.all_reduce(x, "sum", (mesh, 0)) + 0))
pending = functional.all_reduce(x, "sum", group)
view = pending.reshape(2, 2)
result += [plainly(view * 2), plainly(torch.cat([pending, pending])), pending.tolist()]
functional.all_reduce(x, "sum", group)
""",
    ),
    Program(
        "compiled",
        """
import torch.distributed._functional_collectives as functional
name, other = dist.group.WORLD.group_name, dist.new_group()
def named(x):
    y = functional.all_reduce(x * 2, "sum", name)
    return functional.all_gather_tensor(y + 1, 0, name).sum(0) - x
def grouped(x):
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + dist.get_world_size()
def imperative(x):
    y = x * 2
    dist.all_reduce(y)
    dist.all_reduce(y, group=other)
    return y + dist.get_rank(other)
def with_works(x):
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    return y + 1
x = range_of(2, 2)
result = []
for function in (named, grouped, imperative, with_works):
    for backend in ("eager", "aot_eager"):
        for fullgraph in (True, False):
            torch._dynamo.reset()
            compiled = torch.compile(function, backend=backend, fullgraph=fullgraph)
            result.append([attempt(compiled, x), attempt(compiled, x + 1)])
model = DDP(net())
result.append(train(torch.compile(model, backend="eager")))
torch._dynamo.reset()
""",
        timeout_s=60,
        since="2.13",
        is_long=True,
    ),
    Program(
        "remote calls",
        """
import torch.distributed.rpc as rpc
def add(a, b):
    return a + b
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=world_size)
other = f"worker{1 - rank}"
result = [plainly(rpc.rpc_sync(other, torch.add, (torch.ones(2) * rank, 1)))]
result.append(plainly(rpc.rpc_async(other, torch.mul, (torch.ones(2), 3)).wait()))
remote = rpc.remote(other, torch.add, (torch.ones(2), 5))
result.append(plainly(remote.to_here()))
t = torch.tensor([rank + 1.0])
dist.all_reduce(t)
result += [t.item(), rpc.get_worker_info().name, attempt(rpc.rpc_sync, other, torch.add, ())]
del remote
rpc.shutdown()
dist.all_reduce(t)
result.append(t.item())
""",
    ),
    Program(
        "processes of a cell",
        """
import torch.multiprocessing as mp
path = shared_path("children")
def child(index, path, count, results):
    # The destructor of the group that it has from the fork would join threads that it has not.
    group = dist.ProcessGroupGloo(dist.FileStore(path, count), index, count)
    t = torch.tensor([index + 1.0])
    for _ in range(20):
        group.allreduce([t], dist.ReduceOp.MAX).wait()
    results[index] = t.item()
    os._exit(0)
results = torch.zeros(3).share_memory_()
mp.start_processes(child, (f"{path}-{rank}", 3, results), 3, start_method="fork")
t = torch.tensor([rank + 1.0])
dist.all_reduce(t)
result = [plainly(results), t.item()]
""",
    ),
    Program(
        "spawned processes",
        """
import torch.multiprocessing as mp
folder = os.path.dirname(shared_path("x"))
with open(os.path.join(folder, f"own_module_{rank}.py"), "w") as file:
    file.write('''
import torch, torch.distributed as dist
def child(index, path, count, results):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=index, world_size=count)
    t = torch.tensor([index + 1.0])
    dist.all_reduce(t)
    results[index] = t.item()
    dist.destroy_process_group()
''')
sys.path.insert(0, folder)
module = __import__(f"own_module_{rank}")
results = torch.zeros(1).share_memory_()
if rank == 0:  # a child needs seconds to import torch
    mp.spawn(module.child, (os.path.join(folder, "store"), 1, results), 1)
sys.path.pop(0)
t = torch.tensor([rank + 1.0])
dist.all_reduce(t)
result = [plainly(results), t.item()]
""",
        timeout_s=60,
        loads_torch=True,
        is_long=True,
    ),
]
