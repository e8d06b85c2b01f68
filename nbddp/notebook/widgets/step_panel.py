"""The panel of ``%%ddp --step --panel``: buttons, and the operations that fill rank by rank.

Runs in: the notebook's process. The thread of the cell shows it and takes its commands; a subshell
of the kernel, which runs beside the cell, brings the clicks.

A button writes a command of the step prompt, and the field takes any other one: the panel can do
nothing that the prompt cannot do.
"""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from nbddp.controller.prompts import OperationRow
from nbddp.notebook.widgets.relay import Relay
from nbddp.notebook.widgets.static_text import WIDGET_ID_SUFFIX
from nbddp.wire.rank_set import RankSet
from nbddp.wire.widget_references import REFERENCE, WIDGET_MIME

Bundle = Mapping[str, str]

#: Between two looks for an interrupt, in seconds.
_POLL_S = 0.1
#: After each request for a sign of life, in seconds. A front end that has sent nothing then sends
#: nothing while a cell runs.
_PAUSES_S: Final = (0.25, 0.5, 1.0, 1.0, 1.0, 1.0, 1.0)
#: More ranks than this have no buttons: the field takes ``step -r 0-31``.
_MAX_BUTTONS = 16
_STEP_CHOSEN: Final = "step -r"
_BUTTONS: Final = (
    ("Step", "step", "primary", "all ranks do their operations, and stop before the next"),
    ("Step chosen", _STEP_CHOSEN, "", "the ranks chosen on the right do theirs; the others stay"),
    ("Continue", "continue", "", "go on to the next break point, or to the end of the cell"),
    ("Quit", "quit", "", "end the cell; all variables are kept"),
)


class NoClicksError(Exception):
    """The front end sends no clicks while a cell runs."""


