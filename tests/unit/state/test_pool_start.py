"""A pool starts, fails to start, loses agents, restarts."""

import itertools

import pytest
from msgspec.structs import replace

from nbddp.controller.state.actions import AnnounceFailure, AnnounceUp, SendToAgent
from nbddp.controller.state.rank_state import LEGAL_MOVES, Phase, RankState
from nbddp.controller.state.stimuli import AgentExited, RestartRequested, Tick
from nbddp.errors import InvalidTransitionError
from nbddp.settings import Settings
from nbddp.wire.message_types import AgentEnd, ErrorInfo
from nbddp.wire.messages import RanksStopped, StartFailed, StartRanks, StartStore, StopRanks
from tests.support.machines import Pool, announced_exits, outcome_in, statuses


def failure_in(actions: list[object]) -> AnnounceFailure:
    [failure] = [action for action in actions if isinstance(action, AnnounceFailure)]
    return failure


# --- moves ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "end"), list(itertools.product(RankState, RankState)))
def test_a_rank_moves_only_as_the_table_says(start: RankState, end: RankState):
    ranks = Pool().machine.ranks
    ranks.put(replace(ranks[0], state=start))
    if (start, end) in LEGAL_MOVES:
        ranks.move(0, end, "test", pid=7)
        assert (ranks[0].state, ranks[0].pid) == (end, 7)
    else:
        with pytest.raises(InvalidTransitionError):
            ranks.move(0, end, "test", pid=7)
        assert (ranks[0].state, ranks[0].pid) == (start, 0)
    assert ranks[0].history == (f"{start.name} -> {end.name} (test)",)


def test_the_table_leads_to_every_state_and_out_of_it():
    assert {end for _, end in LEGAL_MOVES} == set(RankState) - {RankState.ABSENT}
    assert {start for start, _ in LEGAL_MOVES} == set(RankState)


def test_an_illegal_move_tells_the_story_of_the_rank():
    pool = Pool().start()
    pool.finished(1, pool.run())
    with pytest.raises(InvalidTransitionError) as caught:
        pool.ready(1)
    assert str(caught.value) == (
        "rank 1: illegal move; its history:\n"
        "  ABSENT -> STARTING (start)\n"
        "  STARTING -> IDLE (ready)\n"
        "  IDLE -> BUSY (run run1)\n"
        "  BUSY -> IDLE (finished run1)\n"
        "  IDLE -> IDLE (ready)"
    )
    assert pool.states() == "BUSY IDLE"


def test_the_story_keeps_the_latest_moves():
    pool = Pool(n=1).start()
    for _ in range(30):
        pool.finished(0, pool.run())
    history = pool.machine.ranks[0].history
    assert len(history) == 20
    assert history[-1] == "BUSY -> IDLE (finished run30)"


# --- start ---------------------------------------------------------------------------------------


def test_start_goes_from_agents_to_the_store_to_the_ranks():
    pool = Pool(n=2, nnodes=2)
    assert pool.machine.refusal(pool.machine.ranks.in_state(*RankState)) is not None
    assert pool.hello(1) == []
    assert pool.hello(1) == []  # the same agent again is not a second one
    [store] = pool.hello(0)
    assert isinstance(store, SendToAgent)
    assert store.node == 0
    assert isinstance(store.request, StartStore)
    assert pool.states() == "STARTING STARTING STARTING STARTING"

    requests = pool.store_ready()
    assert [(a.node, type(a.request)) for a in requests if isinstance(a, SendToAgent)] == [
        (0, StartRanks),
        (1, StartRanks),
    ]
    assert pool.machine.master == ("127.0.0.1", 29500)
    assert [pool.ready(rank) for rank in (3, 0, 2)] == [[], [], []]
    assert pool.phase() is Phase.RANKS
    assert pool.ready(1) == [AnnounceUp()]
    assert pool.phase() is Phase.UP
    assert [info.node for info in pool.machine.ranks.values()] == [0, 0, 1, 1]
    assert pool.machine.next_deadline() is None


def test_facts_that_a_rank_tells_of_itself_are_kept():
    pool = Pool().start()
    info = pool.machine.ranks[1]
    assert (info.pid, info.log_path) == (1001, "/logs/rank1.log")
    assert (info.device, info.backend) == ("cpu", "gloo")
    assert pool.states() == "IDLE IDLE"


def test_a_late_agent_or_store_changes_nothing():
    pool = Pool().start()
    assert pool.hello(0) == []
    assert pool.store_ready() == []
    assert pool.phase() is Phase.UP


