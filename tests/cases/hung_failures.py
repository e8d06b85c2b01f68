"""Cells in which one rank fails, and the others would wait for it forever."""

from nbddp.errors import CellError
from tests.cases.hung_cells import LET_GO_OF_WORKERS, HungCell

#: The error of one rank is the error of the cell; the others are freed.
ERRORS = [
    HungCell(
        name="ValueError before the collective",
        n=4,
        code="""\
if rank == 2:
    raise ValueError("bad batch")
dist.all_reduce(torch.ones(1))
""",
        kind="first-error",
        culprits="2",
        waiting="0-1,3",
        op="all_reduce",
        lines={0: 3, 1: 3, 2: 2, 3: 3},
        error=CellError,
        words=("rank 2 raised ValueError at cell [2], line 2: bad batch",),
    ),
    HungCell(
        name="KeyError in code that depends on the rank",
        code='paths = {0: "a"}\nprint(paths[rank])\ndist.barrier()',
        kind="first-error",
        culprits="1",
        waiting="0",
        op="barrier",
        lines={0: 3, 1: 2},
        error=CellError,
        words=("KeyError",),
        is_variant=True,
    ),
    HungCell(
        name="assertion in a function of an earlier cell",
        n=3,
        before="""\
def check(x):
    assert x.sum() < 3, "out of range"
    dist.all_reduce(x)
""",
        code="check(torch.full((2,), float(rank)))",
        kind="first-error",
        culprits="2",
        waiting="0-1",
        op="all_reduce",
        lines={0: 3, 1: 3, 2: 2},
        cell=1,
        error=CellError,
        words=("AssertionError: out of range",),
        is_variant=True,
    ),
    HungCell(
        name="sys.exit(3) on one rank",
        code="import sys\nif rank == 0:\n    sys.exit(3)\ndist.barrier()",
        kind="first-error",
        culprits="0",
        waiting="1",
        op="barrier",
        lines={1: 4},
        error=CellError,
        words=("SystemExit: 3",),
    ),
    HungCell(
        name="wrong argument on one rank",
        code='dist.all_reduce("x" if rank else torch.ones(1))',
        kind="first-error",
        culprits="1",
        waiting="0",
        op="all_reduce",
        lines={0: 1, 1: 1},
        error=CellError,
        words=("rank 1 raised TypeError",),
    ),
    HungCell(
        name="tensor that is not contiguous on one rank",
        n=3,
        code="""\
x = torch.ones(2, 3)
dist.all_gather_into_tensor(torch.empty(6, 3), x.t() if rank == 1 else x)
""",
        kind="first-error",
        culprits="1",
        waiting="0,2",
        op="all_gather_into_tensor",
        lines={0: 2, 1: 2, 2: 2},
        error=CellError,
        words=("invalid tensor size",),
        is_variant=True,
    ),
    HungCell(
        name="reduce_scatter_tensor of a wrong shape on one rank, while the others reduce",
        n=3,
        code="""\
if rank == 1:
    dist.reduce_scatter_tensor(torch.zeros(2), torch.ones(world_size, 2))
dist.all_reduce(torch.ones(2))
""",
        kind="first-error",
        culprits="1",
        waiting="0,2",
        op="all_reduce",
        lines={0: 3, 1: 2, 2: 3},
        error=CellError,
        words=("rank 1 raised RuntimeError", "ProcessGroupGloo"),
        is_variant=True,
    ),
    HungCell(
        name="error in a backward hook",
        n=3,
        code="""\
x = torch.ones(2, 4, requires_grad=True)
if rank == 1:
    x.register_hook(lambda gradient: 1 / 0)
net = DDP(nn.Linear(4, 2))
net(x * 1).sum().backward()
dist.barrier()
""",
        kind="first-error",
        culprits="1",
        waiting="0,2",
        lines={0: 6, 1: 3, 2: 6},
        error=CellError,
        words=("ZeroDivisionError",),
    ),
    HungCell(
        name="error in a hook before DDP has reduced",
        code="""\
first = nn.Linear(4, 4)
net = DDP(nn.Sequential(first, nn.Linear(4, 2)))
if rank == 0:
    net.module[1].register_full_backward_hook(lambda *_: [][1])
net(torch.ones(2, 4, requires_grad=True)).sum().backward()
""",
        kind="first-error",
        culprits="0",
        waiting="1",
        op="all_reduce",
        lines={0: 4, 1: 5},
        error=CellError,
        words=("IndexError",),
        is_variant=True,
    ),
    HungCell(
        name="error in a comm hook",
        code="""\
net = DDP(nn.Linear(4, 2))

def hook(state, bucket):
    if rank == 1:
        raise OverflowError("scale")
    return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(
        lambda future: future.value()[0]
    )

net.register_comm_hook(None, hook)
net(torch.ones(1, 4)).sum().backward()
""",
        kind="first-error",
        culprits="1",
        waiting="0",
        op="all_reduce",
        lines={0: 11, 1: 5},
        error=CellError,
        words=("OverflowError: scale",),
    ),
    HungCell(
        name="error in a DataLoader worker",
        n=3,
        code="""\
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if rank == 2 and index == 2:
            raise OSError("disk")
        return torch.ones(4)

for batch in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=1):
    model(batch).sum().backward()
""",
        kind="first-error",
        culprits="2",
        waiting="0-1",
        # A model that has never been trained agrees on its buckets first, by a broadcast.
        lines={0: 11, 1: 11, 2: 10},
        after=LET_GO_OF_WORKERS,
        error=CellError,
        words=("OSError",),
        is_variant=True,
    ),
    HungCell(
        name="DDP of different models",
        code="net = DDP(nn.Linear(4, 3 if rank else 2))",
        kind="first-error",
        culprits="1",
        waiting="0",
        op="broadcast",
        lines={0: 1, 1: 1},
        error=CellError,
        words=("rank 1 raised RuntimeError",),
    ),
    HungCell(
        name="DDP with one more layer on one rank",
        code="net = DDP(nn.Sequential(*(nn.Linear(2, 2) for _ in range(1 + rank))))",
        kind=None,
        error=CellError,
        words=("params",),
        is_variant=True,
    ),
    HungCell(
        name="init_process_group again on one rank",
        n=3,
        code="if rank == 0:\n    dist.init_process_group('gloo')\ndist.barrier()",
        kind="first-error",
        culprits="0",
        waiting="1-2",
        op="barrier",
        lines={0: 2, 1: 3, 2: 3},
        error=CellError,
        words=("twice",),
    ),
    HungCell(
        name="two ranks raise, the others wait",
        n=4,
        code="""\
if rank > 1:
    raise RuntimeError(f"rank {rank} is out of memory")
dist.all_reduce(torch.ones(1))
""",
        kind="first-error",
        culprits=None,  # one of them, or both
        waiting="0-1",
        op="all_reduce",
        lines={0: 3, 1: 3},
        error=CellError,
        words=("out of memory",),
    ),
    HungCell(
        name="error in a step, the others send to the one who failed",
        n=3,
        code="""\
if rank == 1:
    raise ValueError("stage 1")
if rank == 0:
    dist.send(torch.ones(1), 1)
else:
    dist.recv(torch.empty(1), 1)
""",
        kind="first-error",
        culprits="1",
        waiting="0,2",
        lines={0: 4, 1: 2, 2: 6},
        error=CellError,
        words=("stage 1",),
        is_variant=True,
    ),
    HungCell(
        name="error in the forward of FSDP2",
        before="""\
from torch.distributed.fsdp import fully_shard

class Fragile(nn.Module):
    fails = False

    def forward(self, x):
        if self.fails:
            raise ArithmeticError("not a number")
        return x

fragile = Fragile()
sharded = nn.Sequential(nn.Linear(4, 4), fragile, nn.Linear(4, 2))
for layer in (sharded[0], sharded[2]):
    fully_shard(layer)
fully_shard(sharded)
""",
        code="fragile.fails = rank == 1\nsharded(torch.ones(1, 4)).sum().backward()",
        after="""\
fragile.fails = False
for _ in range(2):
    sharded.zero_grad()
    sharded(torch.full((1, 4), float(rank))).sum().backward()
    found = sharded[2].bias.grad.full_tensor()
    assert found.eq(1).all(), found
""",
        kind="first-error",
        culprits="1",
        waiting="0",
        lines={0: 2},
        error=CellError,
        words=("ArithmeticError",),
    ),
]
