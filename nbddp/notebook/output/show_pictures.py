"""The pictures of `nbddp.show`: collects the calls of all ranks, and draws one picture for each.

    rank 0 --ShowCall--> add_call --+                     +--> place: its place, where the call was
    rank 1 --ShowCall--> add_call --+--> folded by View --+
                                                          +--> tick: drawn, when all are there

Calls belong together if they are the n-th call at the same line of the cell. A picture is drawn
when every rank has called, again when more calls come, and at the end of the cell with the calls so
far.

Runs in: the thread that waits for the cell.
"""

import base64
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from nbddp.notebook.output.sinks import Sink, TerminalSink
from nbddp.notebook.render import tensor_picture
from nbddp.notebook.render.html import clean
from nbddp.wire.messages import Display
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values.tensor_preview import MIME, ShowCall, TensorShown

#: Calls of several ranks within this time are drawn once.
_SETTLE_S = 0.03
#: A picture without the calls of all ranks is drawn after this time.
_PATIENCE_S = 0.4
#: Number of pictures of one cell; later ones are shown as text, so that the file stays small.
MAX_PICTURES = 24

_numbers = itertools.count(1)


@dataclass
class _Picture:
    """The calls that make one picture."""

    display_id: str
    title: str = ""
    before: dict[int, list[TensorShown]] = field(default_factory=dict)
    after: dict[int, list[TensorShown]] = field(default_factory=dict)
    open: dict[int, list[str]] = field(default_factory=dict)  #: operations, after the block
    is_opened: bool = False
    has_place: bool = False
    is_drawn: bool = False
    due: float | None = None


