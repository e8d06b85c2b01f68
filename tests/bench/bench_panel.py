"""What does ``%ddp status --live`` cost a running cell?

A cell of many small all_reduces, which feels every microsecond that is taken from its ranks, with
the live table and without it, in turn. Beside it what one look takes: of idle ranks, while the cell
runs, and in processor time of all processes together, which other work on the machine does not
change much; and what an update sends to the front end.

Misleading would be: a cell shorter than the second between two looks, a table that is compared
with a run long before it, or a sink that does not get the table.
"""

import contextlib
import io
import time

import psutil

import nbddp
from nbddp.controller.pool import CellOptions, Pool
from nbddp.notebook.live_status import Panel
from nbddp.notebook.render import status_table
from tests.bench.common import Report, descendants, interleaved, ms, parser, timed
from tests.support.sinks import PageSink
from tests.support.views import RecordingView

_CELL = """
import time
x = torch.ones(1000)
done, began = 0, time.perf_counter()
while True:
    for _ in range(50):
        dist.all_reduce(x)
    x.fill_(1.0)
    done += 50
    over = torch.tensor(float(time.perf_counter() - began > {seconds}))
    dist.broadcast(over, 0)
    if over: break
per_s = done / (time.perf_counter() - began)
"""


def rate(pool: Pool, seconds: float, page: PageSink | None) -> float:
    """Microseconds for each all_reduce, with the table or without it."""
    panel = None if page is None else Panel(pool, page, "panel")
    if panel is not None:
        panel.begin()
    with contextlib.redirect_stdout(io.StringIO()):
        pool.run(_CELL.format(seconds=seconds))
    if panel is not None:
        panel.end("switched off")
    return 1e6 / float(pool.pull("per_s", ranks=0))


def looks(pool: Pool, seconds: float, pauses: int) -> list[float]:
    """Seconds of each look while the cell runs."""
    run = pool.submit(_CELL.format(seconds=seconds), CellOptions(ranks=pool.all_ranks))
    found = []
    for _ in range(pauses):
        time.sleep(seconds / pauses / 2)
        found.append(timed(lambda: status_table.survey(pool).bundle())())
    pool.wait(run, RecordingView())
    return found


def processor_s(looks: int, pool: Pool) -> float:
    """Processor time of one look, in all processes: the notebook's, the agent's, the ranks'."""

    def used() -> float:
        processes = [psutil.Process(), *map(psutil.Process, descendants())]
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    before = used()
    for _ in range(looks):
        status_table.survey(pool).bundle()
    return (used() - before) / looks


def main() -> None:
    arguments = parser(__doc__, rounds=5, warmup=1)
    arguments.add_argument("--ranks", type=int, default=4)
    arguments.add_argument("--seconds", type=float, default=4.0, help="of a cell")
    chosen = arguments.parse_args()
    report = Report("live panel")
    page = PageSink()
    with nbddp.start(chosen.ranks) as pool:
        samples = interleaved(
            {
                "without": lambda: rate(pool, chosen.seconds, None),
                "with": lambda: rate(pool, chosen.seconds, page),
            },
            chosen.n,
            chosen.warmup,
        )
        idle = [timed(lambda: status_table.survey(pool).bundle())() for _ in range(20 * chosen.n)]
        processor = [processor_s(100, pool) for _ in range(chosen.n)]
        busy = looks(pool, chosen.seconds, 4 * chosen.n)
    without = report.add("all_reduce, no table", "us", samples["without"])
    live = report.add("all_reduce, live table", "us", samples["with"])
    report.add("a look, idle ranks", "ms", ms(idle))
    report.add("a look, busy ranks", "ms", ms(busy))
    used = report.add("a look, processor time of all", "ms", ms(processor))
    share = used.median / 10 / chosen.ranks  # percent of a second, for each rank
    report.at_most("of a core for each rank, at one look a second", share, "%", 0.5)
    report.notes["bytes of an update"] = round(page.sent_bytes / page.messages)
    slower = 100 * (live.median / without.median - 1)
    report.at_most("a running cell is slower by", slower, "%", 2)
    report.show()


if __name__ == "__main__":
    main()
