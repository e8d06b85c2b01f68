"""Blocks of ranks' widgets in one output, and the static text that replaces them.

Runs in: the notebook's process; the thread that shows a cell creates blocks, and the hub thread
also changes them, under the lock of the relay.

The first widgets of a kind that the ranks show in a cell are the rows of one block, the second ones
those of another. A row whose widget is closed keeps its height while the cell runs, so that nothing
below it moves, and shows the next widget of its rank. A block is itself a widget that the front
end composes from those of the ranks. When all of them have finished, or their ranks are gone,
static text replaces the block.
"""

import html
import itertools
from dataclasses import dataclass
from typing import Any

from nbddp.notebook.output import progress_bars
from nbddp.notebook.output.shows import Labels, Rich
from nbddp.notebook.output.sinks import Sink
from nbddp.notebook.render.colours import tint_of
from nbddp.notebook.render.html import PRE_STYLE, details, preformatted
from nbddp.notebook.widgets import WIDGET_ID_SUFFIX, WIDGET_MIME, Relay, static_text
from nbddp.wire.rank_set import RankSet
from nbddp.wire.widget_references import REFERENCE

#: The height of the scrolled window for many rows.
_WINDOW_HEIGHT = "512px"
#: The height of a widget of one line, such as a progress bar, with its margins.
_ROW_HEIGHT = "calc(var(--jp-widgets-inline-height, 28px) + 4px)"


@dataclass
class _Row:
    """The widget of one rank."""

    rank: int
    model_id: str  #: empty: its widget is closed, and the row is room only
    plain: str  #: the rank's text form of it
    own_ids: tuple[str, ...] = ()  #: models of the relay around it
    final_text: str | None = None  #: its text after the exit of its rank; None: the rank lives
    final_images: tuple[str, ...] = ()  #: its pictures after the exit of its rank

    @property
    def top_id(self) -> str:
        """The model that the block shows."""
        return self.own_ids[0] if self.own_ids else self.model_id


