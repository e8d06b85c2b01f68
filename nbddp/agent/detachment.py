"""Lets an agent outlive its notebook, for a time, and serves the notebook that takes it back.

Runs in: the agent's thread.

    notebook ends, or DetachAgent --> detached: no hub, ranks go on --AttachAgent--> a new hub
                                          '-- time is over --> all ends

An agent on another machine knows the end of the notebook from the port, which refuses connections
then, or whose hub does not know the session any longer. The next hub has the same port and keys.
"""

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from nbddp.agent.event_loop import EventLoop
from nbddp.agent.hub_link import HubLink, KeptTime
from nbddp.agent.lifeline_thread import LifelineThread
from nbddp.system import kept_pools
from nbddp.wire.channels import AgentUplink, RemoteUplink
from nbddp.wire.launch_specs import AgentLaunch
from nbddp.wire.message_types import JOB_LEFT_UNKNOWN_S, AgentEnd, NodeFacts
from nbddp.wire.messages import (
    PROTOCOL_VERSION,
    AgentAttached,
    AgentDetached,
    AgentHello,
    AttachAgent,
    DetachAgent,
)

_LAST_WORDS_S = 0.5
#: An agent on another machine tries another connection this often at most.
_RENEW_S = 1.0
_STANDARD_OUTPUTS = (1, 2)


@dataclass(frozen=True)
class OtherMachine:
    """The machine of an agent that is not on the notebook's."""

    facts: NodeFacts
    facts_at: float  #: `time.monotonic` of their writing
    make_uplink: Callable[[], RemoteUplink]  #: a connection that waits for a hub

    def facts_now(self) -> NodeFacts:
        """Return the facts with the time that is left now."""
        left_s = self.facts.job_left_s
        if left_s == JOB_LEFT_UNKNOWN_S:
            return self.facts
        passed_s = time.monotonic() - self.facts_at
        return replace(self.facts, job_left_s=max(0.0, left_s - passed_s))


