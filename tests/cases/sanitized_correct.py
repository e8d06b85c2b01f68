"""Correct cells that do what ``%%ddp --sanitize`` looks for, at the right moment: it stays silent.

Each runs on two ranks. What is there before is in `PRELUDE`.
"""

PRELUDE = """\
import threading
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
other = 1 - rank
def net():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
"""

CORRECT = {
    "in place after wait": """\
x = torch.ones(8)
work = dist.all_reduce(x, async_op=True)
work.wait()
x.div_(world_size)
print(x)
""",
    "another tensor meanwhile": """\
x, y = torch.ones(8), torch.zeros(8)
work = dist.all_reduce(x, async_op=True)
y.add_(1)
y = y @ y
work.wait()
""",
    "another part of the same memory": """\
x = torch.ones(8)
work = dist.all_reduce(x[:4], async_op=True)
x[4:] = x[4:] * 2
print(x[4:])
work.wait()
""",
    "other rows of a matrix": """\
x = torch.ones(8, 8)
work = dist.all_reduce(x[2:4], async_op=True)
x[4:, 1].add_(1)
x[::4] = 0
x[5::2, ::3].mul_(2)
work.wait()
""",
    "view of an open tensor": """\
x = torch.ones(8)
work = dist.all_reduce(x, async_op=True)
y = x.view(2, 4)[1].t().unsqueeze(0).detach()
shape, size, same = x.shape, x.numel(), x.is_contiguous()
work.wait()
print(y)
""",
    "tensors like an open one": """\
x = torch.ones(8)
work = dist.all_reduce(x, async_op=True)
y = torch.empty_like(x)
z, w = torch.zeros_like(x), x.new_zeros(3)
same = x.dtype, x.device, x.requires_grad, id(x)
work.wait()
""",
    "read of a tensor that is sent": """\
x = torch.ones(8)
work = dist.isend(x, other)
y = x * 2
print(x)
dist.recv(torch.empty(8), other)
work.wait()
""",
    "one tensor sent twice": """\
x = torch.ones(8)
works = [dist.isend(x, other, tag=1), dist.isend(x, other, tag=2)]
for tag in (1, 2):
    dist.recv(torch.empty(8), other, tag=tag)
for work in works: work.wait()
""",
    "root reads what it broadcasts": """\
x = torch.ones(8)
work = dist.broadcast(x, 0, async_op=True)
if rank == 0:
    y = x.sum()
work.wait()
""",
    "input of a gather is read": """\
x, out = torch.ones(4), torch.empty(8)
work = dist.all_gather_into_tensor(out, x, async_op=True)
y = x.sum()
work.wait()
print(out)
""",
    "input of a gather is part of the output": """\
out = torch.zeros(8)
work = dist.all_gather_into_tensor(out, out[4 * rank:4 * rank + 4], async_op=True)
work.wait()
""",
    "double buffering": """\
buffers = [torch.ones(16), torch.ones(16)]
works = [None, None]
for step in range(8):
    turn = step % 2
    if works[turn] is not None:
        works[turn].wait()
    buffers[turn].fill_(step + rank)
    works[turn] = dist.all_reduce(buffers[turn], async_op=True)
for work in works: work.wait()
""",
    "end seen by polling": """\
x = torch.ones(8)
work = dist.all_reduce(x, async_op=True)
while not work.is_completed():
    pass
x.add_(1)
""",
    "end seen by a future": """\
x = torch.ones(8)
future = dist.all_reduce(x, async_op=True).get_future()
future.wait()
x.add_(1)
""",
    "callback of a future": """\
x = torch.ones(8)
future = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] / 2)
print(future.wait())
""",
    "wait with a timeout": """\
from datetime import timedelta
x = torch.ones(8)
dist.all_reduce(x, async_op=True).wait(timedelta(seconds=20))
x.add_(1)
""",
    "wait in another thread": """\
x = torch.ones(8)
work = dist.all_reduce(x, async_op=True)
thread = threading.Thread(target=work.wait)
thread.start()
thread.join()
x.add_(1)
""",
    "operation of another thread": """\
def run():
    y = torch.ones(8)
    work = dist.all_reduce(y, async_op=True)
    work.wait()
    y.add_(1)
thread = threading.Thread(target=run)
thread.start()
x = torch.ones(8).add_(1)
thread.join()
""",
    "memory that is used again": """\
for step in range(20):
    x = torch.ones(1000)
    dist.all_reduce(x, async_op=True).wait()
    del x
    y = torch.zeros(1000)
    y.add_(1)
""",
    "waits at the end, in another order": """\
xs = [torch.full((4,), float(i)) for i in range(6)]
works = [dist.all_reduce(x, async_op=True) for x in xs]
for work in reversed(works): work.wait()
total = sum(xs)
""",
    "batch of messages": """\
x, y = torch.ones(8), torch.empty(8)
ops = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, y, other)]
for work in dist.batch_isend_irecv(ops): work.wait()
y.add_(x)
""",
    "ring of chunks": """\
chunks = list(torch.ones(4, 4).unbind())
for step in range(4):
    received = torch.empty(4)
    works = [dist.isend(chunks[step], other), dist.irecv(received, other)]
    for work in works: work.wait()
    chunks[step] += received
""",
    "pipeline by messages": """\
layer, sent = nn.Linear(4, 4), []
for step in range(4):
    if rank == 0:
        out = layer(torch.ones(2, 4)).detach()
        sent.append(dist.isend(out, 1, tag=step))
    else:
        x = torch.empty(2, 4)
        dist.recv(x, 0, tag=step)
        layer(x).sum().backward()
for work in sent: work.wait()
""",
    "receive from any source": """\
x = torch.empty(2)
if rank == 0:
    work = dist.irecv(x)
    work.wait()
    x.add_(1)
else:
    dist.send(torch.ones(2), 0)
""",
    "asynchronous barrier": "work = dist.barrier(async_op=True)\nwork.wait()\n",
    "objects": """\
values = [None, None]
dist.all_gather_object(values, {"rank": rank})
one = [rank]
dist.broadcast_object_list(one, 0)
""",
    "all_to_all": """\
x, out = torch.arange(4.0), torch.empty(4)
work = dist.all_to_all_single(out, x, async_op=True)
x.sum()
work.wait()
out.add_(1)
""",
    "lists of tensors": """\
outs, ins = [torch.empty(2), torch.empty(2)], [torch.ones(2), torch.ones(2)]
dist.all_to_all(outs, ins)
dist.scatter(outs[0], ins if rank == 0 else None, src=0)
dist.gather(ins[0], outs if rank == 0 else None, dst=0)
dist.reduce(ins[0], 0)
torch.cat(outs)
""",
    "keywords": """\
x, out = torch.ones(4), torch.empty(8)
dist.all_gather_into_tensor(output_tensor=out, input_tensor=x, async_op=True).wait()
dist.all_reduce(tensor=x, op=dist.ReduceOp.MAX)
dist.broadcast(tensor=out, src=1)
""",
    "empty and scalar tensors": """\
x = torch.tensor(1.0)
work = dist.all_reduce(x, async_op=True)
work.wait()
dist.all_reduce(torch.empty(0))
print(x.item())
""",
    "transposed": """\
x = torch.ones(4, 6).t()
work = dist.all_reduce(x, async_op=True)
work.wait()
x.add_(1)
""",
    "functional collectives": """\
import torch.distributed._functional_collectives as functional
x = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
y = x * 2
z = functional.all_gather_tensor(y, 0, dist.group.WORLD)
print(z.sum(), x)
unused = functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
""",
    "functional collectives with autograd": """\
import torch.distributed._functional_collectives as functional
x = torch.ones(4, requires_grad=True)
functional.all_gather_tensor_autograd(x * 2, 0, dist.group.WORLD).sum().backward()
print(x.grad)
""",
    "autograd functions": """\
import torch.distributed.nn.functional as functional
x = torch.ones(4, requires_grad=True)
functional.all_reduce(x * 2).sum().backward()
torch.cat(functional.all_gather(x)).sum().backward()
""",
    "sub-group": """\
group = dist.new_group([0, 1])
x = torch.ones(4)
work = dist.all_reduce(x, group=group, async_op=True)
work.wait()
x.mul_(2)
dist.destroy_process_group(group)
""",
    "a mode of the user": """\
from torch.utils.flop_counter import FlopCounterMode
x = torch.ones(4, 4)
with FlopCounterMode(display=False) as counter:
    work = dist.all_reduce(x, async_op=True)
    y = torch.ones(4, 4) @ torch.ones(4, 4)
    work.wait()
    x = x @ x
assert counter.get_total_flops() == 256
with FlopCounterMode(display=False) as counter:
    work = dist.all_reduce(y, async_op=True)
work.wait()
""",
    "default device": """\
with torch.device("cpu"):
    x = torch.ones(4)
    work = dist.all_reduce(x, async_op=True)
    y = torch.zeros(4)
work.wait()
""",
    "inference mode": """\
with torch.inference_mode():
    x = torch.ones(4)
    work = dist.all_reduce(x, async_op=True)
    y = torch.zeros(4).add_(1).reshape(2, 2).contiguous()
    work.wait()
    x.add_(1)
""",
    "compiled function while an operation is open": """\
function = torch.compile(lambda x: (x * 2).relu().sum(), backend="eager")
x, y = torch.ones(8), torch.ones(8)
for step in range(2):
    work = dist.all_reduce(x, async_op=True)
    function(y)
    work.wait()
    function(x)
""",
    "top-level await": """\
import asyncio
x = torch.ones(4)
work = dist.all_reduce(x, async_op=True)
await asyncio.sleep(0)
work.wait()
x.add_(1)
""",
    "NumPy view made before": """\
x = torch.ones(4)
array = x.numpy()
work = dist.all_reduce(x, async_op=True)
work.wait()
array += 1
""",
    "an error that is handled": """\
x = torch.ones(4)
work = dist.all_reduce(x, async_op=True)
try:
    raise ValueError("before the wait")
except ValueError:
    work.wait()
""",
    "work of the cell before": (
        "late = torch.ones(4)\nlate_work = dist.all_reduce(late, async_op=True)\nlate_work.wait()\n"
    ),
}
