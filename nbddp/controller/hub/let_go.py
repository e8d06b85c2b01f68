"""The answers of agents that are to go on without a hub.

Runs in: the hub thread puts them in; the thread that lets go waits for them.
"""

import threading
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet

from nbddp.wire.messages import AgentDetached

#: An agent may end while its answer is awaited.
_LOOK_S = 0.1


class LetGo:
    """The answers to `DetachAgent`, one of each node."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._problem_by_node: dict[int, str] = {}  #: empty: the agent goes on without a hub

    def begin(self) -> None:
        """Forget why agents could not go before; those that have gone stay known."""
        with self._changed:
            self._problem_by_node = dict.fromkeys(self._gone(), "")

    def put(self, answer: AgentDetached) -> None:
        """Take an answer. The hub thread calls this."""
        with self._changed:
            self._problem_by_node[answer.node] = answer.problem
            self._changed.notify_all()

    def wait(self, living: Callable[[], AbstractSet[int]], limit_s: float) -> str:
        """Wait for the answers of the living agents.

        A request cannot be taken back. So if one agent has gone, the pool has: an agent that does
        not answer in time finds the request when it runs again.

        Args:
            living: gives the nodes whose agents live.
            limit_s: time for all answers, in seconds.

        Returns:
            Why no agent has gone, and what to do; empty: at least one has.
        """
        give_up_at = time.monotonic() + limit_s
        with self._changed:
            while missing := living() - self._problem_by_node.keys():
                left_s = give_up_at - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(min(_LOOK_S, left_s))
            if self._gone() & living():
                return ""
            problems = [problem for problem in self._problem_by_node.values() if problem]
        if problems:
            return f"{problems[0]}. Next: try again"
        if not missing:
            return "its agents have ended. Next: %ddp restart starts them again; or %ddp stop"
        nodes = ", ".join(map(str, sorted(missing)))
        return f"the agent of node {nodes} does not answer in {limit_s:g} s. Next: try again"

    def _gone(self) -> set[int]:
        return {node for node, problem in self._problem_by_node.items() if not problem}
