"""The queue between the hub and a cell's view stays bounded."""

import threading

import pytest
from msgspec.structs import replace

from nbddp.controller.hub.run import CellEvent, Run
from nbddp.controller.state.outcome import RunOutcome
from nbddp.wire.messages import (
    ClearOutput,
    Display,
    InputRequest,
    Output,
    Result,
    RunFinished,
    RunsFinished,
    RunsStarted,
    RunStarted,
    Stream,
)
from nbddp.wire.rank_set import RankSet

OUTCOME = RunOutcome(run_id="r", results={}, elapsed_s=1.0)


def make(backlog_bytes: int = 10) -> Run:
    return Run("r", RankSet.all(2), backlog_bytes)


def out(text: str, rank: int = 0, stream: Stream = "stdout", dropped: int = 0) -> Output:
    return Output(run_id="r", rank=rank, stream=stream, text=text, dropped_bytes=dropped)


def test_events_come_out_as_they_went_in_and_then_the_end():
    run = make(100)
    events: list[CellEvent] = [
        out("a"),
        RunFinished(run_id="r", rank=0, elapsed_s=1.0, error=None),
        out("b", rank=1),
    ]
    for event in events:
        run.put(event)
    run.end(OUTCOME)
    assert [run.get(0) for _ in events] == events
    assert run.get(0) is None
    assert run.outcome is OUTCOME


def test_an_empty_queue_times_out():
    with pytest.raises(TimeoutError):
        make().get(0)


def test_text_beyond_the_limit_is_dropped_and_announced_with_the_next_of_its_stream():
    run = make(10)
    run.put(out("x" * 11))
    run.put(out("lost1"))
    run.put(out("lost22", dropped=3))
    run.put(out("lost", stream="stderr"))
    assert run.get(0) == out("x" * 11)
    run.put(out("kept"))
    run.put(out("kept too"))
    run.put(out("error", stream="stderr"))
    assert run.get(0) == out("kept", dropped=5 + 6 + 3)
    assert run.get(0) == out("kept too")
    # 12 bytes waited, so the error text was dropped as well.
    assert run.get(0) == out("losterror", stream="stderr")
    with pytest.raises(TimeoutError):
        run.get(0)


def test_other_events_are_never_dropped():
    run = make(0)
    run.put(out("x"))
    run.put(out("lost"))
    end = RunFinished(run_id="r", rank=0, elapsed_s=1.0, error=None)
    run.put(end)
    assert [run.get(0) for _ in range(3)] == [out("x"), out("lost"), end]


def test_the_end_of_a_flooded_rank_comes_before_that_rank_has_ended():
    run, flood = make(10), "loss 0.5\n" * 1000
    run.put(out("x" * 11))
    run.put(out(flood))
    run.put(out("loss 0.1\n", dropped=5))
    run.put(out("lost too", rank=1, stream="stderr"))
    finished = RunFinished(run_id="r", rank=0, elapsed_s=1.0, error=None)
    run.put(finished)
    assert run.get(0) == out("x" * 11)
    assert run.get(0) == out("loss 0.1\n", dropped=len(flood) + 5)
    assert run.get(0) == finished
    run.put(out("y" * 11))
    run.put(out(flood, rank=1))
    run.put(RunsFinished.of([replace(finished, rank=1)]))
    assert run.get(0) == out("y" * 11)
    assert run.get(0) == out("lost too", rank=1, stream="stderr")
    last = run.get(0)
    assert isinstance(last, Output)
    assert (last.dropped_bytes + len(last.text), last.rank) == (len(flood), 1)
    assert last.text.startswith("loss 0.5\n")
    assert run.get(0) == replace(finished, rank=1)
    assert run.put_count == run.taken_count


@pytest.mark.parametrize(
    "event",
    [
        Display(run_id="r", rank=0, data={}, metadata={}, transient={}),
        Result(run_id="r", rank=0, data={}, metadata={}),
        ClearOutput(run_id="r", rank=0, wait=True),
        InputRequest(run_id="r", rank=0, question=1, prompt="? ", password=False),
    ],
)
def test_the_end_of_a_flood_comes_before_what_its_rank_shows_next(event: CellEvent):
    run = make(10)
    for each in (out("x" * 11), out("lost"), out("of another", rank=1), event):
        run.put(each)
    assert [run.get(0) for _ in range(3)] == [out("x" * 11), out("lost"), event]
    assert run.get(0) == out("of another", rank=1)


def test_the_end_of_a_flood_comes_when_all_others_were_taken_out():
    """The rank goes on without output."""
    run, flood = make(10), "loss 0.5\n" * 1000
    run.put(out("x" * 11))
    run.put(out(flood))
    assert run.get(0) == out("x" * 11)
    end = run.get(0)
    assert isinstance(end, Output)
    assert end.text == flood[end.dropped_bytes :]
    run.put(out("next\n"))
    assert run.get(0) == out("next\n")


def test_the_end_of_a_flooded_run_says_what_was_dropped():
    run = make(10)
    run.put(out("x" * 11))
    run.put(out("lost"))
    run.put(out("lost too", rank=1, stream="stderr", dropped=3))
    run.end(OUTCOME)
    assert run.get(0) == out("x" * 11)
    assert run.get(0) == out("lost")
    assert run.get(0) == out("lost too", rank=1, stream="stderr", dropped=3)
    assert run.get(0) is None


def test_callbacks_come_once_each_and_at_once_after_the_end():
    run = make()
    called: list[str] = []
    run.add_done_callback(lambda: called.append("before"))
    assert called == []
    run.end(OUTCOME)
    run.add_done_callback(lambda: called.append("after"))
    assert called == ["before", "after"]


def test_the_count_is_exact_with_a_reader_in_another_thread():
    run = make(50)
    seen: list[Output] = []

    def read() -> None:
        while (event := run.get(5)) is not None:
            assert isinstance(event, Output)
            seen.append(event)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(2000):
        run.put(out(f"{number:04}\n"))
    run.end(OUTCOME)
    reader.join(10)
    assert sum(len(event.text) + event.dropped_bytes for event in seen) == 2000 * 5


def test_folded_events_come_out_one_by_one_and_count_for_each_rank():
    run = make()
    finished = [
        RunFinished(run_id="r", rank=rank, elapsed_s=1.0 + rank, error=None) for rank in range(2)
    ]
    run.put(RunsStarted(run_id="r", ranks=(0, 1)))
    run.put(RunsFinished.of(finished))
    assert run.put_count == 4
    taken = [run.get(0) for _ in range(4)]
    assert taken == [RunStarted(run_id="r", rank=0), RunStarted(run_id="r", rank=1), *finished]
    assert run.taken_count == 4
    with pytest.raises(TimeoutError):
        run.get(0)
