"""Cells in which a condition calls a collective, or lets one rank call its function once more."""

from nbddp.errors import MismatchError
from tests.cases.hung_cells import HungCell

CONDITIONS = [
    HungCell(
        name="break by a condition that calls a collective",
        code="""\
def attempt(k):
    dist.all_reduce(torch.ones(1))
    return rank == 0 or k == 1

for k in range(3):
    if attempt(k): break
""",
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="all_reduce",
        lines={1: 2},
        quotes="Let all ranks take line 6, `if attempt(k): break`, in the same iteration",
    ),
    HungCell(
        name="a mismatch after a break by a condition that calls a collective",
        code="""\
def red(v):
    t = torch.tensor(v)
    dist.all_reduce(t)
    return t.item()

for k in range(3):
    if red(1.0) > 0 and rank == 1:
        break
dist.barrier()
""",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        lines={0: 3, 1: 9},
        error=MismatchError,
        quotes="Let all ranks take the `break` in line 8, inside `if red(1.0) > 0 and rank == 1:` "
        "(line 7), in the same iteration",
        is_variant=True,
    ),
    HungCell(
        name="a condition that calls a collective behind an and",
        code="""\
def red(v):
    t = torch.tensor(v)
    dist.all_reduce(t)
    return t.item()

if rank == 0 and red(1.0) > 0:
    y = 1
""",
        kind="missing-rank",
        culprits="1",
        waiting="0",
        op="all_reduce",
        lines={0: 3},
        quotes="The call in line 6 is behind the `and` of `if rank == 0 and red(1.0) > 0:`: call "
        "it in a line before the `if`, so that rank 1 runs it, too.",
        is_variant=True,
    ),
    HungCell(
        name="a function was called once more by a condition, and the other rank has finished",
        n=3,
        code="""\
def log(value):
    dist.all_reduce(value)

if rank > 0:
    log(torch.ones(2))
log(torch.ones(2))
""",
        kind="missing-rank",
        culprits="0",
        waiting="1-2",
        op="all_reduce",
        lines={1: 2, 2: 2},
        quotes="Line 5, `log(torch.ones(2))`, has called all_reduce more often on ranks 1-2 than "
        "on rank 0, inside `if rank > 0:` (line 4)",
        is_variant=True,
    ),
    HungCell(
        name="an extra forward of a model with buffers, in a loop",
        n=3,
        code="""\
net = DDP(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)))
for s in range(3):
    net(torch.randn(4, 2)).sum().backward()
    if rank == 0:
        val = net(torch.randn(4, 2))
""",
        kind="mismatched-collective",
        culprits="0",
        waiting=None,
        lines={0: 3, 1: 3, 2: 3},
        error=MismatchError,
        quotes="Line 5, `val = net(torch.randn(4, 2))`, has called broadcast (buffers) more often "
        "on rank 0 than on ranks 1-2, inside `if rank == 0:` (line 4)",
    ),
    HungCell(
        name="a mismatch after a function was called once more by a condition",
        n=3,
        code="""\
def log(value):
    dist.all_reduce(torch.ones(1))

for ep in range(3):
    log(1)
    if rank == 1 and ep == 1:
        log(2)
dist.barrier()
""",
        kind="mismatched-collective",
        culprits="1",
        waiting=None,
        lines={0: 8, 1: 2, 2: 8},
        error=MismatchError,
        quotes="Line 7, `log(2)`, has called all_reduce more often on rank 1 than on "
        "ranks 0,2, inside `if rank == 1 and ep == 1:` (line 6)",
        is_variant=True,
    ),
    HungCell(
        name="a mismatch after a continue, and a call in a function",
        code="""\
def vote(v):
    t = torch.tensor(v)
    dist.all_reduce(t)
    return t.item()

for ep in range(2):
    v = vote(1.0)
    if v > 0 and rank == 0: continue
    dist.barrier()
""",
        kind="mismatched-collective",
        culprits="0-1",
        waiting=None,
        lines={0: 3, 1: 9},
        error=MismatchError,
        quotes="Call barrier before line 8, `if v > 0 and rank == 0: continue`, or let all ranks "
        "skip it there.",
    ),
]
