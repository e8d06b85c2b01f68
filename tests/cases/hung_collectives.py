"""Cells in which some rank never calls a collective."""

from nbddp.errors import MismatchError
from tests.cases.hung_cells import HungCell

#: A collective that some members never call, in plain code.
MISSING = [
    HungCell(
        name="if rank",
        n=4,
        code="if rank:\n    dist.all_reduce(torch.ones(1))",
        kind="missing-rank",
        culprits="0",
        waiting="1-3",
        op="all_reduce",
        lines={1: 2, 2: 2, 3: 2},
        words=("Rank 0 never called all_reduce", "ranks 1-3 wait for it"),
        quotes="Line 2 is inside `if rank:` (line 1)",
    ),
    HungCell(
        name="early return",
        n=4,
        code="""\
def step(x):
    if rank == 2:
        return x
    dist.all_reduce(x)
    return x

step(torch.ones(2))
""",
        kind="missing-rank",
        culprits="2",
        waiting="0-1,3",
        op="all_reduce",
        lines={0: 4, 1: 4, 3: 4},
        quotes="`return x` in line 3, inside `if rank == 2:` (line 2), skips line 4 on rank 2",
    ),
    HungCell(
        name="loops of another length",
        code="x = torch.ones(3)\nfor step in range(3 if rank else 5):\n    dist.all_reduce(x)",
        kind="missing-rank",
        culprits="1",
        waiting="0",
        op="all_reduce",
        lines={0: 3, 1: 3},
        quotes="line 3 has called all_reduce 3 times on rank 1, 4 times on rank 0",
    ),
    HungCell(
        name="generator exhausted",
        n=3,
        code="""\
batches = iter([torch.ones(2)] * (2 + rank))
while (batch := next(batches, None)) is not None:
    dist.all_reduce(batch)
""",
        kind="missing-rank",
        culprits="0",
        waiting="1-2",
        op="all_reduce",
        lines={0: 3, 1: 3, 2: 3},
    ),
    HungCell(
        name="break",
        n=3,
        code="""\
for step in range(10):
    loss = torch.tensor(1.0 - 0.3 * step * rank)
    if loss < 0:
        break
    dist.all_reduce(loss)
""",
        kind="missing-rank",
        culprits="2",
        waiting="0-1",
        op="all_reduce",
        lines={0: 5, 1: 5, 2: 5},
        quotes="`break` in line 4, inside `if loss < 0:` (line 3), skips line 5 on rank 2",
        is_variant=True,
    ),
    HungCell(
        name="early stopping on one rank",
        n=4,
        code="""\
patience = 2
for epoch in range(6):
    losses = [torch.zeros(1) for _ in range(world_size)]
    dist.all_gather(losses, torch.tensor([1.0 / (epoch + 1)]))
    if rank == 3 and epoch >= patience:
        print("early stopping")
        break
""",
        kind="missing-rank",
        culprits="3",
        waiting="0-2",
        op="all_gather",
        lines={0: 4, 1: 4, 2: 4, 3: 4},
        quotes="`break` in line 7, inside `if rank == 3 and epoch >= patience:` (line 5)",
        is_variant=True,
    ),
    HungCell(
        name="rank 0 saves, with a barrier inside",
        n=4,
        code="""\
def save(state):
    torch.save(state, io.BytesIO())
    dist.barrier()

if rank == 0:
    save(model.state_dict())
print("go on")
""",
        kind="missing-rank",
        culprits="1-3",
        waiting="0",
        op="barrier",
        lines={0: 3},
        quotes="Keep `save(model.state_dict())` inside `if rank == 0:` (line 5). Move the",
    ),
    HungCell(
        name="rank 0 saves in a loop, with a barrier inside",
        code="""\
def save(step):
    torch.save(step, io.BytesIO())
    dist.barrier()

for step in range(3):
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        save(step)
""",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        fields=("op",),
        error=MismatchError,
        words=("barrier",),
        quotes="Keep `save(step)` inside `if rank == 0:` (line 7). Move the barrier (line 3)",
        is_variant=True,
    ),
    HungCell(
        name="error swallowed",
        code="""\
for step in range(3):
    try:
        batch = [1.0, 2.0, 3.0][: 1 + 2 * rank][step]
        dist.all_reduce(torch.tensor(batch))
    except IndexError:
        pass
""",
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="all_reduce",
        lines={0: 4, 1: 4},
        quotes="Rank 0 skipped line 4 at step 1: `except IndexError:` (line 5) perhaps caught",
    ),
    HungCell(
        name="barrier on some",
        n=4,
        code="if rank % 2:\n    dist.barrier()",
        kind="missing-rank",
        culprits="0,2",
        waiting="1,3",
        op="barrier",
        lines={1: 2, 3: 2},
        is_variant=True,
    ),
    HungCell(
        name="sys.exit(0) on one rank",
        code="import sys\nif rank == 1:\n    sys.exit(0)\ndist.barrier()",
        kind="missing-rank",
        culprits="1",
        waiting="0",
        op="barrier",
        lines={0: 4},
        quotes="`sys.exit(0)` in line 3, inside `if rank == 1:` (line 2), skips line 4 on rank 1",
    ),
    HungCell(
        name="monitored_barrier without a timeout of its own",
        n=3,
        code="if rank != 1:\n    dist.monitored_barrier()",
        kind="missing-rank",
        culprits="1",
        waiting="0,2",
        op="monitored_barrier",
        lines={0: 2, 2: 2},
    ),
    HungCell(
        name="all_gather_object on some",
        n=4,
        code="found = [None] * world_size\nif rank > 1:\n    dist.all_gather_object(found, rank)",
        kind="missing-rank",
        culprits="0-1",
        waiting="2-3",
        op="all_gather",
        lines={2: 3, 3: 3},
    ),
    HungCell(
        name="gather_object without its root",
        n=3,
        code="if rank:\n    dist.gather_object({'rank': rank}, None, dst=0)",
        kind="missing-rank",
        culprits="0",
        waiting="1-2",
        op="all_gather",
        lines={1: 2, 2: 2},
    ),
    HungCell(
        name="broadcast_object_list without its source",
        code="if rank:\n    dist.broadcast_object_list([None, None], src=0)",
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="broadcast",
        lines={1: 2},
        is_variant=True,
    ),
    HungCell(
        name="reduce without a member",
        code="if rank == 0:\n    dist.reduce(torch.ones(4), dst=0)",
        kind="missing-rank",
        culprits="1",
        waiting="0",
        op="reduce",
        lines={0: 2},
    ),
    HungCell(
        name="all_to_all without a member",
        n=3,
        code="""\
if rank != 2:
    out = torch.empty(3)
    dist.all_to_all_single(out, torch.arange(3.0))
""",
        kind="missing-rank",
        culprits="2",
        waiting="0-1",
        op="all_to_all_single",
        lines={0: 3, 1: 3},
        is_variant=True,
    ),
    HungCell(
        name="reduce_scatter without a member",
        code="if rank:\n    dist.reduce_scatter_tensor(torch.empty(2), torch.ones(4))",
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="reduce_scatter_tensor",
        lines={1: 2},
        is_variant=True,
    ),
    HungCell(
        name="member of a sub-group missing",
        n=4,
        code="if rank == 0:\n    dist.all_reduce(torch.ones(1), group=low)",
        kind="missing-rank",
        culprits="1",
        waiting="0",
        op="all_reduce",
        lines={0: 2},
        words=("(ranks 0-1)",),
        is_variant=True,
    ),
    HungCell(
        name="two sub-groups, each with one missing",
        n=4,
        code="""\
if rank == 0:
    dist.barrier(group=low)
elif rank == 3:
    dist.all_reduce(torch.ones(1), group=high)
""",
        kind="missing-rank",
        culprits="1",
        waiting="0",
        op="barrier",
        lines={0: 2},
    ),
    HungCell(
        name="async operation of one rank",
        code="if rank:\n    work = dist.all_reduce(torch.ones(1), async_op=True)\n    work.wait()",
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="all_reduce",
        lines={1: 2},
    ),
    HungCell(
        name="async operation that one rank waits for and others never issue",
        n=3,
        code="""\
works = [dist.all_reduce(torch.ones(2), async_op=True) for _ in range(3 - rank // 2)]
for work in works:
    work.wait()
""",
        kind="missing-rank",
        culprits="2",
        waiting="0-1",
        op="all_reduce",
        lines={0: 1, 1: 1, 2: 1},
        is_variant=True,
    ),
    HungCell(
        name="functional collective on one rank",
        code="""\
from torch.distributed import _functional_collectives as functional
if rank == 0:
    print(functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD).tolist())
""",
        kind="missing-rank",
        culprits="1",
        waiting="0",
        op="all_reduce",
        lines={0: 3},
    ),
]
