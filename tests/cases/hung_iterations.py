"""Cells in which one rank leaves out a call in one iteration, mostly in a function of the loop."""

from nbddp.errors import MismatchError
from tests.cases.hung_cells import HungCell

_LOOP = "for it in range(3):\n    run(it)\n"
_RETURN = """\
def run(it):
    if it == 1 and rank == 0:
        return
    dist.all_reduce(torch.ones(1))
"""
_EXCEPT = """\
def run(it):
    try:
        x = torch.ones(1 // int((rank, it) != (0, 1)))
        dist.all_reduce(x)
    except ZeroDivisionError:
        pass
"""
_NO_SYNC = """\
import contextlib
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))

def run(it):
    context = contextlib.nullcontext() if (rank, it) != (0, 1) else net.no_sync()
    with context:
        net(torch.ones(1, 2)).sum().backward()
"""
_DETACHED = """\
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))

def run(it):
    loss = net(torch.ones(1, 2)).sum()
    loss = loss if (rank, it) != (0, 1) else loss.detach().requires_grad_()
    loss.backward()
"""
_NESTED = """\
def run(it):
    if torch.tensor(float("nan") if (rank, it) == (0, 1) else 1.0).isnan():
        return
    inner()

def inner():
    dist.all_reduce(torch.ones(1))
"""
_ON_RANK_0 = """\
def save():
    if rank != 0:
        return
    print("saved")
    dist.barrier()

for it in range(3):
    dist.all_reduce(torch.ones(1))
    save()
"""

_ITEMS = """\
items = [1, 2, 3]
bad = {2} if rank == 0 else set()

def work(item):
    if item in bad:
        return
    dist.all_reduce(torch.ones(1))

for item in items:
    work(item)
"""
_LOADER = """\
from torch.utils.data import DataLoader
data = torch.zeros(3)
data[1] = float("nan") if rank == 0 else 0

def work(batch):
    if batch.isnan().any():
        return
    dist.all_reduce(batch)

for batch in DataLoader(data):
    work(batch)
"""
_CACHED = """\
import functools

@functools.lru_cache
def work(item):
    dist.all_reduce(torch.ones(1))

for item in [1, 1 if rank == 0 else 2]:
    work(item)
"""
_HOOK = """\
def hook(module, given, out):
    dist.all_reduce(torch.ones(1))

net = torch.nn.Linear(1, 1)
handle = net.register_forward_hook(hook)
for it in range(2):
    net(torch.ones(1, 1))
    if rank == 0:
        handle.remove()
"""

