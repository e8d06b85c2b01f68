"""Futures of operations that end even where Gloo never wakes the thread that would complete them.

Runs in: the rank process, any thread.

DDP's reducer waits in C++ for the futures of its operations. Gloo completes them when the operation
ends, and some operations never end after their sockets were shut (see `waits`). So a caller gets
a future behind Gloo's, which we can complete, too.

    Gloo's future ---value, or error---> Relay --> the caller's future
    `abort`, a moment later   --error--^
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
#: The name of an error, its text, and where in Python it was raised.
_ADDED = re.compile(
    r"Got the following error when running the callback: \w+: (.*?)\n\nAt:\n"
    r"  [^\n]*futures\.py\(\d+\): _raise\n(?:  [^\n]*(?:\n|\Z))*",
    re.DOTALL,
)


def keep_original() -> None:
    """A caller in C++ has come that asks for the type of the original."""
    global _keeps_original  # noqa: PLW0603 - of the process, as what C++ looks at
    _keeps_original = True


def future_behind(inner: Any, book: GroupCounters) -> Any:
    """A future that is completed as ``inner`` is, or by `end_soon`.

    Args:
        inner: of an operation of a Gloo group.
        book: of that group.
    """
    if _keeps_original or torch.cuda.is_initialized():
        return inner  # of CUDA: its end is one of a stream, which only the original knows
    relay = Relay(book)
    future = relay.gate.then(relay.deliver)
    book.relays.add(relay)
    inner.add_done_callback(relay.hear)
    return future


class Relay:
    """Completes a future once. Nothing here owns that future, which owns tensors in the end."""

    def __init__(self, book: GroupCounters) -> None:
        self._book = book
        self.epoch = book.epoch  #: the group is made again in the next one
        self._lock = threading.Lock()
        self._is_open = True
        self._outcome: Callable[[], Any] | None = None
        #: The future in front; an error that a callback of it raises is one in C++, too.
        self.gate: Any = torch.futures.Future()

    def hear(self, inner: Any) -> None:
        """The operation has ended. On a thread of the backend, mostly."""
        try:
            value = inner.value()
        except RuntimeError as error:
            self.end(error.with_traceback(None))
        else:
            self._complete(lambda: value)

    def end(self, error: BaseException) -> None:
        """Complete it with an error, unless it is complete."""
        self._complete(partial(_raise, error))

    def _complete(self, outcome: Callable[[], Any]) -> None:
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
        self._outcome = outcome
        self._book.relays.discard(self)
        gate, self.gate = self.gate, None
        gate.set_result(None)

    def deliver(self, _: Any) -> Any:
        """The value, or the error."""
        outcome, self._outcome = self._outcome, None
        return None if outcome is None else outcome()


def end_soon(book: GroupCounters) -> None:
    """The sockets of a group were shut. Gloo wakes others in a moment; the rest is ended here.

    Also futures that callers get meanwhile, of operations that were begun before.
    """
    epoch = book.epoch

    def end() -> None:
        time.sleep(GRACE_S)
        for relay in list(book.relays):
            if relay.epoch == epoch:
                book.has_sleepers = book.has_sleepers or book.epoch == epoch
                relay.end(NeverWokenError())

    threading.Thread(target=end, name="nbddp-futures", daemon=True).start()


def as_raised(error: RuntimeError) -> RuntimeError:
    """The same without what C++ adds when an error goes through `Relay.deliver`."""
    text = str(error)
    found = _ADDED.sub(r"\1", text)
    return error if found == text else type(error)(found)


def _raise(error: BaseException) -> None:
    raise error
