"""How many lines per second reach the notebook's side when all ranks print?

Each of 4 ranks prints 100,000 lines in one cell. Counted is until a view on the notebook's side has
received every one of them. Beside it: the same prints by plain Python processes that are read
through pipes and do no more, once with the line buffering that ranks have (what was printed before
a crash is not lost) and once with Python's block buffering, which no live output can have. Last:
the same flood with the view that notebooks have, until the cell is over; it shows what fits into
its caps and counts the rest.

Misleading would be: a flood that is larger than the backlog (text is left out on purpose, so every
line is counted and a missing one is an error), lines that are written in one piece instead of one
by one, or a baseline whose start-up is timed.
"""

import contextlib
import io
import os
import selectors
import subprocess
import sys
import time

import nbddp
from nbddp.controller.hub.run import CellEvent
from nbddp.controller.pool import CellOptions, Pool
from nbddp.controller.state.outcome import RunOutcome
from nbddp.wire.messages import InputRequest, Output
from tests.bench.common import Report, interleaved, parser, timed

_PRINTS = "for _i in range({lines}): print('line', _i)"
_ENV = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
_CHILD = (
    "import sys\nsys.stdout.reconfigure(line_buffering={by_line})\nsys.stdin.readline()\n" + _PRINTS
)


class CountingView:
    """Counts lines, shows nothing."""

    def __init__(self) -> None:
        self.lines = 0

    def show(self, event: CellEvent) -> None:
        if isinstance(event, Output):
            self.lines += event.text.count("\n")

    def tick(self) -> float | None:
        return None

    def ask(self, request: InputRequest) -> str:
        raise EOFError

    def why_nobody_answers(self) -> str:
        return ""

    def leave_prompt(self, request: InputRequest) -> None:
        pass

    def tell(self, text: str) -> None:
        pass

    def show_steps(self, table: str, rows: object) -> None:
        """Count nothing."""

    def end_steps(self, rows: object) -> None:
        """Count nothing."""

    def show_waits(self, diagnosed: object) -> None:
        """Do nothing."""

    def show_trace(self, rows: object) -> None:
        """Do nothing."""

    def show_difference(self, difference: object) -> None:
        """Do nothing."""

    def end(self, outcome: RunOutcome) -> None:
        pass


def flood_received(pool: Pool, lines: int) -> None:
    """Waits until every line of every rank is here."""
    view = CountingView()
    run = pool.submit(_PRINTS.format(lines=lines) + "\n", CellOptions(ranks=pool.all_ranks))
    pool.wait(run, view)
    _check(view.lines, lines * pool.world_size)


def flood_shown(pool: Pool, lines: int) -> None:
    """With the caps of a notebook; what is shown goes into a string."""
    with contextlib.redirect_stdout(io.StringIO()):
        pool.run(_PRINTS.format(lines=lines))


def plain_processes(count: int, lines: int, *, by_line: bool) -> float:
    """The baseline: seconds from the word to begin until the last line was read."""
    command = [sys.executable, "-c", _CHILD.format(lines=lines, by_line=by_line)]
    children = [
        subprocess.Popen(
            command, env=_ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        for _ in range(count)
    ]
    time.sleep(0.3)  # they have come to their readline; not timed
    selector = selectors.DefaultSelector()
    began = time.perf_counter()
    for child in children:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"go\n")
        selector.register(child.stdout, selectors.EVENT_READ, child.stdout)
    found = 0
    while selector.get_map():
        for key, _ in selector.select():
            chunk = key.data.read(1 << 18)
            found += chunk.count(b"\n")
            if not chunk:
                selector.unregister(key.fileobj)
    took = time.perf_counter() - began
    for child in children:
        with child:
            pass  # closes its pipes and waits for it
    _check(found, lines * count)
    return took


def _check(found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"{found:,} of {expected:,} lines have arrived")


def main() -> None:
    arguments = parser(__doc__, rounds=7, warmup=1)
    arguments.add_argument("--ranks", type=int, default=4)
    arguments.add_argument("--lines", type=int, default=100_000, help="of each rank")
    chosen = arguments.parse_args()
    ranks, lines = chosen.ranks, chosen.lines
    report = Report("output flood")
    with nbddp.start(ranks) as pool:
        samples = interleaved(
            {
                "received": timed(lambda: flood_received(pool, lines)),
                "by line": lambda: plain_processes(ranks, lines, by_line=True),
                "by block": lambda: plain_processes(ranks, lines, by_line=False),
                "shown": timed(lambda: flood_shown(pool, lines)),
            },
            chosen.n,
            chosen.warmup,
        )
    total = ranks * lines

    def rate(name: str) -> list[float]:
        return [total / seconds for seconds in samples[name]]

    received = report.add(f"{ranks} ranks x {lines:,} lines received", "lines/s", rate("received"))
    base = report.add("plain processes, line by line", "lines/s", rate("by line"))
    report.add("plain processes, block buffered", "lines/s", rate("by block"))
    report.add("until the cell is over, shown with caps", "s", samples["shown"])
    report.at_least("lines received", received.median, "lines/s", 250_000)
    report.notes["received / plain, line by line"] = round(received.median / base.median, 2)
    report.show()


if __name__ == "__main__":
    main()
