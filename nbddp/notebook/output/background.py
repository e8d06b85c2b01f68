"""Output of ranks while no cell runs: from threads, subprocesses, and an abandoned cell.

Runs in: its own thread, ``nbddp-background``, since showing may block or fail, and the hub must do
neither. Late output of a cell is shown in that cell, other output in the cell that was started
last, so that the next cell gets only its own output.

    hub thread --put--> queue --> nbddp-background --> sink

The cells that run in the background are shown by a thread of their own, ``nbddp-views``.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
from IPython.core.getipython import get_ipython

from nbddp.controller.hub import NO_RANK, BackgroundEvent
from nbddp.notebook.output import torch_log
from nbddp.notebook.output.shows import Labels, labelled
from nbddp.notebook.output.sinks import EarlierCellSink, Sink, TerminalSink
from nbddp.notebook.render import static_page
from nbddp.notebook.widgets import without_widget
from nbddp.printable import harmless
from nbddp.wire.messages import ClearOutput, Output, Stream

#: Text per second that is shown; the rest is in the logs.
_BYTES_PER_S = 64 * 1024
#: Lines of torch's log wait this long for those of other ranks, which dial at the same time.
_LOG_FOLD_S = 0.2
#: Number of events that may wait while showing is blocked; the text of the others is in the logs.
_MAX_WAITING = 256


class BackgroundOutput:
    """Shows events as they come, up to a rate; only lines of torch's log are folded.

    Args:
        world_size: number of ranks.
        last_parent: the front end's request of the last ``%%ddp`` cell, if there was one.
        parent_of: returns the request of a cell, by its run id; None: it is no longer known.
    """

    def __init__(
        self,
        world_size: int,
        last_parent: Callable[[], Any] = lambda: None,
        parent_of: Callable[[str], Any] = lambda run_id: None,
    ) -> None:
        self._last_parent = last_parent
        self._parent_of = parent_of
        self._waiting: queue.SimpleQueue[BackgroundEvent | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: The error when the last event could not be shown; a closed stdout, for example.
        self.failure: Exception | None = None
        self._labels = Labels(world_size)
        self._room = float(_BYTES_PER_S)
        self._seen_at = time.monotonic()
        self._left_out = False
        #: Lines of torch's log by rank, by run, stream and key; they wait to be shown.
        self._logged: dict[tuple[str, Stream, str], dict[int, str]] = {}

    def put(self, event: BackgroundEvent | None) -> None:
        """Show an event soon. The hub calls this.

        Args:
            event: None: the hub ends, and no event follows.
        """
        if event is None:
            if self._thread is not None:
                self._waiting.put(None)
                self._thread = None
        elif self._waiting.qsize() < _MAX_WAITING:
            self._waiting.put(event)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="nbddp-background", daemon=True
                )
                self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                event = self._waiting.get(timeout=_LOG_FOLD_S if self._logged else None)
            except queue.Empty:
                self._try(self._show_logged)
                continue
            if event is None:
                self._try(self._show_logged)
                return
            self._try(self._show, event)

    def _try(self, show: Callable[..., None], *arguments: object) -> None:
        try:
            show(*arguments)
        except Exception as error:  # noqa: BLE001 - of the notebook's streams; the text is in the log
            self.failure = error

    def _show(self, event: BackgroundEvent) -> None:
        if isinstance(event, ClearOutput):
            return  # it would clear output of other cells
        if isinstance(event, Output):
            # Between cells, nbddp itself connects ranks: after deaths and freed collectives.
            event = msgspec.structs.replace(event, text=torch_log.without_sockets(event))
            if not event.text.strip("\n"):
                return  # an abandoned debugger ends its line
            if self._keep_log(event):
                return
        self._show_logged()
        sink = self._sink(event.run_id or "")
        label = "" if event.rank == NO_RANK else self._labels.of((event.rank,))
        if isinstance(event, Output):
            self._show_text(sink, event.stream, label, harmless(event.text).rstrip("\n"))
            return
        data = static_page.with_note(without_widget(event.data))
        plain = data.get("text/plain")
        if set(data) - {"text/plain"} and self._has_room(len(repr(data))):
            if label and not static_page.is_unseen(data):
                sink.text("stdout", label.rstrip() + "\n")
            sink.display(data, event.metadata, None, False)
        elif isinstance(plain, str) and self._has_room(len(plain)):
            sink.text("stdout", labelled(label, harmless(plain)))

    def _show_text(self, sink: Sink, stream: Stream, label: str, text: str) -> None:
        if self._has_room(len(text)):
            sink.text(stream, labelled(label, text))
        elif not self._left_out:
            self._left_out = True
            sink.text("stderr", labelled(label, "... more is in the log: %ddp status"))

    def _keep_log(self, event: Output) -> bool:
        """Keep the text for a moment if it is lines of torch's log, and return whether it is."""
        lines = harmless(event.text).splitlines()
        keys = [torch_log.key_of(line) for line in lines]
        for line, key in zip(lines, keys, strict=True):
            if key is None or None in keys:
                return False
            place = (event.run_id or "", event.stream, key)
            if event.rank in self._logged.get(place, ()):
                self._show_logged()
            self._logged.setdefault(place, {})[event.rank] = line
        return True

    def _show_logged(self) -> None:
        """Show the lines of torch's log that wait."""
        logged, self._logged = self._logged, {}
        for (run_id, stream, _), line_by_rank in logged.items():
            ranks = tuple(sorted(line_by_rank))
            texts = [line_by_rank[rank] for rank in ranks]
            text = texts[0] if len(texts) == 1 else torch_log.merged(texts)
            label = "" if NO_RANK in ranks else self._labels.of(ranks)
            self._show_text(self._sink(run_id), stream, label, text)

    def _has_room(self, size: int) -> bool:
        now = time.monotonic()
        self._room = min(_BYTES_PER_S, self._room + (now - self._seen_at) * _BYTES_PER_S)
        self._seen_at = now
        if self._room < size:
            return False
        self._room -= size
        self._left_out = False
        return True

    def _sink(self, run_id: str) -> Sink:
        kernel = getattr(get_ipython(), "kernel", None)
        if kernel is None:
            return TerminalSink()
        # The next cell may have begun: it waits for a rank that leaves an old one.
        parent = self._parent_of(run_id) or kernel.get_parent()
        if parent.get("header", {}).get("msg_type") != "execute_request":
            # The last message of the front end was for a widget, which has no place for output.
            parent = self._last_parent() or parent
        return EarlierCellSink(kernel, parent, live_id="")


class BackgroundViews:
    """The thread that shows the cells that run in the background; it starts with the first one.

    Cells run one at a time, so one thread is enough for all of them. A thread for each cell would
    cost three descriptors: ipykernel opens a socket for every thread that sends, and closes the
    sockets of ended threads every ten seconds.
    """

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def put(self, show: Callable[[], None]) -> None:
        """Call ``show``, which must not raise, after all functions that were put before."""
        with self._lock:
            self._waiting.put(show)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="nbddp-views", daemon=True)
                self._thread.start()

    def end(self) -> None:
        """End the thread after the cells that wait; the next `put` starts a new one."""
        with self._lock:
            if self._thread is not None:
                self._waiting.put(None)
                self._thread = None
                self._waiting = queue.SimpleQueue()

    def _serve(self) -> None:
        waiting = self._waiting
        while (show := waiting.get()) is not None:
            show()
            del show  # it holds a view, and the next cell may come hours later