class WidgetBlock:
    """The widgets of one output.

    Args:
        relay: holds the models.
        display_id: of the output.
        labels: labels of the rows; None: a single widget without a row.
        parent: the front end's request of the cell.
    """

    def __init__(self, relay: Relay, display_id: str, labels: Labels | None, parent: Any) -> None:
        self._relay = relay
        self.display_id = display_id
        self._labels = labels
        self._parent = parent
        self._rows: list[_Row] = []
        self._root_id = ""
        self._layout_id = ""
        self._window_id = ""  # a layout that scrolls many rows
        self._unseen_id = ""  # a layout that hides a row, which keeps its height
        self._shown: dict[str, str] = {}  # the static form beside the widget

    def add(self, rank: int, model_id: str, plain: str) -> None:
        """Add a row, or fill that of the rank, also in the front end if it shows the block."""
        for vacant in self._rows:
            if vacant.rank == rank and not vacant.model_id:
                vacant.model_id, vacant.plain = model_id, plain
                self._show_row(vacant)
                return
        row = _Row(rank, model_id, plain)
        self._rows.append(row)
        self._rows.sort(key=lambda row: row.rank)
        if self._labels is None:
            self._root_id = model_id
            return
        open_model = self._relay.open_model
        text = {"value": _label(self._labels, rank)["text/html"]}
        text_id = open_model("controls", "HTML", text, self._parent)
        children = [f"{REFERENCE}{text_id}", f"{REFERENCE}{model_id}"]
        if not self._layout_id:
            self._layout_id = self._open_row_layout()
        state = {"children": children, "layout": REFERENCE + self._layout_id}
        row.own_ids = (open_model("controls", "HBox", state, self._parent), text_id)
        if self._root_id:
            self._show_rows()
        else:
            rows = {"children": [REFERENCE + row.top_id]}
            self._root_id = open_model("controls", "VBox", rows, self._parent)

    def _show_rows(self) -> None:
        state: dict[str, Any] = {"children": [REFERENCE + row.top_id for row in self._rows]}
        if len(self._rows) > static_text.MAX_OPEN_ROWS:
            if not self._window_id:
                self._window_id = self._open_layout(max_height=_WINDOW_HEIGHT, overflow="auto")
            state["layout"] = REFERENCE + self._window_id
        self._relay.update_soon(self._root_id, state)

    def _open_row_layout(self, **state: str) -> str:
        return self._open_layout(
            align_items="baseline", flex="0 0 auto", min_height=_ROW_HEIGHT, **state
        )

    def _open_layout(self, **state: str) -> str:
        return self._relay.open_model(
            "base", "Layout", {"_view_name": "LayoutView", **state}, self._parent
        )

    def has_room_for(self, rank: int) -> bool:
        """Return whether the block is still shown, and ``rank`` has no open widget in it."""
        is_shown = self in self._relay.blocks
        return is_shown and all(row.rank != rank or not row.model_id for row in self._rows)

    def drop(self, model_id: str) -> None:
        """Remove a widget that its rank has closed."""
        gone = [row for row in self._rows if row.model_id == model_id and row.final_text is None]
        if not gone:
            return
        if self._labels is None:
            self._rows = [row for row in self._rows if row not in gone]
            return
        for row in gone:
            row.model_id = ""
            self._show_row(row)

    def _show_row(self, row: _Row) -> None:
        """Show the widget of a row, or only its room."""
        if not self._unseen_id:
            self._unseen_id = self._open_row_layout(visibility="hidden")
        shown = (row.own_ids[1], row.model_id) if row.model_id else (row.own_ids[1],)
        layout_id = self._layout_id if row.model_id else self._unseen_id
        state = {
            "children": [REFERENCE + each for each in shown],
            "layout": REFERENCE + layout_id,
        }
        self._relay.update_soon(row.own_ids[0], state)

    def bundle(self) -> dict[str, Any]:
        """Return the widget, with its static form for front ends that cannot show it."""
        self._shown = self._static()
        view = {"version_major": 2, "version_minor": 0, "model_id": self._root_id}
        return {WIDGET_MIME: view, **self._shown}

    @property
    def is_single(self) -> bool:
        """Whether the block is one widget without rows."""
        return self._labels is None

    @property
    def model_ids(self) -> list[str]:
        """Ids of the ranks' widgets in it."""
        return [row.model_id for row in self._rows if row.model_id]

    def settle(self, *, refresh: bool) -> None:
        """Update the block at the end of a cell: it becomes text if all widgets have finished.

        Args:
            refresh: whether to update the saved static form of a block that stays alive.
        """
        models = self._relay.models
        rows = [row for row in self._rows if row.final_text is None and row.model_id]
        if all(
            r.model_id not in models or static_text.is_finished(models, r.model_id) for r in rows
        ):
            self.freeze()
            for row in rows:
                self._relay.retire(row.model_id)
        elif refresh and self._static() != self._shown:
            self._relay.redisplay(self.bundle(), self.display_id)

    def end_rank(self, rank: int) -> None:
        """Replace the widgets of ``rank``, which is gone, by text."""
        for row in self._rows:
            if row.rank != rank or row.final_text is not None or not row.model_id:
                continue
            row.final_text, row.final_images = self._text(row), self._images(row)
            if row.own_ids:
                text = {"value": preformatted(html.escape(row.final_text), PRE_STYLE)}
                text_id = self._relay.open_model("controls", "HTML", text, self._parent)
                children = [REFERENCE + row.own_ids[1], REFERENCE + text_id]
                self._relay.update_model(row.own_ids[0], {"children": children})
                row.own_ids += (text_id,)
        if all(row.final_text is not None or not row.model_id for row in self._rows):
            self.freeze()

    def freeze(self) -> None:
        """Replace the block by text, permanently."""
        self._relay.redisplay(self._static(), self.display_id)
        self.forget()

    def forget(self) -> None:
        """Close the block's own models: it is no longer shown."""
        if self in self._relay.blocks:
            self._relay.blocks.remove(self)
        own_ids = [own_id for row in self._rows for own_id in row.own_ids]
        if self._labels is not None and self._root_id:
            own_ids += filter(
                None, (self._root_id, self._layout_id, self._window_id, self._unseen_id)
            )
        for model_id in own_ids:
            self._relay.close_model(model_id)

    def _static(self) -> dict[str, str]:
        shown = [
            row
            for row in self._rows
            if row.final_text is not None or row.model_id in self._relay.models  # else closed
        ]
        texts = [self._text(row) for row in shown]
        rows = [
            static_text.Row(self._label(row.rank), text, self._images(row))
            for row, text in zip(shown, texts, strict=True)
        ]
        bundle = static_text.bundle_of(rows)
        keys = {progress_bars.bar_key(text) for text in texts}
        if len(rows) <= progress_bars.MAX_ROWS or len(keys) > 1 or None in keys:
            return bundle
        chosen = progress_bars.ended([row.rank for row in shown], texts)
        three = static_text.bundle_of(
            [static_text.Row(self._label(rank), text) for rank, text in chosen]
        )
        every = details(f"the bars of all {len(rows)} ranks", bundle["text/html"])
        return {**three, "text/html": f"{three['text/html']}{every}"}

    def _label(self, rank: int) -> str:
        return self._labels.of((rank,)) if self._labels else ""

    def _text(self, row: _Row) -> str:
        if row.final_text is not None:
            return row.final_text
        return static_text.text_of(self._relay.models, row.model_id, row.plain)

    def _images(self, row: _Row) -> tuple[str, ...]:
        if row.final_text is not None:
            return row.final_images
        return tuple(static_text.images_of(self._relay.models, row.model_id))


