"""Nodes of which nothing is heard: no call of the user waits for them."""

from collections.abc import Sequence

import pytest
from msgspec import structs

from nbddp.controller.cell_errors import cell_error
from nbddp.controller.hub.transfer import WaitInterrupt, interrupt_as_error
from nbddp.controller.hub.waiting_commands import WaitingCommands
from nbddp.controller.pool.refusals import broken_text, silent_text
from nbddp.controller.state import (
    AgentExited,
    BehindNode,
    NodesSilent,
    Silence,
    SilentNode,
    awaited_text,
    silence_text,
)
from nbddp.controller.state.actions import Action, EndRun, RanksRestarted
from nbddp.controller.state.stimuli import InterruptRequested, RestartRanksRequested
from nbddp.errors import TransferInterruptedError
from nbddp.wire.message_types import AgentEnd
from nbddp.wire.messages import DescribeRank
from nbddp.wire.rank_set import NO_RANKS, RankSet
from tests.support.recovering import Pool, kinds, of_type, outcome_of, requests, statuses


def silent_pool() -> Pool:
    """Ranks 0-1 are on node 0, ranks 2-3 on node 1, which is silent for 2 s."""
    pool = Pool(2, nnodes=2)
    silence(pool)
    return pool


def pool_in_an_old_cell() -> Pool:
    """Ranks of node 0 have left the interrupted cell; nothing is known of the others."""
    pool = silent_pool()
    run_id = pool.run()
    pool.feed(InterruptRequested(run_id))
    for rank in (0, 1):
        pool.finished(rank, run_id, "KeyboardInterrupt")
    pool.answer_looks(pool.done, [0, 1])
    outcome_of(pool.tick(after_s=0.5))
    return pool


def silence(pool: Pool) -> list[Action]:
    return pool.feed(NodesSilent((SilentNode(1, "hostb", pool.now - 2.0, 60.0),)))


def text_of(pool: Pool, asked: Sequence[int]) -> str:
    """What the user reads when these ranks refuse a cell."""
    ranks = RankSet.of(asked)
    reason = pool.machine.refusal(ranks)
    assert reason is not None
    silent = pool.machine.silent.among(RankSet.all(4), pool.now)
    nodes = tuple(SilentNode(s.node, s.host, pool.now - s.silent_s, 60.0) for s in silent)
    snapshot = structs.replace(pool.machine.snapshot(), silent=nodes)
    return broken_text(reason, ranks, snapshot, pool.now, is_up=True, is_plain=False)


def test_an_interrupted_cell_ends_when_all_ranks_that_are_heard_have_left_it():
    pool = silent_pool()
    run_id = pool.run()
    pool.feed(InterruptRequested(run_id), after_s=10.0)
    pool.finished(0, run_id, "KeyboardInterrupt")
    assert of_type(pool.done, EndRun) == []
    pool.done.clear()
    pool.finished(1, run_id, "KeyboardInterrupt")
    pool.answer_looks(pool.done, [0, 1])
    outcome = outcome_of(pool.tick(after_s=0.5))
    assert statuses(outcome) == {0: "error", 1: "error", 2: "unfinished", 3: "unfinished"}
    assert outcome.silent == (Silence(1, "hostb", 12.0, 60.0, RankSet.of([2, 3])),)
    text = str(cell_error(outcome, "cell [1]", {}))
    assert (
        "node 1 (hostb) is silent for 12 s; ranks 2-3 may go on there: they get the interrupt when "
        "it is heard again, or are given up at 60 s"
    ) in text
    assert "cells run on ranks 0-1 meanwhile with -r 0-1" in text
    assert "%ddp restart -r" not in text
    pool.done.clear()
    pool.tick(after_s=5.0)
    assert kinds(pool.done) == []  # what is sent now would come in a heap
    pool.feed(NodesSilent(()))
    assert "AbortOperations fire 2-3" in kinds(pool.tick(after_s=1.0))


