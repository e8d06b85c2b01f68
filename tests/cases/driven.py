"""Programs for two ranks, each with the lines that a user types while ``%%ddp --step`` runs it.

A program is a cell that leaves ``result``, as in `tests.cases.fidelity`, whose `PRELUDE` and
`CLEAN_UP` it uses. A script is a line of commands between bars; when it is used up, the ranks go on
to the end. A script that holds a rank releases it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Driven:
    """A cell, and the commands at its prompts."""

    name: str
    script: str
    code: str

    @property
    def lines(self) -> list[str]:
        """The commands, in order."""
        return [line.strip() for line in self.script.split("|")]


COLLECTIVES = [
    Driven(
        "all_reduce with several operators",
        "print x | step -r 0 | print x | step | step -r 1 | waits | step | continue",
        """
result = []
for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
    x = range_of(3)
    dist.all_reduce(x, op)
    result.append(x)
""",
    ),
    Driven(
        "broadcast from each root",
        "step -r 1 | waits | step -r 0 | step -r 0 | where | step",
        """
result = []
for root in (0, 1, 0):
    x = range_of(2) + root
    dist.broadcast(x, root)
    result.append(x)
""",
    ),
    Driven(
        "reduce to each root",
        "hold -r 1 | step | waits | step -r 1 | release | step 2 | continue",
        """
result = []
for root in (0, 1, 0, 1):
    x = range_of(2)
    dist.reduce(x, root)
    result.append(x if rank == root else None)
""",
    ),
    Driven(
        "all_gather into lists and tensors",
        "step -r 0 | step -r 1 | print result | step",
        """
mine = range_of(2)
parts = [torch.empty(2) for _ in range(2)]
dist.all_gather(parts, mine)
result = [parts]
whole = torch.empty(4)
dist.all_gather_into_tensor(whole, mine)
result.append(whole)
""",
    ),
    Driven(
        "reduce_scatter",
        "print mine.sum() | hold -r 0 | step | trace | release -r 0 | step -r 0 | step",
        """
mine, share = range_of(4), torch.empty(2)
dist.reduce_scatter_tensor(share, mine)
other = torch.empty(2)
dist.reduce_scatter(other, list(mine.chunk(2)))
result = [share, other]
""",
    ),
    Driven(
        "gather and scatter",
        "step -r 1 | step -r 0 | step -r 0 | print x | step | continue",
        """
x = range_of(2)
parts = [torch.empty(2) for _ in range(2)] if rank == 0 else None
dist.gather(x, parts, 0)
back = torch.empty(2)
dist.scatter(back, [part * 3 for part in parts] if rank == 0 else None, 0)
dist.barrier()
result = [parts, back]
""",
    ),
    Driven(
        "all_to_all with parts of unequal sizes",
        "step -r 0 | waits | print into | step",
        """
take, give = ([1, 2], [1, 3]) if rank == 0 else ([3, 1], [2, 1])
into = torch.zeros(sum(take))
dist.all_to_all_single(into, range_of(sum(give)), take, give)
result = into
""",
    ),
    Driven(
        "collectives of objects",
        "step | step -r 0 | where -r 1 | step -r 1 | step 3 | continue",
        """
found = [None] * 2
dist.all_gather_object(found, {"rank": rank, "text": "x" * (rank + 1)})
box = [("from", rank)]
dist.broadcast_object_list(box, 1)
gathered = [None] * 2 if rank == 0 else None
dist.gather_object((rank, "gathered"), gathered, 0)
result = [found, box, gathered]
""",
    ),
    Driven(
        "coalesced collectives",
        "step -r 1 | step -r 0 | ranks | step -r 0 | step",
        """
a, b = range_of(2), range_of(3)
dist.all_reduce_coalesced([a, b])
with dist._coalescing_manager(async_ops=True) as works:
    dist.all_reduce(a)
    dist.all_reduce(b)
works.wait()
result = [a, b]
""",
    ),
    Driven(
        "barriers between other collectives",
        "step -r 0 | step | hold -r 0 | step -r 1 | step -r 0 | release | continue",
        """
x = range_of(2)
dist.barrier()
dist.all_reduce(x)
dist.monitored_barrier()
dist.broadcast(x, 0)
dist.barrier()
result = x
""",
    ),
    Driven(
        "a loop that all ranks end together",
        "step 2 | print turn, error | step -r 1 | step | continue",
        """
error, turn = torch.tensor([4.0 + rank]), 0
while True:
    total = error.clone()
    dist.all_reduce(total)
    if total < 2:
        break
    error, turn = error / 2, turn + 1
result = [turn, error, total]
""",
    ),
]

MESSAGES = [
    Driven(
        "ping and pong",
        "step -r 0 | step -r 1 | step | step -r 1 | waits | continue -r 0 | continue",
        """
x = range_of(3)
for turn in range(3):
    if rank == 0:
        dist.send(x, 1)
        dist.recv(x, 1)
    else:
        dist.recv(x, 0)
        x += 1
        dist.send(x, 0)
