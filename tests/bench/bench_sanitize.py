"""What does ``%%ddp --sanitize`` cost: checks of the tensors of each operation, and of data?

Two ranks run three loops in a cell, with and without it: a step of DDP; gradients that are sent
while the next layer computes, so that each call of torch is compared with open operations; and many
small all_reduces. Timed is the cell's own loop on rank 0, in cells of about a second. A cell of one
turn shows the cost that comes once, at the first operation: models are looked for, and hashed. Two
more loops are passes over 10,000 samples with ``--sanitize data``, in batches of 32 and of 1; a
sampler gives each rank half of them, and nothing but the loader takes time.

Misleading would be: one run of each (rounds are interleaved and medians are compared), or large
layers, whose own time hides the checks: these have 256 units.
"""

from functools import partial

import nbddp
from nbddp.controller.pool import CellOptions, Pool
from tests.bench.bench_output_flood import CountingView
from tests.bench.common import Report, interleaved, parser

_SENT = "layers computed while gradients are sent"
_LOOPS = {
    "step of DDP": """
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
""",
    _SENT: """
    works = []
    x = batch
    for layer in layers:
        x = torch.relu(layer(x))
        works.append(dist.all_reduce(torch.ones(256), async_op=True))
    for work in works:
        work.wait()
""",
    "20 small all_reduces": "    for _ in range(20): dist.all_reduce(small)\n",
}
#: With ``--sanitize data``; in turns of one pass.
_PASSES = {
    f"pass over 10,000 samples in batches of {size}": f"""
    sampler.set_epoch(_)
    for _batch in loader_{size}: pass
"""
    for size in (32, 1)
}
_PREPARE = """
import time
torch.set_num_threads(1)
torch.manual_seed(0)
layers = [torch.nn.Linear(256, 256) for _ in range(4)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
batch, small = torch.randn(64, 256), torch.ones(8)
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
samples = TensorDataset(torch.arange(10_000.0))
sampler = DistributedSampler(samples)
loader_32, loader_1 = (DataLoader(samples, size, sampler=sampler) for size in (32, 1))
"""


def per_turn(pool: Pool, body: str, count: int, *, sanitize: bool) -> float:
    """Microseconds of one turn of a loop; a pass over data is sanitized for data."""
    code = f"_began = time.perf_counter()\nfor _ in range({count}):\n{body}"
    code += f"_us = (time.perf_counter() - _began) / {count} * 1e6\n"
    is_data = body in _PASSES.values()
    options = CellOptions(
        ranks=pool.all_ranks,
        sanitize=sanitize and not is_data,
        sanitize_data=sanitize and is_data,
    )
    outcome = pool.wait(pool.submit(code, options), CountingView())
    if len(outcome.ranks("ok")) < pool.world_size:
        raise RuntimeError("the loop has failed")
    return float(pool.pull("_us", ranks=0))


def main() -> None:
    arguments = parser(__doc__, rounds=10, warmup=1)
    arguments.add_argument("--turns", type=int, default=200)
    chosen = arguments.parse_args()
    report = Report("sanitize")
    with nbddp.start(2) as pool:
        pool.run(_PREPARE)
        for name, body in (_LOOPS | _PASSES).items():
            turns = 1 if name in _PASSES else chosen.turns
            samples = interleaved(
                {
                    "without": partial(per_turn, pool, body, turns, sanitize=False),
                    "with": partial(per_turn, pool, body, turns, sanitize=True),
                },
                chosen.n,
                chosen.warmup,
            )
            without = report.add(name, "us", samples["without"])
            with_checks = report.add(f"{name}, sanitized", "us", samples["with"])
            ratio = with_checks.median / without.median
            report.at_most(f"{name}: with / without", ratio, "x", 2.0)
        body = _LOOPS[_SENT]
        first = interleaved(
            {
                "without": partial(per_turn, pool, body, 1, sanitize=False),
                "with": partial(per_turn, pool, body, 1, sanitize=True),
            },
            chosen.n,
            chosen.warmup,
        )
        report.add(f"first turn of a cell: {_SENT}", "us", first["without"])
        report.add(f"first turn of a cell: {_SENT}, sanitized", "us", first["with"])
    report.show()


if __name__ == "__main__":
    main()
