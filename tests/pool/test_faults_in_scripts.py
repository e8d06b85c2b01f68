"""`nbddp.faults.inject` in a block: on ranks of a pool, and on stock groups as under torchrun."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import nbddp
from nbddp.controller.pool.pool import Pool
from nbddp.errors import NbddpError
from tests.conftest import make_pool
from tests.support.views import run_cell

_ROOT = Path(nbddp.__file__).parents[1]

SCRIPT = """\
import sys, time
import torch
import torch.distributed as dist
import nbddp

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/store", rank=int(sys.argv[2]),
                        world_size=2)
rank, stock = dist.get_rank(), dist.all_reduce
x = torch.ones(2)
began = time.monotonic()
with nbddp.faults.inject("rank 1: flip a bit in the next all_reduce; ranks 0-1: kill at line 99;"
                         "rank 0: delay 200 ms before barrier #2"):
    dist.all_reduce(x)
    for step in range(2):
        dist.barrier()
print("sum", x.tolist(), time.monotonic() - began >= (0.2 if rank == 0 else 0))

found = [torch.zeros(1) for _ in range(2)] if rank == 0 else None
with nbddp.faults.inject("rank 0: flip a bit in the next gather; ranks 0-1: skip all_reduce #2"):
    dist.gather(torch.ones(1), found)
    for is_async in (False, True):
        work = dist.all_reduce(torch.ones(1), dist.ReduceOp.SUM, None, is_async)
    print("work", work.wait(), found)

try:
    with nbddp.faults.inject("ranks 0-1: raise OSError at step 1"):
        for step in range(3):
            last = step
except OSError as error:
    print(error, last)

p = torch.ones(2, requires_grad=True)
with nbddp.faults.inject("nan in rank 0's gradient"):
    (p * 2).sum().backward()
print("gradient", p.grad.tolist())

y = torch.zeros(1)
with nbddp.faults.inject("link 0-1: 1 ms"):
    dist.send(torch.ones(1), 1) if rank == 0 else dist.recv(y, 0)
    with nbddp.faults.inject("rank 1: skip the next recv"):
        if rank == 1:
            dist.recv(torch.ones(1), 0)
print("restored", y.item(), dist.all_reduce is stock, sys.gettrace())
dist.destroy_process_group()
"""

#: What each rank prints, and the faults that it tells.
PRINTED = [
    """\
1 fault did not strike: ranks 0-1: kill at line 99
sum [2.5, 2.0] True
work True [tensor([1.5000]), tensor([1.])]
fault on purpose (ranks 0-1: raise OSError at step 1) 0
gradient [nan, 2.0]
restored 0.0 True None
""",
    """\
1 fault did not strike: ranks 0-1: kill at line 99
sum [2.5, 2.0] True
work True None
fault on purpose (ranks 0-1: raise OSError at step 1) 0
gradient [2.0, 2.0]
restored 1.0 True None
""",
]
STRUCK = [
    [
        "rank 0 was delayed 200 ms before barrier (call 2 of barrier in the block), "
        "line 15, step 1",
        "rank 0 sent a flipped bit in gather: its first element was 1.0, and became 1.5, line 20",
        "rank 0 left out all_reduce (call 2 of all_reduce in the block), line 22",
        "rank 0 raised OSError, line 28, step 1",
        "rank 0 got a NaN in the gradient of a parameter of shape (2,), line 34",
        "rank 0 was delayed 1 ms before send to rank 1, and before each operation with rank 1, "
        "line 39",
    ],
    [
        "rank 1 sent a flipped bit in all_reduce: its first element was 1.0, and became 1.5, "
        "line 13",
        "rank 1 left out all_reduce (call 2 of all_reduce in the block), line 22",
        "rank 1 raised OSError, line 28, step 1",
        "rank 1 left out recv from rank 0, line 42",
    ],
]


def run_ranks(script: str, folder: Path) -> tuple[list[str], list[str]]:
    """Run a script on two ranks, as torchrun does; returns what they write."""
    path = folder / "script.py"
    path.write_text(script, encoding="utf-8")
    processes = [
        subprocess.Popen(
            [sys.executable, str(path), str(folder), str(rank)],
            env={**os.environ, "PYTHONPATH": str(_ROOT), "RANK": str(rank), "WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ended = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ended
    return [out for out, _ in ended], [error for _, error in ended]


@pytest.mark.full
def test_faults_strike_in_a_script_with_stock_groups(tmp_path: Path):
    outs, errors = run_ranks(SCRIPT, tmp_path)
    assert outs == PRINTED
    told = [
        [
            line.removeprefix("fault on purpose: ").replace(f"{tmp_path / 'script.py'}, ", "")
            for line in error.splitlines()
            if line.startswith("fault on purpose: ")
        ]
        for error in errors
    ]
    assert told == STRUCK


BLOCK = """\
x = torch.ones(1)
dist.barrier()
with nbddp.faults.inject("rank 1: flip a bit in all_reduce #2; rank 0: kill at line 1"):
    dist.all_reduce(x)
    dist.all_reduce(x)
dist.all_reduce(x)
"""


def test_faults_of_a_block_join_those_of_the_cell(pool: Pool):
    view = run_cell(pool, BLOCK, faults="rank 0: skip barrier; rank 1: skip barrier")
    assert len(view.struck()) == 3
    assert "(call 2 of all_reduce in the block), cell [1], line 5" in view.struck(1)[-1]
    assert pool.pull("x.item()") == [10.0, 10.0]  # 1, 2, then 2 and 3, which are 5, then 10
    assert view.text(0) == "1 fault did not strike: rank 0: kill at line 1\n"
    assert view.outcome is not None
    assert sorted(view.outcome.injected) == sorted(view.struck())
    view = run_cell(pool, "dist.all_reduce(x)")
    assert view.struck() == []


def test_a_plain_pool_has_faults_in_blocks():
    pool = make_pool(2, plain=True)
    try:
        view = run_cell(pool, BLOCK)
        assert pool.pull("x.item()") == [10.0, 10.0]
        assert "fault on purpose: rank 1 sent a flipped bit in all_reduce" in view.text(1, "stderr")
    finally:
        pool.stop()


def test_a_process_without_ranks_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(NbddpError, match=r"nbddp\.faults\.inject works on ranks"):
        nbddp.faults.inject("rank 0: kill")
