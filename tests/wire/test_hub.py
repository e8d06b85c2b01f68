"""The hub and agents over real sockets; the test plays the agents."""

import queue
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from nbddp.controller.hub.rank_requests import RankRequests
from nbddp.controller.hub.remote_nodes import NodeView
from nbddp.controller.hub.run import Run
from nbddp.controller.hub.waiting_commands import Refusal
from nbddp.controller.state.actions import Diagnosed, NoticeChanged, RanksRestarted
from nbddp.controller.state.config import Config
from nbddp.controller.state.rank_state import Phase, RankState
from nbddp.controller.state.snapshot import PoolSnapshot
from nbddp.controller.state.stimuli import Configured, RunRequested
from nbddp.errors import PoolBrokenError
from nbddp.wire import codec
from nbddp.wire.flight_recorder.schema import (
    Activity,
    GroupInfo,
    Operation,
    RankLook,
    Signature,
    ThreadLook,
    Wait,
)
from nbddp.wire.messages import (
    PROTOCOL_VERSION,
    DescribeRank,
    Event,
    Execute,
    GroupsRebuilt,
    JobTimeLeft,
    KillRanks,
    Output,
    RankDescribed,
    RankExited,
    RankReady,
    RankSpawned,
    RanksStalled,
    RebuildGroups,
    RunsFinished,
    RunsStarted,
    ShutdownAgent,
    StartRanks,
    StoreReady,
)
from nbddp.wire.rank_set import RankSet
from tests.support.hub_stage import Stage, finished, ready
from tests.support.polling import poll_until


@pytest.mark.parametrize(
    ("said", "node"),
    [
        ({"token": "wrong"}, 0),
        ({"token": ""}, 0),
        ({"version": PROTOCOL_VERSION + 1}, 0),
        ({"version": 0}, 0),
        ({"node": 1}, 0),  # and it is node 0
    ],
)
def test_an_unknown_agent_is_refused(stage: Stage, said: dict[str, Any], node: int):
    stage.agent.hello(**said)
    stage.agent.send(StoreReady(host="evil", port=1, pid=1), ready(0))
    poll_until(lambda: stage.hub.trust.refused == 3)
    assert stage.phase() is Phase.AGENTS
    assert stage.hub._machine.master == ("", 0)
    assert not stage.hub.snapshot.in_state(RankState.IDLE)
    stage.start()


@pytest.mark.parametrize("node", [0, 1])
def test_events_of_a_stranger_are_dropped_while_the_pool_works(stage: Stage, node: int):
    stage.start()
    stranger = stage.stranger(node=node, token="guess")
    exited = RankExited(rank=0, pid=1, exit_code=-9, out_of_memory=False, last_output="")
    stranger.send(exited)
    stranger.hello(token="guess", node=node)
    stranger.hello(node=node)
    stranger.send(exited)
    poll_until(lambda: stage.hub.bad_frames == 4)
    assert len(stage.hub.snapshot.in_state(RankState.IDLE)) == 2
    stage.hub.shut_down(0.1)
    assert stage.agent.next_request(ShutdownAgent)
    assert [*stranger.uplink.receive()] == []


def test_events_about_ranks_that_do_not_exist_are_refused(stage: Stage):
    stage.start()
    exited = RankExited(rank=7, pid=1, exit_code=-9, out_of_memory=False, last_output="")
    folded = RunsStarted(run_id="r", ranks=(0, 99))
    no_times = RunsFinished(finished=finished(0), ranks=(0, 1), elapsed_s=(), failed_at_ns=())
    twice = RunsFinished.of([finished(0), finished(0)])
    stage.agent.send(exited, ready(2), finished(99), folded, no_times, twice)
    poll_until(lambda: stage.hub.trust.refused == 6)
    assert stage.phase() is Phase.UP
    assert stage.hub.start_results.empty()


