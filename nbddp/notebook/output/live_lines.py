"""The lines below the output of a running cell: unfinished lines, the row of chips, the progress.

Runs in: the thread that waits for the cell. No clock: the time comes in.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from nbddp.controller.diagnosis import Report
from nbddp.controller.hub import Run
from nbddp.notebook.output import progress_bars
from nbddp.notebook.output.rank_states import RankStates
from nbddp.notebook.output.shows import Labels
from nbddp.notebook.output.sinks import Live
from nbddp.notebook.render import diagnosis_card, rank_strip
from nbddp.notebook.render.html import clean, duration
from nbddp.settings import PRELOAD_ENV
from nbddp.wire.flight_recorder import LEFT_DEBUGGER
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import ImportChanged, RankAt, RankExited, RunFinished
from nbddp.wire.rank_set import Rank, RankSet, ranks_by_value

#: The lines change at most this often.
_INTERVAL_S = 0.1
#: Interval of the clock in them.
_CLOCK_INTERVAL_S = 1.0
#: Ranks that wait for less time are not worth a line: most cells go on by themselves.
_NOTICE_AFTER_S = 2.0
#: An unfinished line is shown after this time: most lines end before.
_OPEN_LINE_AFTER_S = 0.03
_MAX_OPEN_LINES = 16
#: The row of chips is shown after this time, where it has a place above the output: most cells end
#: before.
_STRIP_AFTER_S = 0.25
_MAX_ERROR_CHARS = 80
#: A longer list of ranks is their number: the line is one.
_MAX_RANKS_CHARS = 24
_MAX_FAILURES = 3
_MAX_IMPORTS = 2
#: A module that may be loaded before ranks are forked, and takes long where there are many.
_PRELOADED = "torch._dynamo"
#: The line says how to load it before, after an import of this length.
_LONG_IMPORT_S = 2.0


class LiveLines:
    """The live lines of one cell.

    Args:
        run: the cell.
        labels: the labels of lines.
        progress_after_s: the progress is shown after this many seconds.
        began: the time of the beginning.
        began_at: the same for a reader; empty: the progress does not name it.
    """

    def __init__(
        self, run: Run, labels: Labels, *, progress_after_s: float, began: float, began_at: str
    ) -> None:
        self.states = RankStates(run.ranks)  #: what each rank does, for the row of chips
        self.shown = Live()  #: the lines that were given last
        self._run = run
        self._ranks = run.ranks
        self._labels = labels
        self._progress_after_s = progress_after_s
        self._began, self._began_at = began, began_at
        self._done: set[int] = set()
        self._failed: dict[Rank, _Failure] = {}
        self._imports: dict[Rank, str] = {}  # the module that a rank imports
        self._preloaded_since: float | None = None  # a rank imports `_PRELOADED`
        self._notice = ""  # a line that names the ranks that wait
        self._notice_at = 0.0  # it is shown from then on
        self._chips: list[rank_strip.Chip] = []
        self._strip_made = ("", "")  # of these chips: the row and its legend
        self._height = 0  # lines that were shown at once so far
        self._seen_at = began - _INTERVAL_S  # when the lines were made last
        self._open_since: float | None = None

    def finish(self, event: RunFinished | RankExited) -> None:
        """Note that a rank has ended the cell."""
        self._done.add(event.rank)
        self._imports.pop(event.rank, None)
        if isinstance(event, RankExited):
            self.states.exit(event)
            return
        self.states.finish(event)
        if event.error is not None:
            self._failed[event.rank] = _failure(event.error)

    def diagnose(self, report: Report | None, now: float) -> None:
        """Take a line about the ranks that wait; None: there are none any more."""
        self.states.diagnose(report)
        self._notice = "" if report is None else diagnosis_card.line(report)
        if report is not None and report.findings:
            self._notice_at = now - (report.findings[0].since_s or 0.0) + _NOTICE_AFTER_S

    def note(self, event: ImportChanged | RankAt, now: float) -> None:
        """Note the module that a rank imports, or its place in the cell."""
        if isinstance(event, RankAt):
            self.states.move(event)
            return
        self._imports[event.rank] = event.module
        if event.module == _PRELOADED and self._preloaded_since is None:
            self._preloaded_since = now

    def judge(self, report: Report) -> None:
        """Note a verdict, which has a card instead of a line."""
        self.states.diagnose(report)
        self._notice = ""

    def refresh(
        self,
        now: float,
        open_lines: Callable[[], Sequence[tuple[RankSet, str]]],
        *,
        at_once: bool = False,
    ) -> tuple[Live | None, float]:
        """Return the new lines, None if they are as before, and the seconds until the next call.

        Args:
            now: the time.
            open_lines: gives the lines that ranks have not ended yet.
            at_once: also right after the last call.
        """
        since_s = now - self._seen_at
        if since_s < _INTERVAL_S and not at_once:
            return None, _INTERVAL_S - since_s
        self._seen_at = now
        status: list[str] = []
        is_late = now - self._began >= self._progress_after_s
        if is_late and len(self._done) < len(self._ranks):
            status.append(self._progress(now))
            if self._notice and now >= self._notice_at:
                status.append(self._notice)
        left_s = self._began + _STRIP_AFTER_S - now
        has_strip = bool(self._labels) and (left_s <= 0 or at_once or bool(status))
        live = self._lines(status, self._open_lines(open_lines(), now), has_strip=has_strip)
        changed = None if live == self.shown else live
        if changed is not None:
            self.shown = live
        wait_s = _CLOCK_INTERVAL_S - (now - self._began) % _CLOCK_INTERVAL_S
        if left_s > 0:
            wait_s = min(wait_s, left_s)
        if self._open_since is not None:
            wait_s = min(wait_s, _OPEN_LINE_AFTER_S)
        return changed, wait_s

    def _lines(self, status: list[str], open_lines: list[str], *, has_strip: bool) -> Live:
        strip, legend = self._strip(self.states.chips) if has_strip else ("", "")
        if not status and not open_lines:
            return Live(strip=strip, legend=legend)
        # The line of a notice has its place from the beginning.
        shown = len(status) + len(open_lines) + (len(status) == 1)
        self._height = max(self._height, shown)
        return Live(tuple(status), tuple(open_lines), strip, legend, self._height)

    def _strip(self, chips: list[rank_strip.Chip]) -> tuple[str, str]:
        """The row of chips and its legend, made once for each state of the ranks."""
        if chips != self._chips:
            self._chips = chips
            self._strip_made = (rank_strip.html(chips), rank_strip.legend(chips))
        return self._strip_made

    def last(self, chips: Sequence[rank_strip.Chip], now: float) -> Live:
        """Return what stays when the cell has ended, where the row of chips has a place.

        Args:
            chips: how the ranks ended.
            now: the time.
        """
        end = f"ended after {duration((now - self._began) * 1e9)}"
        if not self._labels or not chips:
            return Live(end=end)
        if all(chip.state is rank_strip.ChipState.DONE for chip in chips):
            return Live(strip=rank_strip.blank(len(chips)), end=end, is_well=True)
        return Live(strip=rank_strip.html(chips), legend=rank_strip.legend(chips), end=end)

    def _open_lines(self, open_lines: Sequence[tuple[RankSet, str]], now: float) -> list[str]:
        if not open_lines:
            self._open_since = None
            return []
        if self._open_since is None:
            self._open_since = now
        if now - self._open_since < _OPEN_LINE_AFTER_S:
            return []
        lines = self._labelled(progress_bars.arranged(list(open_lines)))
        if len(lines) > _MAX_OPEN_LINES:
            hidden = len(lines) - _MAX_OPEN_LINES
            lines = [*lines[:_MAX_OPEN_LINES], f"and {hidden} more unfinished lines"]
        return lines

    def _labelled(self, rows: Sequence[progress_bars.Row]) -> list[str]:
        """Lines without an end, with their labels; those of progress bars are aligned."""
        if not self._labels:
            return [row.text for row in rows]
        heads = [f"{self._labels.of(row.ranks.ranks)} {row.word}".rstrip() for row in rows]
        width = max(map(len, heads), default=0)
        return [
            f"{head.ljust(width) if row.is_bar else head} {row.text}"
            for row, head in zip(rows, heads, strict=True)
        ]

    def _progress(self, now: float) -> str:
        elapsed_s = int(now - self._began)
        elapsed = f"{elapsed_s} s" if elapsed_s < 60 else duration(elapsed_s * 1e9)
        parts = [f"{len(self._done)}/{len(self._ranks)} ranks done", elapsed]
        parts += self._imported()
        if self._done:
            waiting = RankSet.of(set(self._ranks) - self._done)
            parts.append(f"waiting for {_name(waiting)}")
        parts += _failures(self._failed)
        if self._began_at:
            parts.append(f"began {self._began_at}")
        if self._run.was_interrupted:
            parts.append("interrupted; stop again to get the prompt back")
        since = self._preloaded_since
        ranks = [rank for rank, name in self._imports.items() if name == _PRELOADED]
        if since is not None and len(ranks) > 1 and now - since >= _LONG_IMPORT_S:
            parts.append(f"quicker next time: %env {PRELOAD_ENV}={_PRELOADED} before %ddp start")
        return " | ".join(parts)

    def _imported(self) -> list[str]:
        """``the ranks import torch._dynamo (first use)…``, for each module."""
        ranks_by_module = ranks_by_value({r: name for r, name in self._imports.items() if name})
        return [
            f"{'the ranks' if ranks == self._ranks and len(ranks) > 1 else ranks.describe()} "
            f"{ranks.verb('imports', 'import')} {clean(module)} (first use)…"
            for module, ranks in ranks_by_module.items()
        ][:_MAX_IMPORTS]


def _name(ranks: RankSet) -> str:
    """``ranks 0-3``, ``17 ranks``."""
    name = ranks.describe()
    return name if len(name) <= _MAX_RANKS_CHARS else f"{len(ranks)} ranks"


class _Failure(NamedTuple):
    """The error of one rank."""

    kind: str  #: ``raised ValueError``
    message: str  #: shortened; empty: there is none

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}" if self.message else self.kind


def _failures(failure_by_rank: Mapping[Rank, _Failure]) -> list[str]:
    """``17 ranks raised ValueError``, for each kind, the most frequent first."""
    ranks_by_kind = ranks_by_value({rank: each.kind for rank, each in failure_by_rank.items()})
    in_order = sorted(ranks_by_kind.items(), key=lambda pair: -len(pair[1]))
    failures: list[str] = []
    for kind, ranks in in_order[:_MAX_FAILURES]:
        reasons = {str(failure_by_rank[rank]) for rank in ranks}
        failures.append(f"{_name(ranks)} {reasons.pop() if len(reasons) == 1 else kind}")
    if len(in_order) > _MAX_FAILURES:
        rest = sum(len(ranks) for _, ranks in in_order[_MAX_FAILURES:])
        failures.append(f"{rest} more ended by other errors")
    return failures


def _failure(error: ErrorInfo) -> _Failure:
    if error.ename == LEFT_DEBUGGER:
        return _Failure("left the debugger", "")
    first_line = error.evalue.partition("\n")[0][:_MAX_ERROR_CHARS]
    return _Failure(clean(f"raised {error.ename}"), clean(first_line).rstrip(": "))
