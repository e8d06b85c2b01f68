"""Comms of the widgets that live in this rank.

Runs in: the rank process. The event loop of the main thread handles messages of the front end.
While a cell occupies the main thread, the thread ``nbddp-comms`` handles them, so that a cell may
wait for a button.

    widget --RankComm--> Link --> notebook --> front end
    nbddp-io --receive--> queue --> main thread, or nbddp-comms --> widget

A widget that a cell makes is complete when the cell shows it, or has ended. Until then the thread
passes over its messages: a front end has the model, and may speak to it, while its constructor
runs.

A loop may set the value of a progress bar thousands of times a second, so changes of a model within
a short interval are sent together, but none later than a message that shows a widget.
"""

import asyncio
import json
import numbers
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import comm
from comm.base_comm import BaseComm, CommManager

from nbddp.rank.agent_link import Link
from nbddp.rank.cells import Interrupts, RankShell, output_capture
from nbddp.wire.messages import CommFromRank, CommToRank, CommType
from nbddp.wire.widget_references import WIDGET_MIME, refers_to_widgets

#: A main thread that has not handled messages for this long is occupied by a cell.
_GRACE_S = 0.03
#: A model's state is sent at once, and then at this interval.
_INTERVAL_S = 0.05
_WIDGETS = "ipywidgets"


class RankComm(BaseComm):
    """The rank's end of a comm."""

    def __init__(self, owner: "Comms", *arguments: Any, **options: Any) -> None:
        self._owner = owner
        super().__init__(*arguments, **options)

    def publish_msg(
        self,
        msg_type: CommType,  # type: ignore[override]  # there are no others
        data: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        buffers: list[bytes] | None = None,
        **keys: Any,
    ) -> None:
        """Send a message to the front end's end."""
        content = {"data": data or {}, "comm_id": self.comm_id, **keys}
        self._owner.send(msg_type, content, metadata or {}, buffers or [])


