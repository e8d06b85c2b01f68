"""Programs with less common uses, each in several forms. See `tests.cases.fidelity`."""

from tests.cases.fidelity import Program

_GROUPS_OF_TWO = """
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
mine, lead = pairs[rank // 2], rank // 2 * 2
"""
#: Without DDP: with torch 2.13 it crashes in such a group, on stock groups only.
_DETAIL = """
os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
dist.set_debug_level_from_env()
group = dist.new_group()
"""

WIDER = [
    Program(
        "object collectives in sub-groups",
        _GROUPS_OF_TWO
        + """
result = []
for round in range(3):
    own = {"rank": rank, "data": "x" * (100 * rank + round)}
    found = [None, None]
    dist.all_gather_object(found, own, group=mine)
    result.append(found)
    found = [None, None] if rank == lead else None
    dist.gather_object(own, found, dst=lead, group=mine)
    result.append(found)
    found = [None, None] if rank != lead else None
    dist.gather_object(own, found, group=mine, group_dst=1)
    result.append(found)
    found = [own, round] if rank == lead else [None, None]
    dist.broadcast_object_list(found, src=lead, group=mine)
    result.append(found)
    found = [None]
    dist.scatter_object_list(found, [own, "other"] if rank == lead else None, src=lead, group=mine)
    result.append(found)
    if rank == lead:
        dist.send_object_list([own, 1], dst=lead + 1, group=mine)
    else:
        found = [None, None]
        dist.recv_object_list(found, src=lead, group=mine)
        result.append(found)
    for pair in pairs:  # who is no member does nothing
        if pair is not mine:
            result.append(attempt(dist.all_gather_object, [None, None], own, group=pair))
            result.append(attempt(dist.gather_object, own, None, dst=2 - lead, group=pair))
    dist.all_gather_object(everyone := [None] * world_size, found)
    result.append(everyone)
""",
        ranks=4,
    ),
    Program(
        "sparse operations",
        """
def sparse(values=1.0):
    places = torch.tensor([[0, rank + 1], [1, 1]])
    return torch.sparse_coo_tensor(places, torch.tensor([1.0, rank + values]), (4, 2))
result = []
for group in (None, dist.new_group()):
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX):
        t = sparse()
        result.append(attempt(dist.all_reduce, t, op, group=group))
        result.append(plainly(t.to_dense()))
    t = sparse(2.0)
    work = dist.all_reduce(t, group=group, async_op=True)
    work.wait()
    result.append([plainly(t.to_dense()), plainly(work.result()[0].to_dense())])
    t = torch.sparse_coo_tensor(torch.zeros(2, 0).long(), torch.zeros(0), (4, 2))
    dist.all_reduce(t, group=group)
    result += [plainly(t.to_dense()), attempt(dist.broadcast, sparse(), 0, group=group)]
for view in (False, True):
    torch.manual_seed(0)
    model = DDP(nn.EmbeddingBag(6, 3, sparse=True), gradient_as_bucket_view=view)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.tensor([[rank, step], [5, rank]])).sum().backward()
        optimizer.step()
    result.append([weights(model), plainly(model.module.weight.grad.to_dense())])
""",
    ),
    Program(
        "coalesced operations of a sub-group, and their works",
        _GROUPS_OF_TWO
        + """
result = []
for is_async in (False, True):
    tensors = [range_of(3), range_of(2, 2)]
    with c10d._coalescing_manager(group=mine, async_ops=is_async) as manager:
        for each in tensors:
            dist.all_reduce(each, group=mine)
    if is_async:
        result.append(len(manager.works))
        manager.wait()
    result.append(plainly(tensors))
    outputs = [torch.zeros(6), torch.zeros(4)]
    work = mine.allgather_into_tensor_coalesced(outputs, [range_of(3), range_of(2)])
    work.wait()
    result.append([plainly(outputs), work.is_completed(), work.is_success()])
    outputs = [torch.zeros(2), torch.zeros(1)]
    mine.reduce_scatter_tensor_coalesced(outputs, [range_of(4), range_of(2)]).wait()
    result.append(plainly(outputs))
    tensors = [range_of(3), range_of(2)]
    future = mine.allreduce_coalesced(tensors).get_future()
    future.wait()
    result.append(plainly(tensors))
    messages = [torch.zeros(2)]
    other = lead + 1 if rank == lead else lead
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, range_of(2), other, mine),
        dist.P2POp(dist.irecv, messages[0], other, mine)])
    for each in works:
        each.wait()
    result += [plainly(messages), len(works)]
""",
        ranks=4,
    ),
    Program(
        "under TORCH_DISTRIBUTED_DEBUG=DETAIL",
        _DETAIL
        + """
result, t = [dist.get_backend(group)], range_of(4)
dist.all_reduce(t, group=group)
dist.broadcast(t, 1, group=group)
gathered = [torch.zeros(4) for _ in range(world_size)]
dist.all_gather(gathered, t * rank, group=group)
result += [plainly(t), plainly(gathered)]
found = [None] * world_size
dist.all_gather_object(found, {"rank": rank}, group=group)
result.append(found)
work = dist.all_reduce(t, group=group, async_op=True)
work.wait()
result += [plainly(t), work.is_completed(), attempt(dist.barrier, group=group)]
scattered = torch.zeros(2)
dist.reduce_scatter_tensor(scattered, range_of(4), group=group)
swapped = torch.zeros(4)
dist.all_to_all_single(swapped, range_of(4), group=group)
result += [plainly(scattered), plainly(swapped)]
if rank == 0:
    dist.send(t, 1, group=group)
else:
    dist.recv(t, 0, group=group)
result.append(plainly(t))
dist.monitored_barrier(group=group)
result.append(dist.get_rank(dist.new_group([0])))
del os.environ["TORCH_DISTRIBUTED_DEBUG"]
dist.set_debug_level_from_env()
""",
    ),
    Program(
        "what DDP logs of itself",
        """
model = DDP(net())
train(model)
logged = model._get_ddp_logging_data()
changing = ("time", "stats", "iteration", "cuda", "bucket_sizes", "master", "pci")
result = sorted((name, str(value)) for name, value in logged.items()
                if not any(word in name for word in changing))
assert dict(result)["backend_name"] == "gloo", result
""",
    ),
    Program(
        "uneven inputs in several forms",
        """
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
result = []
data = batches(3 + 2 * rank)
for divides in (True, False):
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with model.join(divide_by_initial_world_size=divides):
        result.append(train(model, optimizer, data))
    result += [weights(model), train(model, optimizer, batches(2))]
model = DDP(net())
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
with Join([model, optimizer]):
    train(model, optimizer, data)
result.append(weights(model))
with model.join(enable=False):
    result.append(train(model, optimizer, batches(2)))
model = DDP(net())
def ends_early():
    with model.join(throw_on_early_termination=True):
        train(model, None, data)
result.append(attempt(ends_early).split("\\n")[0])
t = torch.ones(1)
dist.all_reduce(t)
result.append(t.item())
model = DDP(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)))
with model.join():
    result.append(train(model, None, data)[0])
""",
        timeout_s=60.0,
    ),
    Program(
        "checkpoints of a sub-group, and in the background",
        """
import torch.distributed.checkpoint as dcp
result, model = [], DDP(net())
optimizer = torch.optim.Adam(model.parameters(), 0.01)
folder, beside = shared_path("a"), dist.new_group()
for step in range(3):
    future = dcp.async_save({"model": model.state_dict(), "step": step},
                            checkpoint_id=f"{folder}{step}", process_group=beside)
    result.append(train(model, optimizer, batches(2)))
    future.result()
result.append(weights(model))
loaded = {"model": model.state_dict(), "step": -1}
dcp.load(loaded, checkpoint_id=f"{folder}1")
result += [plainly(loaded["model"]), loaded["step"]]
own = [dist.new_group([each]) for each in range(world_size)][rank]
dcp.save({"t": range_of(3)}, checkpoint_id=f"{folder}-{rank}", process_group=own)
dist.barrier()
found = {"t": torch.zeros(3)}
dcp.load(found, checkpoint_id=f"{folder}-{1 - rank}", process_group=own)
result.append(plainly(found))
dcp.save({"t": range_of(2)}, checkpoint_id=f"{folder}-no", no_dist=True) if rank == 0 else None
dist.barrier()
result.append(sorted(os.listdir(f"{folder}-no")))
""",
        timeout_s=60.0,
    ),
    Program(
        "functional collectives in sub-groups, compiled",
        _GROUPS_OF_TWO
        + """
import torch.distributed._functional_collectives as functional
def several(x):
    y = functional.all_reduce(x * 2, "avg", mine)
    z = functional.all_gather_tensor(y, 0, mine)
    w = functional.reduce_scatter_tensor(z, "sum", 0, mine)
    v = functional.all_to_all_single(w, None, None, mine)
    return functional.broadcast(v, 0, mine) + functional.all_reduce(w, "max", mine)
def differentiable(x):
    return functional.all_gather_tensor_autograd(x * x, 0, mine).sum()
result = [plainly(several(range_of(4)) + 0)]
torch._dynamo.reset()
compiled = torch.compile(several, backend="aot_eager", fullgraph=True)
result += [attempt(compiled, range_of(4)), attempt(compiled, range_of(6))]
x = range_of(4).requires_grad_()
torch.compile(differentiable, backend="aot_eager")(x).backward()
result.append(plainly(x.grad))
torch._dynamo.reset()
""",
        ranks=4,
        timeout_s=60.0,
        since="2.13",
        is_long=True,
    ),
]
