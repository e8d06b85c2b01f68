"""Widgets of ranks, one below the other in one output, and the text that takes their place.

Runs in: the notebook's process; blocks are made by the thread that shows a cell, and changed by the
hub thread too, under the lock of the relay.

The first widgets of a kind that the ranks show in a cell are the rows of one block, the second ones
those of another; a widget that is closed makes room for the next. A block is a widget itself, put
together in the front end from those of the ranks. When all of them have finished, or their ranks
are gone, static text takes its place.
"""

import html
import itertools
from dataclasses import dataclass
from typing import Any

from nbddp.notebook.output.screen import Labels, Rich
from nbddp.notebook.output.sinks import Sink
from nbddp.notebook.render.colours import colour_of
from nbddp.notebook.render.html import PRE_STYLE, preformatted
from nbddp.notebook.widgets import WIDGET_ID_SUFFIX, WIDGET_MIME, Relay, static_text
from nbddp.wire.rank_set import RankSet

_REFERENCE = "IPY_MODEL_"
#: The height of the window in which many rows are scrolled.
_WINDOW_HEIGHT = "512px"


@dataclass
class _Row:
    """One rank's widget."""

    rank: int
    model_id: str
    plain: str  #: as the rank wrote it
    own_ids: tuple[str, ...] = ()  #: models of ours around it
    left: str | None = None  #: its text, once its rank is gone
    images: tuple[str, ...] = ()  #: its pictures, once its rank is gone

    @property
    def top_id(self) -> str:
        """The model that the block shows."""
        return self.own_ids[0] if self.own_ids else self.model_id


class WidgetBlock:
    """The widgets of one output."""

    def __init__(self, relay: Relay, display_id: str, labels: Labels | None, parent: Any) -> None:
        self._relay = relay
        self.display_id = display_id
        self._labels = labels  # None: a single widget, shown as it is
        self._parent = parent
        self._rows: list[_Row] = []
        self._root_id = ""
        self._layout_id = ""
        self._window_id = ""  # a layout that lets many rows be scrolled
        self._shown: dict[str, str] = {}  # the static form that goes with the widget

    def add(self, rank: int, model_id: str, plain: str) -> None:
        """Add a row, also in the front end if that shows the block already."""
        row = _Row(rank, model_id, plain)
        self._rows.append(row)
        self._rows.sort(key=lambda each: each.rank)
        if self._labels is None:
            self._root_id = model_id
            return
        open_model = self._relay.open_model
        text = {"value": _label(self._labels, rank)["text/html"]}
        text_id = open_model("controls", "HTML", text, self._parent)
        children = [f"{_REFERENCE}{text_id}", f"{_REFERENCE}{model_id}"]
        if not self._layout_id:
            self._layout_id = self._open_layout(align_items="baseline", flex="0 0 auto")
        state = {"children": children, "layout": _REFERENCE + self._layout_id}
        row.own_ids = (open_model("controls", "HBox", state, self._parent), text_id)
        if self._root_id:
            self._show_rows()
        else:
            rows = {"children": [_REFERENCE + row.top_id]}
            self._root_id = open_model("controls", "VBox", rows, self._parent)

    def _show_rows(self) -> None:
        state: dict[str, Any] = {"children": [_REFERENCE + each.top_id for each in self._rows]}
        if len(self._rows) > static_text.MAX_OPEN_ROWS:
            if not self._window_id:
                self._window_id = self._open_layout(max_height=_WINDOW_HEIGHT, overflow="auto")
            state["layout"] = _REFERENCE + self._window_id
        self._relay.update_soon(self._root_id, state)

    def _open_layout(self, **state: str) -> str:
        return self._relay.open_model(
            "base", "Layout", {"_view_name": "LayoutView", **state}, self._parent
        )

    def has_room_for(self, rank: int) -> bool:
        """Whether the block is still shown, and ``rank`` has no open widget in it."""
        return self in self._relay.blocks and all(row.rank != rank for row in self._rows)

    def drop(self, model_id: str) -> None:
        """Remove a widget that its rank has closed."""
        gone = [row for row in self._rows if row.model_id == model_id and row.left is None]
        if not gone:
            return
        self._rows = [row for row in self._rows if row not in gone]
        if self._labels is not None:
            self._show_rows()
            for own_id in (each for row in gone for each in row.own_ids):
                self._relay.close_model(own_id)

    def bundle(self) -> dict[str, Any]:
        """The widget, and its static form for readers that cannot show it."""
        self._shown = self._static()
        view = {"version_major": 2, "version_minor": 0, "model_id": self._root_id}
        return {WIDGET_MIME: view, **self._shown}

    @property
    def is_single(self) -> bool:
        """Whether it is one widget as it is, and no rows."""
        return self._labels is None

    @property
    def model_ids(self) -> list[str]:
        """The widgets of ranks in it."""
        return [row.model_id for row in self._rows]

    def settle(self, *, refresh: bool) -> None:
        """A cell has ended: become text if all widgets have finished, or else be up to date."""
        models = self._relay.models
        rows = [row for row in self._rows if row.left is None]
        if all(
            r.model_id not in models or static_text.is_finished(models, r.model_id) for r in rows
        ):
            self.freeze()
            for row in rows:
                self._relay.retire(row.model_id)
        elif refresh and self._static() != self._shown:
            self._relay.redisplay(self.bundle(), self.display_id)

    def end_rank(self, rank: int) -> None:
        """Put text in the place of the widgets of ``rank``, which is gone."""
        for row in self._rows:
            if row.rank != rank or row.left is not None:
                continue
            row.left, row.images = self._text(row), self._images(row)
            if row.own_ids:
                left = html.escape(row.left)
                text = {"value": preformatted(left, PRE_STYLE)}
                left_id = self._relay.open_model("controls", "HTML", text, self._parent)
                children = [_REFERENCE + row.own_ids[1], _REFERENCE + left_id]
                self._relay.update_model(row.own_ids[0], {"children": children})
                row.own_ids += (left_id,)
        if all(row.left is not None for row in self._rows):
            self.freeze()

    def freeze(self) -> None:
        """Become text for good."""
        self._relay.redisplay(self._static(), self.display_id)
        self.forget()

    def forget(self) -> None:
        """Close its own models: the block is no longer shown."""
        if self in self._relay.blocks:
            self._relay.blocks.remove(self)
        own = [each for row in self._rows for each in row.own_ids]
        if self._labels is not None and self._root_id:
            own += [each for each in (self._root_id, self._layout_id, self._window_id) if each]
        for model_id in own:
            self._relay.close_model(model_id)

    def _static(self) -> dict[str, str]:
        rows = [
            static_text.Row(
                self._labels.of((row.rank,)) if self._labels else "",
                self._text(row),
                self._images(row),
            )
            for row in self._rows
            if row.left is not None or row.model_id in self._relay.models  # else: it was closed
        ]
        return static_text.bundle_of(rows)

    def _text(self, row: _Row) -> str:
        if row.left is not None:
            return row.left
        return static_text.text_of(self._relay.models, row.model_id, row.plain)

    def _images(self, row: _Row) -> tuple[str, ...]:
        if row.left is not None:
            return row.images
        return tuple(static_text.images_of(self._relay.models, row.model_id))