def test_an_error_in_the_handling_of_a_message_ends_no_cell(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    """After an error in its own code, the hub continues to serve."""
    stage.start()

    def stumble(*arguments: Any, **options: Any) -> Any:
        raise KeyError(-1)

    monkeypatch.setattr(stage.hub._recovery._probes, "_diagnose", stumble)
    run = Run("r", RankSet.all(2), 1000)
    execute = Execute(run_id="r", code="1", execution_count=1, first_line=1)
    assert stage.hub.begin(run, RunRequested(execute, run.ranks)) is None
    stage.agent.send(RanksStalled(node=0, ranks=(0,)))
    look = stage.agent.next_request(DescribeRank)
    for rank in (0, 1):
        found = seen(rank, is_running=True)
        stage.agent.send(RankDescribed(number=look.number, rank=rank, look=found))
    stage.agent.send(ready(0), finished(0), finished(1), finished(1))
    assert [run.get(10), run.get(10), run.get(10)] == [finished(0), finished(1), None]
    assert stage.hub.trust.refused == 1
    assert stage.hub.trust.last_refusal == "RanksAnswered: KeyError: -1"
    assert stage.hub.start_results.empty()


def test_an_error_in_the_handling_of_a_message_of_another_machine_ends_no_pool(stage: Stage):
    stage.start()

    def stumble(*arguments: Any, **options: Any) -> str:
        raise KeyError(-1)

    nodes: Any = SimpleNamespace(
        view=NodeView(),
        look=lambda *arguments: [],
        receive=stumble,
        dismiss_guests=lambda: None,
    )
    stage.hub._remote_nodes = nodes
    stage.agent.send(JobTimeLeft(node=0, left_s=1.0))
    poll_until(lambda: stage.hub.trust.refused == 1)
    assert stage.hub.trust.last_refusal == "JobTimeLeft: KeyError: -1"
    assert stage.hub.is_alive


def test_a_cell_continues_between_bad_frames(stage: Stage):
    stage.start()
    run = Run("r", RankSet.all(2), 1000)
    execute = Execute(run_id="r", code="1", execution_count=1, first_line=1)
    assert stage.hub.begin(run, RunRequested(execute, run.ranks)) is None
    assert stage.agent.next_request(Execute) == execute
    text = Output(run_id="r", rank=1, stream="stdout", text="hi\n")
    stage.agent.uplink.forward([b"\x80\x04garbage"])
    stage.agent.send(text)
    stage.agent.uplink.forward([codec.encode(text)[:-3]])
    stage.agent.send(finished(0), finished(1))
    assert run.get(10) == text
    assert [run.get(10), run.get(10), run.get(10)] == [finished(0), finished(1), None]
    assert run.outcome is not None
    assert run.outcome.ranks("ok") == RankSet.all(2)
    assert stage.hub.bad_frames == 2


def test_a_second_cell_is_refused_by_the_hub(stage: Stage):
    stage.start()
    run = Run("r", RankSet.of([0]), 1000)
    execute = Execute(run_id="r", code="1", execution_count=1, first_line=1)
    assert stage.hub.begin(run, RunRequested(execute, run.ranks)) is None
    other = Run("s", RankSet.of([1]), 1000)
    assert stage.hub.begin(other, RunRequested(execute, other.ranks)) == Refusal(
        "a cell is running"
    )
    stage.agent.send(finished(0))
    assert [run.get(10), run.get(10)] == [finished(0), None]


def test_output_between_cells_goes_to_the_background(stage: Stage):
    seen: list[Event | None] = []
    stage.hub.listeners.background = seen.append
    stage.start()
    text = Output(run_id=None, rank=1, stream="stdout", text="later\n")
    stage.agent.send(text)
    poll_until(lambda: seen == [text])


# --- what other threads know of the pool ---------------------------------------------------------


def test_the_end_of_a_cell_comes_with_the_pool_after_it(stage: Stage):
    stage.start()
    run = Run("r", RankSet.all(2), 1000)
    execute = Execute(run_id="r", code="1", execution_count=1, first_line=1)
    assert stage.hub.begin(run, RunRequested(execute, run.ranks)) is None
    began = stage.hub.snapshot
    assert (began.run_id, began.active_run_id) == ("r", "r")
    assert began.unfinished == began.in_state(RankState.BUSY) == RankSet.all(2)
    known: list[PoolSnapshot] = []
    run.add_done_callback(lambda: known.append(stage.hub.snapshot))
    stage.agent.send(finished(0), finished(1))
    poll_until(lambda: known)
    assert (known[0].run_id, known[0].is_running) == (None, False)
    assert known[0].in_state(RankState.IDLE) == RankSet.all(2)
    assert began.in_state(RankState.BUSY) == RankSet.all(2)  # it never changes


def test_the_news_of_a_death_comes_with_the_pool_after_it(stage: Stage):
    known: list[PoolSnapshot] = []
    stage.hub.listeners.rank_exited = lambda exited: known.append(stage.hub.snapshot)
    stage.start()
    stage.hub.post(Configured(Config(on_death="keep")))
    stage.agent.send(RankExited(rank=1, pid=11, exit_code=-9, out_of_memory=False, last_output=""))
    poll_until(lambda: known)
    assert known[0].in_state(RankState.EXITED) == RankSet.of([1])
    assert known[0].ranks[1].exited is not None


def test_the_end_on_one_rank_is_known_without_news_of_the_others(stage: Stage):
    stage.start()
    run = Run("r", RankSet.all(2), 1000)
    execute = Execute(run_id="r", code="1", execution_count=1, first_line=1)
    assert stage.hub.begin(run, RunRequested(execute, run.ranks)) is None
    stage.agent.send(finished(0))
    poll_until(lambda: stage.hub.snapshot.unfinished == RankSet.of([1]))


def test_a_flood_of_output_makes_no_snapshot(stage: Stage):
    stage.start()
    run = Run("r", RankSet.all(2), 1_000_000)
    execute = Execute(run_id="r", code="1", execution_count=1, first_line=1)
    assert stage.hub.begin(run, RunRequested(execute, run.ranks)) is None
    before = stage.hub.snapshot
    text = Output(run_id="r", rank=1, stream="stdout", text="hi\n")
    stage.agent.send(*[text] * 500)
    poll_until(stage.agent.uplink.flush)
    assert [run.get(10) for _ in range(500)] == [text] * 500
    asked = in_thread(lambda: RankRequests(lambda: stage.hub).diagnose(RankSet()))
    look = stage.agent.next_request(DescribeRank)
    stage.agent.send(
        *(RankDescribed(number=look.number, rank=rank, look=seen(rank)) for rank in (0, 1))
    )
    asked.get(timeout=10)  # the loop has turned since
    assert stage.hub.snapshot is before


# --- recovery ------------------------------------------------------------------------------------


def seen(rank: int, *, is_running: bool = False) -> RankLook:
    activity: Activity = "running" if is_running else "idle"
    return RankLook(rank=rank, pid=10 + rank, activity=activity, version=1, time_ns=0)


def in_thread(work: Callable[[], Any]) -> "queue.SimpleQueue[Any]":
    """Runs ``work`` in a thread; its result goes into the queue."""
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=lambda: found.put(work()), daemon=True).start()
    return found


