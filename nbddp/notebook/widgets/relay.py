"""Relays the comms of widgets between ranks and the front end.

Runs in: the notebook's process. The hub thread receives messages of ranks; the kernel's thread that
handles a front end's message sends it on; ``nbddp-widgets`` sends delayed updates.

    rank --CommFromRank--> Relay --session.send--> front end
    rank <--CommToRank---- Proxy <--comm_manager-- front end

A moving progress bar in each of 64 ranks exceeds the message rate of a notebook server, so new
values of one model are merged: a front end gets its latest state at most ten times a second. A
message that shows a widget comes after all states: some views draw the state that they begin with,
and no other.
"""

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from comm.base_comm import BaseComm

from nbddp.controller.pool import Pool
from nbddp.notebook.widgets import buffers as binaries
from nbddp.notebook.widgets import page_reload, static_text
from nbddp.notebook.widgets.static_text import Model
from nbddp.wire.messages import CommFromRank, CommType, RankExited
from nbddp.wire.widget_references import refers_to_widgets

_TARGET = "jupyter.widget"
_PROTOCOL_VERSION = "2.1.0"  # of ipywidgets 8, as in the messages that open its widgets
#: A model's state is sent at most this often ...
_UPDATE_INTERVAL_S = 0.1
#: ... and the states of all models together at most this many times a second.
_UPDATES_PER_S = 300
_REMEMBERED_CELLS = 200
_REMEMBERED_MODELS = 2000


class ShownBlock(Protocol):
    """The live widgets of one output."""

    display_id: str

    @property
    def model_ids(self) -> list[str]:
        """Ids of the ranks' widgets in it."""

    def drop(self, model_id: str) -> None:
        """Remove a widget that its rank has closed."""

    def settle(self, *, refresh: bool) -> None:
        """Update the block at the end of a cell: it becomes text if all widgets have finished."""

    def end_rank(self, rank: int) -> None:
        """Replace the widgets of ``rank``, which is gone, by text."""

    def freeze(self) -> None:
        """Replace the block by text, permanently."""

    def forget(self) -> None:
        """Close the block's own models: it is no longer shown."""


class Proxy(BaseComm):
    """The kernel's comm for a comm of a rank; `Relay.receive` is the other direction."""

    def __init__(self, relay: "Relay", rank: int | None, comm_id: str, target: str) -> None:
        self._relay = relay
        self._rank = rank  # None: a model of the relay
        super().__init__(target_name=target, comm_id=comm_id, primary=False)

    def publish_msg(self, *arguments: Any, **options: Any) -> None:
        """Do nothing: the rank sends its own messages."""

    def handle_msg(self, msg: dict[str, Any]) -> None:
        """Handle a message of the front end."""
        data = msg["content"].get("data", {})
        if data.get("method") == "request_state":
            # A reloaded page waits for an answer to this message.
            self._relay.answer_state(self.comm_id, msg)
            return
        if data.get("method") == "update":
            self._relay.note_state(self.comm_id, data, msg.get("buffers") or ())
        if self._rank is not None:
            self._relay.send_to_rank(self._rank, "comm_msg", msg)
        else:
            self._relay.hear(self.comm_id, data)

    def handle_close(self, msg: dict[str, Any]) -> None:
        """Tell the rank that the front end has closed the comm."""
        if self._rank is not None:
            self._relay.send_to_rank(self._rank, "comm_close", msg)


