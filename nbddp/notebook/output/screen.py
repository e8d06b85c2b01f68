"""The shows of one cell that come next, and the rate of redraws and updates.

Runs in: the notebook's main thread. Pure: no clock, no I/O.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nbddp.notebook.output.cell_output import OutputSpec
from nbddp.notebook.output.items import Bundle
from nbddp.notebook.output.line_folder import Item
from nbddp.notebook.output.settled import ItemRecord, put_bundles
from nbddp.notebook.output.shown_blocks import ShownBlocks
from nbddp.notebook.output.shows import Labels, Redraw, Rich, Show, Text, labelled, rich_bytes
from nbddp.wire.messages import Stream

if TYPE_CHECKING:
    from nbddp.notebook.output.rank_grid import RankGrid

#: Bundles of a cell beyond this total size are not shown.
RICH_TOTAL_BYTES = 128 * 1024 * 1024
#: Redraws and updates of one display come at most this often; the last state always comes.
REDRAW_INTERVAL_S = 0.1
#: Redraws may send this many times ``notebook_bytes_per_s``: they replace the contents.
_REDRAW_RATE = 4
_REMEMBERED_UPDATES = 1000


class Screen:
    """Collects shows, in order, and limits the rate of redraws and updates.

    Promises: `take` returns the shows since the last call. While a redraw is due, it returns no
    other show, since the redraw contains them all. Redraws and the updates of one display come at
    most every `REDRAW_INTERVAL_S`, large redraws less often; the last state always comes.
    """

    def __init__(self, spec: OutputSpec) -> None:
        self._spec = spec
        self._redraw_bytes_per_s = 1 + _REDRAW_RATE * spec.settings.notebook_bytes_per_s
        self._blocks = self._new_blocks()
        self._grid_by_display_id = spec.grid_by_display_id
        self._shows: list[Show] = []
        self._parts: list[str] = []  # lines of ``_parts_stream``, not yet in ``_shows``
        self._parts_stream: Stream = "stdout"
        self._redraw_due: float | None = None
        self._next_redraw = float("-inf")
        self._update_by_id: dict[str | None, Rich | RankGrid] = {}
        self._next_update_by_id: dict[str | None, float] = {}
        self._rich_bytes_left = RICH_TOTAL_BYTES
        self._has_said_no_rich = False

    def _new_blocks(self) -> ShownBlocks:
        return ShownBlocks(
            labels=Labels(self._spec.world_size),
            text_limit_bytes=self._spec.settings.notebook_total_bytes,
            grid_scope=self._spec.cell_id or "",
        )

    def label(self, ranks: tuple[int, ...]) -> str:
        """Return ``[0-3]``, or nothing in a pool of one rank."""
        return self._blocks.label(ranks)

    def shown_by_rank(self) -> dict[int, list[Text | Rich]] | None:
        """Return all that is shown, without labels; None: some of it cannot stand in HTML."""
        return self._blocks.render_by_rank()

    def put_text(self, ranks: tuple[int, ...], stream: Stream, text: str) -> None:
        """Show lines."""
        if stream != self._parts_stream:
            self._end_text()
            self._parts_stream = stream
        self._parts.append(labelled(self._blocks.label(ranks), text))
        self._blocks.add_text(ranks, stream, text)

    def put_bundles(self, ranks: tuple[int, ...], items: Sequence[Item]) -> None:
        """Show the bundles of some ranks, up to a total of `RICH_TOTAL_BYTES`."""
        bundles = [item.rich for item in items if isinstance(item, Bundle)]
        self._rich_bytes_left -= sum(map(rich_bytes, bundles))
        if self._rich_bytes_left < 0:
            if not self._has_said_no_rich:
                self._has_said_no_rich = True
                limit = f"{RICH_TOTAL_BYTES // 1024**2} MB"
                notice = f"... more than {limit} of displays: no more are shown in this cell"
                self.put_text(ranks, "stderr", notice)
            return
        self._end_text()
        self._shows.append(put_bundles(self._blocks, ranks, items))
        self._note_grids()

    def _note_grids(self) -> None:
        """Keep the grids whose displays later cells may update."""
        for grid in self._blocks.grids:
            for slot in grid.slots:
                if slot.display_id:
                    self._grid_by_display_id[slot.display_id] = grid
        while len(self._grid_by_display_id) > _REMEMBERED_UPDATES:
            del self._grid_by_display_id[next(iter(self._grid_by_display_id))]

    def settle(self, record: ItemRecord) -> Redraw | None:
        """Put all output in its final order; return how, unless it is shown so."""
        blocks = self._new_blocks()
        if not record.settle(blocks) or _content(blocks) == _content(self._blocks):
            return None
        self._blocks = blocks
        self._note_grids()
        return Redraw(blocks.render())

    def send_update(self, rich: Rich) -> None:
        """Show new content of an existing display."""
        grid = self._blocks.update(rich)
        if grid is None:
            grid = self._grid_by_display_id.get(rich.display_id or "")
            if grid is not None:
                grid.update(rich)
        changed = rich if grid is None else grid
        self._update_by_id[changed.display_id] = changed
        self._next_update_by_id.setdefault(changed.display_id, float("-inf"))

    def clear(self, rank: int, redraw_by: float) -> int:
        """Remove the output of ``rank``.

        Args:
            rank: the rank that called ``clear_output``.
            redraw_by: latest time of the redraw.

        Returns:
            The size of the removed text in bytes.
        """
        before = self._blocks.text_bytes
        if self._blocks.clear(rank):
            due = max(redraw_by, self._next_redraw)
            self._redraw_due = due if self._redraw_due is None else min(due, self._redraw_due)
        return before - self._blocks.text_bytes

    def deadline(self) -> float | None:
        """Return when to call `take` next, if nothing is put before; None: not needed."""
        times = [self._next_update_by_id[display_id] for display_id in self._update_by_id]
        return min([*times, self._redraw_due] if self._redraw_due is not None else times,
                   default=None)  # fmt: skip

    def take(self, now: float, *, is_settled: bool, is_end: bool = False) -> list[Show]:
        """Return the shows that are due.

        Args:
            now: monotonic time in seconds.
            is_settled: whether a redraw would be complete: no item is still waiting.
            is_end: whether all remaining shows must come.
        """
        self._end_text()
        shows, self._shows = self._shows, []
        if self._redraw_due is not None:
            if is_settled:
                self._redraw_due = min(self._redraw_due, max(now, self._next_redraw))
            shows = []
            if is_end or now >= self._redraw_due:
                self._redraw_due = None
                slow_s = self._blocks.size_bytes / self._redraw_bytes_per_s
                self._next_redraw = now + max(REDRAW_INTERVAL_S, slow_s)
                shows = [Redraw(self._blocks.render())]
        return shows + self._take_updates(now, is_end=is_end)

    def _take_updates(self, now: float, *, is_end: bool) -> list[Show]:
        next_by_id = self._next_update_by_id
        due = [i for i in self._update_by_id if is_end or next_by_id[i] <= now]
        for display_id in due:
            next_by_id[display_id] = now + REDRAW_INTERVAL_S
        if len(next_by_id) > _REMEMBERED_UPDATES:
            self._next_update_by_id = {i: next_by_id[i] for i in self._update_by_id if i not in due}
        updates = [self._update_by_id.pop(display_id) for display_id in due]
        return [rich if isinstance(rich, Rich) else rich.as_rich(update=True) for rich in updates]

    def _end_text(self) -> None:
        if self._parts:
            self._shows.append(Text(self._parts_stream, "".join(self._parts)))
            self._parts = []


def _content(blocks: ShownBlocks) -> list[Text | Rich]:
    """Return all that is shown, without display ids: the id of a grid names its first rank."""
    return [
        show if isinstance(show, Text) else replace(show, display_id=None)
        for show in blocks.render()
    ]
