"""``%%ddp --out quiet``: of what ranks show, only the values of last expressions.

Runs in: the notebook's main thread. Pure: no clock, no I/O.
"""

from collections.abc import Mapping
from pathlib import PurePath

from nbddp.notebook.output.budget import format_bytes
from nbddp.notebook.output.gatherer import Gatherer, Rich, Show
from nbddp.notebook.render.html import escape
from nbddp.settings import Settings
from nbddp.wire.messages import ClearOutput, Display, Output, Result
from nbddp.wire.rank_set import RankSet


class Quiet(Gatherer):
    """Counts text and displays, and says at the end that they are not shown."""

    def __init__(
        self,
        ranks: RankSet,
        world_size: int,
        *,
        run_id: str,
        settings: Settings,
        log_path_by_rank: Mapping[int, str],
    ) -> None:
        super().__init__(
            ranks,
            world_size,
            run_id=run_id,
            settings=settings,
            log_path_by_rank=log_path_by_rank,
        )
        self._paths = [log_path_by_rank[rank] for rank in ranks if rank in log_path_by_rank]
        self._text_bytes = 0
        self._displays = 0

    def add(self, event: Output | Display | Result | ClearOutput, now: float) -> list[Show]:
        """See `Gatherer.add`."""
        match event:
            case Output():
                self._text_bytes += event.dropped_bytes + len(event.text.encode(errors="replace"))
                return []
            case Display():
                self._displays += not event.update
                return []
            case ClearOutput():
                return []
            case Result():
                return super().add(event, now)

    def end(self, now: float) -> list[Show]:
        """See `Gatherer.end`."""
        shows = super().end(now)
        parts = []
        if self._text_bytes:
            where = f", which is in {self._paths[0]}" if self._paths else ""
            where += f" to {PurePath(self._paths[-1]).name}" if len(self._paths) > 1 else ""
            parts.append(f"{format_bytes(self._text_bytes)} of text{where}")
        if self._displays:
            parts.append(f"{self._displays} display{'' if self._displays == 1 else 's'}")
        if parts:
            text = f"not shown (--out quiet): {'; '.join(parts)}"
            html = f'<div style="opacity:0.7">{escape(text)}</div>'
            shows.append(Rich(RankSet(), "display", {"text/plain": text, "text/html": html}, {}))
        return shows
