"""Ranks in different iterations of a loop: evidence of a deadlock, a notice of a sanitized cell."""

from nbddp.controller.diagnosis import Finding
from nbddp.controller.pool.pool import Pool
from tests.support.views import run_cell

_PRELUDE = "import torch\ngrad = torch.ones(2)\ndef average(x):\n    dist.all_reduce(x)\n"
_TRAIN = """\
def train(steps):
    for step in range(steps):
        if rank == 1 and step == 1:
            continue
        average(grad)
"""


def findings(pool: Pool, code: str, *, sanitize: bool = False) -> tuple[Finding, ...]:
    outcome = run_cell(pool, _PRELUDE + code, check=False, sanitize=sanitize).outcome
    return () if outcome is None or outcome.report is None else outcome.report.findings


def test_a_loop_that_ends_well(pool: Pool):
    code = (
        "for step in range(4):\n    if rank == 0 or step != 1:\n        dist.all_reduce(grad)\n"
        "if rank == 1:\n    dist.all_reduce(grad)\n"
    )
    assert findings(pool, code) == ()
    (finding,) = findings(pool, code, sanitize=True)
    assert (finding.kind, finding.proven) == ("desynchronized-loop", False)
    assert "rank 0 was at step 1, rank 1 was at step 2: if each rank" in finding.headline
    code = code.replace("step != 1", "True").replace("rank == 1", "False")
    assert findings(pool, code, sanitize=True) == ()


def test_a_call_in_a_function_of_a_loop_in_a_function(pool: Pool):
    hang, shift = findings(pool, f"{_TRAIN}train(4)")
    assert (hang.kind, shift.kind) == ("missing-rank", "desynchronized-loop")
    assert "rank 0 was at step 1, rank 1 was at step 2" in shift.headline


def test_buckets_of_ddp(pool: Pool):
    code = (
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
        "for epoch in range(2):\n"
        "    for i, batch in enumerate(torch.ones(3, 4, 2)):\n"
        "        if rank == 1 and epoch == 0 and i == 1:\n"
        "            continue\n"
        "        model(batch).sum().backward()\n"
    )
    hang, shift = findings(pool, code)
    assert (hang.kind, shift.kind) == ("missing-rank", "desynchronized-loop")
    assert "rank 0 was at i = 1, rank 1 was at i = 2" in shift.headline
    assert findings(pool, code.replace("i == 1", "i == 9")) == ()


def test_records_of_long_loops_have_some_iterations(pool: Pool):
    code = "for step in range(300):\n    if rank == 0 or step != 1:\n        average(grad)\n"
    hang, shift = findings(pool, code)
    assert hang.collective_seq_id > 300
    assert shift.headline.startswith("At the latest since all_reduce #")


def test_loops_that_begin_at_different_numbers_are_no_shift(pool: Pool):
    assert findings(pool, "for i in range(rank, 4 + rank):\n    dist.all_reduce(grad)") == ()
    assert (
        findings(
            pool,
            "sources = range(2)\nfor source in sources:\n    dist.broadcast(grad, source)\n"
            "for i in range(3):\n    if rank == 0:\n        dist.broadcast(grad, 0)\n"
            "    else:\n        dist.broadcast(grad, 0)\n",
        )
        == ()
    )


def test_iterations_that_are_shared_out_are_no_fault(pool: Pool):
    code = (
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
        "def is_mine(i):\n    return i in [[0, 2], [1, 3]][rank]\n"
        "for i, batch in enumerate(torch.ones(4, 4, 2)):\n"
        "    if not is_mine(i):\n"
        "        continue\n"
        "    model(batch).sum().backward()\n"
    )
    assert findings(pool, code) == ()
    (notice,) = findings(pool, code, sanitize=True)
    assert not notice.proven
    assert "if each rank has a share of the work, nothing is wrong" in notice.headline


def test_shards_of_different_lengths_are_no_fault(pool: Pool):
    code = (
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
        "steps = 0\n"
        "for epoch in range(100):\n"
        "    for batch in torch.ones(2 + rank, 4, 2):\n"
        "        if steps < 5:\n"
        "            model(batch).sum().backward()\n"
        "            steps += 1\n"
        "    if steps == 5:\n"
        "        break\n"
    )
    assert findings(pool, code) == ()