class Relay:
    """The widgets of one pool.

    Args:
        pool: sends messages to its ranks.
        kernel: the notebook's kernel.
    """

    def __init__(self, pool: Pool, kernel: Any) -> None:
        self._pool = pool
        self._kernel = kernel
        self._lock = threading.RLock()
        self.models: dict[str, Model] = {}  #: the open models, by the id of their comm
        self.blocks: list[ShownBlock] = []  #: the live blocks
        #: Models that live in ranks, and no longer in the front end: no block shows them.
        self._retired: dict[str, Model] = {}
        self.closed: dict[str, None] = {}  #: ids of the models that their ranks closed last
        self.parent_by_run: dict[str, Any] = {}  #: the front end's requests
        self.last_parent: Any = None  #: request of the last cell that was shown
        self._held: dict[str, dict[str, Any]] = {}  # new state by model, not yet sent
        self._listeners: dict[str, Callable[[Mapping[str, Any]], None]] = {}
        self._sent_at: dict[str, float] = {}
        self._sender: threading.Thread | None = None
        self._has_held = threading.Event()
        self._has_ended = False
        #: The last error in the hub thread, where none may be raised.
        self.failure: Exception | None = None

    # --- from ranks ------------------------------------------------------------------------------

    def note_run(self, run_id: str, parent: Any) -> None:
        """Note a cell's run; messages of its widgets carry ``parent``, the front end's request."""
        with self._lock:
            self.parent_by_run[run_id] = self.last_parent = parent
            if len(self.parent_by_run) > _REMEMBERED_CELLS:
                del self.parent_by_run[next(iter(self.parent_by_run))]
        page_reload.answer_with(self._kernel.comm_manager, self._states)

    def _states(self) -> page_reload.WidgetStates:
        with self._lock:
            states = {comm_id: model.full_state() for comm_id, model in self.models.items()}
            parts = [
                ([comm_id, "state", *path], part)
                for comm_id, model in self.models.items()
                for path, part in model.binaries.items()
            ]
        return states, [path for path, _ in parts], [part for _, part in parts]

    def receive(self, event: CommFromRank, buffers: list[bytes]) -> None:
        """Handle a message of a rank's widget. The hub calls this."""
        try:
            self._receive(event, buffers)
        except Exception as error:  # noqa: BLE001 - a listener of the hub must not raise
            self.failure = error

    def _receive(self, event: CommFromRank, buffers: list[bytes]) -> None:
        content, comm_id = event.content, str(event.content["comm_id"])
        data = content.get("data") or {}
        with self._lock:
            parent = self.parent_by_run.get(event.run_id or "")
            if event.msg_type == "comm_open":
                self.send_states()
                content = _slim(content)
                state = (content.get("data") or {}).get("state") or {}
                self.models[comm_id] = Model(event.rank, dict(state))
                self._update_binaries(self.models[comm_id], content.get("data") or {}, buffers)
                target = str(content.get("target_name", ""))
                self._kernel.comm_manager.register_comm(Proxy(self, event.rank, comm_id, target))
            elif event.msg_type == "comm_close":
                self._forget(comm_id)
                for block in self.blocks:
                    block.drop(comm_id)
                self.closed[comm_id] = None
                if len(self.closed) > _REMEMBERED_MODELS:
                    del self.closed[next(iter(self.closed))]
            elif comm_id not in self.models:
                if comm_id in self._retired and data.get("method") == "update":
                    self._retired[comm_id].state.update(data.get("state") or {})
                    self._update_binaries(self._retired[comm_id], data, buffers)
                return
            elif data.get("method") == "update":
                state = data.get("state") or {}
                self.models[comm_id].state.update(state)
                self._update_binaries(self.models[comm_id], data, buffers)
                if refers_to_widgets(state):
                    self.send_states()
                elif not buffers:
                    self.update_soon(comm_id, state)
                    return
            self._send_held(comm_id)
        self._publish(event.msg_type, content, event.metadata, buffers, parent)

    def update_soon(self, comm_id: str, state: Mapping[str, Any]) -> None:
        """Change a model in the front end; changes in quick succession are merged.

        Call it under the lock.
        """
        now = time.monotonic()
        interval_s = max(_UPDATE_INTERVAL_S, len(self._sent_at) / _UPDATES_PER_S)
        self._held.setdefault(comm_id, {}).update(state)
        if self._sent_at.get(comm_id, float("-inf")) + interval_s <= now:
            self._send_held(comm_id)
            return
        if self._sender is None:
            self._sender = threading.Thread(
                target=self._send_later, name="nbddp-widgets", daemon=True
            )
            self._sender.start()
        self._has_held.set()

    def _send_later(self) -> None:
        pause = threading.Event()
        while self._has_held.wait() and not self._has_ended:
            self._has_held.clear()
            pause.wait(max(_UPDATE_INTERVAL_S, len(self._sent_at) / _UPDATES_PER_S))
            with self._lock:
                self.send_states()
                # Models without recent updates do not count for the rate.
                old = time.monotonic() - 1.0
                self._sent_at = {i: at for i, at in self._sent_at.items() if at > old}

    def send_states(self) -> None:
        """Send the states of all models that are not sent yet."""
        with self._lock:
            for comm_id in list(self._held):
                self._send_held(comm_id)

    def _send_held(self, comm_id: str) -> None:
        state = self._held.pop(comm_id, None)
        if state is not None:
            self._sent_at[comm_id] = time.monotonic()
            self.update_model(comm_id, state)

    def rank_exited(self, exited: RankExited) -> None:
        """Close the widgets of a rank that exited. The hub calls this."""
        try:
            self._end_rank(exited.rank)
        except Exception as error:  # noqa: BLE001 - a listener of the hub must not raise
            self.failure = error

    def _end_rank(self, rank: int) -> None:
        with self._lock:
            for block in list(self.blocks):
                block.end_rank(rank)
            retired = self._retired.items()
            self._retired = {i: model for i, model in retired if model.rank != rank}
            gone = [i for i, model in self.models.items() if model.rank == rank]
            for comm_id in gone:
                self._forget(comm_id)
        for comm_id in gone:
            self._publish("comm_close", {"comm_id": comm_id, "data": {}}, {}, (), None)

    def end(self) -> None:
        """Close all widgets: all ranks of the pool are gone. The hub calls this."""
        try:
            with self._lock:
                for rank in {model.rank for model in self.models.values()}:
                    self._end_rank(rank)
                for block in list(self.blocks):
                    block.freeze()
        except Exception as error:  # noqa: BLE001 - a listener of the hub must not raise
            self.failure = error
        if self._pool.is_stopped:
            self._has_ended = True
            self._has_held.set()

    # --- from the front end ----------------------------------------------------------------------

    def send_to_rank(self, rank: int, msg_type: CommType, msg: dict[str, Any]) -> None:
        """Send a message of the front end to the widget."""
        if msg_type == "comm_close":
            with self._lock:
                self._forget(msg["content"].get("comm_id", ""))
        buffers = [bytes(buffer) for buffer in msg.get("buffers") or ()]
        metadata = msg.get("metadata") or {}
        self._pool.talk.send_comm(rank, msg_type, msg["content"], metadata, buffers)

    def note_state(self, comm_id: str, data: Mapping[str, Any], buffers: Sequence[Any]) -> None:
        """Note that the front end has changed a model."""
        with self._lock:
            model = self.models.get(comm_id)
            if model is not None:
                model.state.update(data.get("state") or {})
                self._update_binaries(model, data, buffers)

    def listen(self, comm_id: str, listener: Callable[[Mapping[str, Any]], None]) -> None:
        """Give the front end's messages about a model of the relay to a listener.

        Args:
            comm_id: id of the model, which has no listener any more when it is closed.
            listener: gets the data of each message, in a thread of the kernel.
        """
        with self._lock:
            self._listeners[comm_id] = listener

    def hear(self, comm_id: str, data: Mapping[str, Any]) -> None:
        """Give a message of the front end to the listener of its model."""
        with self._lock:
            listener = self._listeners.get(comm_id)
        if listener is not None:
            listener(data)

    def states_of(self, comm_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the states of open models, as the front end has changed them."""
        with self._lock:
            return {i: dict(self.models[i].state) for i in comm_ids if i in self.models}

    def _update_binaries(
        self, model: Model, data: Mapping[str, Any], buffers: Sequence[Any]
    ) -> None:
        binaries.update(model, data, buffers)
        if buffers:
            binaries.keep_within([*self._retired.values(), *self.models.values()], model)

    def answer_state(self, comm_id: str, request: dict[str, Any]) -> None:
        """Send the state of a model to the front end."""
        with self._lock:
            model = self.models.get(comm_id)
            state = dict(model.state) if model is not None else {}
            paths, buffers = binaries.paths_and_buffers(model) if model is not None else ([], [])
        data = {"method": "update", "state": state, "buffer_paths": paths}
        self._publish("comm_msg", {"comm_id": comm_id, "data": data}, {}, buffers, request)

    # --- models of the relay, around those of ranks ----------------------------------------------

    def open_model(self, module: str, name: str, state: Mapping[str, Any], parent: Any) -> str:
        """Create a model in the front end that no process holds, and return its id.

        Args:
            module: ``controls`` or ``base``.
            name: name of its class: ``VBox``.
            state: values that differ from the front end's defaults.
            parent: the front end's request of the cell that shows it.
        """
        comm_id = uuid.uuid4().hex
        whole = {
            "_model_module": f"@jupyter-widgets/{module}",
            "_model_module_version": "2.0.0",
            "_model_name": f"{name}Model",
            "_view_module": f"@jupyter-widgets/{module}",
            "_view_module_version": "2.0.0",
            "_view_name": f"{name}View",
            **state,
        }
        with self._lock:
            self._open(comm_id, Model(-1, whole), parent)
        return comm_id

    def _open(self, comm_id: str, model: Model, parent: Any) -> None:
        self.send_states()
        self.models[comm_id] = model
        rank = None if model.rank < 0 else model.rank
        self._kernel.comm_manager.register_comm(Proxy(self, rank, comm_id, _TARGET))
        paths, buffers = binaries.paths_and_buffers(model)
        content = {
            "comm_id": comm_id,
            "target_name": _TARGET,
            "target_module": None,
            "data": {"state": model.state, "buffer_paths": paths},
        }
        self._publish("comm_open", content, {"version": _PROTOCOL_VERSION}, buffers, parent)

    def update_model(self, comm_id: str, state: Mapping[str, Any]) -> None:
        """Change a model in the front end."""
        with self._lock:
            model = self.models.get(comm_id)
            if model is not None:
                model.state.update(state)
        data = {"method": "update", "state": dict(state), "buffer_paths": []}
        self._publish("comm_msg", {"comm_id": comm_id, "data": data}, {}, (), None)

    def close_model(self, comm_id: str) -> None:
        """Remove a model from the front end."""
        with self._lock:
            self._forget(comm_id)
        self._publish("comm_close", {"comm_id": comm_id, "data": {}}, {}, (), None)

    # --- for blocks ------------------------------------------------------------------------------

    def settle(self, own: Sequence["ShownBlock"]) -> None:
        """Replace finished blocks of all cells by text: a cell has ended.

        Args:
            own: blocks of this cell, whose saved static form is updated.
        """
        with self._lock:
            self.send_states()
            for block in list(self.blocks):
                block.settle(refresh=block in own)

    def retire(self, model_id: str) -> None:
        """Remove a widget that no block shows, with its parts, from the front end.

        The front end would keep the models of all finished bars. `revive` opens them again.
        """
        with self._lock:
            kept: set[str] = set()
            for block in self.blocks:
                for shown_id in block.model_ids:
                    kept |= static_text.parts_of(self.models, shown_id)
            for comm_id in static_text.parts_of(self.models, model_id) - kept:
                model = self.models[comm_id]
                self.close_model(comm_id)
                self._retired[comm_id] = model
                if len(self._retired) > _REMEMBERED_MODELS:
                    del self._retired[next(iter(self._retired))]

    def revive(self, model_id: str, parent: Any) -> None:
        """Open a retired widget again; does nothing for other widgets."""
        with self._lock:
            retired = self._retired
            # A box comes after its children.
            size_by_id = {
                comm_id: len(static_text.parts_of(retired, comm_id))
                for comm_id in static_text.parts_of(retired, model_id)
            }
            for comm_id in sorted(size_by_id, key=size_by_id.__getitem__):
                self._open(comm_id, retired[comm_id], parent)
            for comm_id in size_by_id:
                del retired[comm_id]

    def redisplay(self, data: Mapping[str, Any], display_id: str) -> None:
        """Replace the content of a display, in any cell."""
        content = {"data": dict(data), "metadata": {}, "transient": {"display_id": display_id}}
        # The parent is the current request: nbclient ignores messages of earlier ones.
        self._publish("update_display_data", content, {}, (), None)

    @property
    def lock(self) -> threading.RLock:
        """The lock for reading and changing models and blocks."""
        return self._lock

    def _forget(self, comm_id: str) -> None:
        self.models.pop(comm_id, None)
        self._retired.pop(comm_id, None)
        self._held.pop(comm_id, None)
        self._listeners.pop(comm_id, None)
        self._kernel.comm_manager.comms.pop(comm_id, None)

    def _publish(
        self,
        kind: str,
        content: Mapping[str, Any],
        metadata: Mapping[str, Any],
        buffers: Sequence[bytes],
        parent: Any,
    ) -> None:
        if parent is None:
            parent = self._kernel.get_parent()
        comm_id = content.get("comm_id")
        topic = f"comm-{comm_id}" if comm_id else kind
        # The socket of the kernel's IOPub thread takes messages from any thread.
        self._kernel.session.send(
            self._kernel.iopub_socket,
            kind,
            dict(content),
            metadata=dict(metadata),
            parent=parent,
            ident=topic.encode(),
            buffers=list(buffers),
        )


def _slim(content: dict[str, Any]) -> dict[str, Any]:
    """Return a layout without its unset values, which are half of a bar's messages.

    Front ends have the same defaults, and some runners would save the values.
    """
    data = content.get("data") or {}
    state = data.get("state") or {}
    if state.get("_model_name") != "LayoutModel":
        return content
    set_values = {name: value for name, value in state.items() if value is not None}
    return {**content, "data": {**data, "state": set_values}}
