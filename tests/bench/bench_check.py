"""What does ``%%ddp --check`` cost: an exchange of fingerprints before each collective?

Two nodes with a rank each, simulated on this machine, run many small all_reduces in a cell, with
and without it. Timed is the cell's own loop on rank 0.

Misleading would be: one run of each (a plain loop varies by a factor of two here, so rounds are
interleaved and medians are compared), or large tensors, whose own time hides the exchange.
"""

import nbddp
from nbddp.controller.pool import CellOptions, Pool
from tests.bench.bench_output_flood import CountingView
from tests.bench.common import Report, interleaved, parser

_LOOP = """
import time
_x = torch.ones(8)
_began = time.perf_counter()
for _ in range({count}): dist.all_reduce(_x)
_us = (time.perf_counter() - _began) / {count} * 1e6
"""


def per_operation(pool: Pool, count: int, *, check: bool) -> float:
    """Microseconds of one all_reduce."""
    options = CellOptions(ranks=pool.all_ranks, check=check)
    outcome = pool.wait(pool.submit(_LOOP.format(count=count), options), CountingView())
    if len(outcome.ranks("ok")) < pool.world_size:
        raise RuntimeError("the loop has failed")
    return float(pool.pull("_us", ranks=0))


def main() -> None:
    arguments = parser(__doc__, rounds=20, warmup=2)
    arguments.add_argument("--operations", type=int, default=200)
    chosen = arguments.parse_args()
    report = Report("check")
    with nbddp.start(1, nnodes=2) as pool:
        samples = interleaved(
            {
                "without": lambda: per_operation(pool, chosen.operations, check=False),
                "with": lambda: per_operation(pool, chosen.operations, check=True),
            },
            chosen.n,
            chosen.warmup,
        )
    without = report.add("all_reduce between 2 nodes", "us", samples["without"])
    with_check = report.add("the same with --check", "us", samples["with"])
    report.add("with : without", "x", [with_check.median / without.median])
    report.show()


if __name__ == "__main__":
    main()
