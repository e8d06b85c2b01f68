"""A cell begins, ends, is interrupted or given up; ranks die in it."""

from typing import Any

import pytest

from nbddp.controller.state import ONLY_DELAYS
from nbddp.controller.state.actions import SendToRanks
from nbddp.controller.state.cell_run import CellRun
from nbddp.controller.state.exit_text import exited_text
from nbddp.controller.state.rank_state import RankInfo
from nbddp.controller.state.stimuli import (
    AbandonRequested,
    ChangedAtPrompt,
    InterruptRequested,
    RespawnRequested,
    RunRequested,
    Tick,
)
from nbddp.settings import Settings
from nbddp.wire.fault_grammar import parse_faults
from nbddp.wire.mesh_ranks import Mesh
from nbddp.wire.message_types import AgentEnd, ErrorInfo, LostAgent
from nbddp.wire.messages import Execute, FaultStruck, RunFinished, RunsFinished, RunStarted
from nbddp.wire.rank_set import RankSet
from tests.support.machines import Pool, announced_exits, interrupted_ranks, outcome_in, statuses

SETTINGS = Settings(death_grace_s=0.5, interrupt_grace_s=2.0)


def make(n: int = 3, nnodes: int = 1, *, plain: bool = False) -> Pool:
    return Pool(n, nnodes, SETTINGS, plain=plain).start()


def latest(pool: Pool) -> CellRun:
    assert pool.machine.latest is not None
    return pool.machine.latest


# --- the ordinary way ----------------------------------------------------------------------------


def test_folded_ends_are_the_ends_of_each_rank():
    one, many = make(), make()
    for pool in (one, many):
        pool.run()
    error = ErrorInfo(ename="E", evalue="", traceback=[])
    ends = [
        RunFinished(run_id="run1", rank=r, elapsed_s=r / 2, error=error, failed_at_ns=r)
        for r in range(3)
    ]
    actions = [action for end in ends for action in one.feed(end)]
    assert outcome_in(many.feed(RunsFinished.of(ends))) == outcome_in(actions)
    assert many.machine.ranks.infos == one.machine.ranks.infos


def test_folded_ends_of_ranks_that_have_left_the_cell_before_say_nothing():
    pool = make()
    pool.run()
    ends = [RunFinished(run_id="run1", rank=r, elapsed_s=1.0, error=None) for r in range(2)]
    pool.feed(ends[0])
    assert pool.feed(RunsFinished.of(ends)) == []
    assert pool.states() == "IDLE IDLE BUSY"


def test_a_cell_goes_to_its_ranks_and_ends_with_the_last_of_them():
    pool = make()
    execute = Execute(run_id="r", code="pass", execution_count=1, first_line=1)
    ranks = RankSet.of([0, 2])
    assert pool.feed(RunRequested(execute, ranks)) == [SendToRanks(ranks, execute)]
    assert pool.states() == "BUSY IDLE BUSY"
    assert pool.active_run_id() == "r"
    assert pool.feed(RunStarted(run_id="r", rank=0)) == []
    assert pool.finished(2, "r") == []
    assert pool.states() == "BUSY IDLE IDLE"
    pool.now += 1.5
    outcome = outcome_in(pool.finished(0, "r"))
    assert statuses(outcome) == {0: "ok", 2: "ok"}
    assert list(outcome.results) == [0, 2]
    assert outcome.elapsed_s == 1.5
    assert (outcome.interrupted, outcome.timed_out) == (False, False)
    assert pool.active_run_id() is None
    assert pool.machine.refusal(RankSet.all(3)) is None


def test_an_error_is_kept_with_its_time():
    pool = make(2)
    run_id = pool.run()
    pool.finished(0, run_id, ename="ValueError", at_ns=7)
    outcome = outcome_in(pool.finished(1, run_id))
    assert statuses(outcome) == {0: "error", 1: "ok"}
    failed = outcome.results[0]
    assert failed.error is not None
    assert (failed.error.ename, failed.failed_at_ns, failed.elapsed_s) == ("ValueError", 7, 0.5)
    assert outcome.ranks("error") == RankSet.of([0])
    assert outcome.ranks("ok", "error") == RankSet.all(2)


