"""Transfers of values in which something fails; the test plays the agents."""

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from nbddp.controller.hub.run import Run
from nbddp.controller.hub.transfer import (
    RequestRefusedError,
    Transfer,
    WaitInterrupt,
    interrupt_as_error,
)
from nbddp.controller.state import Silence
from nbddp.controller.state.config import Config
from nbddp.controller.state.stimuli import Configured, RunRequested
from nbddp.controller.values.descriptions import Descriptions
from nbddp.controller.values.push_pull import Exchange
from nbddp.errors import (
    NbddpError,
    PoolBrokenError,
    TransferError,
    TransferInterruptedError,
)
from nbddp.settings import Settings
from nbddp.wire import codec
from nbddp.wire.flight_recorder.schema import Site
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import (
    BindPushed,
    DescribeValue,
    Execute,
    ForgetValue,
    Interrupt,
    Output,
    PullValue,
    PushValue,
    RankExited,
    ReleaseSegment,
    ValueDescribed,
    ValuePulled,
    ValuePushed,
)
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values import pickling
from nbddp.wire.values.shared_memory import Arena
from nbddp.wire.values.value_questions import (
    BlockContents,
    BlockNumbers,
    ContentsOf,
    Leaf,
    Tree,
    TreeOf,
    ValueAnswer,
    Variables,
)
from tests.support.hub_stage import Stage, finished
from tests.support.polling import poll_until

BOTH = RankSet.all(2)


def test_an_interrupted_pull_from_a_silent_node_proposes_what_is_possible():
    silence = Silence(1, "n2", 7.0, 60.0, RankSet.of([1]))
    with pytest.raises(TransferInterruptedError) as caught, interrupt_as_error("pulling 'x'"):
        raise WaitInterrupt(RankSet.of([0]), {}, RankSet.of([1]), [silence])
    assert str(caught.value) == (
        "pulling 'x' was interrupted: rank 0 had answered, node 1 (n2) is silent for 7 s; rank 1 "
        "may go on there: it is given up at 60 s unless it is heard again before. No variable was "
        "changed. Next: -r 0 leaves it out, or wait until the node is heard again or given up, or "
        "%ddp restart, which gives it up now and ends all ranks"
    )


@pytest.fixture
def exchange(stage: Stage) -> Exchange:
    stage.start()
    return Exchange(stage.hub, None, Settings())


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena()
    yield made
    made.close()


class Waiting:
    """A pull or push in a thread of its own."""

    def __init__(self, transfer: Callable[[], object]) -> None:
        self._outcome: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._transfer = transfer
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        try:
            self._outcome.put(self._transfer())
        except NbddpError as error:
            self._outcome.put(error)

    def outcome(self) -> object:
        return self._outcome.get(timeout=10)


def pulled(request: PullValue, rank: int, value: object, arena: Arena | None = None) -> ValuePulled:
    header, _ = pickling.encode_value(value, arena)
    return ValuePulled(request_id=request.request_id, rank=rank, value=header)


def is_bound(stage: Stage) -> bool:
    return bool(stage.agent.next_request(BindPushed).keep)


# --- descriptions of values -----------------------------------------------------------------------


def described(request: DescribeValue, rank: int, answer: ValueAnswer) -> ValueDescribed:
    return ValueDescribed(request_id=request.request_id, rank=rank, answer=answer)


def asked(exchange: Exchange) -> Descriptions:
    return Descriptions(exchange, BOTH, "could not compare 'x'")


def look(exchange: Exchange) -> list[Tree]:
    return asked(exchange).ask(TreeOf("x"), Tree)


def test_each_rank_is_asked_and_answers_stand_in_the_order_of_ranks(
    stage: Stage, exchange: Exchange
):
    found = Waiting(lambda: look(exchange))
    request = stage.agent.next_request(DescribeValue)
    assert (request.question, request.ranks) == (TreeOf("x"), (0, 1))
    trees = [Tree(leaves=(Leaf(path="", what="int", digest=str(rank)),)) for rank in BOTH]
    stage.agent.send(described(request, 1, trees[1]), described(request, 0, trees[0]))
    assert found.outcome() == trees
    asked(exchange).forget()
    stage.agent.next_request(ForgetValue)


