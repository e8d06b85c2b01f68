"""The agent's connection to its hub, or, while it has none, what is kept for the next one.

Runs in: the agent's thread.

    attached: events --FoldedRuns--> uplink --> hub      detached: events --> KeptState
                    '--> KeptState                                 AttachAgent <-- a new hub
"""

import time
from collections.abc import Callable, Iterable, Iterator

from msgspec.structs import replace

from nbddp.agent.folded_runs import FOLDED, FoldedRuns
from nbddp.agent.kept_state import KeptState
from nbddp.errors import BadMessageError
from nbddp.wire import codec
from nbddp.wire.channels import Uplink
from nbddp.wire.messages import (
    AgentAttached,
    AttachAgent,
    Event,
    Execute,
    InputReply,
    RankRequest,
    RefuseAgent,
    RunFinished,
    RunStarted,
)


class HubLink:
    """Sends events up, and keeps those that a later hub needs.

    Args:
        uplink: the connection to the hub.
        node: number of the node.
        run_of: gives the cell in which a rank is.
    """

    def __init__(self, uplink: Uplink, node: int, run_of: Callable[[int], str | None]) -> None:
        self.uplink = uplink
        self.kept = KeptState(node)
        self._folded = FoldedRuns()
        self._run_of = run_of
        self.is_detached = False  #: the uplink waits for a new hub

    @property
    def backlog_bytes(self) -> int:
        """Bytes that wait for the hub; 0 without one, since what is kept has a limit of its own."""
        return 0 if self.is_detached else self.uplink.backlog_bytes

    def send(self, event: Event) -> None:
        """Send one event of the agent itself, at once."""
        rank = getattr(event, "rank", None)
        run_id = None if rank is None else self._run_of(rank)
        self.kept.note(event, run_id, time.monotonic(), is_detached=self.is_detached)
        if not self.is_detached:
            self._forward_folded()
            self.uplink.send(event)

    def expect(self, ranks: Iterable[int], request: RankRequest) -> None:
        """Note that these ranks begin a cell, or a question that runs the user's code."""
        if not isinstance(request, InputReply):
            self._folded.expect(ranks, is_cell=isinstance(request, Execute))

    def forward(self, rank: int, tag: codec.Tag, frames: list[bytes]) -> None:
        """Send one event of a rank: folded with equal ones, or no later than the next `flush`."""
        self.kept.note_of_rank(tag, rank, frames, self._run_of(rank), is_detached=self.is_detached)
        if self.is_detached:
            return
        event = _folded_event(tag, frames)
        if event is None or not self._folded.may_follow(event):
            self._forward_folded()
        if event is None:
            self.uplink.forward(frames)
        else:
            self._folded.add(event, time.monotonic())

    def _forward_folded(self) -> None:
        for event in self._folded.take():
            self.uplink.forward([codec.encode(event)])

    @property
    def due_at(self) -> float:
        """The time at which `flush` has something to send that waits for equal events."""
        return self._folded.due_at

    def flush(self) -> bool:
        """Send the messages that fit, and return whether all of them did."""
        if self.is_detached:
            return True
        if time.monotonic() >= self._folded.due_at:
            self._forward_folded()
        return self.uplink.flush()

    def receive(self) -> Iterator[tuple[tuple[int, ...], list[bytes]]]:
        """Yield the requests; without a hub, only one that takes the agent back or ends it."""
        uplink = self.uplink
        for ranks, frames in uplink.receive():
            if not self.is_detached or (not ranks and _is_of_new_hub(frames[0])):
                yield ranks, frames
            if self.uplink is not uplink:  # the request has closed this one
                return

    def drop_bad_frame(self) -> None:
        """Count a request that was not valid."""
        self.uplink.bad_frames += 1

    def detach(self, fresh: Uplink) -> Uplink:
        """Wait for a new hub at ``fresh``; returns the old connection, which is to be closed."""
        self._folded.take()  # they are kept
        old, self.uplink = self.uplink, fresh
        self.is_detached = True
        return old

    def attach(self, event: AgentAttached) -> None:
        """Send ``event`` to a new hub, then the events that were kept for it."""
        self.is_detached = False
        events = self.kept.replay(time.monotonic())
        self.uplink.send(replace(event, kept_events=len(events)))
        for frames in events:
            self.uplink.forward(frames)
        self.uplink.flush()


class KeptTime:
    """The time for which an agent goes on without a hub; the machine may sleep meanwhile."""

    def __init__(self) -> None:
        self.until: float | None = None  #: None: it has a hub

    def begin(self, keep_s: float) -> None:
        """Begin to count."""
        self.until = time.clock_gettime(time.CLOCK_BOOTTIME) + keep_s

    def end(self) -> None:
        """There is a hub again."""
        self.until = None

    @property
    def is_over(self) -> bool:
        """Whether no hub has come in time."""
        return self.until is not None and time.clock_gettime(time.CLOCK_BOOTTIME) >= self.until


def _folded_event(tag: codec.Tag, frames: list[bytes]) -> RunStarted | RunFinished | None:
    if tag.type not in FOLDED:
        return None
    try:
        event = codec.decode_event(frames[0])
    except BadMessageError:
        return None
    return event if isinstance(event, RunStarted | RunFinished) else None


def _is_of_new_hub(payload: bytes) -> bool:
    try:
        return codec.peek_type(payload) in (AttachAgent.__name__, RefuseAgent.__name__)
    except BadMessageError:
        return False
