"""An agent is back when the events that it kept have come: real sockets, and no agent process."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from nbddp.agent.hub_link import HubLink
from nbddp.controller.hub.attachment import Attachment
from nbddp.wire import channels, codec
from nbddp.wire.channels import AgentUplink, HubChannel, Poller
from nbddp.wire.messages import AgentAttached, Event, Execute, RunFinished, RunStarted
from tests.support.machines import make_spec

BEGUN = RunStarted(run_id="r", rank=0)
ENDED = RunFinished(run_id="r", rank=0, elapsed_s=0.1, error=None)
RUN = Execute(run_id="r", code="1", execution_count=1, first_line=1)


def answer(kept_events: int = 0) -> AgentAttached:
    return AgentAttached(
        number="n", version=1, token="t", node=0, pid=1, pool=make_spec(2, 1),
        master_addr="127.0.0.1", master_port=5, store_is_lost=False, ranks=(), run=RUN,
        kept_events=kept_events,
    )  # fmt: skip


@pytest.fixture
def ends() -> Iterator[tuple[HubChannel, HubLink]]:
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="nbt-"))  # short, for the socket
        path = Path(folder, "hub.sock")
        hub = stack.enter_context(closing(HubChannel(path, "t", nnodes=1)))
        uplink = stack.enter_context(closing(AgentUplink(channels.ipc_address(path), 0, "t")))
        yield hub, HubLink(uplink, 0, lambda _: "r")


def received(hub: HubChannel, count: int) -> list[Event]:
    poller, until = Poller(), time.monotonic() + 30
    events: list[Event] = []
    poller.add(hub)
    while len(events) < count:
        assert time.monotonic() < until, events
        poller.wait(0.1)
        events += [event for _, event, _ in hub.receive()]
    return events


def test_an_answer_has_the_number_of_the_kept_events_that_follow_it(
    ends: tuple[HubChannel, HubLink],
):
    hub, link = ends
    link.kept.begin_cell(RUN, 0.0)
    for event in (BEGUN, ENDED):
        payload = codec.encode(event)
        link.kept.note_of_rank(codec.peek(payload), 0, [payload], "r", is_detached=True)
    link.attach(answer())
    first, *kept = received(hub, 3)
    assert isinstance(first, AgentAttached)
    assert first.kept_events == 2
    assert [type(event) for event in kept] == [RunStarted, RunFinished]


def test_a_node_has_come_when_its_kept_events_have():
    attachment = Attachment()
    assert not attachment.has_come(0)
    attachment.put_answer(0, answer(kept_events=2), [], 0.0)
    assert not attachment.has_come(0)
    for event in (BEGUN, ENDED):
        attachment.put_event(0, event, [], 0.0)
    assert attachment.has_come(0)
    attachment.put_event(0, RunStarted(run_id="s", rank=0), [], 0.0)
    assert attachment.has_come(0)
    assert not attachment.has_come(1)