def test_a_cell_ends_if_the_others_have_lost_the_connections_to_a_silent_node():
    pool = silent_pool()
    run_id = pool.run()
    pool.finished(0, run_id, "CollectiveFailedError")
    assert of_type(pool.done, EndRun) == []
    pool.done.clear()
    pool.finished(1, run_id, "CollectiveFailedError")
    outcome = outcome_of(pool.done)
    assert statuses(outcome) == {0: "error", 1: "error", 2: "unfinished", 3: "unfinished"}
    text = str(cell_error(outcome, "cell [1]", {}))
    assert "CellError: ranks 0-1 raised CollectiveFailedError" in text
    assert "node 1 (hostb) is silent for" in text


def test_a_cell_that_raised_of_itself_waits_for_the_ranks_of_a_silent_node():
    pool = silent_pool()
    run_id = pool.run()
    pool.finished(0, run_id, "ValueError")
    pool.finished(1, run_id, "ValueError")
    assert of_type([*pool.done, *pool.tick(after_s=0.5)], EndRun) == []


def test_a_cell_ends_if_its_node_becomes_silent_after_the_interrupt():
    pool = Pool(1, nnodes=2)
    run_id = pool.run()
    pool.feed(InterruptRequested(run_id))
    pool.finished(0, run_id, "KeyboardInterrupt")
    pool.done.clear()
    silence(pool)
    pool.answer_looks(pool.done, [0])
    outcome = outcome_of(pool.tick(after_s=0.5))
    assert statuses(outcome) == {0: "error", 1: "unfinished"}


def test_the_abort_after_a_timeout_does_not_wait_for_silent_ranks():
    pool = silent_pool()
    pool.run(timeout_s=10.0)
    pool.tick(after_s=10.0)
    arm = pool.tick(after_s=0.1)
    assert "AbortOperations arm 0-3" in kinds(arm)
    assert "AbortOperations fire 0-3" in kinds(pool.answer_free(arm, ranks=[0, 1]))


def test_ranks_that_leave_a_cell_before_the_user_sees_its_end_are_not_inside_it():
    pool = silent_pool()
    run_id = pool.run(timeout_s=10.0)
    pool.tick(after_s=10.0)
    pool.answer_free(pool.tick(after_s=0.1), ranks=[0, 1])
    given_up = pool.tick(after_s=2.0)
    assert of_type(given_up, EndRun) == []  # it is held back: the groups are looked at
    pool.finished(0, run_id, "KeyboardInterrupt")
    pool.finished(1, run_id, "KeyboardInterrupt")
    while of_type(pool.done, EndRun) == []:
        looked = pool.tick(after_s=0.5)
        if requests(looked, DescribeRank):
            pool.answer_looks(looked, [0, 1])
    outcome = outcome_of(pool.done)
    assert statuses(outcome) == {0: "error", 1: "error", 2: "unfinished", 3: "unfinished"}
    text = str(cell_error(outcome, "cell [1]", {}))
    assert "still inside" not in text


def test_a_rank_beside_a_silent_node_is_not_to_be_restarted_alone():
    pool = silent_pool()
    pool.run(timeout_s=10.0)
    pool.tick(after_s=10.0)
    for _ in range(8):
        pool.tick(after_s=0.5)
    text = str(cell_error(outcome_of(pool.done), "cell [1]", {}))
    assert "ranks 0-1 are still inside the cell" in text
    assert "do not come back: %ddp restart\n" in text
    assert "%ddp restart -r" not in text


def test_a_plain_pool_ends_its_interrupted_cell_too():
    pool = Pool(1, nnodes=2, plain=True)
    silence(pool)
    run_id = pool.run()
    pool.feed(InterruptRequested(run_id))
    outcome = outcome_of(pool.finished(0, run_id, "KeyboardInterrupt"))
    assert [each.host for each in outcome.silent] == ["hostb"]


