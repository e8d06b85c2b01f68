"""How soon is a deadlock told, and how soon after that is the prompt back and the pool usable?

Ranks note the time just before they wait, or finish, on a clock that all processes of a machine
share; the last of these is when the deadlock was there. Timed from then to the verdict, and from
the verdict, which frees the ranks, to the end of the cell: groups are formed again by then. Each
round ends with an all_reduce that must give the right sum.

Misleading would be: ranks that get stuck one after another (the last one counts), the first
deadlock of a pool, which loads what the others find loaded (``--warmup``), and a look at the
median alone: the largest value is what a class sees.
"""

import itertools
import time

import nbddp
from nbddp.controller.hub.run import CellEvent
from nbddp.controller.pool import CellOptions, Pool
from nbddp.controller.state.actions import VerdictReached
from tests.bench.common import Report, ms, parser
from tests.support.views import RecordingView, run_cell

_PREPARE = """
import time
clock = time.monotonic
twin = dist.new_group()
store = dist.distributed_c10d._get_default_store()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
x = torch.ones(4, 64)
model(x).sum().backward()
"""

#: Each sets ``at`` on every rank, just before it waits, fails or finishes.
_CELLS = {
    "missing rank": "at = clock()\nif rank: dist.all_reduce(torch.ones(1))",
    "no backward on one rank": "loss = model(x).sum()\nat = clock()\nif rank: loss.backward()",
    "circle of sends": "at = clock()\ndist.send(torch.ones(8), (rank + 1) % world_size)",
    "groups in another order": (
        "group = twin if rank else None\nat = clock()\ndist.all_reduce(torch.ones(1), group=group)"
    ),
    "key that nobody sets": "at = clock()\nstore.wait(['never'])",
    "group made by some": "at = clock()\nif rank: dist.new_group()",
    "error on one rank": "at = clock()\nif rank == 0: raise ValueError\ndist.barrier()",
    "shapes that differ": "at = clock()\ndist.all_reduce(torch.ones(1 + (rank > 0)))",
}
_CHECK = "dist.all_reduce(sum_ := torch.ones(1))\nassert sum_.item() == world_size, sum_\n"


class _TimingView(RecordingView):
    """Notes when the first verdict came that frees ranks."""

    judged_at = 0.0

    def show(self, event: CellEvent) -> None:
        if isinstance(event, VerdictReached) and event.acted and not self.judged_at:
            self.judged_at = time.monotonic()
        super().show(event)


def recover(pool: Pool, code: str) -> tuple[float, float]:
    """Seconds from the deadlock to its verdict, and from there to the prompt."""
    view = _TimingView()
    run = pool.submit(code + "\n", CellOptions(ranks=pool.all_ranks))
    outcome = pool.wait(run, view)
    ended_at = time.monotonic()
    if pool.error_of(outcome) is None or outcome.rebuild_failure or outcome.ranks("unfinished"):
        raise RuntimeError(
            f"the cell has ended in another way: {outcome} {outcome.rebuild_failure}"
        )
    run_cell(pool, _CHECK, timeout=10)
    stuck_at = max(pool.pull("at"))
    # All ranks may see a disagreement and raise by themselves: then no rank is freed.
    judged_at = view.judged_at or stuck_at
    return judged_at - stuck_at, ended_at - judged_at


def main() -> None:
    arguments = parser(__doc__, rounds=20, warmup=1)
    arguments.add_argument("--ranks", type=int, default=4)
    chosen = arguments.parse_args()
    told: dict[str, list[float]] = {name: [] for name in _CELLS}
    freed: dict[str, list[float]] = {name: [] for name in _CELLS}
    with nbddp.start(chosen.ranks) as pool:
        run_cell(pool, _PREPARE)
        for number in range(chosen.warmup + chosen.n):
            for name, code in _CELLS.items():
                latency, recovery = recover(pool, code)
                if number >= chosen.warmup:
                    told[name].append(latency)
                    freed[name].append(recovery)
    report = Report("recovery")
    for name in _CELLS:
        report.add(f"{name}: told", "ms", ms(told[name]))
        report.add(f"{name}: then freed", "ms", ms(freed[name]))
    latencies = report.add("stuck to verdict", "ms", ms([*itertools.chain(*told.values())]))
    recoveries = report.add("verdict to prompt", "ms", ms([*itertools.chain(*freed.values())]))
    report.at_most("stuck to verdict, largest", max(latencies.samples), "ms", 1000)
    report.at_most("verdict to prompt, median", recoveries.median, "ms", 150)
    report.at_most("verdict to prompt, largest", max(recoveries.samples), "ms", 1000)
    report.show()


if __name__ == "__main__":
    main()