class Comms:
    """The comm manager of a rank."""

    def __init__(
        self,
        shell: RankShell,
        link: Link,
        loop: asyncio.AbstractEventLoop,
        interrupts: Interrupts,
    ) -> None:
        self._shell = shell
        self._link = link
        self._loop = loop
        self._interrupts = interrupts
        shell.callbacks.before_interrupt = interrupts.expect_for_callback
        self._manager = CommManager()
        self._waiting: deque[tuple[CommToRank, list[bytes]]] = deque()
        self._unshown: set[str] = set()  # comms of the running cell that it has not shown yet
        self._handling = threading.Lock()  # one message at a time, in any thread
        self._has_work = threading.Event()
        self._thread: threading.Thread | None = None
        self._has_output = False  # `ipywidgets.Output` was seen and captures output
        # Reentrant: the garbage collector may close a comm at any point.
        self._lock = threading.RLock()
        self._held: dict[str, dict[str, Any]] = {}  # new state by comm, not yet sent
        self._sent_at: dict[str, float] = {}
        self._pid = os.getpid()

    def install(self) -> None:
        """Make all comms that are created in this process from now on comms of this manager."""
        comm.create_comm = self._create
        comm.get_comm_manager = lambda: self._manager
        # This sends the state before the report that the cell has ended.
        self._shell.after_cell = self._end_cell
        self._shell.before_display = self._note_display

    def _end_cell(self) -> None:
        self._send_held()
        self._note_shown()

    def _note_display(self, data: Mapping[str, Any]) -> None:
        if WIDGET_MIME in data:
            self._send_held()  # some views draw the state that they begin with, and no other
            self._note_shown()

    def _note_shown(self) -> None:
        """Note that the widgets so far are complete."""
        if self._unshown:
            self._unshown.clear()
            if self._waiting:
                self._wake_thread()

    def _create(self, *arguments: Any, **options: Any) -> RankComm:
        widgets = sys.modules.get(_WIDGETS)
        if not self._has_output and widgets is not None and hasattr(widgets, "Output"):
            self._has_output = True
            output_capture.install(
                widgets.Output, lambda: bool(self._shell.parent_id), self._shell.showtraceback
            )
        return RankComm(self, *arguments, **options)

    def send(
        self,
        msg_type: CommType,
        content: dict[str, Any],
        metadata: dict[str, Any],
        buffers: list[bytes],
    ) -> None:
        """Send a message to the front end, now or together with the next ones."""
        if os.getpid() != self._pid:
            return  # a forked child has no connection
        comm_id, data = content["comm_id"], content["data"]
        is_update = msg_type == "comm_msg" and data.get("method") == "update"
        refers = is_update and refers_to_widgets(data["state"])
        if msg_type == "comm_open" and self._shell.run_id is not None:
            self._unshown.add(comm_id)
        elif refers and comm_id not in self._unshown:
            self._note_shown()
        if not is_update or refers or buffers:
            self._send_held()
            if msg_type == "comm_close":
                self._sent_at.pop(comm_id, None)
            self._send(msg_type, content, metadata, buffers)
            return
        with self._lock:
            now = time.monotonic()
            held = self._held.get(comm_id)
            if held is None and now - self._sent_at.get(comm_id, float("-inf")) >= _INTERVAL_S:
                self._sent_at[comm_id] = now
                self._send(msg_type, content, metadata, buffers)
                return
            self._held[comm_id] = {**(held or {}), **data["state"]}
        if held is None:
            self._wake_thread()

    def _send_held(self) -> None:
        with self._lock:
            held, self._held = self._held, {}
            for comm_id, state in held.items():
                self._sent_at[comm_id] = time.monotonic()
                data = {"method": "update", "state": state, "buffer_paths": []}
                self._send("comm_msg", {"data": data, "comm_id": comm_id}, {}, [])

    def _send(
        self,
        msg_type: CommType,
        content: dict[str, Any],
        metadata: dict[str, Any],
        buffers: list[bytes],
    ) -> None:
        try:
            event = self._message(msg_type, content, metadata)
            self._link.send(event, [bytes(each) for each in buffers])
        except (TypeError, OverflowError):
            # A widget holds a value that JSON does not have, a number of numpy for example.
            content, metadata = json.loads(json.dumps([content, metadata], default=_plain))
            event = self._message(msg_type, content, metadata)
            self._link.send(event, [bytes(each) for each in buffers])

    def _message(
        self, msg_type: CommType, content: dict[str, Any], metadata: dict[str, Any]
    ) -> CommFromRank:
        return CommFromRank(
            run_id=self._shell.run_id,
            rank=self._shell.rank,
            msg_type=msg_type,
            content=content,
            metadata=metadata,
        )

    # --- from the front end ----------------------------------------------------------------------

    def receive(self, message: CommToRank, buffers: list[bytes]) -> None:
        """Take a message of the front end. Called by the I/O thread."""
        self._waiting.append((message, buffers))
        self._loop.call_soon_threadsafe(self._handle_on_main_thread)
        self._wake_thread()

    def _wake_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="nbddp-comms", daemon=True)
            self._thread.start()
        self._has_work.set()

    def _serve(self) -> None:
        pause = threading.Event()
        while True:
            try:
                self._has_work.wait()
                self._has_work.clear()
                pause.wait(_GRACE_S)
                self._send_held()
                self._handle_all()
                self._send_held()
            except (KeyboardInterrupt, SystemExit):
                # The first was for a callback that was just ending, a callback has raised the
                # second: neither ends the thread, or what waits.
                self._has_work.set()

    def _handle_on_main_thread(self) -> None:
        with self._interrupts.in_callback():
            self._handle_all()

    def _handle_all(self) -> None:
        # The thread that handles messages also handles those that arrive meanwhile.
        while self._next() is not None and self._handling.acquire(blocking=False):
            try:
                while (index := self._next()) is not None:
                    message, buffers = self._waiting[index]
                    del self._waiting[index]
                    self._handle(message, buffers)
            finally:
                self._handling.release()

    def _next(self) -> int | None:
        """Return the place of the next message that this thread may handle."""
        is_main = threading.current_thread() is threading.main_thread()
        for index, (message, _) in enumerate(list(self._waiting)):
            if is_main or message.content.get("comm_id") not in self._unshown:
                return index
        return None

    def _handle(self, message: CommToRank, buffers: list[bytes]) -> None:
        raw = {
            "header": {"msg_type": message.msg_type},
            "content": message.content,
            "metadata": message.metadata,
            "buffers": [memoryview(buffer) for buffer in buffers],
        }
        # The manager's own handler would catch errors, and only write them to a log.
        target = self._manager.comms.get(message.content.get("comm_id", ""))
        if target is None:
            return  # closed meanwhile
        with self._shell.callbacks.running():
            try:
                if message.msg_type == "comm_msg":
                    self._call(target, raw)
                elif message.msg_type == "comm_close":
                    self._manager.comms.pop(target.comm_id, None)
                    target._closed = True
                    target.handle_close(raw)
            except SystemExit:
                raise
            except BaseException as error:  # noqa: BLE001 - the user's callback
                # The error is shown like text that the callback prints.
                self._shell.showtraceback((type(error), error, error.__traceback__))

    def _call(self, target: BaseComm, raw: dict[str, Any]) -> None:
        if threading.current_thread() is threading.main_thread():
            target.handle_msg(raw)  # shows figures afterwards
        elif target._msg_callback is not None:
            target._msg_callback(raw)  # the open figures belong to the cell


def _plain(value: Any) -> Any:
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    return str(value)
