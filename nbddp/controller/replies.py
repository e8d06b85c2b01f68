"""Questions of other threads to the hub thread, and its replies.

Runs in: the thread that asks waits; the hub thread replies.
"""

import itertools
import queue
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from nbddp.controller.states import Diagnosed, RanksRestarted, Stimulus
from nbddp.errors import PoolBrokenError

_Reply = TypeVar("_Reply", Diagnosed, RanksRestarted)


class Replies:
    """Who waits for which reply, by the number of the question.

    Args:
        post: hands a stimulus to the hub thread.
        is_served: whether that thread lives.
        end_reason: why it does not.
    """

    def __init__(
        self,
        post: Callable[[Stimulus], None],
        is_served: Callable[[], bool],
        end_reason: Callable[[], str],
    ) -> None:
        self._post = post
        self._is_served = is_served
        self._end_reason = end_reason
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[Diagnosed | RanksRestarted]] = {}

    def ask(self, kind: type[_Reply], question: Callable[[int], Stimulus]) -> _Reply:
        """Ask under a new number, and wait for the reply.

        Raises:
            PoolBrokenError: the hub has ended.
        """
        number = next(self._numbers)
        found: queue.SimpleQueue[Diagnosed | RanksRestarted] = queue.SimpleQueue()
        self._waiting[number] = found
        try:
            self._post(question(number))
            while self._is_served():
                with suppress(queue.Empty):
                    # With a limit, so that an interrupt and the end of the hub are noticed.
                    reply = found.get(timeout=0.2)
                    if isinstance(reply, kind):
                        return reply
        finally:
            self._waiting.pop(number, None)
        raise PoolBrokenError(f"{self._end_reason()}. Next: %ddp stop, then %ddp start")

    def put(self, reply: Diagnosed | RanksRestarted) -> None:
        """The reply has come. Called by the hub thread."""
        waiting = self._waiting.get(reply.number)
        if waiting is not None:
            waiting.put(reply)
