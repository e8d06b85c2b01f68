"""The output of a cell whose ranks clear theirs: one display, with a slot for each rank.

Runs in: the notebook's main thread. Pure: no clock, no I/O.

A loop that clears its output and draws the next figure is how notebooks show a training live. If
several ranks do so, the place of each must stay: the display has a slot for each rank, in order,
and is replaced as a whole. Nothing is removed before its successor is there.
"""

from collections.abc import Mapping, Sequence

from nbddp.notebook.output.cell_output import OutputSpec
from nbddp.notebook.output.gatherer import Gatherer
from nbddp.notebook.output.per_rank_blocks import RankBlock, spec_of_rank, text_html
from nbddp.notebook.output.rank_text import RankText
from nbddp.notebook.output.screen import REDRAW_INTERVAL_S
from nbddp.notebook.output.shows import Labels, Redraw, Rich, Show, Text, labelled
from nbddp.notebook.render import rank_grid
from nbddp.notebook.render.embedded import embedded, is_embeddable
from nbddp.wire.messages import ClearOutput, Display, Output, Result
from nbddp.wire.rank_set import RankSet, ranks_by

#: `clear_output()` without ``wait`` keeps the old output for this time: the next one comes soon.
#: Then it cannot be seen any more, but keeps its room until other output comes, or the cell ends.
_CLEAR_AFTER_S = 0.3
_NEVER = float("inf")
#: With more ranks than this, equal slots are one also while the cell runs.
_MAX_LIVE_SLOTS = 16
#: Pages may send this many times ``notebook_bytes_per_s``: pictures are large.
_PAGE_RATE = 64