class WidgetBlocks:
    """The widgets that one cell shows.

    Args:
        relay: holds the models.
        sink: shows the blocks.
        labels: labels of the ranks; false in a pool of one rank.
        parent: the front end's request of the cell.
        scope: makes display ids unique.
    """

    def __init__(self, relay: Relay, sink: Sink, labels: Labels, parent: Any, scope: str) -> None:
        self._relay = relay
        self._sink = sink
        self._labels = labels
        self._parent = parent
        self._scope = scope
        self._clear_count = 0
        self._blocks: dict[tuple[str, int], WidgetBlock] = {}  # by kind, and number of the kind
        self._singles: dict[str, WidgetBlock] = {}  # by the user's display id

    def show(self, rich: Rich) -> bool:
        """Show a widget, and return whether ``rich`` is one that the front end knows."""
        view = rich.data.get(WIDGET_MIME)
        model_id = str(view.get("model_id", "")) if isinstance(view, dict) else ""
        with self._relay.lock:
            if model_id in self._relay.closed:
                return True  # it was closed in the meantime, so nothing is shown
            self._relay.revive(model_id, self._parent)
            if rich.update and rich.display_id is not None:
                self._forget(rich.display_id)  # the update replaces it
            if model_id not in self._relay.models:
                return False
            block = self._place(rich, model_id)
            self._relay.send_states()
            bundle = {} if block is None else block.bundle()
        if block is not None:
            if block.is_single and self._labels and not rich.update:
                label = _label(self._labels, rich.ranks.ranks[0])
                self._sink.display(label, {}, None, False)
            self._sink.display(bundle, {}, block.display_id, rich.update)
        return True

    def _place(self, rich: Rich, model_id: str) -> WidgetBlock | None:
        """Return a new block with the widget; None: an older block had room for it."""
        rank, plain = rich.ranks.ranks[0], str(rich.data.get("text/plain", ""))
        scope = f"{self._scope}-{self._clear_count}"
        if is_named(rich) or not self._labels:
            display_id = rich.display_id if is_named(rich) else None
            display_id = display_id or f"{scope}-{model_id}"
            self._forget(display_id)
            block = self._singles[display_id] = self._make(display_id, None)
        else:
            kind = self._relay.models[model_id].kind
            for number in itertools.count():
                older = self._blocks.get((kind, number))
                if older is None:
                    break
                if older.has_room_for(rank):
                    older.add(rank, model_id, plain)
                    return None
            block = self._make(f"{scope}-{kind}-{number}", self._labels)
            self._blocks[kind, number] = block
        block.add(rank, model_id, plain)
        return block

    def _forget(self, display_id: str) -> None:
        """Drop the blocks of a display, also of an earlier cell: it gets other contents."""
        for block in list(self._relay.blocks):
            if block.display_id == display_id:
                block.forget()

    def _make(self, display_id: str, labels: Labels | None) -> WidgetBlock:
        block = WidgetBlock(self._relay, display_id, labels, self._parent)
        self._relay.blocks.append(block)
        return block

    def clear(self) -> None:
        """Drop all blocks: the output of the cell was cleared."""
        with self._relay.lock:
            for block in (*self._blocks.values(), *self._singles.values()):
                block.forget()
        self._blocks, self._singles = {}, {}
        self._clear_count += 1

    def end(self) -> None:
        """Replace finished blocks by text: the cell has ended."""
        self._relay.settle([*self._blocks.values(), *self._singles.values()])


def is_named(rich: Rich) -> bool:
    """Return whether the user gave the display an id, and may update it."""
    return rich.display_id is not None and not rich.display_id.endswith(WIDGET_ID_SUFFIX)


def _label(labels: Labels, rank: int) -> dict[str, str]:
    width = len(labels.of((rank,))) - 2  # as wide as the label of the last rank
    label = f"[{rank}]".ljust(width)
    text = f'<b style="{tint_of(RankSet.of([rank]))}">{html.escape(label)}</b>'
    return {"text/plain": label.rstrip(), "text/html": preformatted(text, PRE_STYLE)}