def test_bytes_of_blocks_come_beside_the_answer(stage: Stage, exchange: Exchange):
    wanted = ContentsOf({".w": BlockNumbers((0, 1), (2, 5)), ".b": BlockNumbers((1,), (0,))})
    found = Waiting(lambda: asked(exchange).contents(wanted))
    request = stage.agent.next_request(DescribeValue)
    assert request.question == wanted
    zero, one = BlockContents({".w": (2, 5)}), BlockContents({".w": (2, 5), ".b": (0,)})
    for rank, answer, frames in ((0, zero, [b"a", b"b"]), (1, one, [b"c", b"", b"d"])):
        payload = codec.encode(described(request, rank, answer))
        stage.agent.uplink.forward([payload, *frames])
    stage.agent.uplink.flush()
    assert found.outcome() == [
        {".w": {2: b"a", 5: b"b"}},
        {".w": {2: b"c", 5: b""}, ".b": {0: b"d"}},
    ]


def test_bytes_that_do_not_fit_are_an_error(stage: Stage, exchange: Exchange):
    wanted = ContentsOf({".w": BlockNumbers((0, 1), (2, 5))})
    found = Waiting(lambda: asked(exchange).contents(wanted))
    request = stage.agent.next_request(DescribeValue)
    answers = (BlockContents({".w": (2, 5)}), Variables())
    stage.agent.send(*(described(request, rank, answers[rank]) for rank in BOTH))
    assert "could not compare 'x' (ranks 0-1: no reason was given)" in str(found.outcome())


def test_a_rank_with_no_answer_or_a_wrong_one_is_an_error(stage: Stage, exchange: Exchange):
    found = Waiting(lambda: look(exchange))
    request = stage.agent.next_request(DescribeValue)
    error = ErrorInfo(ename="SystemExit", evalue="3", traceback=[])
    stage.agent.send(
        described(request, 0, Variables()),
        ValueDescribed(request_id=request.request_id, rank=1, answer=None, error=error),
    )
    outcome = found.outcome()
    assert isinstance(outcome, TransferError)
    assert str(outcome) == (
        "could not compare 'x' (rank 0: no reason was given; rank 1: SystemExit: 3)"
    )


# --- ends ----------------------------------------------------------------------------------------


def test_a_pull_ends_when_the_agent_ends(stage: Stage, exchange: Exchange):
    told: list[RankExited] = []
    stage.hub.listeners.rank_exited = told.append
    pull = Waiting(lambda: exchange.pull("x", BOTH))
    stage.agent.next_request(PullValue)
    stage.agent.has_ended = True
    error = pull.outcome()
    assert isinstance(error, PoolBrokenError)
    assert "rank 0 exited before its value was transferred" in str(error)
    poll_until(lambda: [exited.rank for exited in told] == [0, 1])


def test_a_cell_is_told_of_the_ranks_that_ended_with_their_agent(stage: Stage):
    stage.start()
    run = Run("r", BOTH, 1000)
    execute = Execute(run_id="r", code="1", execution_count=1, first_line=1)
    assert stage.hub.begin(run, RunRequested(execute, BOTH)) is None
    stage.agent.has_ended = True
    events: list[Any] = [run.get(10), run.get(10), run.get(10)]
    assert [type(event) for event in events[:2]] == [RankExited, RankExited]
    assert events[2] is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("verb", ["pull", "push", "describe"])
def test_a_transfer_ends_when_the_hub_ends(stage: Stage, exchange: Exchange, verb: str):
    begin: dict[str, tuple[Callable[[], object], type[Any]]] = {
        "pull": (lambda: exchange.pull("x", BOTH), PullValue),
        "push": (lambda: exchange.push({"x": 1}, BOTH), PushValue),
        "describe": (lambda: look(exchange), DescribeValue),
    }
    transfer = Waiting(begin[verb][0])
    stage.agent.next_request(begin[verb][1])

    def break_it() -> None:
        raise RuntimeError("a bug")

    stage.hub._call(break_it)
    error = transfer.outcome()
    assert isinstance(error, PoolBrokenError)
    assert "the pool ended before the value was transferred" in str(error)


def test_a_transfer_that_comes_after_a_rank_has_exited_is_refused(stage: Stage, exchange: Exchange):
    gone = RankExited(rank=1, pid=1, exit_code=-9, out_of_memory=False, last_output="")
    stage.hub.post(Configured(Config(on_death="keep")))
    poll_until(lambda: stage.hub._recovery.config.on_death == "keep")
    stage.agent.send(gone)
    poll_until(lambda: stage.hub.snapshot.ranks[1].exited is not None)
    with pytest.raises(RequestRefusedError, match="rank 1 has exited"):
        exchange.pull("x", BOTH)


