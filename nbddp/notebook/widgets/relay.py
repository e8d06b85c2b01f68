"""The comms of widgets that live in ranks: between them and the front end.

Runs in: the notebook's process. The hub thread hears what ranks send; the thread of the kernel that
takes a front end's message sends it on; ``nbddp-widgets`` sends what was held back.

    rank --CommFromRank--> Relay --session.send--> front end
    rank <--CommToRank---- Proxy <--comm_manager-- front end

A bar that moves in each of 64 ranks is more than a notebook server lets through, so new values of
one model are merged: a front end gets its latest state ten times a second, or less often.
"""

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from comm.base_comm import BaseComm

from nbddp.controller.pool.pool import Pool
from nbddp.notebook.widgets import buffers as binaries
from nbddp.notebook.widgets import page_reload, static_text
from nbddp.notebook.widgets.static_text import Model
from nbddp.wire.messages import CommFromRank, CommType, RankExited

_TARGET = "jupyter.widget"
_PROTOCOL_VERSION = "2.1.0"  # of ipywidgets 8, as its widgets say when they open
#: A model's state is sent this often ...
_UPDATE_INTERVAL_S = 0.1
#: ... and the states of all models together so many times a second.
_UPDATES_PER_S = 300
_REMEMBERED_CELLS = 200
_REMEMBERED_MODELS = 2000


class ShownBlock(Protocol):
    """The widgets of one output, as long as they are shown alive."""

    display_id: str

    @property
    def model_ids(self) -> list[str]:
        """The widgets of ranks in it."""

    def drop(self, model_id: str) -> None:
        """A rank has closed a widget: nothing is to be seen of it."""

    def settle(self, *, refresh: bool) -> None:
        """A cell has ended: become text if everything has finished; else be up to date."""

    def end_rank(self, rank: int) -> None:
        """The widgets of ``rank`` go: their text takes their place."""

    def freeze(self) -> None:
        """Be text from now on."""

    def forget(self) -> None:
        """Something else takes its place."""


class Proxy(BaseComm):
    """Stands in the kernel for a comm of a rank; the other way is `Relay.hear`."""

    def __init__(self, relay: "Relay", rank: int | None, comm_id: str, target: str) -> None:
        self._relay = relay
        self._rank = rank  # None: it is our own
        super().__init__(target_name=target, comm_id=comm_id, primary=False)

    def publish_msg(self, *arguments: Any, **options: Any) -> None:
        """The rank speaks for itself."""

    def handle_msg(self, msg: dict[str, Any]) -> None:
        """A message of the front end."""
        data = msg["content"].get("data", {})
        if data.get("method") == "request_state":
            # Of a page that was loaded again: it waits for an answer to this very message.
            self._relay.answer_state(self.comm_id, msg)
            return
        if data.get("method") == "update":
            self._relay.note_state(self.comm_id, data, msg.get("buffers") or ())
        if self._rank is not None:
            self._relay.send_to_rank(self._rank, "comm_msg", msg)

    def handle_close(self, msg: dict[str, Any]) -> None:
        """The front end has closed it."""
        if self._rank is not None:
            self._relay.send_to_rank(self._rank, "comm_close", msg)


