"""The agents of other machines that have not come yet: what they wait for, and until when.

Runs in: the notebook's process, in the thread that starts the pool.
"""

import math
import time
from collections.abc import Sequence

from nbddp.controller.launch import Engine, EngineState, state_of
from nbddp.controller.state import Phase
from nbddp.errors import PoolStartError

#: Agents that have not come after this time may have a reason that only they know.
_LATE_JOIN_S = 15.0


class JoiningAgents:
    """The wait for the agents of a pool; it begins now.

    Args:
        engine: starts them. If the user starts them, and is told when they are late, its
            ``check_words`` return the command that says on a host whether an agent can join. If it
            knows more of agents that are late, its ``late_text`` says that of their nodes.
        nnodes: number of agents.
        meeting_point: address and port at which they come.
    """

    def __init__(self, engine: Engine, nnodes: int, meeting_point: str) -> None:
        self._engine = engine
        self._nnodes = nnodes
        self._meeting_point = meeting_point
        words = getattr(engine, "check_words", None)
        self._check = str(words()) if callable(words) else ""
        self._joined = 0
        self._said = ""  #: what the engine waited for, in one line
        self._may_never_start = False  #: with the options of this start
        now, limit_s = time.monotonic(), engine.join_timeout_s
        self._late_from = now + _LATE_JOIN_S if self._check else math.inf  # a job may be queued
        self._until = math.inf if limit_s is None else now + limit_s

    def state(self, joined: int, missing: Sequence[int] = ()) -> str:
        """Return what the engine waits for, or what the user has to do, in some lines.

        Args:
            joined: agents that have come.
            missing: nodes whose agents have not; empty: not known.
        """
        state = state_of(self._engine, missing) if missing else self._engine.state()
        self._joined = joined
        self._said = "" if "\n" in state else state
        self._may_never_start = isinstance(state, EngineState) and state.may_never_start
        if joined < self._nnodes and time.monotonic() >= self._late_from:
            since = f"in {_LATE_JOIN_S:g} s" if not joined else "so far"  # some come later
            return f"{state}\n{self._late_text(joined, since)}"
        return state

    def interrupted_text(self, phase: Phase) -> str:
        """Return what is to be said when the user ends the start, with the next step.

        Args:
            phase: of the pool. All agents may have come, and the ranks still start.
        """
        if self._check:  # the user has started them
            return (
                "The file that its lines name is gone. Next: run the cell again, and start the "
                "agents with the lines that it shows then, which name another file"
            )
        if phase is not Phase.AGENTS or not self._said or self._joined >= self._nnodes:
            return "Next: run the cell again"
        step = "run the cell again"
        if self._may_never_start:
            step = "run the cell again with other options"
        return f"It waited for {self._said}. Next: {step}"

    def check(self, joined: int, missing: Sequence[int] = ()) -> None:
        """Raise `PoolStartError` if the agents do not come in time; the arguments as of `state`."""
        limit_s, engine = self._engine.join_timeout_s, self._engine
        if limit_s is None or time.monotonic() <= self._until:
            return
        since = f"in {limit_s:g} s"
        late = f"{self._late_text(joined, since)} ({engine.state()})"
        words = getattr(engine, "late_text", None)
        if callable(words) and (missing or not joined):
            late = f"{self._come(joined)} {since}{words(missing)}"
        raise PoolStartError(f"the pool did not start: {late}")

    def _come(self, joined: int) -> str:
        if not joined:
            return "no agent has come"
        return f"{joined} of {self._nnodes} agents {'has' if joined == 1 else 'have'} come"

    def _late_text(self, joined: int, since: str) -> str:
        hosts = "all hosts" if joined else "the hosts"
        return (
            f"{self._come(joined)} {since}: {hosts} must reach {self._meeting_point}. Next: "
            f"`{self._check or 'nbddp agent --connect FILE --check'}` on a host says whether it "
            "does; open the port in the firewall (--port N keeps one number), or, where ssh "
            "reaches the hosts, use --launcher ssh --tunnel"
        )
