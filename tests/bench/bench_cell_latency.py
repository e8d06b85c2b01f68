"""What does ``%%ddp`` add to a cell?

A ``%%ddp`` cell with ``pass`` on all ranks beside a plain ``pass`` in the same real kernel, each
from sending it to having the reply and the idle status; ``Pool.run`` beside it says what is left
without Jupyter. Where ipyparallel is installed, the same ``pass`` on as many of its engines.

Misleading would be: a client that polls with a sleep (the reply waits for the poll), cells that are
not interleaved, the first cell of a pool (its imports), or comparing ``Pool.run`` in a quiet
process with a cell in a kernel.
"""

import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import nbddp
from tests.bench.common import Report, interleaved, ms, parser, timed
from tests.support.kernel import Kernel, running_kernel


def cell(kernel: Kernel, code: str) -> Callable[[], float]:
    """One cell, from `execute` to its reply and idle status."""

    def run() -> float:
        began = time.perf_counter()
        kernel.ok(code)
        return time.perf_counter() - began

    return run


@contextmanager
def ipyparallel_pass(engines: int) -> Iterator[Callable[[], float]]:
    """``pass`` on the engines of a cluster of our own."""
    import ipyparallel

    cluster = ipyparallel.Cluster(n=engines, log_level=40)
    client = cluster.start_and_connect_sync()
    try:
        view = client[:]
        yield timed(lambda: view.execute("pass", block=True))
    finally:
        client.close()
        cluster.stop_cluster_sync()


def main() -> None:
    arguments = parser(__doc__, rounds=200, warmup=20)
    arguments.add_argument("--ranks", type=int, default=4)
    arguments.add_argument("--no-ipyparallel", action="store_true", help="leave that baseline out")
    chosen = arguments.parse_args()
    n = chosen.ranks
    report = Report("cell latency")

    with running_kernel() as kernel:
        kernel.ok("%load_ext nbddp")
        kernel.ok(f"%ddp start -n {n}")
        in_kernel = {"plain": cell(kernel, "pass"), "ddp": cell(kernel, "%%ddp\npass")}
        samples = interleaved(in_kernel, chosen.n, chosen.warmup)
        plain = report.add("pass", "ms", ms(samples["plain"]))
        ddp = report.add(f"%%ddp pass, {n} ranks", "ms", ms(samples["ddp"]))
        kernel.ok("%ddp stop")
    with nbddp.start(n) as pool:
        bare = interleaved({"run": timed(lambda: pool.run("pass"))}, chosen.n, chosen.warmup)
        report.add(f"Pool.run, {n} ranks, no Jupyter", "ms", ms(bare["run"]))
    if importlib.util.find_spec("ipyparallel") is not None and not chosen.no_ipyparallel:
        with ipyparallel_pass(n) as run:
            other = interleaved({"run": run}, chosen.n, chosen.warmup)
            report.add(f"ipyparallel, {n} engines, no Jupyter", "ms", ms(other["run"]))
    report.at_most("%%ddp pass - pass", ddp.median - plain.median, "ms", 4)
    report.show()


if __name__ == "__main__":
    main()