class Relay:
    """The widgets of one pool."""

    def __init__(self, pool: Pool, kernel: Any) -> None:
        self._pool = pool
        self._kernel = kernel
        self._lock = threading.RLock()
        self.models: dict[str, Model] = {}  #: that are open, by the id of their comm
        self.blocks: list[ShownBlock] = []  #: that are shown alive
        #: Models that live in ranks, and no longer in the front end: nothing shows them.
        self._retired: dict[str, Model] = {}
        self.closed: dict[str, None] = {}  #: the last ones that their ranks closed
        self.parent_by_run: dict[str, Any] = {}  #: the front end's requests
        self.last_parent: Any = None  #: of the last cell that was shown
        self._held: dict[str, dict[str, Any]] = {}  # new state by model, not yet sent
        self._sent_at: dict[str, float] = {}
        self._sender: threading.Thread | None = None
        self._has_held = threading.Event()
        self._has_ended = False
        #: What went wrong in the hub thread, which must not be disturbed.
        self.failure: Exception | None = None

    # --- from ranks ------------------------------------------------------------------------------

    def note_run(self, run_id: str, parent: Any) -> None:
        """Messages of this cell's widgets carry ``parent``, the request of the front end."""
        with self._lock:
            self.parent_by_run[run_id] = self.last_parent = parent
            if len(self.parent_by_run) > _REMEMBERED_CELLS:
                del self.parent_by_run[next(iter(self.parent_by_run))]
        page_reload.answer_with(self._kernel.comm_manager, self._states)

    def _states(self) -> page_reload.Told:
        with self._lock:
            states = {comm_id: model.told() for comm_id, model in self.models.items()}
            parts = [
                ([comm_id, "state", *path], part)
                for comm_id, model in self.models.items()
                for path, part in model.binaries.items()
            ]
        return states, [path for path, _ in parts], [part for _, part in parts]

    def hear(self, event: CommFromRank, buffers: list[bytes]) -> None:
        """A widget says something. Called by the hub."""
        try:
            self._hear(event, buffers)
        except Exception as error:  # noqa: BLE001 - a listener of the hub must not raise
            self.failure = error

    def _hear(self, event: CommFromRank, buffers: list[bytes]) -> None:
        content, comm_id = event.content, str(event.content["comm_id"])
        data = content.get("data") or {}
        with self._lock:
            parent = self.parent_by_run.get(event.run_id or "")
            if event.msg_type == "comm_open":
                content = _slim(content)
                state = (content.get("data") or {}).get("state") or {}
                self.models[comm_id] = Model(event.rank, dict(state))
                self._note_binaries(self.models[comm_id], content.get("data") or {}, buffers)
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
                    self._note_binaries(self._retired[comm_id], data, buffers)
                return
            elif data.get("method") == "update":
                state = data.get("state") or {}
                self.models[comm_id].state.update(state)
                self._note_binaries(self.models[comm_id], data, buffers)
                if not buffers:
                    self.update_soon(comm_id, state)
                    return
            self._send_held(comm_id)
        self._publish(event.msg_type, content, event.metadata, buffers, parent)

    def update_soon(self, comm_id: str, state: Mapping[str, Any]) -> None:
        """Change a model in the front end, together with what changes next. Under the lock."""
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
                for comm_id in list(self._held):
                    self._send_held(comm_id)
                # What has not moved since is not counted any longer.
                old = time.monotonic() - 1.0
                self._sent_at = {i: at for i, at in self._sent_at.items() if at > old}

    def _send_held(self, comm_id: str) -> None:
        state = self._held.pop(comm_id, None)
        if state is not None:
            self._sent_at[comm_id] = time.monotonic()
            self.update_model(comm_id, state)

    def rank_exited(self, exited: RankExited) -> None:
        """Its widgets end with it. Called by the hub."""
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
        """The pool's ranks are gone, all of them. Called by the hub."""
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
        """Hand a message of the front end to the widget."""
        if msg_type == "comm_close":
            with self._lock:
                self._forget(msg["content"].get("comm_id", ""))
        buffers = [bytes(each) for each in msg.get("buffers") or ()]
        metadata = msg.get("metadata") or {}
        self._pool.talk.send_comm(rank, msg_type, msg["content"], metadata, buffers)

    def note_state(self, comm_id: str, data: Mapping[str, Any], buffers: Sequence[Any]) -> None:
        """The front end has changed a model."""
        with self._lock:
            model = self.models.get(comm_id)
            if model is not None:
                model.state.update(data.get("state") or {})
                self._note_binaries(model, data, buffers)

    def _note_binaries(self, model: Model, data: Mapping[str, Any], buffers: Sequence[Any]) -> None:
        binaries.note(model, data, buffers)
        if buffers:
            binaries.keep_within([*self._retired.values(), *self.models.values()], model)

    def answer_state(self, comm_id: str, request: dict[str, Any]) -> None:
        """Tell the front end the state of a model."""
        with self._lock:
            model = self.models.get(comm_id)
            state = dict(model.state) if model is not None else {}
            paths, buffers = binaries.told(model) if model is not None else ([], [])
        data = {"method": "update", "state": state, "buffer_paths": paths}
        self._publish("comm_msg", {"comm_id": comm_id, "data": data}, {}, buffers, request)

    # --- models of our own, around those of ranks ------------------------------------------------

    def open_model(self, module: str, name: str, state: Mapping[str, Any], parent: Any) -> str:
        """Make a widget in the front end that no process holds; gives its id.

        Args:
            module: ``controls`` or ``base``.
            name: of its kind: ``VBox``.
            state: what differs from the front end's defaults.
            parent: request of the front end, of the cell that shows it.
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
        self.models[comm_id] = model
        rank = None if model.rank < 0 else model.rank
        self._kernel.comm_manager.register_comm(Proxy(self, rank, comm_id, _TARGET))
        paths, buffers = binaries.told(model)
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
        """Remove it from the front end."""
        with self._lock:
            self._forget(comm_id)
        self._publish("comm_close", {"comm_id": comm_id, "data": {}}, {}, (), None)

    # --- for blocks ------------------------------------------------------------------------------

    def settle(self, own: Sequence["ShownBlock"]) -> None:
        """A cell has ended: what has finished in any cell becomes text.

        Args:
            own: blocks of this cell; what is saved of them is brought up to date.
        """
        with self._lock:
            for comm_id in list(self._held):
                self._send_held(comm_id)
            for block in list(self.blocks):
                block.settle(refresh=block in own)

    def retire(self, model_id: str) -> None:
        """Nothing shows this widget any more: the front end need not keep what it is made of.

        It would keep the models of every bar that ever was. What is shown again is opened again.
        """
        with self._lock:
            shown = [each for block in self.blocks for each in block.model_ids]
            kept = {each for top in shown for each in static_text.parts_of(self.models, top)}
            for comm_id in static_text.parts_of(self.models, model_id) - kept:
                model = self.models[comm_id]
                self.close_model(comm_id)
                self._retired[comm_id] = model
                if len(self._retired) > _REMEMBERED_MODELS:
                    del self._retired[next(iter(self._retired))]

    def revive(self, model_id: str, parent: Any) -> None:
        """Open a widget again that was retired."""
        with self._lock:
            retired = self._retired
            # A box comes after what is in it.
            size_by_id = {
                comm_id: len(static_text.parts_of(retired, comm_id))
                for comm_id in static_text.parts_of(retired, model_id)
            }
            for comm_id in sorted(size_by_id, key=lambda each: size_by_id[each]):
                self._open(comm_id, retired[comm_id], parent)
            for comm_id in size_by_id:
                del retired[comm_id]

    def redisplay(self, data: Mapping[str, Any], display_id: str) -> None:
        """Show something else in the place of a display, in whatever cell it is."""
        content = {"data": dict(data), "metadata": {}, "transient": {"display_id": display_id}}
        # With the request that is served now: nbclient hears nothing of those before.
        self._publish("update_display_data", content, {}, (), None)

    @property
    def lock(self) -> threading.RLock:
        """Held while models and blocks are looked at or changed."""
        return self._lock

    def _forget(self, comm_id: str) -> None:
        self.models.pop(comm_id, None)
        self._retired.pop(comm_id, None)
        self._held.pop(comm_id, None)
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
    """A layout without what it does not set: half of what a bar sends, and some runners save.

    Front ends have the same defaults for it.
    """
    data = content.get("data") or {}
    state = data.get("state") or {}
    if state.get("_model_name") != "LayoutModel":
        return content
    set_here = {name: value for name, value in state.items() if value is not None}
    return {**content, "data": {**data, "state": set_here}}