class RankSlots:
    """A `CellOutput` with a slot for each rank.

    Displays that cannot stand in HTML, such as widgets, are shown below the slots.

    Args:
        spec: the facts about the cell.
        shown_by_rank: the output of each rank so far.
    """

    def __init__(
        self, spec: OutputSpec, shown_by_rank: Mapping[int, Sequence[Text | Rich]]
    ) -> None:
        self._spec = spec
        self._display_id = f"nbddp-slots-{spec.cell_id}"
        self._labels = Labels(spec.world_size)
        self._bytes_per_s = _PAGE_RATE * spec.settings.notebook_bytes_per_s
        self._gatherer_by_rank: dict[int, Gatherer] = {}
        self._block_by_rank: dict[int, RankBlock] = {}
        for rank in sorted({*spec.ranks, *shown_by_rank}):
            self._add_rank(rank, shown_by_rank.get(rank, ()))
        self._below: list[Rich] = []
        #: When the slot is hidden, unless new output comes before; `_NEVER`: it is not.
        self._clear_at_by_rank: dict[int, float] = {}
        self._hidden: set[int] = set()  # ranks whose slots are room only
        self._is_begun = False
        self._is_changed = True
        self._next_page_at = float("-inf")

    def add(self, event: Output | Display | Result | ClearOutput, now: float) -> list[Show]:
        """See `CellOutput.add`."""
        rank = event.rank
        if rank not in self._gatherer_by_rank:
            self._add_rank(rank)
        if isinstance(event, ClearOutput):
            at = _NEVER if event.wait else now + _CLEAR_AFTER_S
            self._clear_at_by_rank[rank] = min(at, self._clear_at_by_rank.get(rank, _NEVER))
            return []
        is_new = not (isinstance(event, Display) and event.update)
        if is_new and (self._clear_at_by_rank.pop(rank, None) is not None or rank in self._hidden):
            self._clear(rank)
        shows = self._put(rank, self._gatherer_by_rank[rank].add(event, now))
        return [*shows, *self._page(now)]

    def finish_rank(self, rank: int, now: float) -> list[Show]:
        """See `CellOutput.finish_rank`."""
        if rank not in self._gatherer_by_rank:
            return []
        if self._clear_at_by_rank.pop(rank, _NEVER) < _NEVER:
            self._hide(rank)
        shows = self._put(rank, self._gatherer_by_rank[rank].finish_rank(rank, now))
        return [*shows, *self._page(now)]

    def tick(self, now: float) -> list[Show]:
        """See `CellOutput.tick`."""
        for rank in [r for r, due in self._clear_at_by_rank.items() if due <= now]:
            self._clear_at_by_rank[rank] = _NEVER
            self._hide(rank)
        shows: list[Show] = []
        for rank, gatherer in self._gatherer_by_rank.items():
            shows += self._put(rank, gatherer.tick(now))
        return [*shows, *self._page(now)]

    def end(self, now: float) -> list[Show]:
        """See `CellOutput.end`."""
        shows: list[Show] = []
        cleared = {rank for rank, at in self._clear_at_by_rank.items() if at < _NEVER}
        for rank in cleared | self._hidden:
            self._clear(rank)
        for rank, gatherer in self._gatherer_by_rank.items():
            shows += self._put(rank, gatherer.end(now))
        self._is_changed = True
        return [*shows, *self._page(now, is_end=True)]

    def next_deadline(self) -> float | None:
        """See `CellOutput.next_deadline`."""
        times = [gatherer.next_deadline() for gatherer in self._gatherer_by_rank.values()]
        times += [at for at in self._clear_at_by_rank.values() if at < _NEVER]
        if self._is_changed:
            times.append(self._next_page_at)
        return min((time for time in times if time is not None), default=None)

    def open_lines(self) -> list[tuple[RankSet, str]]:
        """See `CellOutput.open_lines`."""
        ranks_by_row = ranks_by(
            (row, rank)
            for rank, gatherer in self._gatherer_by_rank.items()
            for _, row in gatherer.open_lines()
        )
        return [(ranks, row) for row, ranks in ranks_by_row.items()]

    def text_by_rank(self) -> dict[int, RankText]:
        """Return nothing: the slots show the text."""
        return {}

    def keep_order(self) -> None:
        """See `CellOutput.keep_order`: the slots have one order."""

    def _add_rank(self, rank: int, shown: Sequence[Text | Rich] = ()) -> None:
        self._gatherer_by_rank[rank] = Gatherer(spec_of_rank(self._spec, rank))
        self._block_by_rank[rank] = RankBlock(RankSet((rank,)), list(shown))

    def _clear(self, rank: int) -> None:
        self._gatherer_by_rank[rank] = Gatherer(spec_of_rank(self._spec, rank))
        self._block_by_rank[rank].shows = []
        self._hidden.discard(rank)
        self._is_changed = True
        kept = [rich for rich in self._below if rank not in rich.ranks]
        if len(kept) < len(self._below):
            self._below = kept
            self._is_begun = False  # all is drawn again, without them

    def _hide(self, rank: int) -> None:
        self._hidden.add(rank)
        self._is_changed = True

    def _put(self, rank: int, shows: Sequence[Show]) -> list[Show]:
        """Add the shows of a rank to its slot; return those that do not fit in it."""
        others: list[Show] = []
        for show in shows:
            match show:
                case Rich() if not is_embeddable(show.data, show.metadata):
                    if not show.update:
                        self._below.append(show)
                    others.append(show)
                case Rich() if show.update and not self._block_by_rank[rank].has(show.display_id):
                    others.append(show)  # of an earlier cell
                case _:
                    self._block_by_rank[rank].add([show])
                    self._is_changed = True
        return others

    def _page(self, now: float, *, is_end: bool = False) -> list[Show]:
        """Return the display, if it has changed and is due."""
        if not self._is_changed or (now < self._next_page_at and not is_end):
            return []
        self._is_changed = False
        bundle = self._bundle(is_end=is_end)
        slow_s = len(bundle["text/html"]) / self._bytes_per_s
        self._next_page_at = now + max(REDRAW_INTERVAL_S, slow_s)
        page = Rich(RankSet(), "display", dict(bundle), {}, self._display_id, self._is_begun)
        if self._is_begun:
            return [page]
        self._is_begun = True
        return [Redraw((page, *self._below))]

    def _bundle(self, *, is_end: bool) -> dict[str, str]:
        blocks = [block for _, block in sorted(self._block_by_rank.items()) if block.shows]
        if is_end or len(blocks) > _MAX_LIVE_SLOTS:
            by_key: dict[object, RankBlock] = {}
            for block in blocks:
                key = block.key(), self._is_hidden(block)
                same = by_key.setdefault(key, RankBlock(RankSet(), block.shows))
                same.ranks = RankSet.of((*same.ranks, *block.ranks))
            blocks = list(by_key.values())
        if all(isinstance(show, Text) for block in blocks for show in block.shows):
            seen = [block for block in blocks if not self._is_hidden(block)]
            text = "".join(map(self._labelled, seen)).removesuffix("\n")
            if len(seen) == len(blocks):
                return {"text/plain": text, "text/html": text_html(text.split("\n"))}
            html = "".join(
                self._seen(block, text_html(self._labelled(block).removesuffix("\n").split("\n")))
                for block in blocks
            )
            return {"text/plain": text, "text/html": html}
        slots = [
            rank_grid.Slot(
                block.ranks,
                html=self._seen(block, "".join(map(_html, block.shows))),
                plain=""
                if self._is_hidden(block)
                else "\n".join(filter(None, map(_plain, block.shows))),
            )
            for block in blocks
        ]
        return rank_grid.bundle(slots)

    def _is_hidden(self, block: RankBlock) -> bool:
        return not self._hidden.isdisjoint(block.ranks)

    def _seen(self, block: RankBlock, html: str) -> str:
        return f'<div style="visibility:hidden">{html}</div>' if self._is_hidden(block) else html

    def _labelled(self, block: RankBlock) -> str:
        text = "".join(show.text for show in block.shows if isinstance(show, Text))
        return labelled(self._labels.of(block.ranks.ranks), text.removesuffix("\n"))


def _html(show: Text | Rich) -> str:
    if isinstance(show, Text):
        return text_html(show.text.removesuffix("\n").split("\n"))
    return f"<div>{embedded(show.data, show.metadata)}</div>"


def _plain(show: Text | Rich) -> str:
    if isinstance(show, Text):
        return show.text.removesuffix("\n")
    return str(show.data.get("text/plain", ""))