class Detachment:
    """The agent's state between two notebooks.

    Args:
        launch: what the agent was given.
        link: the connection to the hub.
        loop: waits for that connection.
        lifeline_thread: reports the end of the notebook.
        machine: of this agent; None: that of the notebook.
    """

    def __init__(
        self,
        launch: AgentLaunch,
        link: HubLink,
        loop: EventLoop,
        lifeline_thread: LifelineThread,
        machine: OtherMachine | None = None,
    ) -> None:
        self._launch = launch
        self._folder = Path(launch.folder)
        self._link = link
        self._loop = loop
        self._lifeline_thread = lifeline_thread
        self._keep_s = launch.keep_s
        self._time = KeptTime()
        self._number = ""  #: of the last attempt to attach that was answered
        self._other_machine = machine
        self._renew_at = 0.0
        lifeline_thread.is_kept = lambda: self.outlives_notebook

    @property
    def outlives_notebook(self) -> bool:
        """Whether the agent goes on if its notebook ends now."""
        return self._keep_s > 0 and self._link.kept.is_up

    def ends_with_notebook(self, *, is_ending: bool) -> bool:
        """Return whether the agent has to end with its notebook, or go on without a hub.

        Args:
            is_ending: the ranks are being ended.
        """
        if not self._lifeline_thread.has_lost_notebook:
            return False
        if is_ending or not self.outlives_notebook:
            return True
        self._begin()
        return False

    def let_go(self, request: DetachAgent, problem: str) -> None:
        """Go on without a hub, as the notebook asks.

        Args:
            request: of the hub.
            problem: why that is not possible now; empty: it is.
        """
        if not self._link.kept.is_up:
            problem = problem or "its ranks are not ready"
        answer = AgentDetached(node=self._launch.node, problem=problem)
        if problem:
            self._link.send(answer)
            return
        self._set_time(request.keep_s)
        self._begin(answer)

    def _set_time(self, keep_s: float) -> None:
        """Be kept for `keep_s` from now on; a hub on another machine may be silent as long."""
        self._keep_s = keep_s
        uplink = self._link.uplink
        if isinstance(uplink, RemoteUplink):
            uplink.patience_s = max(self._launch.settings.patience_s, keep_s)
            uplink.is_kept = True

    def _begin(self, last_words: AgentDetached | None = None) -> None:
        self._lifeline_thread.release()
        uplink = self._link.uplink
        silence_s = uplink.silence_s if isinstance(uplink, RemoteUplink) else 0.0
        self._time.begin(max(0.0, self._keep_s - silence_s))  # the notebook may have ended long ago
        kept_pools.note_detached(self._folder, self._launch.node, self._keep_s)
        if last_words is not None:  # the notebook may look at the note as soon as it has them
            self._link.send(last_words)
        self._connect(0.0 if last_words is None else _LAST_WORDS_S)

    def _connect(self, linger_s: float) -> None:
        """Close the connection to the last hub, and wait for the next one."""
        fresh = self._waiting_uplink()
        old = self._link.detach(fresh)
        self._loop.replace(old, fresh)
        # While it sends its last words it may reconnect, and to the next hub, which would then send
        # everything to it: both connections have one identity.
        old.close(linger_s)
        fresh.connect()
        if self._other_machine is not None:
            fresh.send(self.hello())

    def _waiting_uplink(self) -> AgentUplink | RemoteUplink:
        if self._other_machine is not None:
            self._renew_at = time.monotonic() + _RENEW_S
            return self._other_machine.make_uplink()
        launch = self._launch
        return AgentUplink(launch.hub, launch.node, launch.token, is_waiting=True)

    def note_job(self, left_s: float) -> None:
        """Note the time that the job around this agent has left, for the next hub."""
        machine = self._other_machine
        if machine is not None:
            facts = replace(machine.facts, job_left_s=left_s)
            self._other_machine = OtherMachine(facts, time.monotonic(), machine.make_uplink)

    def hello(self) -> AgentHello:
        """Return the first message to a hub."""
        return AgentHello(
            version=PROTOCOL_VERSION,
            token=self._launch.token,
            node=self._launch.node,
            pid=os.getpid(),
            host=socket.gethostname(),
            address="" if self._other_machine is None else self._other_machine.facts.address,
        )

    def check_connection(self, *, is_ending: bool) -> AgentEnd | None:
        """Return why this agent has to end without a hub; None: it does not.

        Args:
            is_ending: the ranks are being ended.
        """
        if self._time.is_over:
            return AgentEnd("not-attached")
        uplink = self._link.uplink
        if not uplink.lost_reason():
            return None
        if self._link.is_detached:
            if time.monotonic() >= self._renew_at:
                self._connect(0.0)
            return None
        is_silent = isinstance(uplink, RemoteUplink) and uplink.is_out_of_patience
        if is_ending or is_silent or not self.outlives_notebook:
            return AgentEnd("not-attached" if is_silent and self._keep_s else "notebook-lost")
        self._begin()
        return None

    def follow_starter(self, lifeline_fd: int, end: Callable[[AgentEnd], None]) -> None:
        """Follow the program that has started this agent, unless it outlives the notebook.

        Args:
            lifeline_fd: its end says that the program has ended.
            end: ends this agent.
        """

        def read() -> None:
            if os.read(lifeline_fd, 4096):
                return
            self._loop.ignore(lifeline_fd)
            if self.outlives_notebook:
                self._write_to_log()  # nobody reads the standard outputs any longer
            else:
                end(AgentEnd("starter-ended"))

        self._loop.listen(lifeline_fd, read)

    def _write_to_log(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        with (self._folder / f"agent-{self._launch.node}.log").open("ab") as log:
            for fd in _STANDARD_OUTPUTS:
                os.dup2(log.fileno(), fd)

    def take_back(self, request: AttachAgent, run_id_by_rank: Mapping[int, str | None]) -> None:
        """Serve a new hub.

        Args:
            request: of that hub, which sends it until it is answered.
            run_id_by_rank: the living ranks, and the cells that they are in.
        """
        if request.number == self._number:
            return
        if not self._link.is_detached:
            # The end of the last notebook is not noticed yet, and its messages may still wait here.
            self._begin()
            return
        kept = self._link.kept
        start = kept.start
        if start is None or not self._follow(request):
            return
        self._number = request.number
        self._time.end()
        kept_pools.note_attached(self._folder, self._launch.node)
        self._link.attach(
            AgentAttached(
                number=request.number,
                version=PROTOCOL_VERSION,
                token=self._launch.token,
                node=self._launch.node,
                pid=os.getpid(),
                pool=start.pool,
                master_addr=start.master_addr,
                master_port=start.master_port,
                store_is_lost=kept.store_is_lost,
                ranks=kept.ranks(run_id_by_rank),
                run=kept.run,
                run_age_s=0.0 if kept.run is None else time.monotonic() - kept.run_began,
                facts=None if self._other_machine is None else self._other_machine.facts_now(),
            )
        )

    def _follow(self, request: AttachAgent) -> bool:
        """Follow the end of a new notebook; False: it has ended."""
        uplink = self._link.uplink
        if isinstance(uplink, RemoteUplink):
            uplink.begin_service()
            self._set_time(self._keep_s)
            return True
        return self._lifeline_thread.follow(request.controller_pid, request.started)