@pytest.mark.parametrize("rank", [None, 1])
def test_a_failed_start_names_the_rank_and_the_reason(rank: int | None):
    pool = Pool()
    pool.hello()
    error = ErrorInfo(ename="OSError", evalue="port 1 is taken", traceback=["Traceback"])
    failure = failure_in([*pool.feed(StartFailed(node=0, rank=rank, error=error))])
    who = "the store" if rank is None else "rank 1"
    assert failure.reason == f"{who} could not start: OSError: port 1 is taken"
    assert failure.error == error
    assert pool.phase() is Phase.FAILED
    # Only the first failure is told.
    assert pool.feed(StartFailed(node=0, rank=0, error=error)) == []


def test_a_rank_that_ends_while_it_starts_is_a_failed_start():
    pool = Pool()
    pool.hello()
    pool.store_ready()
    pool.ready(0)
    failure = failure_in([*pool.exited(1, exit_code=1, last_output="Traceback\nOSError: no\n")])
    assert failure.reason == "rank 1 ended while it started (exit code 1): OSError: no"
    assert failure.exited is not None
    assert failure.exited.rank == 1
    assert pool.states() == "IDLE EXITED"


def test_a_rank_that_ends_before_its_request_was_sent_is_legal():
    pool = Pool()
    pool.hello()  # phase STORE: ranks of the last generation may still be reported
    assert announced_exits(pool.exited(1)) == [1]
    assert pool.states() == "STARTING EXITED"


@pytest.mark.parametrize(
    ("steps", "waiting"),
    [
        (0, "phase AGENTS"),
        (1, "ranks 0-1 not ready"),
        (2, "ranks 0-1 not ready"),
        (3, "rank 1 not ready"),
    ],
)
def test_a_start_that_takes_too_long_says_what_it_waited_for(steps: int, waiting: str):
    pool = Pool(settings=Settings(start_timeout_s=60.0))
    for step in [pool.hello, pool.store_ready, lambda: pool.ready(0)][:steps]:
        step()
    assert pool.machine.next_deadline() == pool.now + 60.0
    assert pool.feed(Tick(), after_s=59.9) == []
    failure = failure_in([*pool.feed(Tick(), after_s=0.2)])
    assert failure.reason == (
        f"the start took longer than 60 s ({waiting}). Perhaps the machine is busy, or a slow disk "
        "loads torch. Next: set NBDDP_START_TIMEOUT_S=180 (in a notebook: %env "
        "NBDDP_START_TIMEOUT_S=180), and start the pool again"
    )
    assert pool.phase() is Phase.FAILED
    assert pool.machine.next_deadline() is None
    assert pool.feed(Tick(), after_s=1000.0) == []


def test_a_start_on_several_machines_that_takes_too_long_thinks_of_firewalls_too():
    pool = Pool(nnodes=2)
    pool.machine.spec = replace(pool.machine.spec, has_machines=True)
    pool.hello(0)
    pool.hello(1)
    pool.store_ready()
    failure = failure_in([*pool.feed(Tick(), after_s=60.0)])
    assert "or a firewall stops connections between the hosts. Next: open all TCP" in failure.reason


# --- agents --------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_an_agent_lost_during_the_start_is_a_failed_start(steps: int):
    pool = Pool()
    for step in [pool.hello, pool.store_ready][:steps]:
        step()
    failure = failure_in(
        [*pool.feed(AgentExited(0, AgentEnd("exited", 3), "no module named zmq\n"))]
    )
    assert failure.reason == "the agent of node 0 ended (exit code 3): no module named zmq"
    assert set(pool.machine.lost_agents) == {0}
    assert pool.phase() is Phase.FAILED


def test_an_agent_that_ends_during_the_start_is_named_with_its_machine():
    pool = Pool(nnodes=2)
    exited = AgentExited(1, AgentEnd("starter-ended"), host="n2")
    failure = failure_in([*pool.feed(exited)])
    assert failure.reason == (
        "the agent of node 1 (n2) ended (the program that has started it has ended). Next: start "
        "the pool again"
    )


def test_an_agent_lost_later_takes_its_ranks_and_no_others():
    pool = Pool(n=2, nnodes=2).start()
    assert announced_exits(pool.feed(AgentExited(1, AgentEnd("exited", -9), ""))) == [
        2,
        3,
    ]
    assert pool.states() == "IDLE IDLE EXITED EXITED"
    assert pool.phase() is Phase.UP
    assert pool.machine.refusal(pool.machine.ranks.in_state(RankState.IDLE)) is None


