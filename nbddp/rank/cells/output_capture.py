"""What goes into an Output widget of this rank, and not into the cell.

Runs in: the rank process, whatever thread is inside ``with output:``.

A front end would capture by the cell: whatever any rank shows in it. So each rank captures its own
here, by context (threads and tasks have their own), and sends it as the contents of its widget.
What C code and subprocesses print is not Python's to capture: it stays in the cell.
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

#: The contents of a widget are sent as a whole, this often, and up to this much text.
_INTERVAL_S = 0.1
_MAX_CHARS = 100_000


class Captured:
    """The contents of one Output widget."""

    def __init__(self, send: Callable[[tuple[dict[str, Any], ...]], None]) -> None:
        self._send = send
        self._lock = threading.RLock()
        self._outputs: list[dict[str, Any]] = []
        self._display_ids: list[str | None] = []  # of each output
        self._clears_with_next = False
        self._sent_at = float("-inf")

    def text(self, stream: Stream, text: str) -> None:
        """Something was printed; shown soon, or by `flush`."""
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
        """A MIME bundle; an update changes what has the ``display_id``."""
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
        """An exception ended the block."""
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
        """Forget everything, now or when something new comes."""
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
    """Where the output of this thread or task goes; None: to the cell."""
    stack = _stack.get()
    return stack[-1] if stack else None


class _Printed:
    """Stands in for ``sys.stdout`` while something is captured anywhere in the process."""

    def __init__(self, stream: Stream, own: Any) -> None:
        self._stream = stream
        self.own = own

    def write(self, text: str) -> int:
        """To the widget, or to where it went before."""
        target = current()
        if target is None:
            written: int = self.own.write(text)
            return written
        target.text(self._stream, text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)


_lock = threading.Lock()
_depth = 0  # blocks that are open, in all threads


def _begin(target: Captured) -> None:
    global _depth  # noqa: PLW0603 - the streams are the process's
    with _lock:
        _depth += 1
        if not isinstance(sys.stdout, _Printed):
            sys.stdout = _Printed("stdout", sys.stdout)
        if not isinstance(sys.stderr, _Printed):
            sys.stderr = _Printed("stderr", sys.stderr)
    _stack.set((*_stack.get(), target))


def _end(target: Captured) -> None:
    global _depth  # noqa: PLW0603 - likewise
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
            if isinstance(sys.stdout, _Printed):
                sys.stdout = sys.stdout.own
            if isinstance(sys.stderr, _Printed):
                sys.stderr = sys.stderr.own


def install(
    output_class: type[Any], is_wanted: Callable[[], bool], show_error: Callable[[Any], None]
) -> None:
    """From now on ``with Output():`` captures what this rank shows.

    Args:
        output_class: `ipywidgets.Output`.
        is_wanted: whether there is a front end that shows widgets.
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
        # As in any notebook an exception ends up in the widget; the stop button ends the cell.
        is_shown = error is not None and isinstance(error, Exception)
        try:
            if is_shown:
                show_error((kind, error, traceback))
        finally:
            _end(target)
        return is_shown

    output_class.__enter__ = enter
    output_class.__exit__ = leave