def test_the_outcome_has_the_faults_on_purpose():
    pool = make()
    texts = "ranks 0-1: delay 1 s; rank 2: kill; rank 1: skip the next barrier; store: slow 1 ms"
    faults = parse_faults([texts, "random: rate=0.1", "link 0-1: 1 ms"], 3)
    execute = Execute(run_id="r", code="", execution_count=1, first_line=1, faults=faults)
    pool.feed(RunRequested(execute, RankSet.of([0, 1])))
    for run_id, rank, number in (("r", 1, 0), ("r", 0, 3), ("old", 1, 2), ("r", 0, -1)):
        struck = FaultStruck(run_id=run_id, rank=rank, number=number, text=f"{number} on {rank}")
        assert pool.feed(struck) == []
    assert latest(pool).injected == ["0 on 1", "3 on 0", "-1 on 0"]
    assert latest(pool).disturbed == {0, 1}
    pool.finished(0, "r")
    outcome = outcome_in(pool.finished(1, "r"))
    assert outcome.injected == ("0 on 1", "3 on 0", "-1 on 0")
    assert outcome.struck_dead == RankSet.of([0])  # `nbddp.faults.inject` may have killed it
    assert outcome.missed_faults == (
        "ranks 0-1: delay 1 s (on rank 0)",
        "rank 2: kill",
        "rank 1: skip the next barrier",
        "link 0-1: 1 ms",
    )
    pool.run()
    assert latest(pool).injected == []


def test_the_outcome_has_what_was_typed_at_the_prompt_once():
    pool = make()
    pool.feed(RunRequested(Execute("r", "", 1, 1), RankSet.of([0, 1])))
    for run_id, text, is_skip in (
        ("r", "left out", True),
        ("r", "typed", False),
        ("old", "typed before", False),
        ("r", "typed", False),
    ):
        assert pool.feed(ChangedAtPrompt(run_id, text, is_skip=is_skip)) == []
    pool.finished(0, "r")
    outcome = outcome_in(pool.finished(1, "r"))
    assert (outcome.left_out, outcome.typed) == (("left out",), ("typed",))


def test_a_fault_at_a_line_without_code_says_why_it_did_not_strike():
    pool = make()
    faults = parse_faults(["rank 1: kill at line 1", "rank 1: kill at line 3"], 2)
    code = "# first\nif rank > 5:\n    x = 1\n"
    pool.feed(RunRequested(Execute("r", code, 1, 2, faults=faults), RankSet.of([0, 1])))
    pool.finished(0, "r")
    assert outcome_in(pool.finished(1, "r")).missed_faults == (
        "rank 1: kill at line 1 (line 1 is the line of %%ddp; the first line that runs is line 3)",
        "rank 1: kill at line 3",  # the rank did not come there
    )


@pytest.mark.parametrize(
    ("fault", "disturbed"),
    [
        ("rank 1: kill", set()),
        ("rank 1: stop 1 s", set()),
        ("rank 1: raise OSError", {1}),
        ("rank 1: skip the next barrier", {0, 1}),
        ("rank 1: flip a bit in the next all_reduce", {0, 1}),
    ],
)
def test_a_fault_of_time_disturbs_no_other_line(fault: str, disturbed: set[int]):
    pool = make()
    execute = Execute(
        run_id="r", code="", execution_count=1, first_line=1, faults=parse_faults([fault], 2)
    )
    pool.feed(RunRequested(execute, RankSet.of([0, 1])))
    pool.feed(FaultStruck(run_id="r", rank=1, number=0, text="it"))
    assert latest(pool).disturbed == disturbed
    assert (latest(pool).struck_acts <= ONLY_DELAYS) == ("stop" in fault)


def test_meshes_are_kept_until_they_change_or_the_process_is_fresh():
    pool = make(2)
    mesh = Mesh(name="m", dims=("dp",), shape=(2,), ranks=(0, 1), made_ns=1)

    def meshes_after(**more: Any) -> list[tuple[Mesh, ...]]:
        run_id = pool.run()
        for rank in range(2):
            pool.finished(rank, run_id, **more)
        return [info.meshes for info in pool.machine.ranks.infos]

    assert meshes_after() == [(), ()]
    assert meshes_after(meshes=(mesh,)) == [(mesh,), (mesh,)]
    assert meshes_after() == [(mesh,), (mesh,)]
    pool.exited(1)
    pool.feed(RespawnRequested(RankSet.of([1])))
    assert [info.meshes for info in pool.machine.ranks.infos] == [(mesh,), ()]
    pool.ready(1)
    assert meshes_after(meshes=()) == [(), ()]


