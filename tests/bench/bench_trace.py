"""What do traced process groups add to an operation, and to a DDP training step?

``dist.all_reduce`` of 8 floats on one rank, where the operation itself is cheapest: on the group of
a traced pool, on the stock group inside of it (same process, same memory), and on the group of a
plain pool. Then a DDP training step on two ranks, in a traced and in a plain pool, and on the stock
group inside of the traced pool. Timed are loops in cells, not the cells. The first operation of a
cell is in the loop: tracing adds more to it than to later ones.

Misleading would be: a mean (the machine's other work is in it, so medians are compared), rounds
that are not interleaved (two plain groups differ by up to a factor of two from minute to minute), a
model so large that its own arithmetic hides everything, or a stock group in another process only
(the memory of two processes never lies alike).
"""

import statistics
from collections.abc import Callable

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.pool import Pool
from nbddp.notebook import session
from nbddp.settings import Settings
from tests.bench.common import Report, Series, interleaved, parser

_PREPARE = """
import time
_c10d = dist.distributed_c10d

def _stock():
    '''The group inside of the traced one, known to torch like any other; in a plain pool, WORLD.'''
    group = dist.group.WORLD
    inner = getattr(group, "inner", group)
    world = _c10d._world
    for table in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_to_tag,
                  world.pg_group_ranks):
        if group in table: table[inner] = table[group]
    return inner

_groups = {"own": dist.group.WORLD, "stock": _stock()}
_x = torch.ones(8)

def _per_operation(name, count):
    group = _groups[name]
    began = time.perf_counter()
    for _ in range(count):
        dist.all_reduce(_x, group=group)
    return (time.perf_counter() - began) / count * 1e6

def _per_iteration(until, count):
    '''With loop variables in the records up to this collective of the group.'''
    _groups["own"].counters.dense_until = until
    return _per_operation("own", count)

def _prepare_steps(width):
    torch.manual_seed(0)
    for name, group in _groups.items():
        layers = [torch.nn.Linear(width, width) for _ in range(3)]
        model = torch.nn.parallel.DistributedDataParallel(
            torch.nn.Sequential(*layers), process_group=group)
        _models[name] = model, torch.optim.SGD(model.parameters(), 0.001)
    _batch.append(torch.randn(32, width))

_models, _batch = {}, []

def _per_step(name, count):
    model, optimizer = _models[name]
    dist.barrier()
    began = time.perf_counter()
    for _ in range(count):
        optimizer.zero_grad()
        model(_batch[0]).square().mean().backward()
        optimizer.step()
    return (time.perf_counter() - began) / count * 1e3
"""


def make_pool(ranks: int, *, plain: bool) -> Pool:
    """A pool of its own: `nbddp.start` has one at a time."""
    return Pool(PoolOptions.checked(ranks, plain=plain), Settings(), session.make_view)


def sampler(pool: Pool, call: str) -> Callable[[], float]:
    """The value of a call on rank 0, made by a cell on all ranks."""

    def sample() -> float:
        outcome = pool.run(f"_found = {call}")
        if len(outcome.ranks("ok")) < pool.world_size:
            raise RuntimeError(f"{call} has failed")
        return float(pool.pull("_found", ranks=0))

    return sample


def differences(samples: list[float], baseline: list[float]) -> list[float]:
    """Round by round."""
    return [ours - theirs for ours, theirs in zip(samples, baseline, strict=True)]


def ratio(ours: list[float], baseline: list[float]) -> float:
    """The median over the rounds: a disturbance of a round affects both."""
    return statistics.median(a / b for a, b in zip(ours, baseline, strict=True))


def operations(report: Report, rounds: int, warmup: int, count: int) -> None:
    """Microseconds of an all_reduce on one rank."""
    with make_pool(1, plain=False) as traced, make_pool(1, plain=True) as plain:
        for pool in (traced, plain):
            pool.run(_PREPARE)
        samples = interleaved(
            {
                "traced": sampler(traced, f"_per_operation('own', {count})"),
                "stock inside": sampler(traced, f"_per_operation('stock', {count})"),
                "plain pool": sampler(plain, f"_per_operation('stock', {count})"),
            },
            rounds,
            warmup,
        )
    for name, found in samples.items():
        report.add(f"all_reduce, 1 rank, {name}", "us", found)
    for name in ("stock inside", "plain pool"):
        extra = Series(name, "us", differences(samples["traced"], samples[name]))
        report.at_most(f"all_reduce: traced - {name}", extra.median, "us", 7)


def iterations(report: Report, rounds: int, warmup: int, count: int) -> None:
    """Microseconds of an all_reduce whose record has the variable of its loop, on one rank."""
    with make_pool(1, plain=False) as pool:
        pool.run(_PREPARE)
        samples = interleaved(
            {
                "each": sampler(pool, f"_per_iteration(1 << 60, {count})"),
                "every 16th": sampler(pool, f"_per_iteration(0, {count})"),
            },
            rounds,
            warmup,
        )
    for name, found in samples.items():
        report.add(f"all_reduce, 1 rank, {name} with its iteration", "us", found)
    extra = Series("iteration", "us", differences(samples["each"], samples["every 16th"]))
    report.at_most("all_reduce: iteration of its loop", extra.median, "us", 7)


def steps(report: Report, rounds: int, warmup: int, count: int, width: int) -> None:
    """Milliseconds of a training step on two ranks."""
    with make_pool(2, plain=False) as traced, make_pool(2, plain=True) as plain:
        for pool in (traced, plain):
            pool.run(f"{_PREPARE}\n_prepare_steps({width})")
        samples = interleaved(
            {
                "traced": sampler(traced, f"_per_step('own', {count})"),
                "stock inside": sampler(traced, f"_per_step('stock', {count})"),
                "plain pool": sampler(plain, f"_per_step('stock', {count})"),
            },
            rounds,
            warmup,
        )
    for name, found in samples.items():
        report.add(f"DDP step, 2 ranks, {name}", "ms", found)
    for name in ("stock inside", "plain pool"):
        extra = 100 * (ratio(samples["traced"], samples[name]) - 1)
        report.at_most(f"DDP step: traced over {name}", extra, "%", 3)


def main() -> None:
    arguments = parser(__doc__, rounds=60, warmup=5)
    arguments.add_argument("--operations", type=int, default=500, help="in each round")
    arguments.add_argument("--steps", type=int, default=10, help="in each round")
    arguments.add_argument("--width", type=int, default=512, help="of the three layers")
    chosen = arguments.parse_args()
    report = Report("trace")
    operations(report, chosen.n, chosen.warmup, chosen.operations)
    iterations(report, chosen.n, chosen.warmup, chosen.operations)
    steps(report, chosen.n, chosen.warmup, chosen.steps, chosen.width)
    report.show()


if __name__ == "__main__":
    main()
