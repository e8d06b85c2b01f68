"""Futures of operations that end even if Gloo never wakes the thread that would complete them.

Runs in: the rank process, any thread.

DDP's reducer waits in C++ for the futures of its operations. Gloo completes them when the operation
ends, and some operations never end after their sockets were shut (see `waits`). So a caller gets
another future that depends on Gloo's, and that nbddp can complete as well.

    Gloo's future ---value, or error---> Relay --> the caller's future
    `abort`, a moment later   --error--^

A callback in Python takes the GIL in a thread of Gloo, so Gloo's future gets one, and not several.
"""

import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from nbddp.rank.collectives.gloo.waits import GRACE_S, NeverWokenError
from nbddp.rank.collectives.recording.group_counters import GroupCounters

_keeps_original = False
#: The text that C++ adds to an error: its type before it, and its place in Python after it.
_ADDED = re.compile(
    r"Got the following error when running the callback: \w+: (.*?)\n\nAt:\n"
    r"  [^\n]*futures\.py\(\d+\): _raise\n(?:  [^\n]*(?:\n|\Z))*",
    re.DOTALL,
)


def keep_original() -> None:
    """Return Gloo's own futures from now on, because a caller in C++ checks their type."""
    global _keeps_original  # noqa: PLW0603 - per process, as the check of C++
    _keeps_original = True


def future_behind(
    inner: Any, counters: GroupCounters, take_end: Callable[[RuntimeError | None], None]
) -> Any:
    """Return a future that is completed as ``inner`` is, or by `end_soon`.

    Args:
        inner: future of an operation of a Gloo group.
        counters: of that group.
        take_end: called with the error of ``inner``, or None, before the caller sees the end.
    """
    if _keeps_original or torch.cuda.is_initialized():
        # With CUDA, it ends with a stream, which only the original knows.
        inner.add_done_callback(lambda ended: take_end(error_of(ended)))
        return inner
    relay = Relay(counters, take_end)
    future = relay.gate.then(relay.deliver)
    counters.relays.add(relay)
    inner.add_done_callback(relay.take_end)
    return future


def error_of(ended: Any) -> RuntimeError | None:
    """Return the error of a future that is done; None: it succeeded."""
    try:
        ended.value()
    except RuntimeError as error:
        return error.with_traceback(None)
    return None


class Relay:
    """Completes a future once; it does not own the future, which owns tensors in the end."""

    def __init__(
        self, counters: GroupCounters, take_end: Callable[[RuntimeError | None], None]
    ) -> None:
        self._counters = counters
        self._take_end = take_end
        self.epoch = counters.epoch  #: ends with the rebuild of the group
        self._lock = threading.Lock()
        self._is_open = True
        self._outcome: Callable[[], Any] | None = None
        #: The future whose callback completes the caller's; an error of a callback reaches C++.
        self.gate: Any = torch.futures.Future()

    def take_end(self, inner: Any) -> None:
        """Take the end of the operation. Called mostly by a thread of the backend."""
        try:
            value = inner.value()
        except RuntimeError as error:
            try:
                self._take_end(error.with_traceback(None))
            finally:  # the caller waits for it
                self.end(error)
        else:
            try:
                self._take_end(None)
            finally:
                self._complete(lambda: value)

    def end(self, error: BaseException) -> None:
        """Complete the future with an error, unless it is complete."""
        self._complete(partial(_raise, error))

    def _complete(self, outcome: Callable[[], Any]) -> None:
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
        self._outcome = outcome
        self._counters.relays.discard(self)
        gate, self.gate = self.gate, None
        gate.set_result(None)

    def deliver(self, _: Any) -> Any:
        """Return the value, or raise the error."""
        outcome, self._outcome = self._outcome, None
        return None if outcome is None else outcome()


def end_soon(counters: GroupCounters) -> None:
    """Complete the futures that Gloo does not complete soon after the sockets were shut.

    This includes futures that callers get meanwhile, of operations that were begun before.
    """
    epoch = counters.epoch

    def end() -> None:
        time.sleep(GRACE_S)
        for relay in list(counters.relays):
            if relay.epoch == epoch:
                counters.has_sleepers = counters.has_sleepers or counters.epoch == epoch
                relay.end(NeverWokenError())

    threading.Thread(target=end, name="nbddp-futures", daemon=True).start()


def as_raised(error: RuntimeError) -> RuntimeError:
    """Return the error without the text that C++ adds in `Relay.deliver`."""
    text = str(error)
    shortened = _ADDED.sub(r"\1", text)
    return error if shortened == text else type(error)(shortened)


def _raise(error: BaseException) -> None:
    raise error