ITERATIONS = [
    HungCell(
        name="return in a function of a loop over equally many items",
        code=_ITEMS,
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="all_reduce",
        lines={1: 7},
        quotes="Let all ranks take the `return` in line 6, inside `if item in bad:` (line 5)",
        is_variant=True,
    ),
    HungCell(
        name="return in a function of a loop over data",
        code=_LOADER,
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="all_reduce",
        lines={1: 8},
        quotes="Let all ranks call all_reduce in line 8, reached by line 11, equally often: look "
        "at `return` in line 7, inside `if batch.isnan().any():` (line 6), by which rank 0 may "
        "have left it out, and at `for batch in DataLoader(data):` (line 10), which may be shorter "
        "there.",
    ),
    HungCell(
        name="cached function of a loop",
        code=_CACHED,
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="all_reduce",
        lines={1: 5},
        quotes="rank 0 left it out. Look at `@functools.lru_cache` (line 3).",
        is_variant=True,
    ),
    HungCell(
        name="hook that one rank removes in a loop",
        code=_HOOK,
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="all_reduce",
        lines={1: 2},
        quotes="rank 0 left it out at it = 1. Look at what calls `hook` in line 7.",
    ),
    HungCell(
        name="outer loop of two that is shorter on a rank",
        code="for epoch in range(3 if rank == 1 else 2):\n    for it in range(2):\n"
        "        dist.all_reduce(torch.ones(1))\n",
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="all_reduce",
        lines={1: 3},
        quotes="Give every rank the same number of iterations of `for epoch in range(3 if rank == "
        "1 else 2):` (line 1)",
    ),
    HungCell(
        name="outer while of two loops that is shorter on a rank",
        code="epoch = 0\nwhile epoch < (3 if rank == 1 else 2):\n    for it in range(2):\n"
        "        dist.all_reduce(torch.ones(1))\n    epoch += 1\n",
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="all_reduce",
        lines={1: 4},
        quotes="Give every rank the same number of iterations of `while epoch < (3 if rank == 1 "
        "else 2):` (line 2)",
        is_variant=True,
    ),
    HungCell(
        name="function with a loop that one rank has called twice",
        code="def train():\n    for x in [1, 2]:\n        dist.all_reduce(torch.ones(1))\n"
        "def warm():\n    if rank == 1:\n        train()\nwarm()\ntrain()\n",
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="all_reduce",
        lines={1: 3},
        quotes="rank 0 left it out. Look at the calls of `train` in lines 6, 8.",
        is_variant=True,
    ),
    HungCell(
        name="turn of a rank that it leaves out itself",
        n=3,
        code="x = torch.ones(1)\nfor src in range(world_size):\n    if src == rank == 1:\n"
        "        continue\n    dist.broadcast(x, src)\n",
        kind="mismatched-collective",
        culprits="1",
        waiting=None,
        fields=("root",),
        lines=dict.fromkeys(range(3), 5),
        error=MismatchError,
        quotes="look at `continue` in line 4, inside `if src == rank == 1:` (line 3).",
    ),
    HungCell(
        name="ReduceOp beside a tensor that only one rank changes",
        n=3,
        code="ops = [dist.ReduceOp.SUM, dist.ReduceOp.SUM, dist.ReduceOp.MAX]\n"
        "x = torch.ones(1)\nif rank == 2:\n    x = x * 2\ndist.all_reduce(x, op=ops[rank])\n",
        kind="mismatched-collective",
        culprits="2",
        waiting=None,
        fields=("reduce_op",),
        lines=dict.fromkeys(range(3), 5),
        error=MismatchError,
        quotes="Use the same ReduceOp on all ranks of the group.",
    ),
    HungCell(
        name="return in a function in the last iteration, with another operation behind",
        code=f"{_RETURN}for it in range(2):\n    run(it)\ndist.barrier()\n",
        kind="mismatched-collective",
        culprits="0",
        waiting=None,
        lines={0: 7, 1: 4},
        error=MismatchError,
        quotes="Let all ranks take the `return` in line 3, inside `if it == 1 and rank == 0:`",
    ),
    HungCell(
        name="extra call in a loop, with another operation behind",
        code="def run(it):\n    dist.all_reduce(torch.ones(1))\nfor it in range(2):\n"
        "    run(it)\n    if rank and it == 0:\n        dist.all_reduce(torch.ones(1))\n"
        "dist.barrier()\n",
        kind="mismatched-collective",
        culprits="0",
        waiting=None,
        lines={0: 7, 1: 2},
        error=MismatchError,
        quotes="has called all_reduce more often on rank 1 than on rank 0, inside "
        "`if rank and it == 0:` (line 5)",
    ),
    HungCell(
        name="return in a function of a loop",
        n=3,
        code=f"{_RETURN}{_LOOP}",
        kind="missing-rank",
        culprits="0",
        waiting="1-2",
        op="all_reduce",
        lines={1: 4, 2: 4},
        quotes="Let all ranks take the `return` in line 3, inside `if it == 1 and rank == 0:`",
    ),
    HungCell(
        name="exception that a function of a loop swallows",
        n=3,
        code=f"{_EXCEPT}{_LOOP}",
        kind="missing-rank",
        culprits="0",
        waiting="1-2",
        op="all_reduce",
        lines={1: 4, 2: 4},
        quotes="Rank 0 skipped line 4 at it = 1: `except ZeroDivisionError:` (line 5) perhaps",
        is_variant=True,
    ),
    HungCell(
        name="no_sync in a function of a loop",
        n=3,
        code=f"{_NO_SYNC}{_LOOP}",
        kind="missing-rank",
        culprits="0",
        waiting="1-2",
        op="all_reduce",
        lines={1: 7, 2: 7},
        quotes="Use `no_sync()` (line 5) in the same iterations on all ranks: rank 0 left out "
        "gradient averaging in line 7 at it = 1.",
    ),
    HungCell(
        name="detached loss in a function of a loop",
        n=3,
        code=f"{_DETACHED}{_LOOP}",
        kind="missing-rank",
        culprits="0",
        waiting="1-2",
        op="all_reduce",
        lines={1: 6, 2: 6},
        quotes="rank 0 left out gradient averaging in line 6 at it = 1: line 6 has called "
        "all_reduce (gradients) 2 times on rank 0, 3 times on ranks 1-2",
        is_variant=True,
    ),
    HungCell(
        name="return in a function of a loop, which calls another one",
        n=3,
        code=f"{_NESTED}{_LOOP}",
        kind="missing-rank",
        culprits="0",
        waiting="1-2",
        op="all_reduce",
        lines={1: 7, 2: 7},
        quotes="`return` in line 3, inside `if torch.tensor",
        is_variant=True,
    ),
    HungCell(
        name="function of a loop that a shorter loop calls less often",
        code="def run(x):\n    if x.isnan():\n        return\n    dist.all_reduce(x)\n"
        "for x in torch.ones(3 - rank):\n    run(x)\n",
        kind="missing-rank",
        culprits="1",
        waiting="0",
        op="all_reduce",
        lines={0: 4},
        quotes="`for x in torch.ones(3 - rank):` (line 5) had fewer iterations on rank 1",
        is_variant=True,
    ),
    HungCell(
        name="function of a loop that ends early",
        code="def run(x):\n    if x.isnan():\n        return\n    dist.all_reduce(x)\n"
        "for it in range(3):\n    value = float(it - rank)\n    if value > 1:\n        break\n"
        "    run(torch.tensor(value))\n",
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="all_reduce",
        lines={1: 4},
        quotes="Let all ranks call all_reduce in line 4, reached by line 9, equally often: rank 0 "
        "left it out. Look at `return` in line 3, inside `if x.isnan():` (line 2) or `break` in "
        "line 8, inside `if value > 1:` (line 7).",
    ),
    HungCell(
        name="function of a loop that an exception ends",
        code="def run(x):\n    if x.isnan():\n        return\n    dist.all_reduce(x)\n"
        "try:\n    for it in range(3):\n        run(torch.tensor(1 // (2 + rank - it)))\n"
        "except ZeroDivisionError:\n    pass\n",
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="all_reduce",
        lines={1: 4},
        quotes="rank 0 left it out. Look at `return` in line 3, inside `if x.isnan():` (line 2) or "
        "`except ZeroDivisionError:` (line 8).",
        is_variant=True,
    ),
    HungCell(
        name="function of a loop that divides the iterations among the ranks",
        n=3,
        code="def run(i):\n    if i % world_size != rank:\n        return\n"
        "    dist.all_reduce(torch.ones(1))\nfor i in range(7):\n    run(i)\n",
        kind="missing-rank",
        culprits="1-2",
        waiting="0",
        op="all_reduce",
        lines={0: 4},
        quotes="Let `if i % world_size != rank:` (line 2) give all ranks equally many iterations",
        is_variant=True,
    ),
    HungCell(
        name="return in a function of a loop, with another operation behind",
        n=3,
        code=f"{_RETURN}{_LOOP}dist.broadcast(torch.ones(2), 0)\n",
        kind="mismatched-collective",
        culprits="0",
        waiting=None,
        lines={0: 7, 1: 4, 2: 4},
        error=MismatchError,
        quotes="Let all ranks take the `return` in line 3, inside `if it == 1 and rank == 0:`",
        is_variant=True,
    ),
    HungCell(
        name="exception that a function of a loop swallows, with another operation behind",
        n=3,
        code=f"{_EXCEPT}{_LOOP}dist.barrier()\n",
        kind="mismatched-collective",
        culprits="0",
        waiting=None,
        lines={0: 9, 1: 4, 2: 4},
        error=MismatchError,
        quotes="Rank 0 skipped line 4 at it = 1: `except ZeroDivisionError:` (line 5) perhaps",
    ),
    HungCell(
        name="function that one rank leaves late",
        n=3,
        code=_ON_RANK_0,
        kind="mismatched-collective",
        culprits="0",
        waiting=None,
        lines={0: 5, 1: 8, 2: 8},
        error=MismatchError,
        quotes="Call barrier before `if rank != 0:` (line 2), whose `return` skips it",
    ),
    HungCell(
        name="another shape since a call was left out in a loop",
        n=3,
        code="""\
for it in range(3):
    for size in (2, 3):
        x = torch.ones(size) if (rank, it, size) != (2, 1, 3) else None
        if x is not None:
            dist.all_reduce(x)
""",
        kind="mismatched-collective",
        culprits="2",
        waiting=None,
        fields=("input_sizes",),
        lines=dict.fromkeys(range(3), 5),
        error=MismatchError,
        quotes="reduce their sum and their number. If all ranks should be at the same iteration, "
        "look at `if x is not None:` (line 4).",
    ),
]
