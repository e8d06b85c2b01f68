"""The questions of other threads to the hub thread or to a rank, and the replies.

Runs in: the thread that asks waits; the hub thread replies.
"""

import itertools
import queue
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias, TypeVar

from nbddp.controller.state import Diagnosed, RanksRestarted
from nbddp.errors import PoolBrokenError
from nbddp.wire.messages import Completed, Debugged, Inspected, LogRead

Reply: TypeAlias = Diagnosed | RanksRestarted | Completed | Inspected | Debugged | LogRead
_Reply = TypeVar("_Reply", Diagnosed, RanksRestarted, Completed, Inspected, Debugged, LogRead)

#: A wait checks this often for the end of the hub, and for interrupts if it cannot be interrupted.
_POLL_S = 0.2


class Replies:
    """The waits for replies, by the number of the question.

    Args:
        is_served: whether the hub thread is alive.
        end_reason: why it has ended.
        first_number: of the questions.
    """

    def __init__(
        self,
        is_served: Callable[[], bool],
        end_reason: Callable[[], str],
        first_number: int = 1,
    ) -> None:
        self._is_served = is_served
        self._end_reason = end_reason
        self._numbers = itertools.count(first_number)
        self._waiting: dict[int, queue.SimpleQueue[Reply]] = {}

    def ask(self, kind: type[_Reply], question: Callable[[int], None]) -> _Reply:
        """Ask under a new number, and wait for the reply.

        Args:
            kind: the class of the reply.
            question: sends the question with the number that it gets.

        Raises:
            PoolBrokenError: the hub has ended.
        """
        reply = self.ask_within(None, kind, question)
        if reply is None:
            raise self.lost()
        return reply

    def lost(self) -> PoolBrokenError:
        """Return the error that says that the hub has ended."""
        return PoolBrokenError(f"{self._end_reason()}. Next: %ddp stop, then %ddp start")

    def ask_within(
        self,
        limit_s: float | None,
        kind: type[_Reply],
        question: Callable[[int], None],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> _Reply | None:
        """Ask as `ask` does, with a limit in seconds.

        Args:
            limit_s: None: no limit.
            kind: the class of the reply.
            question: sends the question with the number that it gets.
            is_wanted: asked again and again; the wait ends when it returns False.

        Returns:
            The reply; None: none came in time, the wait is no longer wanted, or the hub has ended.
        """
        number = next(self._numbers)
        replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        self._waiting[number] = replies
        until = None if limit_s is None else time.monotonic() + limit_s
        try:
            question(number)
            while self._is_served() and is_wanted():
                left_s = _POLL_S if until is None else until - time.monotonic()
                if left_s <= 0:
                    break
                with suppress(queue.Empty):
                    reply = replies.get(timeout=min(left_s, _POLL_S))
                    if isinstance(reply, kind):
                        return reply
            with suppress(queue.Empty):  # it may have come when the wait was given up
                reply = replies.get_nowait()
                if isinstance(reply, kind):
                    return reply
        finally:
            self._waiting.pop(number, None)
        return None

    def put(self, reply: Reply) -> None:
        """Hand over a reply that has come. The hub thread calls this."""
        waiting = self._waiting.get(reply.number)
        if waiting is not None:
            waiting.put(reply)
