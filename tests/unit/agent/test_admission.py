"""An agent that has said hello, and gets no node: what it says, and what it tells the hub."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from nbddp.agent import admission
from nbddp.agent.engine_variables import batch_job
from nbddp.agent.fork_server import ProcessMaker
from nbddp.agent.job_time import JobWatch
from nbddp.wire import codec
from nbddp.wire.channels import RemoteUplink
from nbddp.wire.invitation import Invitation
from nbddp.wire.message_types import AgentEnd, NodeFacts
from nbddp.wire.messages import AgentEnded, AgentRequest, RefuseAgent, ShutdownAgent
from tests.support.examples import plain_example

ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Uplink:
    """A connection to a hub that sends what the test says."""

    made: list["Uplink"] = []  # noqa: RUF012 - a list of this test

    def __init__(self, *_: object, requests: tuple[AgentRequest, ...] = (), lost: str = "") -> None:
        self._requests, self._lost = requests, lost
        self.sent: list[Any] = []
        self.made.append(self)

    def receive(self) -> Iterator[tuple[int, list[bytes]]]:
        for request in self._requests:
            yield 0, [codec.encode(request)]

    def lost_reason(self) -> str:
        return self._lost

    def send(self, event: Any) -> None:
        self.sent.append(event)

    def close(self, linger_s: float) -> None: ...


class Poller:
    """Waits for nothing."""

    def add(self, source: object) -> None: ...

    def wait(self, timeout_s: float) -> None: ...


@pytest.fixture(autouse=True)
def without_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "Poller", Poller)
    monkeypatch.setattr(Uplink, "made", [])


@pytest.fixture
def own_signals() -> Iterator[None]:
    """The handlers of this process, back at the end."""
    before = {number: signal.getsignal(number) for number in ENDS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def no_job() -> JobWatch:
    return JobWatch(batch_job({}), -1.0, every_s=300.0, now=0.0)


def not_joined(uplink: Uplink, signals: list[int] | None = None, fd: int = -1) -> tuple[str, str]:
    """What the agent says, and the cause that it tells the hub."""
    with pytest.raises(admission.NotJoinedError) as caught:
        admission.admission(
            cast("RemoteUplink", uplink), fd, signals or [], lambda missing: None, no_job()
        )
    return str(caught.value), caught.value.end.cause


def test_an_agent_whose_start_has_ended_says_so():
    said, cause = not_joined(Uplink(requests=(ShutdownAgent(grace_s=0.0),)))
    assert said.startswith("not joined: the start of the pool was interrupted, or has failed, bef")
    assert "Next: start the pool again in the notebook, then this agent" in said
    assert cause == "asked"


def test_an_agent_tells_the_hub_why_it_goes():
    refused = Uplink(requests=(RefuseAgent(reason="no place"),))
    assert not_joined(refused) == ("the notebook has refused this agent: no place", "refused")
    assert not_joined(Uplink(), [2]) == ("not joined: it was ended by SIGINT", "signal")
    assert not_joined(Uplink(lost="it ended")) == ("not joined: it ended", "notebook-lost")
    read, write = os.pipe()
    os.close(write)
    with os.fdopen(read):
        said, cause = not_joined(Uplink(), fd=read)
    assert said.startswith("not joined: standard input has ended")
    assert cause == "starter-ended"


def joined(lifeline_fd: int) -> str:
    """Join with such an input; the agent ends with the text that is returned."""
    with pytest.raises(admission.NotJoinedError) as caught:
        admission.join_and_serve(
            plain_example(Invitation),
            "tcp://10.0.0.1:5",
            plain_example(NodeFacts),
            Path("none"),
            maker=cast("ProcessMaker", None),
            lifeline_fd=lifeline_fd,
            environ={},
            job_watch=no_job(),
        )
    return str(caught.value)


@pytest.mark.usefixtures("own_signals")
def test_an_agent_whose_input_has_ended_takes_no_place(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admission, "RemoteUplink", Uplink)
    read, write = os.pipe()
    os.close(write)
    with os.fdopen(read):
        assert joined(read).startswith("not joined: standard input has ended")
    assert Uplink.made == []  # it has not said hello


@pytest.mark.usefixtures("own_signals")
def test_the_hub_hears_the_cause_of_an_agent_that_it_has_perhaps_admitted(
    monkeypatch: pytest.MonkeyPatch,
):
    def ended(*_: object) -> None:
        raise admission.NotJoinedError("not joined", AgentEnd("starter-ended"))

    monkeypatch.setattr(admission, "RemoteUplink", Uplink)
    monkeypatch.setattr(admission, "admission", ended)
    assert joined(-1) == "not joined"
    [uplink] = Uplink.made
    assert uplink.sent[-1] == AgentEnded(node=-1, end=AgentEnd("starter-ended"))