def test_no_rank_is_restarted_while_a_node_is_silent():
    pool = silent_pool()
    for rank in (0, 2):
        [done] = pool.feed(RestartRanksRequested(5, RankSet.of([rank])))
        assert isinstance(done, RanksRestarted)
        assert (done.fresh, [each.node for each in done.silent]) == (NO_RANKS, [1])
        assert not pool.is_rebuilding()  # nothing was ended


def test_a_restart_is_refused_when_the_node_becomes_silent():
    pool = Pool(2, nnodes=2)
    pool.feed(RestartRanksRequested(5, RankSet.of([2])))
    [done] = of_type(silence(pool), RanksRestarted)
    assert done.failure == "node 1 (hostb) is silent for 2 s"
    assert not done.has_begun
    assert not pool.is_rebuilding()
    assert silent_text(RankSet.of([2]), done) == (
        "rank 2 was not restarted, since fresh ranks form their groups with all others: node 1 "
        "(hostb) is silent for 2 s; ranks 2-3 may go on there: they are given up at 60 s unless it "
        "is heard again before. Next: wait until the node is heard again or given up, or %ddp "
        "restart, which gives it up now and ends all ranks"
    )


def test_a_restart_whose_node_becomes_silent_when_its_ranks_were_to_end_is_perhaps_done():
    pool = Pool(2, nnodes=2)
    asked = RankSet.of([2, 3])
    kill = pool.answer_peeks(pool.feed(RestartRanksRequested(5, asked)))
    assert kinds(kill) == ["KillRanks 2-3"]
    [done] = of_type(silence(pool), RanksRestarted)
    assert done.has_begun
    text = silent_text(asked, done)
    assert text.startswith(
        "perhaps ranks 2-3 were restarted: their processes were asked to end, and now node 1 "
        "(hostb) is silent for 2 s; ranks 2-3 may go on there"
    )
    assert "%ddp status shows whether they are fresh processes when the node is heard" in text


def test_a_rebuild_does_not_wait_for_a_silent_node_and_is_begun_again_when_it_is_heard():
    pool = silent_pool()
    pool.exited(0)
    looked = pool.start_fresh(pool.tick(after_s=0.05))
    pool.answer_looks(looked, [1])
    pool.tick(after_s=0.5)
    assert not pool.is_rebuilding()
    refusal = pool.machine.refusal(RankSet.all(4))
    assert refusal is not None
    assert refusal == "the process groups are formed again when all nodes are heard"
    assert text_of(pool, [0, 1]) == (
        "the process groups are formed again when all nodes are heard (each of ranks 0-1 can still "
        "be used alone, as with -r 0): node 1 (hostb) is silent for 3 s; ranks 2-3 may go on "
        "there: they are given up at 60 s unless it is heard again before. Next: wait until the "
        "node is heard again or given up, or %ddp restart, which gives it up now and ends all ranks"
    )
    assert pool.machine.refusal(RankSet.of([1])) is None
    pool.feed(NodesSilent(()))
    pool.answer_reform(pool.answer_looks(pool.tick(after_s=0.1)))
    assert pool.machine.refusal(RankSet.all(4)) is None


def test_a_rank_whose_old_process_had_ended_is_told_as_restarted():
    pool = Pool(2, nnodes=2)
    asked = RankSet.of([1])
    pool.answer_peeks(pool.feed(RestartRanksRequested(5, asked)))
    pool.exited(1)
    pool.start_fresh(pool.tick(after_s=0.05))
    [done] = of_type(silence(pool), RanksRestarted)
    assert done.ended == asked
    assert silent_text(asked, done) == (
        "rank 1 was restarted, but cannot be used with others yet: its old process has ended, and "
        "its variables are gone. The fresh one forms its process groups with all others, and node "
        "1 (hostb) is silent for 2 s; ranks 2-3 may go on there: they are given up at 60 s unless "
        "it is heard again before. Next: wait until the node is heard again or given up: the "
        "groups are formed then, or %ddp restart, which gives it up now and ends all ranks"
    )


