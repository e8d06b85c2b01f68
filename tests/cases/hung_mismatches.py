"""Cells in which ranks call operations that do not match.

The later one of two ranks sees the mismatch and raises; it differs from run to run.
While a third rank is missing, both may be wrong: ``culprits`` are the ranks that are always named.
"""

from nbddp.errors import MismatchError
from tests.cases.hung_cells import HungCell

MISMATCHED = [
    HungCell(
        name="another operation",
        code="x = torch.ones(3)\nif rank:\n    dist.broadcast(x, 0)\nelse:\n    dist.all_reduce(x)",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        op="all_reduce",
        fields=("op",),
        lines={0: 5, 1: 3},
        error=MismatchError,
        words=("broadcast", "all_reduce", "nothing was sent"),
    ),
    HungCell(
        name="barrier against all_reduce",
        n=3,
        code="if rank == 1:\n    dist.barrier()\nelse:\n    dist.all_reduce(torch.ones(1))",
        kind="mismatched-collective",
        culprits="1",
        waiting=None,
        fields=("op",),
        lines={0: 4, 1: 2, 2: 4},
        error=MismatchError,
    ),
    HungCell(
        name="shape",
        n=4,
        code="dist.all_reduce(torch.ones(4 if rank == 3 else 5))",
        kind="mismatched-collective",
        culprits="3",
        waiting=None,
        fields=("input_sizes",),
        lines=dict.fromkeys(range(4), 1),
        error=MismatchError,
        words=("float32[4]", "float32[5]"),
    ),
    HungCell(
        name="a tensor that one rank has made smaller",
        n=4,
        code="x = torch.ones(3)\nif rank == 1:\n    x = x.mean()\ndist.all_reduce(x)",
        kind="mismatched-collective",
        culprits="1",
        waiting=None,
        error=MismatchError,
        words=("rank 1 changed `x` in line 3, inside `if rank == 1:` (line 2)",),
        is_variant=True,
    ),
    HungCell(
        name="dtype",
        code="dist.all_reduce(torch.ones(2, dtype=torch.float64 if rank else torch.float32))",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        op="all_reduce",
        fields=("input_dtypes",),
        lines={0: 1, 1: 1},
        error=MismatchError,
        words=("float64[2]", "float32[2]"),
    ),
    HungCell(
        name="dtype of the same width",
        n=3,
        code="dist.all_reduce(torch.ones(2, dtype=torch.int32 if rank == 2 else torch.float32))",
        kind="mismatched-collective",
        culprits="2",
        waiting=None,
        fields=("input_dtypes",),
        error=MismatchError,
        words=("int32[2]",),
        is_variant=True,
    ),
    HungCell(
        name="root",
        n=4,
        code="dist.broadcast(torch.ones(2), src=rank // 3)",
        kind="mismatched-collective",
        culprits="3",
        waiting=None,
        op="broadcast",
        fields=("root",),
        error=MismatchError,
        words=("root=1", "root=0"),
    ),
    HungCell(
        name="destination of a reduce",
        code="dist.reduce(torch.ones(2), dst=rank)",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        op="reduce",
        fields=("root",),
        error=MismatchError,
        is_variant=True,
    ),
    HungCell(
        name="source of a scatter",
        code="""\
out = torch.empty(1)
parts = [torch.ones(1), torch.ones(1)]
dist.scatter(out, parts, src=rank)
""",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        op="scatter",
        fields=("root",),
        error=MismatchError,
        is_variant=True,
    ),
    HungCell(
        name="ReduceOp",
        n=3,
        code="""\
op = dist.ReduceOp.MAX if rank == 0 else dist.ReduceOp.SUM
dist.all_reduce(torch.ones(2), op=op)
""",
        kind="mismatched-collective",
        culprits="0",
        waiting=None,
        fields=("reduce_op",),
        error=MismatchError,
        words=("op=MAX", "op=SUM"),
    ),
    HungCell(
        name="split sizes",
        n=3,
        code="""\
out = torch.empty(3)
taken = [2, 1, 0] if rank == 1 else [1, 1, 1]
dist.all_to_all_single(out, torch.arange(3.0), taken, [1, 1, 1])
""",
        kind="mismatched-collective",
        culprits="1",
        waiting=None,
        op="all_to_all_single",
        fields=("input_splits", "output_splits"),
        lines={0: 3, 1: 3, 2: 3},
        error=MismatchError,
    ),
    HungCell(
        name="order of two operations",
        n=4,
        code="""\
x = torch.ones(2)
if rank == 0:
    dist.all_reduce(x)
    dist.broadcast(x, 0)
else:
    dist.broadcast(x, 0)
    dist.all_reduce(x)
""",
        kind="mismatched-collective",
        culprits="0",
        waiting=None,
        fields=("op",),
        lines={0: 3, 1: 6, 2: 6, 3: 6},
        error=MismatchError,
    ),
    HungCell(
        name="one call too many on one rank",
        n=3,
        code="""\
loss = torch.ones(1)
if rank == 1:
    dist.all_reduce(loss)
dist.all_gather([torch.empty(1) for _ in range(world_size)], loss)
dist.all_reduce(loss)
""",
        kind="mismatched-collective",
        culprits="1",
        waiting=None,
        fields=("op",),
        lines={0: 4, 1: 3, 2: 4},
        error=MismatchError,
    ),
    HungCell(
        name="two against two",
        n=4,
        code="if rank % 2:\n    dist.barrier()\nelse:\n    dist.all_reduce(torch.ones(1))",
        kind="mismatched-collective",
        culprits=None,
        waiting=None,
        fields=("op",),
        lines={0: 4, 1: 2, 2: 4, 3: 2},
        error=MismatchError,
        is_variant=True,
    ),
    HungCell(
        name="gather of different sizes",
        n=3,
        code="""\
mine = torch.ones(2 + rank // 2)
found = [torch.empty(2) for _ in range(world_size)] if rank == 0 else None
dist.gather(mine, found, dst=0)
""",
        kind="mismatched-collective",
        culprits="2",
        waiting=None,
        op="gather",
        fields=("input_sizes",),
        error=MismatchError,
    ),
    HungCell(
        name="all_gather of the last, smaller batch",
        code="""\
for batch in torch.utils.data.DataLoader(torch.arange(8 - 2 * rank), batch_size=4):
    found = [torch.empty_like(batch) for _ in range(world_size)]
    dist.all_gather(found, batch)
""",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        op="all_gather",
        fields=("input_sizes",),
        lines={0: 3, 1: 3},
        error=MismatchError,
        words=("int64[4]", "int64[2]"),
        is_variant=True,
    ),
    HungCell(
        name="all_gather_into_tensor of another size",
        n=3,
        code="""\
mine = torch.ones(2, 3 if rank == 1 else 2)
dist.all_gather_into_tensor(torch.empty(2 * world_size, mine.shape[1]), mine)
""",
        kind="mismatched-collective",
        culprits="1",
        waiting=None,
        op="all_gather_into_tensor",
        fields=("input_sizes",),
        error=MismatchError,
        is_variant=True,
    ),
    HungCell(
        name="functional all_gather_tensor of another size",
        n=3,
        code="""\
import torch.distributed._functional_collectives as functional
functional.all_gather_tensor(torch.ones(3 if rank == 1 else 4), 0, dist.group.WORLD) + 0
""",
        kind="mismatched-collective",
        culprits="1",
        waiting=None,
        fields=("input_sizes",),
        error=MismatchError,
        is_variant=True,
    ),
    HungCell(
        name="broadcast_object_list of different lengths",
        code="""\
objects = [1, 2] if rank == 0 else [None]
dist.broadcast_object_list(objects, src=0)
""",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        op="broadcast",
        fields=("input_sizes",),
        lines={0: 2, 1: 2},
        error=MismatchError,
    ),
    HungCell(
        name="in a sub-group",
        n=4,
        code="if rank > 1:\n    dist.all_reduce(torch.ones(rank), group=high)",
        kind="mismatched-collective",
        culprits="2-3",
        waiting=None,
        op="all_reduce",
        fields=("input_sizes",),
        lines={2: 2, 3: 2},
        error=MismatchError,
    ),
    HungCell(
        name="in an async operation",
        code="work = dist.all_reduce(torch.ones(2 + rank), async_op=True)\nwork.wait()",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        op="all_reduce",
        fields=("input_sizes",),
        lines={0: 1, 1: 1},
        error=MismatchError,
        is_variant=True,
    ),
    HungCell(
        name="operation of the cell before, that one rank has left open",
        before="if rank:\n    work = dist.all_reduce(torch.ones(1), async_op=True)",
        code="dist.barrier()",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        fields=("op",),
        error=MismatchError,
        words=("cell [1], line 2", "cell [2], line 1"),
    ),
    HungCell(
        name="metric of rank 0 between the steps of DDP",
        n=3,
        code="""\
for epoch in range(2):
    loss = model(torch.ones(1, 4)).sum()
    loss.backward()
    if rank == 0:
        total = loss.detach().clone()
        dist.all_reduce(total)
        print(epoch, total)
""",
        kind="mismatched-collective",
        culprits="0",
        waiting=None,
        fields=("input_sizes",),
        lines={0: 6, 1: 3, 2: 3},
        error=MismatchError,
        is_variant=True,
    ),
    HungCell(
        name="DDP buckets of different sizes",
        code="""\
layers = (nn.Linear(512, 512) for _ in range(4))
net = DDP(nn.Sequential(*layers), bucket_cap_mb=1.5 * (1 + rank), find_unused_parameters=True)
net(torch.ones(1, 512)).sum().backward()
""",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        op="all_reduce",
        fields=("input_sizes",),
        lines={0: 3, 1: 3},
        error=MismatchError,
        is_variant=True,
    ),
    HungCell(
        name="caught, and on with the next",
        code="""\
caught = []
for step in range(3):
    try:
        dist.all_reduce(torch.ones(2 if rank and step == 1 else 3))
    except RuntimeError as error:
        caught.append(type(error).__name__)
""",
        after="assert caught and caught[0].startswith('Collective'), caught",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        op="all_reduce",
        fields=("input_sizes",),
        error=None,
        words=("float32[2]", "float32[3]"),
    ),
]
