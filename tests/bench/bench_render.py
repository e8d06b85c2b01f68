"""How long does the notebook's side take to show 64 ranks that print 1,000 lines each?

The events come as agents send them, some 50 lines at a time, the ranks in turn, and go through the
view that notebooks have into a sink that keeps the page. Three kinds of output: the same on all
ranks; the same but for one rank; different everywhere. The caps are wide enough to show all lines
but for the last row, which has those of a notebook. Last: the same blocks by ``--out ranks``.

Misleading would be: lines that arrive so slowly that the time is that of waiting, caps that leave
most lines out, or a sink that throws away what it gets. What the front end takes to paint is not
in here.
"""

import time
from typing import Literal

from nbddp.controller.hub.run import Run
from nbddp.controller.state.outcome import RunOutcome
from nbddp.notebook.output.cell_output import Out
from nbddp.notebook.output.cell_view import View
from nbddp.notebook.output.folded_sink import FoldedSink
from nbddp.settings import Settings
from nbddp.wire.messages import Output, RunFinished
from nbddp.wire.rank_set import RankSet
from tests.bench.common import Report, interleaved, ms, parser
from tests.support.sinks import PageSink

Kind = Literal["equal", "one odd", "different"]

_BATCH = 50
_MB = 1_000_000
_WIDE = Settings(
    notebook_burst_bytes=64 * _MB, notebook_bytes_per_s=64 * _MB, notebook_total_bytes=64 * _MB
)


def events(kind: Kind, ranks: int, lines: int) -> list[Output]:
    """The events that the hub would hand to the view."""

    def line(rank: int, number: int) -> str:
        own = kind == "different" or (kind == "one odd" and rank == ranks // 2)
        return f"step {number} loss {1 / (number + 1):.4f}{f' on {rank}' if own else ''}\n"

    return [
        Output(
            run_id="r",
            rank=rank,
            stream="stdout",
            text="".join(line(rank, number) for number in range(first, first + _BATCH)),
        )
        for first in range(0, lines, _BATCH)
        for rank in range(ranks)
    ]


def render(kind: Kind, ranks: int, lines: int, settings: Settings, out: Out) -> PageSink:
    """Seconds from the first event to the end of the cell."""
    page = PageSink()
    view = View(
        Run("r", RankSet.all(ranks), 1000),
        FoldedSink(page, "fold"),
        world_size=ranks,
        settings=settings,
        log_path_by_rank={rank: f"/tmp/rank{rank}.log" for rank in range(ranks)},
        can_ask=False,
        display_scope="p",
        out=out,
    )
    for event in events(kind, ranks, lines):
        view.show(event)
        view.tick()
    for rank in range(ranks):
        view.show(RunFinished(run_id="r", rank=rank, elapsed_s=1.0, error=None))
    view.end(RunOutcome(run_id="r", results={}, elapsed_s=1.0))
    return page


def main() -> None:
    arguments = parser(__doc__, rounds=5, warmup=1)
    arguments.add_argument("--ranks", type=int, default=64)
    arguments.add_argument("--lines", type=int, default=1000, help="of each rank")
    chosen = arguments.parse_args()
    ranks, lines = chosen.ranks, chosen.lines
    report = Report("render")

    def sampler(kind: Kind, settings: Settings, out: Out = "folded") -> float:
        began = time.perf_counter()
        page = render(kind, ranks, lines, settings, out)
        took = time.perf_counter() - began
        if str(lines - 1) not in page.plain + page.html:
            raise RuntimeError("the last line is not on the page")
        report.notes[f"page, {kind}, {out}"] = (
            f"{len(page.plain + page.html):,} characters, {page.messages} messages"
        )
        return took

    samples = interleaved(
        {
            "the same on all": lambda: sampler("equal", _WIDE),
            "one rank differs": lambda: sampler("one odd", _WIDE),
            "all differ": lambda: sampler("different", _WIDE),
            "--out ranks, all differ": lambda: sampler("different", _WIDE, "ranks"),
            "all differ, caps of a notebook": lambda: sampler("different", Settings()),
        },
        chosen.n,
        chosen.warmup,
    )
    series = {name: report.add(name, "ms", ms(found)) for name, found in samples.items()}
    report.at_most("the same on all", series["the same on all"].median, "ms", 1000)
    report.at_most("all differ", series["all differ"].median, "ms", 3000)
    report.show()


if __name__ == "__main__":
    main()
