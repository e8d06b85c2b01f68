"""Programs of single collectives, each in every form. See `tests.cases.fidelity`."""

from tests.cases.fidelity import Program

COLLECTIVES = [
    Program(
        "all_reduce with every ReduceOp",
        """
result = []
for name in ("SUM", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "AVG"):
    for dtype in (torch.float32, torch.int64, torch.uint8, torch.bfloat16, torch.bool):
        t = range_of(3, dtype=dtype)
        result.append([name, attempt(dist.all_reduce, t, getattr(dist.ReduceOp, name)), plainly(t)])
t = range_of(2)
result.append(attempt(dist.all_reduce, t, dist._make_nccl_premul_sum(2.0)))
""",
    ),
    Program(
        "all_reduce of every dtype",
        """
result = []
for dtype in (torch.float64, torch.float16, torch.int8, torch.int16, torch.int32, torch.complex64,
              torch.complex128, torch.float8_e4m3fn, torch.uint16):
    t = range_of(3).to(dtype)
    result.append([attempt(dist.all_reduce, t), attempt(lambda: str(t.tolist()))])
""",
    ),
    Program(
        "strange tensors",
        """
result = []
for t in (torch.ones(()), torch.ones(0), range_of(4, 6).t(), range_of(3).requires_grad_(),
          nn.Parameter(range_of(3)), range_of(4).to_sparse(), torch.ones(2, device="meta")):
    result.append([attempt(dist.all_reduce, t), attempt(lambda: plainly(t.to_dense()))])
with torch.inference_mode():
    t = range_of(3)
    dist.all_reduce(t)
    result.append(plainly(t.clone()))
with torch.no_grad():
    t = range_of(3)
    dist.broadcast(t, 1)
    result.append(plainly(t))
""",
    ),
    Program(
        "rooted collectives",
        """
result = []
for root in range(world_size):
    t = range_of(3)
    dist.broadcast(t, root)
    u = range_of(2, 2)
    dist.reduce(u, root, dist.ReduceOp.MAX)
    gathered = [torch.zeros(3) for _ in range(world_size)] if rank == root else None
    dist.gather(range_of(3), gathered, dst=root)
    given = [range_of(2) * (i + 1) for i in range(world_size)] if rank == root else None
    taken = torch.zeros(2)
    dist.scatter(taken, given, src=root)
    result.append([plainly(t), plainly(u) if rank == root else "", plainly(gathered),
                   plainly(taken)])
group = dist.new_group([2, 1])
if rank > 0:
    for options in ({"src": 2}, {"group_src": 0}):
        t = range_of(3)
        dist.broadcast(t, group=group, **options)
        result.append(plainly(t))
    gathered = [torch.zeros(3) for _ in range(2)] if rank == 1 else None
    dist.gather(range_of(3), gathered, group=group, group_dst=0)
    given = [range_of(2) * (i + 1) for i in range(2)] if rank == 2 else None
    dist.scatter(taken, given, group=group, src=2)
    dist.reduce(t, group=group, group_dst=1)
    result += [plainly(gathered), plainly(taken), plainly(t)]
""",
        ranks=3,
    ),
    Program(
        "all_gather in every form",
        """
shapes = [(2, 3), (), (0,), (5,)]
result = []
for shape in shapes:
    found = [torch.zeros(shape) for _ in range(world_size)]
    dist.all_gather(found, torch.full(shape, rank + 1.0))
    result.append(plainly(found))
uneven = [torch.zeros(size + 1) for size in range(world_size)]
result.append([attempt(dist.all_gather, uneven, torch.full((rank + 1,), 7.0)), plainly(uneven)])
flat = torch.zeros(world_size * 2, 3)
dist.all_gather_into_tensor(flat, range_of(2, 3))
stacked = torch.zeros(world_size, 2, 3)
result.append(attempt(dist.all_gather_into_tensor, stacked, range_of(2, 3)))
dist._all_gather_base(flat, range_of(2, 3) + 1)
result += [plainly(flat), plainly(stacked)]
lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(world_size)]
result.append([attempt(dist.all_gather_coalesced, lists, [range_of(2), range_of(3)]),
               plainly(lists)])
work = dist.all_gather(found, torch.full((5,), rank + 2.0), async_op=True)
work.wait()
result.append(plainly(found))
work = dist.all_gather_into_tensor(flat, range_of(2, 3), async_op=True)
work.wait()
result.append(plainly(flat))
""",
        ranks=3,
    ),
    Program(
        "reduce_scatter in every form",
        """
result = []
for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG):
    out = torch.zeros(2)
    parts = [range_of(2) * (i + 1) for i in range(world_size)]
    result.append([attempt(dist.reduce_scatter, out, parts, op), plainly(out)])
    out = torch.zeros(2, 2)
    result.append([attempt(dist.reduce_scatter_tensor, out, range_of(2 * world_size, 2), op),
                   plainly(out)])
    out = torch.zeros(2)
    result.append([attempt(dist.reduce_scatter_tensor, out, range_of(world_size, 2), op),
                   plainly(out)])
out = torch.zeros(2)
result.append([attempt(dist._reduce_scatter_base, out, range_of(2 * world_size)), plainly(out)])
uneven = [range_of(i + 1) for i in range(world_size)]
out = torch.zeros(rank + 1)
result.append([attempt(dist.reduce_scatter, out, uneven), plainly(out)])
out = torch.zeros(2)
work = dist.reduce_scatter_tensor(out, range_of(2 * world_size), async_op=True)
work.wait()
result.append(plainly(out))
""",
        ranks=3,
    ),
    Program(
        "all_to_all in every form",
        """
result = []
out = [torch.zeros(2) for _ in range(world_size)]
result.append([attempt(dist.all_to_all, out, [range_of(2) + 100 * i for i in range(world_size)]),
               plainly(out)])
out = [torch.zeros(i + rank + 1) for i in range(world_size)]
into = [torch.full((i + rank + 1,), 10.0 * rank + i) for i in range(world_size)]
result.append([attempt(dist.all_to_all, out, into), plainly(out)])
flat = torch.zeros(world_size, 2)
dist.all_to_all_single(flat, range_of(world_size, 2))
result.append(plainly(flat))
sizes = [i + rank + 1 for i in range(world_size)]
flat = torch.zeros(sum(sizes))
dist.all_to_all_single(flat, range_of(sum(sizes)), sizes, sizes)
result.append(plainly(flat))
sent = [0] * world_size
sent[(rank + 1) % world_size] = 4
wanted = [0] * world_size
wanted[(rank - 1) % world_size] = 4
flat = torch.zeros(4, 2)
work = dist.all_to_all_single(flat, range_of(4, 2), wanted, sent, async_op=True)
work.wait()
result += [plainly(flat)]
one_sided = torch.zeros(2 * world_size)
dist.all_to_all_single(one_sided, range_of(2 * world_size), [2] * world_size)
result += [plainly(one_sided)]
""",
        ranks=3,
    ),
    Program(
        "coalesced collectives",
        """
tensors = [range_of(2), range_of(3, 2)]
result = [attempt(dist.all_reduce_coalesced, tensors), plainly(tensors)]
work = dist.all_reduce_coalesced(tensors, async_op=True)
result.append(attempt(work.wait))
def reduce(**options):
    with c10d._coalescing_manager(**options) as manager:
        for t in tensors:
            dist.all_reduce(t)
    if options.get("async_ops"):
        manager.wait()
for options in ({}, {"async_ops": True}, {"device": torch.device("cpu")}):
    result += [attempt(reduce, **options), plainly(tensors)]
c10d._world.pg_coalesce_state.clear()
outs = [torch.zeros(2 * world_size), torch.zeros(3 * world_size)]
def gather():
    with c10d._coalescing_manager():
        for out, size in zip(outs, (2, 3)):
            dist.all_gather_into_tensor(out, range_of(size))
def scatter():
    with c10d._coalescing_manager():
        for out, size in zip(outs, (2, 3)):
            dist.reduce_scatter_tensor(out[:size], range_of(size * world_size))
result += [attempt(gather), plainly(outs), attempt(scatter), plainly(outs)]
dist.barrier()
""",
    ),
    Program(
        "barriers",
        """
result = [attempt(dist.barrier), attempt(dist.barrier, device_ids=[rank]),
          attempt(dist.barrier, async_op=True) is not None]
work = dist.barrier(async_op=True)
result += [work.wait(), attempt(dist.barrier, device_ids=rank)]
dist.barrier()
""",
    ),
    Program(
        "object collectives",
        """
class Thing:
    def __eq__(self, other): return isinstance(other, Thing)
own = {"rank": rank, "list": [rank] * (rank + 1), "thing": Thing(), "tensor": range_of(2)}
def shown(thing):
    return plainly({key: value for key, value in thing.items() if key != "thing"}) if thing else ""
found = [None] * world_size
dist.all_gather_object(found, own)
result = [[shown(item) for item in found]]
found = [None] * world_size if rank == 1 else None
dist.gather_object(own, found, dst=1)
result.append([shown(item) for item in found or []])
given = [own, "text", None] if rank == 2 else [None] * 3
dist.broadcast_object_list(given, src=2, device=torch.device("cpu"))
result.append([shown(given[0]), given[1:]])
taken = [None]
dist.scatter_object_list(taken, [f"for {i}" for i in range(3)] if rank == 0 else None, src=0)
result.append(taken)
if rank == 0:
    dist.send_object_list([own, 5], dst=1)
elif rank == 1:
    got = [None, None]
    result.append([dist.recv_object_list(got, src=0), shown(got[0]), got[1]])
result.append(attempt(dist.broadcast_object_list, [lambda: 0] if rank == 0 else [None], 0)
              if rank == 0 and False else "")
dist.barrier()
""",
        ranks=3,
    ),
]