class StepPanel:
    """The panel of one cell.

    Args:
        relay: holds the models.
        display: shows a MIME bundle under an id, or (True) replaces it.
        display_id: of the output.
        parent: the front end's request of the cell.
        world_size: number of ranks of the pool.
        bundle_of: returns operations as text and as HTML.
    """

    def __init__(
        self,
        relay: Relay,
        display: Callable[[Mapping[str, Any], str, bool], None],
        display_id: str,
        parent: Any,
        world_size: int,
        *,
        bundle_of: Callable[[Sequence[OperationRow], int], Bundle],
    ) -> None:
        self._relay = relay
        self._display = display
        self._display_id = display_id
        self._parent = parent
        self._world_size = world_size
        self._bundle_of = bundle_of
        self._static: Bundle = {"text/plain": "", "text/html": ""}
        self._commands: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._is_heard = threading.Event()
        self._models: list[str] = []
        self._table = self._field = ""
        self._pulses: list[str] = []  #: each asks for a sign of life once
        self._buttons: list[str] = []
        self._chosen: dict[str, int] = {}  #: the rank of each model of a choice

    def update(self, rows: Sequence[OperationRow]) -> None:
        """Show the operations; the first call shows the panel.

        Args:
            rows: the oldest first.
        """
        self._static = static = self._bundle_of(rows, self._world_size)
        if self._table:
            self._relay.update_model(self._table, {"value": static["text/html"]})
        else:
            root = self._open_all()
            widget = {"model_id": root, "version_major": 2, "version_minor": 0}
            self._display(
                {**static, WIDGET_MIME: widget}, self._display_id + WIDGET_ID_SUFFIX, False
            )

    def ask(self) -> str:
        """Return the next command of the user.

        Raises:
            NoClicksError: nothing was ever heard of the panel, which is gone now.
            KeyboardInterrupt: the user interrupted the question.
        """
        # JupyterLab sends what comes before it has a subshell to the thread that runs the cell: a
        # choice of ranks would arrive after the click that it is for.
        self._await_sign()
        self._set_disabled(False)
        try:
            while True:
                with suppress(queue.Empty):
                    return self._commands.get(timeout=_POLL_S)
        finally:
            self._set_disabled(True)

    def _await_sign(self) -> None:
        """Wait until the front end has sent anything."""
        for pulse, pause_s in zip(self._pulses, _PAUSES_S, strict=True):
            if self._is_heard.is_set():
                return
            # A `Play` that is shown counts when it begins to play, and each number is a message. A
            # message that has gone to the main shell keeps all later ones of its model back.
            self._relay.update_model(pulse, {"playing": True})
            self._is_heard.wait(pause_s)
        if not self._is_heard.is_set():
            self.end()
            raise NoClicksError

    def end(self) -> None:
        """Leave the operations as a static table."""
        if not self._table:
            return
        for model_id in self._models:
            self._relay.close_model(model_id)
        self._table = ""
        self._display(self._static, self._display_id + WIDGET_ID_SUFFIX, True)

    # --- models ----------------------------------------------------------------------------------

    def _open_all(self) -> str:
        self._table = self._open("HTML", value=self._static["text/html"])
        wide = self._layout(width="auto", flex="0 0 auto")  # as wide as its text
        for name, command, style, tooltip in _BUTTONS:
            state = {"description": name, "button_style": style, "tooltip": tooltip}
            button = self._open("Button", disabled=True, layout=wide, **state)
            self._buttons.append(button)
            self._relay.listen(button, partial(self._click, command))
        rank_ids = []
        if self._world_size <= _MAX_BUTTONS:
            for rank in range(self._world_size):
                tooltip = f"choose rank {rank} for Step chosen"
                rank_ids.append(
                    self._open(
                        "ToggleButton",
                        description=str(rank),
                        tooltip=tooltip,
                        layout=wide,
                        value=False,
                        disabled=True,
                    )
                )
            self._chosen = {model_id: rank for rank, model_id in enumerate(rank_ids)}
        rows = self._layout(flex_flow="row wrap")
        row = self._open_box("HBox", [*self._buttons, *rank_ids], layout=rows)
        self._field = self._open(
            "Text",
            placeholder="or a command: print x, hold -r 1, until 20, waits, help",
            layout=self._layout(width="36em"),
        )
        self._relay.listen(self._field, self._submit)
        unseen = self._layout(display="none")
        for _ in _PAUSES_S:
            pulse = self._open("Play", interval=50, max=1, layout=unseen, value=0)
            self._relay.listen(pulse, lambda data: self._is_heard.set())
            self._pulses.append(pulse)
        # The table grows below the buttons, which stay under the mouse.
        return self._open_box("VBox", [row, self._field, self._table, *self._pulses])

    def _open(self, name: str, **state: Any) -> str:
        model_id = self._relay.open_model("controls", name, state, self._parent)
        self._models.append(model_id)
        return model_id

    def _open_box(self, name: str, model_ids: list[str], **state: Any) -> str:
        children = [REFERENCE + model_id for model_id in model_ids]
        return self._open(name, children=children, **state)

    def _layout(self, **state: str) -> str:
        model_id = self._relay.open_model(
            "base", "Layout", {"_view_name": "LayoutView", **state}, self._parent
        )
        self._models.append(model_id)
        return REFERENCE + model_id

    def _set_disabled(self, is_disabled: bool) -> None:
        if not self._table:
            return  # the panel is gone
        for model_id in (*self._buttons, *self._chosen):
            self._relay.update_model(model_id, {"disabled": is_disabled})
        self._relay.update_model(self._field, {"disabled": is_disabled, "value": ""})

    # --- the user; a thread of the kernel --------------------------------------------------------

    def _click(self, command: str, data: Mapping[str, Any]) -> None:
        if _event_of(data) != "click":
            return
        self._is_heard.set()
        if command == _STEP_CHOSEN:
            states = self._relay.states_of(list(self._chosen))
            chosen = RankSet.of(
                self._chosen[model_id] for model_id, state in states.items() if state.get("value")
            )
            if not chosen:
                return
            command = f"{command} {chosen}"
        self._commands.put(command)

    def _submit(self, data: Mapping[str, Any]) -> None:
        if _event_of(data) != "submit":
            return
        self._is_heard.set()
        text = str(self._relay.states_of([self._field])[self._field].get("value", ""))
        self._commands.put(text)


def _event_of(data: Mapping[str, Any]) -> str:
    content = data.get("content")
    return str(content.get("event", "")) if isinstance(content, Mapping) else ""
