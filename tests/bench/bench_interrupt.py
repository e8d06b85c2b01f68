"""How long after an interrupt is the prompt back?

Python code that never ends runs on all ranks; timed is from the interrupt to the end of the cell:
for `Pool.interrupt` to the end of `Pool.run`, and in a real kernel from the interrupt to the cell's
reply. Beside it, the same code interrupted in the kernel itself, without ranks.

Misleading would be: an interrupt that comes before the cell has begun on all ranks (so each prints
a word first, and the interrupt waits for all of them), or code in C that does not look at signals.
"""

import queue
import threading
import time

import nbddp
from nbddp.controller.pool import CellOptions, Pool
from tests.bench.bench_output_flood import CountingView
from tests.bench.common import Report, interleaved, ms, parser
from tests.support.kernel import Kernel, running_kernel

_FOREVER = "print('running')\nwhile True: pass\n"


def interrupt_pool(pool: Pool) -> float:
    """Seconds from the interrupt to the end of the cell."""
    view = CountingView()
    run = pool.submit(_FOREVER, CellOptions(ranks=pool.all_ranks))
    ended: queue.SimpleQueue[float] = queue.SimpleQueue()

    def wait() -> None:
        outcome = pool.wait(run, view)
        ended.put(time.perf_counter())
        if len(outcome.ranks("error")) < pool.world_size:
            raise RuntimeError("the cell has ended in another way than by the interrupt")

    waiter = threading.Thread(target=wait)
    waiter.start()
    while view.lines < pool.world_size:
        time.sleep(0.001)
    began = time.perf_counter()
    pool.interrupt()
    waiter.join()
    return ended.get() - began


def interrupt_kernel(kernel: Kernel, code: str, running: str) -> float:
    """Seconds from the interrupt to the reply, for a cell that has shown ``running``."""
    cell = kernel.execute(code)
    kernel.wait_text(cell, running)
    began = time.perf_counter()
    kernel.interrupt()
    kernel.finish(cell)
    return time.perf_counter() - began


def main() -> None:
    arguments = parser(__doc__, rounds=30, warmup=1)
    arguments.add_argument("--ranks", type=int, default=4)
    chosen = arguments.parse_args()
    n = chosen.ranks
    report = Report("interrupt")
    with nbddp.start(n) as pool:
        bare = interleaved({"pool": lambda: interrupt_pool(pool)}, chosen.n, chosen.warmup)
    with running_kernel() as kernel:
        kernel.ok("%load_ext nbddp")
        kernel.ok(f"%ddp start -n {n}")
        label = f"[0-{n - 1}] running" if n > 1 else "running"
        samples = interleaved(
            {
                "plain": lambda: interrupt_kernel(kernel, _FOREVER, "running"),
                "ddp": lambda: interrupt_kernel(kernel, f"%%ddp\n{_FOREVER}", label),
            },
            chosen.n,
            chosen.warmup,
        )
        kernel.ok("%ddp stop")
    report.add(f"Pool.interrupt, {n} ranks", "ms", ms(bare["pool"]))
    report.add("the kernel's own cell", "ms", ms(samples["plain"]))
    ddp = report.add(f"%%ddp cell, {n} ranks", "ms", ms(samples["ddp"]))
    report.at_most("interrupt to prompt", ddp.median, "ms", 500)
    report.show()


if __name__ == "__main__":
    main()