def test_the_refusal_names_all_lost_agents_at_once():
    pool = Pool(n=1, nnodes=2).start()
    ranks = pool.machine.ranks.in_state(RankState.IDLE)
    pool.feed(AgentExited(1, AgentEnd("exited", -9), ""))
    assert pool.machine.refusal(ranks) == "rank 1 has exited, since the agent of node 1 ended"
    pool.feed(AgentExited(0, AgentEnd("exited", -9), ""))
    words = "ranks 0-1 have exited, since the agents of nodes 0 and 1 ended"
    assert pool.machine.refusal(ranks) == words


def test_an_agent_lost_while_a_cell_runs_ends_the_cell():
    pool = Pool(n=1, nnodes=2).start()
    run_id = pool.run()
    pool.finished(0, run_id)
    outcome = outcome_in(pool.feed(AgentExited(1, AgentEnd("exited", -9), "")))
    assert statuses(outcome) == {0: "ok", 1: "exited"}


def test_a_rank_that_exited_before_its_agent_is_not_told_twice():
    pool = Pool().start()
    pool.exited(0, exit_code=7)
    pool.feed(AgentExited(0, AgentEnd("exited", -9), ""))
    first = pool.machine.ranks[0].exited
    assert first is not None
    assert first.exit_code == 7
    assert pool.states() == "EXITED EXITED"


def test_an_agent_lost_during_a_restart_fails_the_restart():
    pool = Pool().start()
    pool.feed(RestartRequested())
    failure = failure_in([*pool.feed(AgentExited(0, AgentEnd("exited", -11), ""))])
    assert failure.reason == "the agent of node 0 ended (SIGSEGV)"
    assert pool.phase() is Phase.FAILED


# --- restart -------------------------------------------------------------------------------------


def test_restart_stops_all_nodes_and_counts_the_generation():
    pool = Pool(n=1, nnodes=2).start()
    stops = pool.feed(RestartRequested())
    assert [a.node for a in stops if isinstance(a, SendToAgent)] == [0, 1]
    assert all(isinstance(a, SendToAgent) and isinstance(a.request, StopRanks) for a in stops)
    assert pool.machine.refusal(pool.machine.ranks.in_state(*RankState)) == (
        "the pool is not up (it is stopping)"
    )
    pool.exited(0, exit_code=0)
    pool.exited(1, exit_code=0)
    assert pool.feed(RanksStopped(node=0)) == []
    [store] = pool.feed(RanksStopped(node=1))
    assert isinstance(store, SendToAgent)
    assert isinstance(store.request, StartStore)
    assert store.request.pool.generation == 1
    pool.start_ranks()
    assert all(info.exited is None for info in pool.machine.ranks.values())


def test_restart_while_a_cell_runs_ends_the_cell_first():
    pool = Pool().start()
    run_id = pool.run()
    pool.finished(0, run_id)
    actions = pool.feed(RestartRequested())
    assert statuses(outcome_in(actions)) == {0: "ok", 1: "unfinished"}
    assert isinstance(actions[-1], SendToAgent)
    assert pool.active_run_id() is None
    # The ranks end, one of them inside its cell; nothing of the old cell is told any more.
    assert announced_exits(pool.exited(0, exit_code=0)) == [0]
    assert announced_exits(pool.exited(1)) == [1]
    pool.feed(RanksStopped(node=0))
    pool.start_ranks()
    assert pool.states() == "IDLE IDLE"


def test_restart_of_dead_ranks():
    pool = Pool().start()
    pool.exited(1, exit_code=-11)
    pool.feed(RestartRequested())
    pool.exited(0, exit_code=0)
    pool.feed(RanksStopped(node=0))
    pool.start_ranks()


def test_a_second_answer_to_stop_does_not_start_twice():
    pool = Pool().start()
    assert pool.feed(RanksStopped(node=0)) == []  # no request had asked for it
    pool.feed(RestartRequested())
    pool.exited(0)
    pool.exited(1)
    assert len(pool.feed(RanksStopped(node=0))) == 1
    assert pool.feed(RanksStopped(node=0)) == []


def test_a_restart_that_does_not_end_the_ranks_in_time_fails():
    pool = Pool(settings=Settings(start_timeout_s=5.0)).start()
    pool.feed(RestartRequested())
    failure = failure_in([*pool.feed(Tick(), after_s=5.0)])
    assert failure.reason == ("the restart waited 5 s for ranks to end. Next: start the pool again")
    assert pool.phase() is Phase.FAILED
