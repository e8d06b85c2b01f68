"""How long does it take until ranks work, and until they are gone? What does an idle pool cost?

Start: from nothing (a new Python process, or ``%ddp start`` in a running kernel that has loaded
the extension) to the result of the first all_reduce, beside ``python -c "import torch"`` in the
same rounds. Restart: from ``Pool.restart`` to the result of the first all_reduce. Memory: PSS of
everything below the notebook's process, that is agent, fork server, resource tracker, store, ranks.

Misleading would be: a baseline that finds the files of torch in the page cache while the start does
not, or the other way round (so both are warm, and interleaved); a restart that is not followed by
a collective; an all_reduce whose sum nobody checks; RSS, which counts shared pages once per rank.
With the files not in the page cache, both sides wait for the disk and the ratio comes closer to 1.
"""

import json
import subprocess
import sys
import time
from typing import Any

import nbddp
from tests.bench import common
from tests.bench.common import Report, interleaved, ms, parser
from tests.support.kernel import Kernel, running_kernel

_SUM = "_sum = torch.ones(1); dist.all_reduce(_sum); assert _sum.item() == world_size"
_CHILD = f"""
import json, sys, time
import nbddp
pool = nbddp.start(int(sys.argv[1]))
pool.run({_SUM!r})
print("first", flush=True)
began = time.perf_counter()
pool.restart()
pool.run({_SUM!r})
restarted = time.perf_counter()
pool.stop()
stopped = time.perf_counter()
print(json.dumps({{"restart": restarted - began, "stop": stopped - restarted}}), flush=True)
"""


def import_torch() -> float:
    """The baseline: a process that only imports torch, from beginning to end."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.perf_counter() - began


class FreshProcess:
    """Starts, restarts and stops a pool in a process of its own."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self.later: list[dict[str, float]] = []

    def start(self) -> float:
        began = time.perf_counter()
        command = [sys.executable, "-c", _CHILD, str(self._ranks)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            if process.stdout.readline() != "first\n":
                raise RuntimeError("the pool did not come to its first all_reduce")
            took = time.perf_counter() - began
            rest: Any = json.loads(process.stdout.readline())
        self.later.append(rest)
        return took


def start_in_kernel(kernel: Kernel, ranks: int) -> float:
    """``%ddp start`` and the first cell, as a front end sees it; then stopped, not timed."""
    began = time.perf_counter()
    kernel.ok(f"%ddp start -n {ranks}")
    kernel.ok(f"%%ddp\n{_SUM}")
    took = time.perf_counter() - began
    kernel.ok("%ddp stop")
    return took


def idle_memory_mb(ranks: int) -> float:
    """The memory of a pool that has done one all_reduce and then nothing for a second."""
    with nbddp.start(ranks) as pool:
        pool.run(_SUM)
        time.sleep(1.0)
        return common.pss_bytes(common.descendants()) / 1e6


def main() -> None:
    arguments = parser(__doc__, rounds=7, warmup=1)
    arguments.add_argument("--ranks", type=int, default=4)
    arguments.add_argument("--idle-ranks", type=int, default=8)
    chosen = arguments.parse_args()
    report = Report("start")

    fresh = FreshProcess(chosen.ranks)
    with running_kernel() as kernel:
        kernel.ok("%load_ext nbddp")
        samples = interleaved(
            {
                "import torch": import_torch,
                "start": fresh.start,
                "%ddp start": lambda: start_in_kernel(kernel, chosen.ranks),
            },
            chosen.n,
            chosen.warmup,
        )
    later = fresh.later[-chosen.n :]
    n = chosen.ranks
    baseline = report.add('python -c "import torch"', "s", samples["import torch"])
    start = report.add(f"new process to first all_reduce, {n} ranks", "s", samples["start"])
    magic = report.add(f"%ddp start to first all_reduce, {n} ranks", "s", samples["%ddp start"])
    restart = report.add("restart to first all_reduce", "s", [each["restart"] for each in later])
    stop = report.add("stop", "ms", ms([each["stop"] for each in later]))
    memory = report.add(
        f"PSS of {chosen.idle_ranks} idle ranks and all behind them",
        "MB",
        [idle_memory_mb(chosen.idle_ranks) for _ in range(min(3, chosen.n))],
    )
    report.at_most("start / import torch", start.median / baseline.median, "x", 1.6)
    report.at_most("%ddp start / import torch", magic.median / baseline.median, "x", 1.6)
    report.at_most("restart to first all_reduce", restart.median, "s", 0.4)
    report.at_most("stop", stop.median / 1000, "s", 1.0)
    report.at_most(f"PSS of {chosen.idle_ranks} idle ranks", memory.median, "MB", 400)
    report.show()


if __name__ == "__main__":
    main()
