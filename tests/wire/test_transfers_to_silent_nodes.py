"""Transfers of values to ranks of silent nodes; the test plays the agents."""

import queue
import threading
import time

import pytest

from nbddp.controller.hub.run import Run
from nbddp.controller.hub.transfer import RequestRefusedError
from nbddp.controller.state import NodesSilent, SilentNode
from nbddp.controller.state.stimuli import InterruptRequested, RunRequested
from nbddp.controller.values.push_pull import Exchange
from nbddp.errors import TransferError
from nbddp.settings import Settings
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import Execute, PullValue, ValuePulled
from nbddp.wire.rank_set import RankSet
from tests.support.hub_stage import Stage
from tests.support.polling import poll_until

BOTH = RankSet.all(2)
BAD = ErrorInfo(ename="NameError", evalue="", traceback=[])


@pytest.fixture
def told(stage: Stage) -> list[str]:
    """What the user is told between cells."""
    stage.start()
    texts: list[str] = []
    stage.hub.listeners.background = lambda event: texts.append(getattr(event, "text", ""))
    return texts


def silence(stage: Stage) -> None:
    stage.hub.post(NodesSilent((SilentNode(0, "n2", time.monotonic() - 5.0, 60.0),)))


def test_a_transfer_that_waits_for_a_silent_node_says_so(stage: Stage, told: list[str]):
    silence(stage)
    outcomes: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def pull() -> None:
        try:
            Exchange(stage.hub, None, Settings()).pull("x", BOTH)
        except TransferError as error:
            outcomes.put(error)

    threading.Thread(target=pull, daemon=True).start()
    asked = stage.agent.next_request(PullValue)
    text = "This waits for it; the stop button ends the wait"
    poll_until(lambda: text in " ".join("".join(told).split()))
    for rank in BOTH:
        stage.agent.send(ValuePulled(request_id=asked.request_id, rank=rank, value=None, error=BAD))
    assert "NameError" in str(outcomes.get(timeout=10))


def test_a_transfer_to_silent_ranks_in_an_old_cell_is_refused_and_does_not_say_that_it_waits(
    stage: Stage, told: list[str]
):
    run = Run("r", BOTH, 1000)
    execute = Execute(run_id="r", code="1", execution_count=1, first_line=1)
    assert stage.hub.begin(run, RunRequested(execute, BOTH)) is None
    silence(stage)
    stage.hub.post(InterruptRequested("r"))
    assert run.get(10) is None
    with pytest.raises(RequestRefusedError, match="ranks 0-1 are perhaps still in an old cell"):
        Exchange(stage.hub, None, Settings()).pull("x", BOTH)
    assert not [text for text in told if "This waits" in text]
