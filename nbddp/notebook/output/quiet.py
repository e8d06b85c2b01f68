"""``%%ddp --out quiet``: shows only the values of last expressions.

Runs in: the notebook's main thread. Pure: no clock, no I/O.
"""

from nbddp.notebook.output.cell_output import OutputSpec
from nbddp.notebook.output.gatherer import Gatherer
from nbddp.notebook.output.items import path_range, utf8_len
from nbddp.notebook.output.rank_text import RankText
from nbddp.notebook.output.shows import Rich, Show
from nbddp.notebook.render.html import escape, size
from nbddp.wire.messages import ClearOutput, Display, Output, Result
from nbddp.wire.rank_set import RankSet


class QuietOutput:
    """The `CellOutput` that counts text and displays, and shows the counts at the end."""

    def __init__(self, spec: OutputSpec) -> None:
        self._values = Gatherer(spec)
        self._log_paths = spec.log_paths(spec.ranks)
        self._text_bytes = 0
        self._displays = 0

    def add(self, event: Output | Display | Result | ClearOutput, now: float) -> list[Show]:
        """See `CellOutput.add`."""
        match event:
            case Output():
                self._text_bytes += event.dropped_bytes + utf8_len(event.text)
            case Display():
                self._displays += not event.update
            case Result():
                return self._values.add(event, now)
            case ClearOutput():
                pass
        return []

    def finish_rank(self, rank: int, now: float) -> list[Show]:
        """See `CellOutput.finish_rank`."""
        return self._values.finish_rank(rank, now)

    def tick(self, now: float) -> list[Show]:
        """See `CellOutput.tick`."""
        return self._values.tick(now)

    def keep_order(self) -> None:
        """See `CellOutput.keep_order`."""
        self._values.keep_order()

    def next_deadline(self) -> float | None:
        """See `CellOutput.next_deadline`."""
        return self._values.next_deadline()

    def open_lines(self) -> list[tuple[RankSet, str]]:
        """Return nothing: text is not shown."""
        return []

    def text_by_rank(self) -> dict[int, RankText]:
        """Return nothing: text is not shown."""
        return {}

    def end(self, now: float) -> list[Show]:
        """See `CellOutput.end`."""
        shows = self._values.end(now)
        parts = []
        if self._text_bytes:
            where = f", which is in {path_range(self._log_paths)}" if self._log_paths else ""
            parts.append(f"{size(self._text_bytes)} of text{where}")
        if self._displays:
            parts.append(f"{self._displays} display{'' if self._displays == 1 else 's'}")
        if parts:
            text = f"not shown (--out quiet): {'; '.join(parts)}"
            html = f'<div style="opacity:0.7">{escape(text)}</div>'
            shows.append(Rich(RankSet(), "display", {"text/plain": text, "text/html": html}, {}))
        return shows
