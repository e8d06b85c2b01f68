"""Cells in which DDP, FSDP2, DTensor, checkpoints or data loaders wait for a rank forever."""

from tests.cases.hung_cells import HungCell

MODULES = [
    HungCell(
        name="uneven data loaders",
        code="""\
data = torch.utils.data.DataLoader(torch.ones(8 + 4 * rank, 4), batch_size=4)
net = DDP(nn.Linear(4, 1))
for batch in data:
    net(batch).sum().backward()
""",
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="all_reduce",
        lines={0: 4, 1: 4},
        words=("never came to gradient averaging in net(batch).sum().backward()",),
    ),
    HungCell(
        name="DDP backward skipped",
        n=3,
        code="""\
loss = model(torch.ones(2, 4)).sum()
if rank != 1:
    loss.backward()
""",
        kind="missing-rank",
        culprits="1",
        waiting="0,2",
        op="all_reduce",
        lines={0: 3, 2: 3},
        words=("Rank 1 never came to gradient averaging in loss.backward()",),
    ),
    HungCell(
        name="no_sync on one rank",
        code="""\
from contextlib import nullcontext
with model.no_sync() if rank else nullcontext():
    model(torch.ones(2, 4)).sum().backward()
""",
        kind="missing-rank",
        culprits="1",
        waiting="0",
        op="all_reduce",
        lines={0: 3},
        words=("never came to gradient averaging in model(torch.ones(2, 4)).sum().backward()",),
    ),
    HungCell(
        name="no_sync on one rank, in the first backward",
        code="""\
from contextlib import nullcontext
net = DDP(nn.Linear(4, 2))
with net.no_sync() if rank else nullcontext():
    net(torch.ones(2, 4)).sum().backward()
""",
        kind="missing-rank",
        culprits="1",
        waiting="0",
        op="all_reduce",
        lines={0: 4},
        # One rank has noted an order of gradients, by which the next forward sorts its buckets.
        after="for _ in range(3):\n    net(torch.ones(2, 4) + rank).sum().backward()\n",
        is_variant=True,
    ),
    HungCell(
        name="no_sync on one rank, in one iteration",
        code="""\
from contextlib import nullcontext
for it in range(4):
    with model.no_sync() if rank == 1 and it == 2 else nullcontext():
        model(torch.ones(2, 4)).sum().backward()
""",
        kind="missing-rank",
        culprits="1",
        waiting="0",
        op="all_reduce",
        lines={0: 4, 1: 4},
        quotes="Use `no_sync()` (line 3) in the same iterations on all ranks: rank 1 left out "
        "gradient averaging in line 4 at it = 2.",
        is_variant=True,
    ),
    HungCell(
        name="loss detached on one rank, in one iteration",
        code="""\
for it in range(4):
    loss = model(torch.ones(2, 4)).sum()
    loss = loss.detach().requires_grad_() if rank == 1 and it == 1 else loss
    loss.backward()
""",
        kind="missing-rank",
        culprits="1",
        waiting="0",
        op="all_reduce",
        lines={0: 4, 1: 4},
        quotes="rank 1 left out gradient averaging in line 4 at it = 1",
        is_variant=True,
    ),
    HungCell(
        name="unused parameters on one rank",
        n=3,
        code="""\
class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.left(x) if rank == 2 else self.right(self.left(x))

net = DDP(Branches())
net(torch.ones(1, 4)).sum().backward()
""",
        kind="missing-rank",
        culprits="2",
        waiting="0-1",
        op="all_reduce",
        lines={0: 10, 1: 10},
        words=("never came to gradient averaging in net(torch.ones(1, 4)).sum().backward()",),
    ),
    HungCell(
        name="DDP constructor on some",
        n=4,
        code="if rank < 2:\n    net = DDP(nn.Linear(4, 2))",
        kind="missing-rank",
        culprits="2-3",
        waiting="0-1",
        op="all_gather",
        lines={0: 2, 1: 2},
        words=("never came to the check of parameter shapes in DDP(nn.Linear(4, 2))",),
    ),
    HungCell(
        # The module is for GPUs only; its function takes a batch without samples on a CPU.
        name="SyncBatchNorm on one rank",
        code="""\
from torch.nn.modules._functions import SyncBatchNorm
normalize = SyncBatchNorm.apply
if rank == 0:
    normalize(torch.ones(0, 4), None, None, None, None, 1e-5, 0.1, dist.group.WORLD, world_size)
""",
        kind="missing-rank",
        culprits="1",
        waiting="0",
        op="all_gather",
        lines={0: 4},
        words=("Rank 1 never came to SyncBatchNorm's statistics in normalize(...)",),
    ),
    HungCell(
        name="FSDP2 forward skipped",
        before="""\
from torch.distributed.fsdp import fully_shard
sharded = fully_shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
sharded(torch.ones(1, 4)).sum().backward()
""",
        code="if rank:\n    sharded(torch.ones(1, 4)).sum().backward()",
        after="""\
for _ in range(2):
    sharded.zero_grad()
    sharded(torch.full((1, 4), float(rank))).sum().backward()
    found = sharded[1].bias.grad.full_tensor()
    assert found.eq(1).all(), found
    found = sharded[0].weight.grad.full_tensor()
    dist.all_reduce(expected := sharded[1].weight.full_tensor().sum(0))
    mean = expected / world_size * (world_size - 1) / 2
    assert torch.allclose(found, mean[:, None].expand(4, 4)), (found, mean)
""",
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="all_gather_into_tensor",
        lines={1: 2},
        words=("never came to FSDP's gathering of parameters in sharded(torch.ones(1, 4))",),
    ),
    HungCell(
        name="FSDP2 backward skipped",
        before="""\
from torch.distributed.fsdp import fully_shard
sharded = fully_shard(nn.Linear(4, 2))
""",
        code="""\
loss = sharded(torch.ones(1, 4)).sum()
if rank == 0:
    loss.backward()
""",
        after="""\
for _ in range(2):
    sharded.zero_grad()
    sharded(torch.full((1, 4), float(rank))).sum().backward()
    found = sharded.weight.grad.full_tensor()
    assert found.eq((world_size - 1) / 2).all(), found
""",
        kind="missing-rank",
        culprits="1",
        waiting="0",
        op="reduce_scatter_tensor",
        lines={0: 3},
        words=("never came to FSDP's gradient averaging in loss.backward()",),
        is_variant=True,
    ),
    HungCell(
        name="full_tensor on one rank",
        code="""\
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
mesh = init_device_mesh("cpu", (world_size,))
parts = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
if rank == 0:
    print(parts.full_tensor())
""",
        after="assert parts.full_tensor().tolist() == [0, 1, 2, 3]",
        kind="missing-rank",
        culprits="1",
        waiting="0",
        op="all_gather_into_tensor_coalesced",
        lines={0: 5},
        words=("never came to DTensor's exchange of shards in parts.full_tensor()",),
    ),
    HungCell(
        name="checkpoint of one rank",
        code="""\
import tempfile
import torch.distributed.checkpoint as checkpoint
if rank == 0:
    checkpoint.save({"weight": torch.ones(2)}, checkpoint_id=tempfile.mkdtemp())
""",
        kind="missing-rank",
        culprits="1",
        waiting="0",
        op="all_gather",
        lines={0: 4},
        words=("never came to a call of torch.distributed.checkpoint in checkpoint.save(",),
        is_variant=True,
    ),
    HungCell(
        name="device mesh on some",
        n=4,
        code="""\
from torch.distributed.device_mesh import init_device_mesh
if rank != 3:
    mesh = init_device_mesh("cpu", (2, 2))
""",
        kind="store-wait",
        culprits="3",
        waiting="0-1",
        op="new_group",
        lines={1: 3},
    ),
]