def test_a_fresh_rank_on_the_silent_node_is_told_with_one_age():
    pool = Pool(2, nnodes=2)
    asked = RankSet.of([2])
    pool.answer_peeks(pool.feed(RestartRanksRequested(5, asked)))
    pool.exited(2)
    pool.tick(after_s=0.05)
    [done] = of_type(silence(pool), RanksRestarted)
    assert silent_text(asked, done).startswith("rank 2 was restarted, but cannot be used")
    pool.now += 50.0
    assert text_of(pool, [0, 1, 2, 3]).startswith(
        "a fresh process takes the place of rank 2 (each of ranks 0-1 can still be used alone, "
        "as with -r 0): node 1 (hostb) is silent for 52 s; ranks 2-3 may go on there"
    )


def test_ranks_of_a_silent_node_are_perhaps_in_an_old_cell():
    pool, asked = pool_in_an_old_cell(), RankSet.all(4)
    assert pool.machine.transfer_refusal(asked) == "ranks 2-3 are perhaps still in an old cell"
    pool.feed(NodesSilent(()))
    assert pool.machine.transfer_refusal(asked) == "ranks 2-3 are still in an old cell"


def test_ranks_that_form_groups_with_a_node_that_becomes_silent_are_freed():
    pool = Pool(2, nnodes=2)
    pool.exited(0)
    reform = pool.answer_looks(pool.start_fresh(pool.tick(after_s=0.05)))
    assert kinds(reform) == ["RebuildGroups 0-3"]
    pool.done.clear()
    silence(pool)
    assert kinds(pool.done)[:2] == ["AbortOperations arm 0-3", "AbortOperations fire 0-3"]
    assert not pool.is_rebuilding()


def test_the_sentence_fits_one_rank_and_several_nodes():
    one = Silence(1, "b", 7.0, 60.0, RankSet.of([2]))
    assert silence_text([one]) == (
        "node 1 (b) is silent for 7 s; rank 2 may go on there: it is given up at 60 s unless it is "
        "heard again before"
    )
    two = [one, Silence(2, "c", 8.0, 60.0, RankSet.of([4, 5]))]
    assert silence_text(two, interrupted=True) == (
        "node 1 (b) is silent for 7 s and node 2 (c) is silent for 8 s; ranks 2,4-5 may go on "
        "on their nodes: they get the interrupt when they are heard again, or are given up at 60 s"
    )


def test_a_command_does_not_wait_for_silent_ranks_that_are_in_an_old_cell():
    pool = pool_in_an_old_cell()
    assert pool.machine.pool.late(RankSet.all(4)) == RankSet.of([2, 3])
    called: list[str] = []
    waiting = WaitingCommands(pool.machine, sees_processes=False)
    waiting.when_settled(RankSet.all(4), lambda: called.append("while it is silent"))
    assert called == ["while it is silent"]
    pool.feed(NodesSilent(()))  # it is heard again: the ranks leave the cell soon
    waiting.when_settled(RankSet.all(4), lambda: called.append("later"))
    assert called == ["while it is silent"]


def behind(pool: Pool) -> BehindNode:
    """Node 1 is not silent any longer, and does not answer yet."""
    node = BehindNode(1, "hostb", is_heard=True)
    pool.machine.silent.note_behind((node,))
    pool.feed(NodesSilent(()))
    return node