def test_a_diagnosis_is_asked_from_any_thread(stage: Stage):
    stage.start()
    answer = in_thread(lambda: RankRequests(lambda: stage.hub).diagnose(RankSet()))
    look = stage.agent.next_request(DescribeRank)
    stage.agent.send(
        *(RankDescribed(number=look.number, rank=rank, look=seen(rank)) for rank in (0, 1))
    )
    found = answer.get(timeout=10)
    assert isinstance(found, Diagnosed)
    assert sorted(found.looks) == [0, 1]


def test_a_question_to_a_hub_that_has_ended_is_refused(stage: Stage):
    stage.start()
    stage.agent.has_ended = True
    stage.hub.shut_down(0.1)
    assert stage.hub.join(10)
    with pytest.raises(PoolBrokenError, match=r"its hub has ended\. Next: %ddp stop"):
        RankRequests(lambda: stage.hub).diagnose(RankSet())


def test_notices_go_to_the_cell(stage: Stage):
    stage.start()
    run = Run("r", RankSet.all(2), 1000)
    execute = Execute(run_id="r", code="1", execution_count=1, first_line=1)
    assert stage.hub.begin(run, RunRequested(execute, run.ranks)) is None
    stage.agent.send(RanksStalled(node=0, ranks=(0,)))
    look = stage.agent.next_request(DescribeRank)
    waiting = ThreadLook(
        name="MainThread", is_main=True, wait=Wait(kind="operation", record_ids=(1,), since_ns=0)
    )
    operation = Operation(
        record_id=1,
        pg_id="0@x",
        signature=Signature(kind="collective", op="all_reduce"),
        state="scheduled",
        collective_seq_id=1,
        run_id="r",
    )
    group = GroupInfo.of(pg_id="0@x", name="0", ranks=(0, 1))
    stuck = msgspec.structs.replace(
        seen(0, is_running=True), threads=(waiting,), operations=(operation,), groups=(group,)
    )
    busy = msgspec.structs.replace(
        seen(1, is_running=True),
        threads=(ThreadLook(name="MainThread", is_main=True, wait=None),),
        groups=(group,),
    )
    stage.agent.send(
        RankDescribed(number=look.number, rank=0, look=stuck),
        RankDescribed(number=look.number, rank=1, look=busy),
    )
    event = run.get(10)
    assert isinstance(event, NoticeChanged)
    assert event.report is not None
    assert not event.report.verdict
    assert stage.hub.last_report is None
    stage.agent.send(finished(0), finished(1))


