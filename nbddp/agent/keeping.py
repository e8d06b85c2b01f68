"""Lets an agent outlive its notebook, for a time, and serves the notebook that takes it back.

Runs in: the agent's thread.

    notebook ends, or DetachAgent --> detached: no hub, ranks go on --AttachAgent--> a new hub
                                          '-- time is over --> all ends
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path

from nbddp.agent.event_loop import EventLoop
from nbddp.agent.hub_link import HubLink, KeptTime
from nbddp.agent.parent_watch import ParentWatch
from nbddp.system import kept_pools
from nbddp.wire.channels import AgentUplink
from nbddp.wire.launch_specs import AgentLaunch
from nbddp.wire.messages import (
    PROTOCOL_VERSION,
    AgentAttached,
    AgentDetached,
    AttachAgent,
    DetachAgent,
)

_LAST_WORDS_S = 0.5


class Keeping:
    """The agent's state between two notebooks.

    Args:
        launch: what the agent was given.
        link: the connection to the hub.
        loop: waits for that connection.
        parent_watch: reports the end of the notebook.
    """

    def __init__(
        self,
        launch: AgentLaunch,
        link: HubLink,
        loop: EventLoop,
        parent_watch: ParentWatch,
    ) -> None:
        self._launch = launch
        self._folder = Path(launch.folder)
        self._link = link
        self._loop = loop
        self._parent_watch = parent_watch
        self._keep_s = launch.keep_s
        link.kept.keeps_text = launch.keep_s > 0
        self._time = KeptTime()
        self._number = ""  #: of the last attempt to attach that was answered
        parent_watch.is_kept = lambda: self.outlives_notebook

    @property
    def outlives_notebook(self) -> bool:
        """Whether the agent goes on if its notebook ends now."""
        return self._keep_s > 0 and self._link.kept.is_up

    @property
    def is_over(self) -> bool:
        """Whether the time without a notebook is over."""
        return self._time.is_over

    def ends_with_notebook(self, *, is_ending: bool) -> bool:
        """Return whether the agent has to end with its notebook, or go on without a hub.

        Args:
            is_ending: the ranks are being ended.
        """
        if not self._parent_watch.has_lost_notebook:
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
        if not self._launch.controller_pid:
            problem = "agents on other machines cannot be kept yet"
        elif not self._link.kept.is_up:
            problem = problem or "its ranks are not ready"
        answer = AgentDetached(node=self._launch.node, problem=problem)
        if problem:
            self._link.send(answer)
            return
        self._keep_s = request.keep_s
        self._link.kept.keeps_text = True
        self._begin(answer)

    def _begin(self, last_words: AgentDetached | None = None) -> None:
        self._parent_watch.release()
        self._time.begin(self._keep_s)
        kept_pools.note_detached(self._folder, self._launch.node, self._keep_s)
        if last_words is not None:  # the notebook may look at the note as soon as it has them
            self._link.send(last_words)
        self._connect(0.0 if last_words is None else _LAST_WORDS_S)

    def _connect(self, linger_s: float) -> None:
        """Close the connection to the last hub, and wait for the next one."""
        launch = self._launch
        fresh = AgentUplink(launch.hub, launch.node, launch.token, is_waiting=True)
        old = self._link.detach(fresh)
        self._loop.replace(old, fresh)
        # While it sends its last words it may reconnect, and to the next hub, which would then send
        # everything to it: both connections have one identity.
        old.close(linger_s)
        fresh.connect()

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
        if start is None or not self._parent_watch.follow(request.controller_pid, request.started):
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
            )
        )
