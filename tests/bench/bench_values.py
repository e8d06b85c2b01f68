"""How fast does a large tensor get to a rank and back, beside copying it in memory?

``Pool.pull`` and ``Pool.push`` of one tensor between the notebook's process and one rank, through
shared memory and (without it, as between machines) in chunks, beside a copy of as many bytes into
memory that is there already, in the same rounds.

Misleading would be: the first rounds (memory that was never touched costs three times the copy, so
there is a warm-up; the segments alternate), a pull whose result is kept (the next one then finds
no free segment), a copy whose target is new memory each time, or numbers of several threads.
"""

import torch

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.pool import Pool
from nbddp.notebook import session
from nbddp.settings import Settings
from tests.bench.common import Report, Series, interleaved, parser, timed


class Transfers:
    """One pool of one rank, and a tensor on both sides."""

    def __init__(self, megabytes: float, *, arena: bool) -> None:
        self.pool = Pool(PoolOptions.checked(1), Settings(arena=arena), session.make_view)
        self._elements = int(megabytes * 1e6 / 4)
        self._tensor = torch.arange(self._elements, dtype=torch.float32)
        self.pool.run(f"there = torch.arange({self._elements}, dtype=torch.float32)")

    def pull(self) -> None:
        found = self.pool.pull("there", ranks=0)
        if found[-1] != self._tensor[-1]:
            raise RuntimeError("another tensor has come back")

    def push(self) -> None:
        self.pool.push(here=self._tensor)

    def check_push(self) -> None:
        self.pool.run("assert torch.equal(here, there)")


def main() -> None:
    arguments = parser(__doc__, rounds=15, warmup=5)
    arguments.add_argument("--mb", type=float, default=256, help="size of the tensor")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    source = torch.ones(int(chosen.mb * 1e6 / 4))
    target = torch.zeros_like(source)

    shared = Transfers(chosen.mb, arena=True)
    chunked = Transfers(chosen.mb, arena=False)
    with shared.pool, chunked.pool:
        samples = interleaved(
            {
                "memcpy": timed(lambda: target.copy_(source)),
                "pull": timed(shared.pull),
                "push": timed(shared.push),
                "pull, chunks": timed(chunked.pull),
                "push, chunks": timed(chunked.push),
            },
            chosen.n,
            chosen.warmup,
        )
        shared.check_push()
        chunked.check_push()

    report = Report("values")
    by_name: dict[str, Series] = {}
    for name, seconds in samples.items():
        speeds = [source.nbytes / 1e9 / each for each in seconds]
        by_name[name] = report.add(f"{name}, {chosen.mb:g} MB", "GB/s", speeds)
    for name in ("pull", "push"):
        ratio = by_name[name].median / by_name["memcpy"].median
        report.at_least(f"{name} / memcpy", ratio, "x", 0.5)
    for name in ("pull, chunks", "push, chunks"):
        ratio = by_name[name].median / by_name["memcpy"].median
        report.notes[f"{name} / memcpy"] = round(ratio, 2)
    report.show()


if __name__ == "__main__":
    main()
