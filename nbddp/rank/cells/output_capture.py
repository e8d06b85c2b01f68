"""Captures output for Output widgets of this rank, so that it does not go to the cell.

Runs in: the rank process, in each thread that is inside ``with output:``.

A front end would capture all output of the cell, of any rank. So each rank captures its own output
here, by context (threads and tasks have one each), and sends it as the contents of its widget.
Python cannot capture text that C code and subprocesses print: it stays in the cell.
"""

import sys
import threading
import time
import types
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import Stream

#: The contents of a widget are sent as a whole, at this interval, and with at most this much text.
_INTERVAL_S = 0.1
_MAX_CHARS = 100_000


class Captured:
    """The contents of one Output widget."""

    def __init__(self, send: Callable[[tuple[dict[str, Any], ...]], None]) -> None:
        self._send = send
        self._lock = threading.RLock()
        self._outputs: list[dict[str, Any]] = []
        self._display_ids: list[str | None] = []  # one for each output
        self._clears_with_next = False
        self._sent_at = float("-inf")

    def text(self, stream: Stream, text: str) -> None:
        """Add printed text; it is sent soon, or by `flush`."""
        with self._lock:
            self._clear_if_asked()
            last = self._outputs[-1] if self._outputs else {}
            if last.get("output_type") == "stream" and last["name"] == stream:
                joined = last["text"] + text
                self._outputs[-1] = last | {"text": joined[-_MAX_CHARS:]}
            else:
                self._add({"output_type": "stream", "name": stream, "text": text[-_MAX_CHARS:]})
            if time.monotonic() - self._sent_at > _INTERVAL_S:
                self.flush()

    def display(
        self, data: dict[str, Any], metadata: dict[str, Any], display_id: str | None, update: bool
    ) -> None:
        """Add a MIME bundle; an update replaces the output with the ``display_id``."""
        output = {"output_type": "display_data", "data": data, "metadata": metadata}
        with self._lock:
            if update:
                for index, other in enumerate(self._display_ids):
                    if display_id is not None and other == display_id:
                        self._outputs[index] = output
            else:
                self._clear_if_asked()
                self._add(output, display_id)
            self.flush()

    def error(self, error: ErrorInfo) -> None:
        """Add an exception that ended the block."""
        with self._lock:
            self._clear_if_asked()
            self._add(
                {
                    "output_type": "error",
                    "ename": error.ename,
                    "evalue": error.evalue,
                    "traceback": error.traceback,
                }
            )
            self.flush()

    def clear(self, wait: bool) -> None:
        """Remove all output, now or, with ``wait``, when the next output arrives."""
        with self._lock:
            self._clears_with_next = True
            if not wait:
                self._clear_if_asked()
                self.flush()

    def flush(self) -> None:
        """Send the contents."""
        with self._lock:
            self._sent_at = time.monotonic()
            self._send(tuple(self._outputs))

    def _add(self, output: dict[str, Any], display_id: str | None = None) -> None:
        self._outputs.append(output)
        self._display_ids.append(display_id)

    def _clear_if_asked(self) -> None:
        if self._clears_with_next:
            self._clears_with_next = False
            self._outputs.clear()
            self._display_ids.clear()


_stack: ContextVar[tuple[Captured, ...]] = ContextVar("nbddp_captured", default=())


def current() -> Captured | None:
    """Return the capture that gets output of this thread or task; None: it goes to the cell."""
    stack = _stack.get()
    return stack[-1] if stack else None


class _CapturingStream:
    """Replaces ``sys.stdout`` or ``sys.stderr`` while the process captures any output."""

    def __init__(self, stream: Stream, own: Any) -> None:
        self._stream = stream
        self.own = own

    def write(self, text: str) -> int:
        """Write to the widget, or to the stream that was here before."""
        target = current()
        if target is None:
            written: int = self.own.write(text)
            return written
        target.text(self._stream, text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


_lock = threading.Lock()
_depth = 0  # number of open blocks in all threads


def _begin(target: Captured) -> None:
    global _depth  # noqa: PLW0603 - the process has one set of streams
    with _lock:
        _depth += 1
        if not isinstance(sys.stdout, _CapturingStream):
            sys.stdout = _CapturingStream("stdout", sys.stdout)
        if not isinstance(sys.stderr, _CapturingStream):
            sys.stderr = _CapturingStream("stderr", sys.stderr)
    _stack.set((*_stack.get(), target))


def _end(target: Captured) -> None:
    global _depth  # noqa: PLW0603 - the process has one set of streams
    stack = list(_stack.get())
    if target in stack:
        stack.reverse()
        stack.remove(target)
        stack.reverse()
        _stack.set(tuple(stack))
    target.flush()
    with _lock:
        _depth -= 1
        if _depth == 0:
            if isinstance(sys.stdout, _CapturingStream):
                sys.stdout = sys.stdout.own
            if isinstance(sys.stderr, _CapturingStream):
                sys.stderr = sys.stderr.own


def install(
    output_class: type[Any], is_wanted: Callable[[], bool], show_error: Callable[[Any], None]
) -> None:
    """Make ``with Output():`` capture the output of this rank.

    Args:
        output_class: `ipywidgets.Output`.
        is_wanted: returns whether there is a front end that shows widgets.
        show_error: shows an exception, given as by `sys.exc_info`, through `current`.
    """
    captured_by_widget: weakref.WeakKeyDictionary[Any, Captured] = weakref.WeakKeyDictionary()
    opened: weakref.WeakKeyDictionary[Any, list[Captured]] = weakref.WeakKeyDictionary()

    def enter(widget: Any) -> None:
        if not is_wanted():
            return
        target = captured_by_widget.get(widget)
        if target is None:
            reference = weakref.ref(widget)

            def send(outputs: tuple[dict[str, Any], ...]) -> None:
                living = reference()
                if living is not None:
                    living.outputs = outputs

            target = captured_by_widget[widget] = Captured(send)
        opened.setdefault(widget, []).append(target)
        _begin(target)

    def leave(
        widget: Any,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: types.TracebackType | None,
    ) -> bool:
        targets = opened.get(widget)
        if not targets:
            return False
        target = targets.pop()
        # As in any notebook, the widget shows an exception; the stop button ends the cell.
        is_shown = error is not None and isinstance(error, Exception)
        try:
            if is_shown:
                show_error((kind, error, traceback))
        finally:
            _end(target)
        return is_shown

    output_class.__enter__ = enter
    output_class.__exit__ = leave