def test_the_end_of_another_cell_is_ignored():
    pool = make(1)
    run_id = pool.run()
    assert pool.finished(0, "old") == []
    assert pool.states() == "BUSY"
    assert statuses(outcome_in(pool.finished(0, run_id))) == {0: "ok"}
    assert pool.finished(0, run_id) == []  # twice


# --- refusals ------------------------------------------------------------------------------------


def test_refusals():
    pool = make()
    assert pool.machine.refusal(RankSet.all(3)) is None
    run_id = pool.run("1")
    assert pool.machine.refusal(RankSet.of([0])) == "a cell is running"
    pool.feed(AbandonRequested(run_id))
    assert pool.machine.refusal(RankSet.of([0, 2])) is None
    assert pool.machine.refusal(RankSet.all(3)) == "rank 1 is still in an old cell"
    pool.exited(2)
    assert pool.machine.refusal(RankSet.all(3)) == "rank 2 has exited"
    pool.exited(0)
    assert pool.machine.refusal(RankSet.all(3)) == "ranks 0,2 have exited"
    infos = [RankInfo(rank, rank // 2) for rank in (0, 1, 2, 3)]
    killed = [LostAgent(node, AgentEnd("exited", -9)) for node in (0, 1)]
    assert exited_text([*infos[:2], infos[3]], {0: killed[0]}) == (
        "rank 3 has exited, and ranks 0-1 have exited, since the agent of node 0 ended"
    )
    assert exited_text(infos, dict(enumerate(killed))) == (
        "ranks 0-3 have exited, since the agents of nodes 0 and 1 ended"
    )
    silent = LostAgent(1, AgentEnd("silent", 60, "b"))
    assert exited_text(infos, {0: killed[0], 1: silent}) == (
        "ranks 0-1 have exited, since the agent of node 0 ended, and ranks 2-3 were lost, since "
        "node 1 was given up"
    )


# --- interrupts ----------------------------------------------------------------------------------


def test_an_interrupt_goes_to_the_unfinished_ranks_by_node():
    pool = make(2, nnodes=2)
    run_id = pool.run()
    pool.finished(1, run_id)
    assert interrupted_ranks(pool.feed(InterruptRequested(run_id))) == {0: (0,), 1: (2, 3)}
    for rank in (0, 2):
        pool.finished(rank, run_id, ename="KeyboardInterrupt")
    outcome = outcome_in(pool.finished(3, run_id, ename="KeyboardInterrupt"))
    assert outcome.interrupted
    assert statuses(outcome) == {0: "error", 1: "ok", 2: "error", 3: "error"}


def test_each_interrupt_is_passed_on_again():
    pool = make(2)
    run_id = pool.run()
    pool.feed(InterruptRequested(run_id))
    assert interrupted_ranks(pool.feed(InterruptRequested(run_id))) == {0: (0, 1)}


def test_an_interrupt_of_no_cell_or_an_old_one_does_nothing():
    pool = make(2)
    assert pool.feed(InterruptRequested("old")) == []
    run_id = pool.run()
    assert pool.feed(InterruptRequested("old")) == []
    assert pool.feed(AbandonRequested("old")) == []
    pool.finished(0, run_id)
    assert not outcome_in(pool.finished(1, run_id)).interrupted


# --- giving up -----------------------------------------------------------------------------------


def test_a_cell_that_is_given_up_ends_at_once_and_its_ranks_come_back_later():
    pool = make(2)
    run_id = pool.run()
    pool.finished(0, run_id)
    outcome = outcome_in(pool.feed(AbandonRequested(run_id)))
    assert statuses(outcome) == {0: "ok", 1: "unfinished"}
    assert pool.states() == "IDLE BUSY"
    # The late end of the old cell does not end the new one.
    new_id = pool.run("0")
    assert pool.finished(1, run_id) == []
    assert pool.states() == "BUSY IDLE"
    assert pool.machine.refusal(RankSet.of([1])) == "a cell is running"
    assert statuses(outcome_in(pool.finished(0, new_id))) == {0: "ok"}
    assert pool.machine.refusal(RankSet.all(2)) is None


def test_a_rank_that_dies_in_a_cell_that_was_given_up_ends_no_other_cell():
    pool = make(2)
    run_id = pool.run()
    pool.finished(0, run_id)
    pool.feed(AbandonRequested(run_id))
    new_id = pool.run("0")
    assert announced_exits(pool.exited(1)) == [1]
    assert pool.machine.next_deadline() is None
    assert statuses(outcome_in(pool.finished(0, new_id))) == {0: "ok"}


# --- time ----------------------------------------------------------------------------------------


def test_a_timeout_interrupts_and_then_gives_up():
    pool = make(2)
    run_id = pool.run(timeout_s=10.0)
    assert pool.machine.next_deadline() == pool.now + 10.0
    pool.finished(0, run_id)
    assert pool.feed(Tick(), after_s=9.9) == []
    assert interrupted_ranks(pool.feed(Tick(), after_s=0.1)) == {0: (1,)}
    assert pool.machine.next_deadline() == pool.now + SETTINGS.interrupt_grace_s
    assert pool.feed(Tick(), after_s=1.9) == []
    outcome = outcome_in(pool.feed(Tick(), after_s=0.1))
    assert outcome.timed_out
    assert not outcome.interrupted
    assert statuses(outcome) == {0: "ok", 1: "unfinished"}


def test_a_timeout_that_the_ranks_obey():
    pool = make(2)
    run_id = pool.run(timeout_s=10.0)
    pool.feed(Tick(), after_s=10.0)
    pool.finished(0, run_id, ename="KeyboardInterrupt")
    outcome = outcome_in(pool.finished(1, run_id, ename="KeyboardInterrupt"))
    assert outcome.timed_out
    assert statuses(outcome) == {0: "error", 1: "error"}


def test_a_cell_without_a_timeout_has_no_deadline():
    pool = make(1)
    pool.run()
    assert pool.machine.next_deadline() is None
    assert pool.feed(Tick(), after_s=1e6) == []


# --- death ---------------------------------------------------------------------------------------


def test_the_death_of_a_rank_interrupts_the_others_and_waits_a_little():
    """In a pool with plain groups; in others the recovery frees them."""
    pool = make(3, plain=True)
    run_id = pool.run()
    pool.finished(0, run_id)
    pool.now += 2.0
    assert interrupted_ranks(pool.exited(1, exit_code=-11)) == {0: (2,)}
    assert pool.machine.next_deadline() == pool.now + SETTINGS.death_grace_s
    assert pool.feed(Tick(), after_s=0.4) == []
    outcome = outcome_in(pool.feed(Tick(), after_s=0.1))
    assert statuses(outcome) == {0: "ok", 1: "exited", 2: "unfinished"}
    dead = outcome.results[1]
    assert dead.exited is not None
    assert (dead.exited.exit_code, dead.elapsed_s) == (-11, 2.0)
    assert pool.states() == "IDLE EXITED BUSY"


def test_a_second_death_does_not_prolong_the_wait():
    pool = make(3, plain=True)
    pool.run()
    pool.exited(0)
    deadline = pool.machine.next_deadline()
    pool.now += 0.3
    assert interrupted_ranks(pool.exited(1)) == {0: (2,)}
    assert pool.machine.next_deadline() == deadline


def test_the_death_of_the_last_unfinished_rank_ends_the_cell():
    pool = make(2)
    run_id = pool.run()
    pool.finished(0, run_id)
    assert statuses(outcome_in(pool.exited(1, exit_code=0))) == {0: "ok", 1: "exited"}


def test_a_death_waits_for_the_others_without_the_recovery():
    pool = make(2)
    pool.run()
    assert announced_exits(pool.exited(1)) == [1]
    assert pool.machine.next_deadline() is None


@pytest.mark.parametrize("exit_code", [0, 1, -9])
def test_a_rank_that_dies_between_cells_is_missed_by_the_next(exit_code: int):
    pool = make(2)
    assert announced_exits(pool.exited(0, exit_code)) == [0]
    assert pool.machine.refusal(RankSet.all(2)) == "rank 0 has exited"
    run_id = pool.run("1")
    assert statuses(outcome_in(pool.finished(1, run_id))) == {1: "ok"}
    assert pool.states() == "EXITED IDLE"


def test_the_answer_of_a_rank_that_dies_after_it_is_kept():
    pool = make(2)
    run_id = pool.run()
    error = ErrorInfo(ename="E", evalue="", traceback=["t"])
    pool.feed(RunFinished(run_id=run_id, rank=1, elapsed_s=0.5, error=error, failed_at_ns=7))
    pool.exited(1)
    ended = pool.feed(RunFinished(run_id=run_id, rank=0, elapsed_s=2.0, error=None), after_s=2.0)
    told = outcome_in(ended).results[1]
    assert (told.status, told.error, told.left_s, told.failed_at_ns) == ("exited", error, 0.5, 7)
    assert told.exited is not None
