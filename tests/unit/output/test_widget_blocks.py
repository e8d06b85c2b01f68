"""Blocks of ranks' widgets: their rows, while widgets come and go."""

import itertools
import threading
from typing import Any

import pytest

from nbddp.notebook.output.shows import Labels, Rich
from nbddp.notebook.output.widget_blocks import WidgetBlocks
from nbddp.notebook.widgets.static_text import WIDGET_ID_SUFFIX, Model
from nbddp.wire.rank_set import RankSet
from nbddp.wire.widget_references import REFERENCE, WIDGET_MIME
from tests.support.sinks import PageSink


class FakeRelay:
    """Holds models as `Relay` does, and what the front end has of them."""

    def __init__(self) -> None:
        self.models: dict[str, Model] = {}
        self._numbers = itertools.count()
        self.closed: set[str] = set()
        self.blocks: list[Any] = []
        self.lock = threading.RLock()
        self.shown: list[dict[str, Any]] = []  # the bundles that replaced displays

    def open_model(self, module: str, name: str, state: dict[str, Any], parent: Any) -> str:
        model_id = f"own-{next(self._numbers)}"
        self.models[model_id] = Model(-1, {"_model_name": f"{name}Model", **state})
        return model_id

    def update_soon(self, model_id: str, state: dict[str, Any]) -> None:
        self.models[model_id].state.update(state)

    update_model = update_soon

    def close_model(self, model_id: str) -> None:
        del self.models[model_id]

    def redisplay(self, data: dict[str, Any], display_id: str) -> None:
        self.shown.append(data)

    def settle(self, blocks: list[Any]) -> None:
        for block in blocks:
            block.settle(refresh=True)

    def retire(self, model_id: str) -> None:
        pass

    def revive(self, model_id: str, parent: Any) -> None:
        pass

    def send_states(self) -> None:
        pass


class Scene:
    """The widgets of one cell."""

    def __init__(self, ranks: int = 2) -> None:
        self.relay = FakeRelay()
        relay: Any = self.relay
        self.blocks = WidgetBlocks(relay, PageSink(), Labels(ranks), None, "cell")

    def show(self, rank: int, model_id: str, text: str = "") -> None:
        state: dict[str, Any] = {"_model_name": "HBoxModel", "children": []}
        if text:
            state = {"_model_name": "HTMLModel", "value": text}
        self.relay.models[model_id] = Model(rank, state)
        data = {WIDGET_MIME: {"model_id": model_id}, "text/plain": f"bar {model_id}"}
        self.blocks.show(
            Rich(RankSet((rank,)), "display", data, {}, f"{model_id}{WIDGET_ID_SUFFIX}")
        )

    def close(self, model_id: str) -> None:
        del self.relay.models[model_id]
        for block in list(self.relay.blocks):
            block.drop(model_id)

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The visibility of each row on the page, and the widget in it."""
        models = self.relay.models
        roots = [each for each in models.values() if each.state["_model_name"] == "VBoxModel"]
        rows = []
        for child in roots[0].state["children"]:
            row = models[child.removeprefix(REFERENCE)].state
            layout = models[row["layout"].removeprefix(REFERENCE)].state
            widget = [each.removeprefix(REFERENCE) for each in row["children"][1:]]
            rows.append((layout.get("visibility", "visible"), "".join(widget)))
        return rows


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_row_keeps_its_height_while_its_widget_is_closed(scene: Scene):
    scene.show(0, "a")
    scene.show(1, "b")
    assert scene.rows == [("visible", "a"), ("visible", "b")]
    scene.close("a")
    assert scene.rows == [("hidden", ""), ("visible", "b")]
    scene.show(0, "c")
    assert scene.rows == [("visible", "c"), ("visible", "b")]
    assert len(scene.relay.blocks) == 1


def test_rows_without_a_widget_are_not_saved(scene: Scene):
    scene.show(0, "a")
    scene.show(1, "b")
    scene.close("a")
    scene.blocks.end()
    assert "[0]" not in scene.relay.shown[-1]["text/plain"]
    for block in list(scene.relay.blocks):
        block.end_rank(0)
        block.end_rank(1)
    assert "[0]" not in scene.relay.shown[-1]["text/plain"]
    assert "[1]" in scene.relay.shown[-1]["text/plain"]


def test_of_the_bars_of_many_ranks_three_are_saved_and_all_in_a_fold():
    scene = Scene(16)
    for rank in range(16):
        text = f"100%|██████████| 5/5 [00:00<00:00, {10 + rank % 7 + rank / 100:.2f}it/s]"
        scene.show(rank, f"bar{rank}", text)
    scene.blocks.end()
    saved = scene.relay.shown[-1]
    assert [line[:16] for line in saved["text/plain"].splitlines()] == [
        "[0]    slowest 1", "[9]    median  1", "[13]   fastest 1",
    ]  # fmt: skip
    assert saved["text/html"].count("it/s") == 19
