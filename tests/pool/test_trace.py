"""What the records of real operations say afterwards."""

from typing import Any

from nbddp.controller.pool import Pool
from tests.support.views import run_cell

_BACKWARD = """
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
for _ in range(3):
    model(torch.ones(1, 4)).sum().backward()
    dist.barrier()
"""


def test_what_ddp_sent_has_ended_when_it_ended(pool: Pool):
    """C++ waits for it and not Python, so nobody asks the work."""
    run_cell(pool, _BACKWARD)
    last: list[dict[str, Any]] = [each for each in pool.trace() if each["rank"] == 0][-4:]
    assert [each["op"] for each in last] == ["all_reduce", "barrier"] * 2
    first, between, second, _ = last
    assert first["completed_ns"] < between["completed_ns"] < second["created_ns"]
    assert second["completed_ns"] > second["created_ns"]
