"""What many ranks say at the same time is routed at once: nothing is lost, and the order holds."""

from hypothesis import given
from hypothesis import strategies as st

from nbddp.controller.hub.folded_events import FoldedEvents, folded
from nbddp.controller.state import RanksAnswered
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import (
    Event,
    OperationsAborted,
    Output,
    RunFinished,
    RunsFinished,
    RunsStarted,
)

ERROR = ErrorInfo(ename="ValueError", evalue="boom", traceback=["boom"])


def ended(ranks: tuple[int, ...], error: ErrorInfo | None = None) -> RunsFinished:
    return RunsFinished.of(
        [RunFinished(run_id="r", rank=rank, elapsed_s=rank / 10, error=error) for rank in ranks]
    )


def aborted(rank: int) -> OperationsAborted:
    return OperationsAborted(number=1, rank=rank, phase="arm", pg_ids=())


def test_equal_ends_of_many_nodes_are_one_event() -> None:
    waiting = FoldedEvents()
    for ranks in ((0, 1), (2, 3), (4, 5)):
        waiting.add(RunsStarted(run_id="r", ranks=ranks))
        waiting.add(ended(ranks))
    begun, end = waiting.take()
    assert begun == RunsStarted(run_id="r", ranks=(0, 1, 2, 3, 4, 5))
    assert end == ended((0, 1, 2, 3, 4, 5))
    assert waiting.take() == []


def test_a_node_that_says_its_end_twice_has_two_events() -> None:
    waiting = FoldedEvents()
    waiting.add(ended((0, 1)))
    waiting.add(ended((1, 2)))
    assert waiting.take() == [ended((0, 1)), ended((1, 2))]


def test_any_other_event_comes_after_those_before_it() -> None:
    output = Output(run_id="r", rank=0, stream="stdout", text="a")
    arrived: list[tuple[int, Event, list[bytes]]] = [
        (0, aborted(0), []),
        (1, ended((3,)), []),
        (0, aborted(1), []),
        (0, output, [b"x"]),
        (-1, aborted(5), []),  # of an agent that has no node: the hub refuses it
        (1, ended((2,)), []),
    ]
    assert list(folded(arrived, lambda node, event: True)) == [
        (None, RanksAnswered((aborted(0), aborted(1))), []),
        (None, ended((3,)), []),
        (0, output, [b"x"]),
        (-1, aborted(5), []),
        (None, ended((2,)), []),
    ]


def test_an_answer_of_a_rank_that_has_ended_comes_after_its_end() -> None:
    """Before its end, the rank would seem to be in the cell, and to do nothing."""
    arrived: list[tuple[int, Event, list[bytes]]] = [
        (0, aborted(1), []),
        (0, ended((0, 1)), []),
        (0, aborted(2), []),
        (0, aborted(0), []),
    ]
    assert [event for _, event, _ in folded(arrived, lambda node, event: True)] == [
        RanksAnswered((aborted(1), aborted(2))),
        ended((0, 1)),
        RanksAnswered((aborted(0),)),
    ]


def test_what_is_not_accepted_is_left_out() -> None:
    arrived: list[tuple[int, Event, list[bytes]]] = [(0, ended((0,)), []), (1, ended((1,)), [])]
    assert list(folded(arrived, lambda node, event: node == 1)) == [(None, ended((1,)), [])]


_EVENTS = st.one_of(
    st.builds(aborted, st.integers(0, 9)),
    st.builds(
        ended,
        st.lists(st.integers(0, 9), min_size=1, unique=True).map(tuple),
        st.sampled_from([None, ERROR]),
    ),
    st.builds(
        lambda run_id, ranks: RunsStarted(run_id=run_id, ranks=ranks),
        st.sampled_from("rs"),
        st.lists(st.integers(0, 9), min_size=1, unique=True).map(tuple),
    ),
)


@given(st.lists(_EVENTS))
def test_nothing_is_lost_and_each_kind_keeps_its_order(
    events: list[OperationsAborted | RunsStarted | RunsFinished],
) -> None:
    waiting = FoldedEvents()
    for event in events:
        waiting.add(event)
    taken = waiting.take()
    answers = [a for event in taken if isinstance(event, RanksAnswered) for a in event.answers]
    assert answers == [event for event in events if isinstance(event, OperationsAborted)]
    ends = [each for event in taken if isinstance(event, RunsFinished) for each in event.each()]
    before = [each for event in events if isinstance(event, RunsFinished) for each in event.each()]
    assert ends == before
    assert all(event.is_sound for event in taken if isinstance(event, RunsFinished))
    for run_id in "rs":
        begun = [
            [r for each in some if isinstance(each, RunsStarted) and each.run_id == run_id
             for r in each.ranks]
            for some in (taken, events)
        ]  # fmt: skip
        assert begun[0] == begun[1]