class WidgetBlocks:
    """The widgets that one cell shows."""

    def __init__(self, relay: Relay, sink: Sink, labels: Labels, parent: Any, scope: str) -> None:
        self._relay = relay
        self._sink = sink
        self._labels = labels
        self._parent = parent
        self._scope = scope
        self._round = 0  # how often the output was cleared
        self._blocks: dict[tuple[str, int], WidgetBlock] = {}  # by kind, and how many came before
        self._singles: dict[str, WidgetBlock] = {}  # by the display id that the user gave

    def show(self, rich: Rich) -> bool:
        """Show a widget. False: it is no widget, or none that the front end knows."""
        view = rich.data.get(WIDGET_MIME)
        model_id = str(view.get("model_id", "")) if isinstance(view, dict) else ""
        with self._relay.lock:
            if model_id in self._relay.closed:
                return True  # it was closed since: nothing is to be seen of it
            self._relay.revive(model_id, self._parent)
            if rich.update and rich.display_id is not None:
                self._forget(rich.display_id)  # something else takes its place
            if model_id not in self._relay.models:
                return False
            block = self._placed(rich, model_id)
            bundle = {} if block is None else block.bundle()
        if block is not None:
            if block.is_single and self._labels and not rich.update:
                label = _label(self._labels, rich.ranks.ranks[0])
                self._sink.display(label, {}, None, False)
            self._sink.display(bundle, {}, block.display_id, rich.update)
        return True

    def _placed(self, rich: Rich, model_id: str) -> WidgetBlock | None:
        """A new block with the widget; None: an older block had room for it."""
        rank, plain = rich.ranks.ranks[0], str(rich.data.get("text/plain", ""))
        scope = f"{self._scope}-{self._round}"
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
        """Give up the blocks of a display, also of an earlier cell: it gets other contents."""
        for block in list(self._relay.blocks):
            if block.display_id == display_id:
                block.forget()

    def _make(self, display_id: str, labels: Labels | None) -> WidgetBlock:
        block = WidgetBlock(self._relay, display_id, labels, self._parent)
        self._relay.blocks.append(block)
        return block

    def start_over(self) -> None:
        """Give up all blocks: the output of the cell was cleared."""
        with self._relay.lock:
            for block in (*self._blocks.values(), *self._singles.values()):
                block.forget()
        self._blocks, self._singles = {}, {}
        self._round += 1

    def end(self) -> None:
        """The cell is over: blocks that have finished become text."""
        self._relay.settle([*self._blocks.values(), *self._singles.values()])


def is_named(rich: Rich) -> bool:
    """Whether the user gave the display an id, and may change it by that."""
    return rich.display_id is not None and not rich.display_id.endswith(WIDGET_ID_SUFFIX)


def _label(labels: Labels, rank: int) -> dict[str, str]:
    width = len(labels.of((rank,))) - 2  # that of the last rank alone
    label = f"[{rank}]".ljust(width)
    text = f'<b style="color:{colour_of(RankSet.of([rank]))}">{html.escape(label)}</b>'
    return {"text/plain": label.rstrip(), "text/html": preformatted(text, PRE_STYLE)}
