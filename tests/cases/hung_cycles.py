"""Cells in which ranks wait for each other in a cycle of messages or groups."""

from tests.cases.hung_cells import HungCell

CYCLES = [
    HungCell(
        name="both send first",
        code="""\
x, y = torch.ones(1 << 18), torch.empty(1 << 18)
dist.send(x, 1 - rank)
dist.recv(y, 1 - rank)
""",
        kind="p2p-cycle",
        culprits="0-1",
        waiting="0-1",
        op="send",
        lines={0: 2, 1: 2},
        words=("both send first",),
    ),
    HungCell(
        name="pairs that receive first",
        n=4,
        code="x = torch.ones(1)\ndist.recv(x, rank ^ 1)\ndist.send(x, rank ^ 1)",
        kind="p2p-cycle",
        culprits="0-3",
        waiting="0-3",
        op="recv",
        lines={0: 2, 1: 2, 2: 2, 3: 2},
        words=("Ranks 0-3 wait for each other in 2 pairs: all receive first",),
        quotes="Let one side send first, or use batch_isend_irecv.",
        is_variant=True,
    ),
    HungCell(
        name="ring that receives from the rank to which it sends",
        n=3,
        code="""\
x, y = torch.ones(1), torch.empty(1)
dist.send(x, dst=(rank + 1) % world_size)
dist.recv(y, src=(rank + 1) % world_size)
""",
        kind="p2p-cycle",
        culprits="0-2",
        waiting="0-2",
        op="send",
        lines={0: 2, 1: 2, 2: 2},
        words=("rank 0 receives from rank 1, which sends to rank 2",),
        quotes="`src=(rank - 1) % world_size`. Then let rank 0 receive first",
        is_variant=True,
    ),
    HungCell(
        name="one rank of a ring with a wrong dst",
        n=3,
        code="""\
x, y = torch.ones(1), torch.empty(1)
dst = (rank + 1) % world_size
if rank == 1:
    dst = 0
handle = dist.isend(x, dst=dst)
dist.recv(y, src=(rank - 1) % world_size)
handle.wait()
""",
        kind="p2p-unmatched",
        culprits="0",
        waiting="1-2",
        lines={1: 5, 2: 6},
        quotes="Rank 1 changed `dst` in line 4, inside `if rank == 1:` (line 3)",
    ),
    HungCell(
        name="both send one element first",
        code="x = torch.ones(1)\ndist.send(x, 1 - rank)\ndist.recv(x, 1 - rank)",
        kind="p2p-cycle",
        culprits="0-1",
        waiting="0-1",
        op="send",
        lines={0: 2, 1: 2},
    ),
    HungCell(
        name="both receive first",
        code="x = torch.ones(1)\ndist.recv(x, 1 - rank)\ndist.send(x, 1 - rank)",
        kind="p2p-cycle",
        culprits="0-1",
        waiting="0-1",
        op="recv",
        lines={0: 2, 1: 2},
        is_variant=True,
    ),
    HungCell(
        name="ring of receives",
        n=4,
        code="""\
x = torch.ones(2)
dist.recv(x, (rank - 1) % world_size)
dist.send(x, (rank + 1) % world_size)
""",
        kind="p2p-cycle",
        culprits="0-3",
        waiting="0-3",
        op="recv",
        lines=dict.fromkeys(range(4), 2),
        words=("in a circle",),
    ),
    HungCell(
        name="ring of sends",
        n=4,
        code="""\
x = torch.ones(2)
dist.send(x, (rank + 1) % world_size)
dist.recv(x, (rank - 1) % world_size)
""",
        kind="p2p-cycle",
        culprits="0-3",
        waiting="0-3",
        op="send",
        lines=dict.fromkeys(range(4), 2),
        is_variant=True,
    ),
    HungCell(
        name="circle of three, and one who waits for it",
        n=4,
        code="dist.recv(torch.empty(1), 0 if rank == 3 else (rank + 1) % 3)",
        kind="p2p-cycle",
        culprits="0-2",
        waiting="0-3",
        op="recv",
        lines=dict.fromkeys(range(4), 1),
    ),
    HungCell(
        name="one forward, one backward, with sends that block",
        n=3,
        code="""\
def forward():
    x = torch.ones(2)
    if rank:
        dist.recv(x, rank - 1, tag=1)
    if rank < 2:
        dist.send(x, rank + 1, tag=1)

def backward():
    x = torch.ones(2)
    if rank < 2:
        dist.recv(x, rank + 1, tag=2)
    if rank:
        dist.send(x, rank - 1, tag=2)

for _ in range(2 - rank):
    forward()
for step in range(4 + rank):
    forward()
    backward()
""",
        kind="p2p-cycle",
        culprits="1-2",
        waiting="0-2",
        op="send",
        lines={0: 6, 1: 6, 2: 13},
        is_variant=True,
    ),
    HungCell(
        name="parameter server that wants one message too many",
        n=4,
        code="""\
if rank:
    for step in range(20):
        dist.send(torch.full((2,), float(rank)), 0)
else:
    for step in range(20 * (world_size - 1) + 1):
        source = dist.recv(x := torch.empty(2))
        assert x[0] == source
""",
        kind="p2p-unmatched",
        culprits="1-3",
        waiting="0",
        op="recv",
        lines={0: 6},
    ),
    HungCell(
        name="two groups in opposite order",
        code="""\
order = [low, everyone] if rank else [everyone, low]
for group in order:
    dist.all_reduce(torch.ones(1), group=group)
""",
        kind="group-cycle",
        culprits="0-1",
        waiting="0-1",
        op="all_reduce",
        lines={0: 3, 1: 3},
    ),
    HungCell(
        name="WORLD against a sub-group",
        n=4,
        code="""\
if rank == 0:
    dist.barrier(group=low)
dist.all_reduce(torch.ones(1))
if rank == 1:
    dist.barrier(group=low)
""",
        kind="group-cycle",
        culprits="0-1",
        waiting="0-3",
        lines={0: 2, 1: 3, 2: 3, 3: 3},
    ),
    HungCell(
        name="same operation on the wrong group",
        n=3,
        code="dist.all_reduce(torch.ones(1), group=everyone if rank == 1 else None)",
        kind="group-cycle",
        culprits="0-2",
        waiting="0-2",
        op="all_reduce",
        lines={0: 1, 1: 1, 2: 1},
        is_variant=True,
    ),
    HungCell(
        name="three groups in a ring",
        n=3,
        before="ring = [dist.new_group([i, (i + 1) % 3]) for i in range(3)]",
        code="""\
dist.all_reduce(torch.ones(1), group=ring[rank])
dist.all_reduce(torch.ones(1), group=ring[rank - 1])
""",
        kind="group-cycle",
        culprits="0-2",
        waiting="0-2",
        op="all_reduce",
        lines={0: 1, 1: 1, 2: 1},
    ),
    HungCell(
        name="rows and columns of a mesh",
        n=4,
        before="""\
from torch.distributed.device_mesh import init_device_mesh
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
""",
        code="""\
first, second = ("dp", "tp") if rank in (0, 3) else ("tp", "dp")
dist.all_reduce(torch.ones(1), group=mesh[first].get_group())
dist.all_reduce(torch.ones(1), group=mesh[second].get_group())
""",
        kind="group-cycle",
        culprits="0-3",
        waiting="0-3",
        op="all_reduce",
        lines=dict.fromkeys(range(4), 2),
    ),
    HungCell(
        name="others in another group than the last",
        n=3,
        code="""\
if rank:
    dist.all_reduce(torch.ones(1), group=everyone)
dist.barrier()
""",
        kind="group-cycle",
        culprits="0-2",
        waiting="0-2",
        op="all_reduce",
        lines={0: 3, 1: 2, 2: 2},
        is_variant=True,
    ),
    HungCell(
        name="sub-group that one rank leaves early",
        n=3,
        code="""\
for it in range(4):
    if rank == 1 and it == 2:
        break
    dist.all_reduce(torch.ones(1), group=low if rank < 2 else None) if rank < 2 else None
dist.barrier()
""",
        kind="group-cycle",
        culprits="0-1",
        waiting="0-2",
        lines={0: 4, 1: 5, 2: 5},
        quotes="Let all ranks take the `break` in line 3, inside `if rank == 1 and it == 2:` "
        "(line 2), in the same iteration, or none of them.",
    ),
    HungCell(
        name="sub-group that a function of a loop leaves out",
        n=3,
        code="""\
def run(it):
    if rank == 1 and it == 2:
        return
    if rank < 2:
        dist.all_reduce(torch.ones(1), group=low)

for it in range(4):
    run(it)
    dist.all_reduce(torch.ones(1))
""",
        kind="group-cycle",
        culprits="0-1",
        waiting="0-2",
        lines={0: 5, 1: 9, 2: 9},
        quotes="Let all ranks take the `return` in line 3, inside `if rank == 1 and it == 2:`",
        is_variant=True,
    ),
    HungCell(
        name="sub-group of other ranks",
        n=3,
        before="first = dist.new_group([0])",
        code="group = first if rank < 2 else high\ndist.all_reduce(torch.ones(1), group=group)\n"
        "dist.barrier()",
        kind="group-cycle",
        culprits="1-2",
        waiting="0-2",
        lines={0: 3, 1: 3, 2: 2},
        quotes="Look at the `group` in line 2 on rank 1: it has run that line without the call",
        is_variant=True,
    ),
    HungCell(
        name="line in the group of another dimension",
        n=4,
        before="""\
tp = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
dp = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
""",
        code="dist.all_reduce(torch.ones(2), group=dp if rank != 3 else tp)\ndist.barrier()",
        kind="group-cycle",
        culprits="1-3",
        waiting="0-3",
        lines={0: 2, 1: 1, 2: 2, 3: 1},
        quotes="Perhaps rank 3 is the odd one",
        is_variant=True,
    ),
]
