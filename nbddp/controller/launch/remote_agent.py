"""The agent of one node on another machine, as the hub and its engine know it.

Runs in: the notebook's process.
"""

from nbddp.controller.launch.engine import Engine
from nbddp.controller.launch.engine_end import EngineEnd
from nbddp.wire.message_types import AgentEnd


class RemoteAgent:
    """An agent that an engine has started; there is no process here.

    Args:
        node: the number of its node.
        engine: knows whether it can still come.
        host: its machine, if that is known before it comes.
        outlives_starter: what has started it may end before it, once it has come.
    """

    def __init__(
        self, node: int, engine: Engine, host: str = "", *, outlives_starter: bool = False
    ) -> None:
        self.node = node
        self._engine = engine
        self.host = host
        self._outlives_starter = outlives_starter
        self._has_come = False
        self._end: AgentEnd | None = None

    def note_end(self, end: AgentEnd) -> None:
        """Note that the agent has ended."""
        self._end = self._end or end

    def revive(self, host: str = "") -> None:
        """Note that an agent has come for this node, perhaps in the place of another one.

        Args:
            host: its machine, as that names itself; empty: not known.
        """
        self._has_come = True
        self.host = host or self.host
        self._end = None

    def has_exited(self) -> bool:
        """Return whether the agent has ended, or its engine knows that it cannot come."""
        follows = not (self._has_come and self._outlives_starter)
        if self._end is None and follows and (text := self._engine.end(self.node)):
            end = EngineEnd.of(text)
            self._end = AgentEnd("engine", text=end.what, advice=end.advice)
        return self._end is not None

    def end(self) -> AgentEnd:
        """Return why it has ended."""
        return self._end or AgentEnd("asked")

    @property
    def never_came(self) -> str:
        """The machine, or the node, whose agent never came; empty: it did, or may still do so."""
        if self._has_come or not self.has_exited():
            return ""
        return self.host or f"node {self.node}"

    def kill(self) -> None:
        """Take it for ended; its engine ends it, or it notices that the notebook has gone."""
        if not self.has_exited():
            self.note_end(AgentEnd("no-answer"))
