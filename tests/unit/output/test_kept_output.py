"""The events that `%ddp output` shows again: which are kept, and within which limit."""

from nbddp.notebook.output import KeptOutput, KeptOutputs, Source
from nbddp.notebook.output.kept_output import KeptEvent
from nbddp.settings import Settings
from nbddp.wire.messages import ClearOutput, Display, Output, RunStarted
from nbddp.wire.rank_set import RankSet


def source(cell: int = 3) -> Source:
    return Source(
        cell, "run", RankSet.all(2), 2, Settings(), {}, "pool", "folded", "2026-11-24 10:00:00"
    )


def printed(rank: int, text: str) -> Output:
    return Output(run_id="run", rank=rank, stream="stdout", text=text)


def figure(rank: int, data: str, *, update: bool = False) -> Display:
    return Display(
        run_id="run", rank=rank, data={"text/html": data}, metadata={}, transient={}, update=update
    )


def cleared(rank: int, *, wait: bool) -> ClearOutput:
    return ClearOutput(run_id="run", rank=rank, wait=wait)


def test_events_of_the_chosen_ranks_come_in_order():
    kept = KeptOutput(source())
    kept.add(RunStarted(run_id="run", rank=0))
    events: list[KeptEvent] = [printed(0, "a\n"), printed(1, "b\n"), figure(0, "c")]
    for event in events:
        kept.add(event)
    assert kept.events(RankSet.all(2)) == events
    assert kept.events(RankSet((0,))) == [events[0], events[2]]


def test_the_oldest_events_beyond_the_limit_are_counted():
    kept = KeptOutput(source(), max_bytes=2000)
    kept.add(figure(1, "x" * 100))
    kept.add(printed(0, "y" * 700))
    kept.add(printed(0, "z" * 1200))
    assert kept.events(RankSet.all(2)) == [printed(0, "z" * 1200)]
    assert kept.dropped(RankSet.all(2)) == {0: (700, 0), 1: (0, 1)}
    assert kept.dropped(RankSet((1,))) == {1: (0, 1)}


def test_an_output_that_its_rank_has_cleared_is_not_kept():
    kept = KeptOutput(source())
    other, last = printed(1, "stays\n"), printed(0, "new\n")
    for event in (printed(0, "old\n"), other, cleared(0, wait=False), last):
        kept.add(event)
    assert [e for e in kept.events(RankSet.all(2)) if isinstance(e, Output)] == [other, last]


def test_clear_output_with_wait_clears_with_the_next_output_of_the_rank():
    kept = KeptOutput(source())
    old = figure(0, "old")
    for event in (old, cleared(0, wait=True), printed(1, "other\n"), figure(0, "u", update=True)):
        kept.add(event)
    assert old in kept.events(RankSet((0,)))
    kept.add(figure(0, "new"))
    shown = [e for e in kept.events(RankSet((0,))) if isinstance(e, Display)]
    assert shown == [figure(0, "new")]


def test_a_loop_that_clears_its_figure_stays_small_and_loses_nothing():
    kept = KeptOutput(source(), max_bytes=10_000)
    for step in range(1000):
        kept.add(cleared(0, wait=True))
        kept.add(figure(0, f"{step}" + "x" * 5000))
    assert kept.dropped(RankSet.all(2)) == {}
    assert len(kept.events(RankSet.all(2))) == 2


def test_the_last_cells_are_kept_and_a_number_that_comes_again_replaces_its_cell():
    outputs = KeptOutputs(max_cells=2)
    for cell in (1, 2, 3, 2):
        newest = outputs.begin(source(cell))
    assert outputs.cells == [3, 2]
    assert outputs.get(1) is None
    assert outputs.get(2) is newest