result = x
""",
    ),
    Driven(
        "a ring of isend and recv",
        "step -r 0 | step -r 0 | print token | step -r 1 | step 3 | continue",
        """
token, seen = range_of(1), []
for hop in range(3):
    arrived = torch.empty(1)
    sending = dist.isend(token, (rank + 1) % world_size)
    dist.recv(arrived, (rank - 1) % world_size)
    sending.wait()
    token = arrived + 1
    seen.append(token)
result = seen
""",
    ),
    Driven(
        "all_reduce made of sends in a ring",
        "print x | hold -r 0 | step -r 1 | step -r 1 | release | step 2 | diff x | continue",
        """
x = range_of(6)
parts = x.chunk(world_size)
for hop in range(2 * (world_size - 1)):
    mine, next_one = parts[(rank - hop) % world_size], parts[(rank - hop - 1) % world_size]
    arrived = torch.empty_like(next_one)
    sending = dist.isend(mine, (rank + 1) % world_size)
    dist.recv(arrived, (rank - 1) % world_size)
    sending.wait()
    if hop < world_size - 1:
        next_one += arrived
    else:
        next_one.copy_(arrived)
result = x
""",
    ),
    Driven(
        "messages whose tags come in another order",
        "step -r 1 | step -r 0 | where | step",
        """
a, b = range_of(2), range_of(2) * 2
if rank == 0:
    works = [dist.isend(a, 1, tag=5), dist.isend(b, 1, tag=6)]
else:
    a, b = torch.empty(2), torch.empty(2)
    works = [dist.irecv(b, 0, tag=6), dist.irecv(a, 0, tag=5)]
for work in works:
    work.wait()
result = [a, b]
""",
    ),
    Driven(
        "batched messages",
        "step -r 0 | step -r 0 | step -r 1 | step | continue",
        """
into, peer = torch.empty(3), 1 - rank
works = dist.batch_isend_irecv([
    dist.P2POp(dist.isend, range_of(3), peer), dist.P2POp(dist.irecv, into, peer),
])
for work in works:
    work.wait()
dist.all_reduce(into)
result = into
""",
    ),
    Driven(
        "objects as messages",
        "step -r 1 | step | step -r 0 | continue",
        """
box = [{"step": 3, "loss": 0.5}] if rank == 0 else [None]
if rank == 0:
    dist.send_object_list(box, 1)
else:
    dist.recv_object_list(box, 0)
result = box
""",
    ),
]

HANDLES = [
    Driven(
        "operations in flight, waited for in reverse",
        "step -r 0 | step -r 0 | step -r 0 | print len(works) -r 1 | step 2 | continue",
        """
tensors = [range_of(4) * n for n in range(1, 4)]
works = [dist.all_reduce(t, async_op=True) for t in tensors]
for work in reversed(works):
    work.wait()
result = tensors
""",
    ),
    Driven(
        "futures",
        "step -r 1 | step -r 0 | step",
        """
x, y = range_of(2), range_of(3)
doubled = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
other = dist.all_reduce(y, async_op=True)
result = [doubled.wait(), x, other.wait(), y]
""",
    ),
    Driven(
        "a gather beside the computation",
        "step -r 0 | run extra = 1 -r 1 | step -r 1 | print busy.sum() | step",
        """
whole, busy = torch.empty(4), torch.ones(3) * rank
work = dist.all_gather_into_tensor(whole, range_of(2), async_op=True)
busy = busy.cumsum(0)
work.wait()
dist.all_reduce(busy)
result = [whole, busy]
""",
    ),
]

GROUPS = [
    Driven(
        "a group of each rank, and one of both",
        "print alone is None | step -r 0 | step -r 0 | step -r 1 | step | continue",
        """
alone = [dist.new_group([0]), dist.new_group([1])][rank]
both = dist.new_group([0, 1])
x = range_of(2)
dist.all_reduce(x, group=alone)
dist.all_reduce(x, group=both)
dist.broadcast(x, 1, group=both)
dist.barrier(group=alone)
result = x
""",
    ),
    Driven(
        "until a number of a new group",
        "until 3 | print turn | until 5 -r 0 | until 5 | print turn | step",
        """
group, total = dist.new_group(), torch.zeros(2)
for turn in range(6):
    x = range_of(2) + turn
    dist.all_reduce(x, group=group)
    total += x
result = total
""",
    ),
    Driven(
        "two groups in turns",
        "step -r 1 | step -r 0 | step 2 | hold -r 1 | step -r 0 | release | step -r 1 | continue",
        """
one, two = dist.new_group(), dist.new_group()
x = range_of(2)
for turn in range(3):
    dist.all_reduce(x, group=one)
    dist.broadcast(x, turn % 2, group=two)
    x += rank
result = x
""",
    ),
    Driven(
        "collectives on a mesh",
        "step | step -r 0 | print x | step",
        """
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
x = range_of(2)
dist.all_reduce(x, group=mesh["tp"].get_group())
dist.all_reduce(x, group=mesh["dp"].get_group())
result = [x, mesh.get_coordinate()]
""",
    ),
]