def test_a_cell_waits_for_the_pool_to_be_rebuilt(stage: Stage):
    stage.start()
    seen_by_user: list[Event | None] = []
    stage.hub.listeners.background = seen_by_user.append
    stage.agent.send(RankExited(rank=1, pid=11, exit_code=-9, out_of_memory=False, last_output=""))
    poll_until(lambda: stage.hub._recovery.is_rebuilding)
    run = Run("r", RankSet.all(2), 1000)
    execute = Execute(run_id="r", code="1", execution_count=1, first_line=1)
    refusal = in_thread(lambda: stage.hub.begin(run, RunRequested(execute, run.ranks)))
    poll_until(lambda: stage.hub._waiting)
    start = poll_until(
        lambda: (found := stage.agent.next_request(StartRanks)) and found.joins and found
    )
    assert start.ranks == (1,)
    stage.agent.send(
        RankSpawned(rank=1, node=0, pid=12, log_path=""),
        RankReady(rank=1, pid=12, local_rank=1, device="cpu", backend=""),
    )
    look = stage.agent.next_request(DescribeRank)
    stage.agent.send(RankDescribed(number=look.number, rank=0, look=seen(0)))
    reform = stage.agent.next_request(RebuildGroups)
    assert reform.fresh == (1,)
    assert refusal.empty()
    stage.agent.send(*(GroupsRebuilt(number=reform.number, rank=rank) for rank in (0, 1)))
    assert refusal.get(timeout=10) is None
    assert stage.agent.next_request(Execute) == execute
    stage.agent.send(finished(0), finished(1))
    assert [run.get(10), run.get(10), run.get(10)] == [finished(0), finished(1), None]
    [news] = seen_by_user
    assert isinstance(news, Output)
    assert (news.rank, news.stream) == (1, "stderr")
    assert "replaced by a fresh process" in news.text


def test_ranks_are_restarted_from_any_thread(stage: Stage):
    stage.start()
    stage.hub.post(Configured(Config(on_death="keep")))
    poll_until(lambda: stage.hub._recovery.config.on_death == "keep")
    answer = in_thread(lambda: RankRequests(lambda: stage.hub).restart_ranks(RankSet.of([1])))
    assert stage.agent.next_request(KillRanks).ranks == (1,)
    stage.agent.send(RankExited(rank=1, pid=11, exit_code=-9, out_of_memory=False, last_output=""))
    poll_until(lambda: stage.agent.next_request(StartRanks).joins)
    stage.agent.send(RankReady(rank=1, pid=12, local_rank=1, device="cpu", backend=""))
    look = stage.agent.next_request(DescribeRank)
    stage.agent.send(RankDescribed(number=look.number, rank=0, look=seen(0)))
    reform = stage.agent.next_request(RebuildGroups)
    stage.agent.send(*(GroupsRebuilt(number=reform.number, rank=rank) for rank in (0, 1)))
    assert answer.get(timeout=10) == RanksRestarted(1, RankSet.of([1]))


def test_what_a_lost_agent_has_left_ends_before_another_one_may_come(stage: Stage):
    """It is found by the node, which the next agent has as well."""
    stage.start()
    known: list[frozenset[int]] = []
    stage.agent.on_kill_ranks = lambda: known.append(frozenset(stage.hub.snapshot.lost_agents))
    stage.agent.has_ended = True
    poll_until(lambda: stage.hub.snapshot.lost_agents)
    assert known == [frozenset()]