def test_a_transfer_while_a_cell_runs_is_refused(stage: Stage, exchange: Exchange):
    run = Run("r", BOTH, 1000)
    execute = Execute(run_id="r", code="1", execution_count=1, first_line=1)
    assert stage.hub.begin(run, RunRequested(execute, BOTH)) is None
    with pytest.raises(RequestRefusedError, match="a cell is running"):
        exchange.push({"x": 1}, BOTH)
    stage.agent.send(finished(0), finished(1))
    assert [run.get(10), run.get(10), run.get(10)] == [finished(0), finished(1), None]
    assert not [r for r in stage.agent.requests if isinstance(r, PushValue)]


# --- interrupts ----------------------------------------------------------------------------------


class Interrupting:
    """A wait for answers that the user interrupts after a number of answers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after: int, *, again: bool = False) -> None:
        self._left = after
        self._again = again
        self._next = Transfer.next

        def next_(transfer: Transfer, *arguments: Any) -> Any:
            return self.next(transfer, *arguments)

        monkeypatch.setattr(Transfer, "next", next_)

    def next(self, transfer: Transfer, *arguments: Any) -> Any:
        self._left -= 1
        if self._left == -1:
            raise KeyboardInterrupt
        if self._left < -1 and self._again:
            os.kill(os.getpid(), signal.SIGINT)
        return self._next(transfer, *arguments)


def interrupted(error: str, line: int = 0) -> ErrorInfo:
    site = Site(line=line, cell=3) if line else None
    return ErrorInfo(ename=error, evalue="", traceback=[], site=site)


def play(stage: Stage, *late: ErrorInfo) -> threading.Thread:
    """Rank 0 answers at once, rank 1 when it was interrupted, if at all."""

    def send(rank: int, request_id: str, error: ErrorInfo) -> None:
        answer = ValuePulled(request_id=request_id, rank=rank, value=None, error=error)
        stage.agent.send(answer)

    def answer() -> None:
        request = stage.agent.next_request(PullValue)
        send(0, request.request_id, interrupted("NameError"))
        told = stage.agent.next_request(Interrupt)
        assert told.run_id == request.request_id
        for error in late:
            send(1, request.request_id, error)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("late", "text"),
    [
        (
            [interrupted("KeyboardInterrupt", 4)],
            "pulling 'x' was interrupted: rank 0 had answered, rank 1 was in cell [3], line 4. "
            "No variable was changed. Next: -r 0 leaves it out",
        ),
        (
            [interrupted("KeyboardInterrupt")],
            "pulling 'x' was interrupted: rank 0 had answered, rank 1 had not answered. "
            "No variable was changed",
        ),
        (
            [interrupted("NameError")],
            "pulling 'x' was interrupted: ranks 0-1 had answered. No variable was changed",
        ),
        (
            [],
            "pulling 'x' was interrupted: rank 0 had answered, rank 1 does not react. "
            "No variable was changed. "
            "Next: %ddp stacks -r 1 shows where it is, %ddp restart -r 1 replaces it",
        ),
    ],
    ids=["at a line", "nowhere", "too late", "stuck"],
)
def test_an_interrupted_pull_says_how_far_it_was(
    stage: Stage,
    exchange: Exchange,
    monkeypatch: pytest.MonkeyPatch,
    late: list[ErrorInfo],
    text: str,
):
    Interrupting(monkeypatch, 1, again=not late)
    rank = play(stage, *late)
    with pytest.raises(TransferInterruptedError) as caught, interrupt_as_error("pulling 'x'"):
        exchange.pull("x", BOTH)
    rank.join(10)
    assert str(caught.value) == text
    poll_until(lambda: not stage.hub._transfers)


def test_an_interrupted_question_says_how_far_it_was(
    stage: Stage, exchange: Exchange, monkeypatch: pytest.MonkeyPatch
):
    Interrupting(monkeypatch, 1)

    def answer() -> None:
        request = stage.agent.next_request(DescribeValue)
        stage.agent.send(described(request, 0, Tree()))
        assert stage.agent.next_request(Interrupt).run_id == request.request_id
        error = interrupted("KeyboardInterrupt", 4)
        stage.agent.send(
            ValueDescribed(request_id=request.request_id, rank=1, answer=None, error=error)
        )

    rank = threading.Thread(target=answer, daemon=True)
    rank.start()
    with pytest.raises(TransferInterruptedError) as caught, interrupt_as_error("comparing 'x'"):
        look(exchange)
    rank.join(10)
    assert str(caught.value) == (
        "comparing 'x' was interrupted: rank 0 had answered, rank 1 was in cell [3], line 4. "
        "No variable was changed. Next: -r 0 leaves it out"
    )


def test_an_interrupted_push_binds_nothing(
    stage: Stage, exchange: Exchange, monkeypatch: pytest.MonkeyPatch
):
    Interrupting(monkeypatch, 1)

    def answer() -> None:
        request = stage.agent.next_request(PushValue)
        stage.agent.send(ValuePushed(request_id=request.request_id, rank=0))

    threading.Thread(target=answer, daemon=True).start()
    with pytest.raises(TransferInterruptedError) as caught, interrupt_as_error("pushing 'x'"):
        exchange.push({"x": 1}, BOTH)
    assert str(caught.value) == (
        "pushing 'x' was interrupted: rank 0 had answered, rank 1 had not answered. "
        "No variable was changed"
    )
    assert not is_bound(stage)


# --- push: all or none ---------------------------------------------------------------------------


def test_names_are_bound_when_every_rank_has_built_the_value(stage: Stage, exchange: Exchange):
    push = Waiting(lambda: exchange.push({"x": 1}, BOTH))
    request = stage.agent.next_request(PushValue)
    stage.agent.send(*(ValuePushed(request_id=request.request_id, rank=rank) for rank in BOTH))
    assert push.outcome() is None
    assert is_bound(stage)


def test_a_value_for_all_ranks_travels_once_to_their_node(stage: Stage, exchange: Exchange):
    push = Waiting(lambda: exchange.push({"x": 1}, BOTH))
    request = stage.agent.next_request(PushValue)
    stage.agent.send(*(ValuePushed(request_id=request.request_id, rank=rank) for rank in BOTH))
    assert push.outcome() is None
    assert is_bound(stage)
    assert [each for each in stage.agent.requests if isinstance(each, PushValue)] == [request]


def test_no_name_is_bound_when_one_rank_cannot_build_the_value(stage: Stage, exchange: Exchange):
    push = Waiting(lambda: exchange.push({"x": 1}, BOTH))
    request = stage.agent.next_request(PushValue)
    error = ErrorInfo(ename="TransferError", evalue="no such class", traceback=[])
    stage.agent.send(
        ValuePushed(request_id=request.request_id, rank=0),
        ValuePushed(request_id=request.request_id, rank=1, error=error),
    )
    found = push.outcome()
    assert isinstance(found, TransferError)
    assert str(found) == ("could not push x (rank 1: no such class). No variable was changed")
    assert not is_bound(stage)


# --- shared memory of answers without a receiver ------------------------------------------------


def test_answers_that_are_queued_when_a_pull_fails_are_released(
    stage: Stage, exchange: Exchange, arena: Arena
):
    transfer = exchange._open(BOTH)
    poll_until(lambda: transfer.request_id in stage.hub._transfers)
    request = PullValue(request_id=transfer.request_id, expression="x", ranks=(0, 1))
    answer = pulled(request, 0, b"x" * 100_000, arena)
    assert answer.value is not None
    stage.agent.send(answer)
    poll_until(lambda: transfer._answers.qsize() == 1)
    stage.hub.close_transfer(transfer)
    released = stage.agent.next_request(ReleaseSegment)
    assert released.segment == answer.value.segment


def test_answers_that_come_after_the_end_of_a_pull_are_released(
    stage: Stage, exchange: Exchange, arena: Arena
):
    transfer = exchange._open(BOTH)
    stage.hub.close_transfer(transfer)
    request = PullValue(request_id=transfer.request_id, expression="x", ranks=(0, 1))
    answer = pulled(request, 1, b"x" * 100_000, arena)
    assert answer.value is not None
    stage.agent.send(answer)
    assert stage.agent.next_request(ReleaseSegment).segment == answer.value.segment


# --- floods --------------------------------------------------------------------------------------


def test_a_flood_does_not_keep_the_hub_from_its_commands(stage: Stage):
    stage.start()
    run = Run("r", BOTH, 1000)
    execute = Execute(run_id="r", code="1", execution_count=1, first_line=1)
    socket = stage.hub._channel._socket
    flooded = Flooded(socket)
    stage.hub._channel._socket = flooded  # type: ignore[assignment]  # a fake
    began = Waiting(lambda: stage.hub.begin(run, RunRequested(execute, BOTH)))
    try:
        assert began.outcome() is None
        poll_until(lambda: flooded.count > 0)
    finally:
        stage.hub._channel._socket = socket


class Flooded:
    """A socket that always has data."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._frames = [
            b"agent-0",
            codec.encode(Output(run_id="other", rank=0, stream="stdout", text="x")),
        ]
        self.count = 0

    def recv(self, flags: int, *, copy: bool) -> Any:
        self.count += 1
        is_first = self.count % len(self._frames) == 1
        return SimpleNamespace(bytes=self._frames[0 if is_first else 1], more=is_first)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)
