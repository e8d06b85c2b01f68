"""Programs of messages, work handles, threads and wrong calls. See `tests.cases.fidelity`."""

from tests.cases.fidelity import Program

WORKS = [
    Program(
        "send and recv",
        """
t = range_of(3)
result = []
if rank == 0:
    dist.send(t, 1)
    dist.send(t + 1, 1, tag=7)
    work = dist.isend(t + 2, 2)
    result.append(work.wait())
    dist.send(torch.ones(()), dst=2, tag=3)
elif rank == 1:
    u = torch.zeros(3)
    result.append([dist.recv(u, 0), plainly(u)])
    result.append([dist.recv(u, 0, tag=7), plainly(u)])
    dist.send(u, 2, tag=1)
else:
    u, v, w = torch.zeros(3), torch.zeros(3), torch.zeros(())
    works = [dist.irecv(v, 1, tag=1), dist.irecv(u, 0), dist.irecv(w, 0, tag=3)]
    result = [work.wait() for work in works] + [plainly(x) for x in (u, v, w)]
    result.append([work.is_completed() for work in works])
group = dist.new_group([2, 1])
if rank == 2:
    dist.send(t, group=group, group_dst=0)
    dist.send(t, 1, group=group)
elif rank == 1:
    u = torch.zeros(3)
    result.append([dist.recv(u, group=group, group_src=1), dist.recv(u, 2, group), plainly(u)])
dist.barrier()
""",
        ranks=3,
    ),
    Program(
        "recv from any source",
        """
result = []
if rank == 0:
    seen = {}
    for _ in range(2):
        u = torch.zeros(2)
        source = dist.recv(u, tag=4)
        seen[source] = plainly(u)
    result.append(sorted(seen.items()))
    u = torch.zeros(2)
    work = dist.irecv(u, tag=5)
    result.append([work.wait(), work._source_rank(), plainly(u)])
    group = dist.new_group([0, 2])
    result.append(dist.recv(u, group=group))
else:
    dist.send(range_of(2), 0, tag=4)
    if rank == 2:
        dist.send(range_of(2), 0, tag=5)
    group = dist.new_group([0, 2])
    if rank == 2:
        dist.send(range_of(2), 0, group=group)
dist.barrier()
""",
        ranks=3,
    ),
    Program(
        "batch_isend_irecv",
        """
right, left = (rank + 1) % world_size, (rank - 1) % world_size
result = []
for tag in (0, 5):
    u = torch.zeros(3)
    works = dist.batch_isend_irecv([
        dist.P2POp(dist.isend, range_of(3) + tag, right, tag=tag),
        dist.P2POp(dist.irecv, u, left, tag=tag),
    ])
    result.append([len(works), [work.wait() for work in works], plainly(u)])
group = dist.new_group()
u = torch.zeros(3)
ops = [dist.P2POp(dist.irecv, u, group=group, group_peer=left),
       dist.P2POp(dist.isend, range_of(3), group=group, group_peer=right)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
result.append(plainly(u))
result += [attempt(dist.batch_isend_irecv, []), attempt(dist.batch_isend_irecv, ["nothing"]),
           attempt(dist.P2POp, dist.all_reduce, u, 0)]
""",
        ranks=3,
    ),
    Program(
        "works",
        """
t = range_of(4)
work = dist.all_reduce(t, async_op=True)
first = [isinstance(work, dist.Work), work.wait(), work.is_completed(), work.is_success()]
result = [*first, attempt(work.exception), plainly(work.result()), attempt(work.synchronize),
          work.wait(), work.wait(timedelta(seconds=3)), work.wait(timeout=timedelta(seconds=3)),
          attempt(work._source_rank), attempt(work.source_rank), attempt(work._get_op_type),
          attempt(work._get_duration), attempt(work.block_current_stream)]
work = dist.all_reduce(t, async_op=True)
future = work.get_future()
then = future.then(lambda done: plainly(done.value()))
result += [plainly(future.wait()), then.wait(), future.done()]
work = dist.broadcast(t, 0, async_op=True)
result += [attempt(lambda: plainly(work.get_future().wait())), work.wait()]
work = dist.barrier(async_op=True)
result += [attempt(lambda: plainly(work.get_future().wait())), work.wait()]
work = dist.all_reduce(t, async_op=True)
result += [attempt(lambda: work.get_future_result().wait()), work.wait()]
if rank == 0:
    work = dist.isend(t, 1)
else:
    work = dist.irecv(t, 0)
result += [attempt(lambda: work.get_future()), work.wait(), plainly(t), attempt(work.exception)]
deadline = time.monotonic() + 10
work = dist.all_reduce(t, async_op=True)
while not work.is_completed() and time.monotonic() < deadline:
    time.sleep(0.001)
result += [work.is_completed(), work.is_success(), plainly(t)]
boxed = dist.all_reduce(t, async_op=True)
result += [attempt(lambda: type(boxed.boxed()).__name__), boxed.wait(), plainly(t)]
""",
    ),
    Program(
        "works that are dropped, and overlap",
        """
tensors = [torch.full((5,), rank + float(i)) for i in range(60)]
works = [dist.all_reduce(t, async_op=True) for t in tensors]
for work in reversed(works):
    work.wait()
more = [range_of(3) for _ in range(5)]
for t in more:
    dist.all_reduce(t, async_op=True)
dist.barrier()
deadline = time.monotonic() + 10
last = range_of(2)
dist.all_reduce(last)
result = [plainly(tensors), plainly(last)]
""",
    ),
    Program(
        "threads with groups of their own",
        """
groups = [dist.new_group() for _ in range(3)]
found = {}
def use(index):
    for _ in range(10):
        t = torch.tensor([rank + float(index)])
        dist.all_reduce(t, group=groups[index])
        found[index] = t.item()
threads = [threading.Thread(target=use, args=(index,)) for index in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
result = sorted(found.items())
""",
    ),
    Program(
        "differentiable collectives",
        """
import torch.distributed.nn.functional as functional
x = range_of(3).requires_grad_()
y = functional.all_reduce(x * 2)
y.sum().backward()
result = [plainly(y), plainly(x.grad)]
x.grad = None
z = torch.stack(functional.all_gather(x)).pow(2).sum()
z.backward()
result += [plainly(z), plainly(x.grad)]
x = range_of(2, 2).requires_grad_()
out = functional.all_to_all_single(torch.zeros(2, 2), x)
out.pow(2).sum().backward()
result += [plainly(out), plainly(x.grad)]
x = range_of(2).requires_grad_()
functional.broadcast(x, 0).sum().backward()
result += [plainly(x.grad)]
""",
    ),
    Program(
        "methods of the group itself",
        """
group = dist.group.WORLD
t = range_of(3)
options = dist.AllreduceOptions()
options.reduceOp = dist.ReduceOp.MAX
result = [group.allreduce([t], options).wait(), plainly(t)]
result += [group.allreduce(t).wait(), group.allreduce([t], dist.ReduceOp.SUM).wait(), plainly(t)]
result += [group.allreduce(t, op=dist.ReduceOp.SUM).wait(), plainly(t)]
result += [group.broadcast(t, root=1).wait(), group.broadcast([t]).wait(), plainly(t)]
out = [[torch.zeros(3) for _ in range(world_size)]]
result += [group.allgather(out, [t]).wait(), plainly(out)]
result += [group.allgather(out[0], t).wait(), plainly(out)]
result += [group.reduce(t, root=0).wait(), group.barrier().wait()]
flat = torch.zeros(3 * world_size)
result += [group._allgather_base(flat, t).wait(), plainly(flat)]
result += [group.alltoall_base(flat[:4], range_of(4), [], []).wait(), plainly(flat)]
result += [group.gather([[torch.zeros(2), torch.zeros(2)]] if rank == 0 else [], [range_of(2)],
                        dist.GatherOptions()).wait()]
if rank == 0:
    result += [group.send([t], 1, 3).wait()]
else:
    result += [group.recv([t], 0, 3).wait(), plainly(t)]
backend = group._get_backend(torch.device("cpu"))
result += [backend.name(), backend.allreduce([t]).wait(), plainly(t), backend.rank()]
""",
    ),
    Program(
        "wrong calls",
        """
t = torch.ones(2)
result = [
    attempt(dist.broadcast, t, 9), attempt(dist.broadcast, t), attempt(dist.send, t, rank),
    attempt(dist.recv, t, rank)[:60], attempt(dist.all_reduce, [t]),
    attempt(dist.all_reduce, "text"), attempt(dist.all_gather, [t], t),
    attempt(dist.all_gather, [torch.ones(3)] * world_size, t),
    attempt(dist.all_gather, [t, torch.ones(2, dtype=torch.int64)], t),
    attempt(dist.all_gather, [torch.ones(2, dtype=torch.int64)] * 2, t),
    attempt(dist.all_gather_into_tensor, torch.ones(5), t),
    attempt(dist.all_gather_into_tensor, torch.ones(4, dtype=torch.int64), t),
    attempt(dist.reduce_scatter, t, [t]), attempt(dist.reduce_scatter, t, [torch.ones(3)] * 2),
    attempt(dist.reduce_scatter_tensor, t, torch.ones(5)),
    attempt(dist.gather, t, [t] if rank == 0 else None, 0) if rank == 0 else "",
    attempt(dist.gather, t, [t, t], 0) if rank == 1 else "",
    attempt(dist.scatter, t, [t], 0) if rank == 0 else "",
    attempt(dist.scatter, t, [t, t], 0) if rank == 1 else "",
    attempt(dist.all_to_all_single, torch.ones(3), torch.ones(3)),
    attempt(dist.all_to_all_single, t, t, [1, 2], [1, 1]),
    attempt(dist.all_to_all_single, t, t, [1], [1, 1]),
    attempt(dist.all_to_all, [t], [t]),
    attempt(dist.all_to_all, [t, t], [t, torch.ones(2, dtype=torch.int64)]),
    attempt(dist.new_group, [0, 9]),
    # Stock groups of torch 2.11 hang in this one.
    attempt(dist.new_group, [0, 0]) if torch.__version__ >= (2, 13) else "",
    attempt(dist.new_group, backend="nonsense"),
    attempt(dist.all_reduce, t, "SUM"), attempt(dist.reduce, t, 9),
    attempt(dist.all_gather_object, [], 1),
    attempt(dist.barrier, device_ids="text"),
    attempt(dist.all_reduce, torch.ones(2, device="meta")),
    attempt(dist.monitored_barrier, None, 5), attempt(dist.group.WORLD.allreduce, 5),
    attempt(dist.group.WORLD.broadcast, [t], 5), attempt(dist.group.WORLD.allgather, [], []),
    attempt(dist.group.WORLD.nothing) if hasattr(dist.group.WORLD, "nothing") else "no such method",
]
""",
    ),
    Program(
        "wrong calls on one rank only",
        """
t, result = torch.ones(2), []
for turn in range(3):
    if rank == turn % 2:
        uneven = [torch.ones(size) for size in range(world_size)]
        result += [attempt(dist.all_gather, [t], t), attempt(dist.all_reduce, t, "SUM"),
                   attempt(dist.broadcast, t, 9), attempt(dist.reduce_scatter, t, [t]),
                   attempt(dist.all_gather_into_tensor, torch.ones(5), t),
                   attempt(dist.all_to_all, uneven, uneven), attempt(dist.reduce, t, 9)]
    dist.broadcast(t, 0)
    dist.all_reduce(t)
    dist.all_gather([torch.zeros(2) for _ in range(world_size)], t)
    result.append(plainly(t))
""",
    ),
]
