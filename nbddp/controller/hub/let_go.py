"""The answers of agents that are to go on without a hub.

Runs in: the hub thread puts them in; the thread that lets go takes them out.
"""

import queue
import time

from nbddp.wire.messages import AgentDetached


class LetGo:
    """The answers to `DetachAgent`."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[AgentDetached] = queue.SimpleQueue()

    def put(self, answer: AgentDetached) -> None:
        """Take an answer. The hub thread calls this."""
        self._answers.put(answer)

    def wait(self, count: int, limit_s: float) -> str:
        """Wait for this many answers; returns why the agents cannot be let go, or nothing."""
        give_up_at = time.monotonic() + limit_s
        for _ in range(count):
            try:
                answer = self._answers.get(timeout=max(0.0, give_up_at - time.monotonic()))
            except queue.Empty:
                return f"an agent does not answer in {limit_s:g} s"
            if answer.problem:
                return answer.problem
        return ""
