"""Cells that hang in `finally`, context managers, functions of other cells, threads or loops."""

from tests.cases.hung_cells import HungCell

WRAPPED = [
    HungCell(
        name="in finally",
        n=3,
        code="""\
try:
    dist.all_reduce(torch.ones(1))
finally:
    if rank == 0:
        dist.barrier()
""",
        kind="missing-rank",
        culprits="1-2",
        waiting="0",
        op="barrier",
        lines={0: 5, 1: 2, 2: 2},
    ),
    HungCell(
        name="at the end of a with block",
        code="""\
from contextlib import contextmanager, nullcontext

@contextmanager
def together():
    yield
    dist.barrier()

with together() if rank else nullcontext():
    print("inside")
""",
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="barrier",
        lines={1: 6},
        is_variant=True,
    ),
    HungCell(
        name="in a function of an earlier cell",
        before="def total(x):\n    dist.all_reduce(x)\n    return x",
        code="if rank == 0:\n    total(torch.ones(1))",
        kind="missing-rank",
        culprits="1",
        waiting="0",
        op="all_reduce",
        lines={0: 2},
        cell=1,
    ),
    HungCell(
        name="in a thread that main joins",
        code="""\
def work():
    dist.all_reduce(torch.ones(1))

if rank == 0:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
""",
        kind="missing-rank",
        culprits="1",
        waiting="0",
        op="all_reduce",
        lines={0: 2},
        error=None,
        words=("Rank 1 never called all_reduce",),
    ),
    HungCell(
        name="under a top-level await",
        code="""\
import asyncio

async def total(x):
    await asyncio.sleep(0)
    dist.all_reduce(x)

if rank:
    await total(torch.ones(1))
""",
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="all_reduce",
        lines={1: 5},
    ),
    HungCell(
        name="in a loop that swallows RuntimeError",
        code="""\
lost = 0
for step in range(5):
    try:
        if rank or step < 2:
            dist.all_reduce(torch.ones(1))
    except RuntimeError:
        lost += 1
""",
        after="assert lost == (3 if rank else 0), lost",
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="all_reduce",
        lines={0: 5, 1: 5},
        error=None,
        words=("Rank 0 never called the 3rd all_reduce",),
    ),
    HungCell(
        name="finally and with have run",
        n=3,
        code="""\
from contextlib import contextmanager
steps = []

@contextmanager
def noted():
    try:
        yield
    except BaseException as error:
        steps.append(type(error).__name__)
        raise
    finally:
        steps.append("with")

try:
    with noted():
        if rank:
            dist.all_reduce(torch.ones(1))
finally:
    steps.append("finally")
""",
        after="""\
error = ["CollectiveAbortedError"] if rank else []
assert steps == [*error, "with", "finally"], steps
""",
        kind="missing-rank",
        culprits="0",
        waiting="1-2",
        op="all_reduce",
        lines={1: 17, 2: 17},
        is_variant=True,
    ),
    HungCell(
        name="error of the freed rank, caught",
        code="""\
seen = None
try:
    if rank:
        dist.all_reduce(torch.ones(1))
except RuntimeError as error:
    seen = type(error).__name__, error.__traceback__.tb_lineno, str(error)
""",
        after="""\
if rank:
    assert seen[:2] == ("CollectiveAbortedError", 4), seen
    assert "rank 0 never called all_reduce" in seen[2].lower(), seen
else:
    assert seen is None
""",
        kind="missing-rank",
        culprits="0",
        waiting="1",
        op="all_reduce",
        lines={1: 4},
        error=None,
        words=("Rank 0 never called all_reduce",),
        is_variant=True,
    ),
]
