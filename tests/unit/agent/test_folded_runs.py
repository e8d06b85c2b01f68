"""Messages that the ranks of a node send alike become one; what differs stays apart."""

from typing import Any

from nbddp.agent.folded_runs import HOLD_S, FoldedRuns
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import Event, RunFinished, RunsFinished, RunsStarted, RunStarted


def begun(rank: int, run_id: str = "r") -> RunStarted:
    return RunStarted(run_id=run_id, rank=rank)


def ended(rank: int, error: str = "", **fields: Any) -> RunFinished:
    info = ErrorInfo(ename=error, evalue="", traceback=[error]) if error else None
    return RunFinished(run_id="r", rank=rank, elapsed_s=float(rank), error=info, **fields)


def folded(*events: RunStarted | RunFinished) -> list[Event]:
    runs = FoldedRuns()
    for event in events:
        runs.add(event, 0.0)
    found = runs.take()
    assert runs.is_empty
    return found


def test_equal_messages_become_one_from_which_each_can_be_made_again():
    ends = [ended(rank, "E", failed_at_ns=rank + 5) for rank in range(3)]
    starts, finished = folded(*(begun(rank) for rank in range(3)), *ends)
    assert isinstance(starts, RunsStarted)
    assert isinstance(finished, RunsFinished)
    assert list(starts.each()) == [begun(rank) for rank in range(3)]
    assert list(finished.each()) == ends


def test_a_message_that_is_alone_stays_as_it_is():
    assert folded(begun(4)) == [begun(4)]
    assert folded(ended(4)) == [ended(4)]


def test_ranks_that_end_otherwise_stay_apart():
    first, other = folded(ended(0), ended(1, "E"), ended(2))
    assert isinstance(first, RunsFinished)
    assert first.ranks == (0, 2)
    assert other == ended(1, "E")


def test_the_next_beginning_of_a_rank_does_not_overtake_its_end():
    runs = FoldedRuns()
    runs.add(ended(0), 0.0)
    assert not runs.may_follow(begun(0, "next"))
    assert runs.may_follow(begun(1, "next"))
    assert runs.may_follow(ended(1))


def test_the_last_rank_of_a_node_never_waits():
    runs = FoldedRuns()
    assert runs.due_at == float("inf")
    runs.expect((0, 1), is_cell=True)
    runs.add(begun(0), 1.0)
    assert runs.due_at == 1.0 + HOLD_S
    runs.add(begun(1), 1.002)
    assert runs.due_at == 1.0
    runs.take()
    runs.add(ended(1), 2.0)
    assert runs.due_at == 2.0 + HOLD_S
    runs.add(ended(0), 2.001)
    assert runs.due_at == 2.0
