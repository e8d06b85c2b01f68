"""Questions of other threads to the hub thread, or to a rank, and the replies.

Runs in: the thread that asks waits; the hub thread replies.
"""

import itertools
import queue
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias, TypeVar

from nbddp.controller.state.actions import Diagnosed, RanksRestarted
from nbddp.errors import PoolBrokenError
from nbddp.wire.messages import Completed, Debugged, Inspected

Reply: TypeAlias = Diagnosed | RanksRestarted | Completed | Inspected | Debugged
_Reply = TypeVar("_Reply", Diagnosed, RanksRestarted, Completed, Inspected, Debugged)

#: So often the end of the hub is noticed, and an interrupt where waits cannot be interrupted.
_POLL_S = 0.2


class Replies:
    """Who waits for which reply, by the number of the question.

    Args:
        is_served: whether the hub thread lives.
        end_reason: why it does not.
    """

    def __init__(self, is_served: Callable[[], bool], end_reason: Callable[[], str]) -> None:
        self._is_served = is_served
        self._end_reason = end_reason
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[Reply]] = {}

    def ask(self, kind: type[_Reply], question: Callable[[int], None]) -> _Reply:
        """Ask under a new number, and wait for the reply.

        Raises:
            PoolBrokenError: the hub has ended.
        """
        reply = self.ask_within(None, kind, question)
        if reply is None:
            raise self.lost()
        return reply

    def lost(self) -> PoolBrokenError:
        """The hub has ended."""
        return PoolBrokenError(f"{self._end_reason()}. Next: %ddp stop, then %ddp start")

    def ask_within(
        self,
        limit_s: float | None,
        kind: type[_Reply],
        question: Callable[[int], None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> _Reply | None:
        """The same; None: no reply came in time, none is wanted any more, or the hub has ended."""
        number = next(self._numbers)
        found: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._waiting[number] = found
        until = None if limit_s is None else time.monotonic() + limit_s
        try:
            question(number)
            while self._is_served() and is_wanted():
                left_s = _POLL_S if until is None else until - time.monotonic()
                if left_s <= 0:
                    break
                with suppress(queue.Empty):
                    reply = found.get(timeout=min(left_s, _POLL_S))
                    if isinstance(reply, kind):
                        return reply
        finally:
            self._waiting.pop(number, None)
        return None

    def put(self, reply: Reply) -> None:
        """The reply has come. Called by the hub thread."""
        waiting = self._waiting.get(reply.number)
        if waiting is not None:
            waiting.put(reply)