class CellPictures:
    """The pictures of one cell.

    Args:
        ranks: ranks that run the cell.
        sink: shows the pictures.
        scope: makes display ids unique.
        world_size: number of ranks of the pool.
        can_update: whether displays can change. If not, the text form is shown when it is complete.
    """

    def __init__(
        self, ranks: RankSet, sink: Sink, scope: str, world_size: int, *, can_update: bool = True
    ) -> None:
        self._can_update = can_update and not isinstance(sink, TerminalSink)
        self._ranks = ranks
        self._world_size = world_size
        self._sink = sink
        self._scope = scope
        self._picture_by_key: dict[str, _Picture] = {}
        self._picture_count = 0

    def add_call(self, event: Display, now: float) -> Display | None:
        """Add a call, and return a marker for its place in the rank's output; None: it has none.

        The marker is equal on all ranks, so that it is folded. An invalid call is returned without
        its data: its plain text is shown.
        """
        try:
            call = msgspec.convert(event.data[MIME], ShowCall)
        except msgspec.ValidationError:
            return msgspec.structs.replace(event, data=_without_call(event.data))
        picture = self._picture_by_key.get(call.key)
        if picture is None:
            display_id = f"nbddp-show-{self._scope}-{next(_numbers)}"
            picture = self._picture_by_key[call.key] = _Picture(display_id)
        picture.title = picture.title or call.title
        if call.stage == "opened":
            picture.is_opened = True
        elif call.stage == "after":
            picture.after[event.rank] = call.tensors
            if call.open:
                picture.open[event.rank] = call.open
        else:
            picture.before[event.rank] = call.tensors
        picture.due = now + (_SETTLE_S if self._has_all(picture) else _PATIENCE_S)
        if call.stage != "now":
            if (
                not self._can_update
                and picture.has_place
                and picture.after
                and self._has_all(picture)
            ):
                self._draw(picture)  # at once: later text goes below it
            return None
        return msgspec.structs.replace(event, data={MIME: {"key": call.key}})

    def place(self, bundle: Mapping[str, Any]) -> None:
        """Make a place here for the picture of a call, which may be drawn later."""
        picture = self._picture_by_key[bundle[MIME]["key"]]
        if not picture.has_place and self._can_update:
            picture.is_drawn = False
            if self._has_all(picture):
                self._draw(picture)
            else:
                self._sink.display({"text/plain": ""}, {}, picture.display_id, False)
        picture.has_place = True

    def clear_places(self, now: float) -> None:
        """Forget all places: the output was cleared. Pictures that stay get a new place."""
        for picture in self._picture_by_key.values():
            picture.has_place = False
            picture.due = now

    def tick(self, now: float) -> float | None:
        """Draw the pictures that are due, and return the next deadline."""
        waiting = [picture for picture in self._picture_by_key.values() if picture.due is not None]
        for picture in waiting:
            is_early = not self._can_update and not self._has_all(
                picture
            )  # it cannot be drawn again
            if (
                picture.has_place
                and not is_early
                and picture.due is not None
                and picture.due <= now
            ):
                self._draw(picture)
        due = [picture.due for picture in waiting if picture.due is not None]
        return min((time for time in due if time > now), default=None)

    def end(self) -> None:
        """Draw the other pictures, with the calls so far: the cell has ended."""
        for picture in self._picture_by_key.values():
            if picture.has_place and picture.due is not None:  # it has no place with `--out quiet`
                self._draw(picture)

    def _has_all(self, picture: _Picture) -> bool:
        tensors = picture.after if picture.is_opened else picture.before
        return len(tensors) == len(self._ranks)

    def _draw(self, picture: _Picture) -> None:
        picture.due = None
        try:
            bundle, metadata = self._bundle(picture)
        except Exception as error:  # noqa: BLE001 - a bug in nbddp; the cell goes on
            text = f"nbddp could not draw this ({type(error).__name__}: {error})"
            bundle, metadata = {"text/plain": text}, {}
        update = self._can_update and picture.has_place
        self._sink.display(bundle, metadata, picture.display_id, update)
        picture.is_drawn = True

    def _bundle(self, picture: _Picture) -> tuple[dict[str, Any], dict[str, Any]]:
        blocks = _blocks(self._ranks, picture, self._world_size)
        text = clean(tensor_picture.text(picture.title, blocks))
        bundle: dict[str, Any] = {"text/plain": text}
        if not self._can_update or (not picture.is_drawn and self._picture_count >= MAX_PICTURES):
            return bundle, {}
        self._picture_count += not picture.is_drawn
        drawn = tensor_picture.draw(picture.title, blocks)
        bundle["image/png"] = base64.b64encode(drawn.png()).decode()
        size = {"width": drawn.width, "height": drawn.height}
        alt = "; ".join([f"the tensor of {self._ranks.describe()}", *text.splitlines()[:1]])
        return bundle, {"image/png": {**size, "alt": alt}}


def _blocks(ranks: RankSet, picture: _Picture, world_size: int) -> list[tensor_picture.Block]:
    """Return one block for each argument of the call."""
    # A rank may show fewer tensors: `show(*tensors)`.
    count = max(map(len, (*picture.before.values(), *picture.after.values())))
    blocks = []
    for index in range(count):
        stages = [("before" if picture.is_opened else "", _at(picture.before, index))]
        if picture.is_opened:
            stages.append(("after", _at(picture.after, index)))
        # If half of the ranks called, the others are drawn as missing; else they need not call.
        came = RankSet.of({rank for _, tensors in stages for rank in tensors})
        shown = ranks if 2 * len(came) >= len(ranks) else came
        is_whole = len(shown) == world_size
        blocks.append(tensor_picture.Block(shown, stages, picture.open, has_all_ranks=is_whole))
    return blocks


def _at(by_rank: Mapping[int, list[TensorShown]], index: int) -> dict[int, TensorShown]:
    return {
        rank: tensors[index] for rank, tensors in sorted(by_rank.items()) if index < len(tensors)
    }


def _without_call(bundle: Mapping[str, Any]) -> dict[str, Any]:
    return {kind: value for kind, value in bundle.items() if kind != MIME}