def test_a_command_waits_until_the_interrupt_has_had_time_after_its_arrival(
    monkeypatch: pytest.MonkeyPatch,
):
    pool = pool_in_an_old_cell()
    behind(pool)
    pool.answer_looks(pool.done)
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    called: list[str] = []
    waiting = WaitingCommands(pool.machine, sees_processes=False)
    waiting.when_settled(RankSet.all(4), lambda: called.append("now"))
    assert waiting.reason.startswith("this cell waits for ranks 2-3, perhaps still in an old cell")
    for clock[0] in (101.0, 110.0, 120.0):
        waiting.call_due()
        assert called == []
    pool.machine.silent.note_behind(())  # it has all that was sent to it
    for clock[0], due in ((121.5, []), (122.5, ["now"])):
        waiting.call_due()
        assert called == due


def test_a_command_does_not_wait_forever_for_an_interrupt_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
):
    pool = pool_in_an_old_cell()
    behind(pool)
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    called: list[str] = []
    waiting = WaitingCommands(pool.machine, sees_processes=False)
    waiting.when_settled(RankSet.all(4), lambda: called.append("now"))
    for clock[0], due in ((139.0, []), (142.0, ["now"])):
        waiting.call_due()
        assert called == due


def test_a_command_waits_no_longer_if_the_node_becomes_silent_again(
    monkeypatch: pytest.MonkeyPatch,
):
    pool = pool_in_an_old_cell()
    behind(pool)
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    called: list[str] = []
    waiting = WaitingCommands(pool.machine, sees_processes=False)
    waiting.when_settled(RankSet.all(4), lambda: called.append("now"))
    silence(pool)
    waiting.call_due()
    assert called == ["now"]


def test_a_restart_is_the_last_resort_for_a_rank_that_the_interrupt_has_not_reached():
    pool = pool_in_an_old_cell()
    nodes = (behind(pool),)
    ranks = RankSet.all(4)
    reason = pool.machine.refusal(ranks)
    assert reason is not None
    snapshot = structs.replace(pool.machine.snapshot(), behind=nodes)
    text = broken_text(reason, ranks, snapshot, pool.now, is_up=True, is_plain=False)
    assert text == (
        "ranks 2-3 are perhaps still in an old cell (ranks 0-1 can still be used with -r): node 1 "
        "(hostb) is heard, but does not answer yet: perhaps what was sent to it is still on its "
        "way, as TCP pauses after a cut. Next: the same again in some seconds. Then, if they do "
        "not leave the old cell: %ddp restart -r 2-3: their variables are gone then, those of "
        "the others are kept"
    )


def test_ranks_that_were_lost_in_a_cell_of_their_own_can_be_replaced_alone():
    pool = silent_pool()
    pool.run("2-3")
    silent = AgentEnd("silent", 60, "hostb")
    outcome = outcome_of([*pool.feed(AgentExited(1, silent)), *pool.tick(after_s=1.0)])
    text = " ".join(str(cell_error(outcome, "cell [4]", {})).split())
    assert text.startswith("RankExitedError: ranks 2-3 were lost during cell [4]")
    assert (
        "%ddp restart -r 2-3 asks for another agent in the place of node 1 (ranks 0-1 keep their "
        "variables)"
    ) in text


def test_what_needs_all_ranks_offers_no_way_without_the_silent_ones():
    silences, asked = [Silence(1, "b", 7.0, 60.0, RankSet.of([2, 3]))], RankSet.all(4)
    text = awaited_text(silences, asked, needs_all=True)
    assert text.endswith(". This needs all ranks, and waits for it; the stop button ends the wait")
    assert awaited_text(silences, asked).endswith("wait, and -r 0-1 leaves ranks 2-3 out")
    stop = WaitInterrupt(RankSet.of([0, 1]), {}, NO_RANKS, silences)
    with pytest.raises(TransferInterruptedError, match="Next: -r 0-1 leaves them out"):
        raise_as_error(stop, needs_all=False)
    with pytest.raises(TransferInterruptedError, match="Next: wait until the node is heard"):
        raise_as_error(stop, needs_all=True)


def raise_as_error(stop: WaitInterrupt, *, needs_all: bool) -> None:
    with interrupt_as_error("looking at names", needs_all=needs_all):
        raise stop
