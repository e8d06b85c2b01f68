"""A rank that skips a collective: the others' data of one iteration meets its data of the next."""

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


def findings(pool: Pool, code: str) -> tuple[Finding, ...]:
    outcome = run_cell(pool, _PRELUDE + code, check=False).outcome
    return () if outcome is None or outcome.report is None else outcome.report.findings


def test_a_loop_that_ends_well(pool: Pool):
    code = (
        "for step in range(4):\n    if rank == 0 or step != 1:\n        dist.all_reduce(grad)\n"
        "if rank == 1:\n    dist.all_reduce(grad)\n"
    )
    (finding,) = findings(pool, code)
    assert finding.kind == "desynchronized-loop"
    assert "rank 0 was at step 1, rank 1 was at step 2: the results" in finding.headline
    assert findings(pool, code.replace("step != 1", "True").replace("rank == 1", "False")) == ()


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
    shift = findings(pool, code)[-1]
    assert shift.kind == "desynchronized-loop"
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


def test_iterations_that_are_divided_among_the_ranks_are_no_shift(pool: Pool):
    code = (
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))\n"
        "def train(batches):\n"
        "    for i, batch in enumerate(batches):\n"
        "        if i % world_size != rank:\n"
        "            continue\n"
        "        model(batch).sum().backward()\n"
        "train(torch.ones(4, 4, 2))\n"
    )
    assert findings(pool, code) == ()
    at_constants = "(rank == 0 and i in (1, 3)) or (rank == 1 and i in (0, 2))"
    (finding,) = findings(pool, code.replace("i % world_size != rank", at_constants))
    assert finding.kind == "desynchronized-loop"
