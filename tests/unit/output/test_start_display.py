"""The line that shows the start of a pool."""

import pytest

from nbddp.controller.state import Phase, PoolSnapshot, RankInfo, RankState
from nbddp.notebook.output import StartDisplay, TerminalSink
from nbddp.notebook.output.start_display import progress_line
from nbddp.wire.rank_set import NO_RANKS
from tests.support.sinks import PageSink

STARTING, IDLE = RankState.STARTING, RankState.IDLE


def snapshot_of(*states: RankState) -> PoolSnapshot:
    return PoolSnapshot(
        phase=Phase.RANKS,
        generation=0,
        ranks=tuple(RankInfo(rank=rank, node=0, state=state) for rank, state in enumerate(states)),
        run_id=None,
        active_run_id=None,
        joining=NO_RANKS,
        lost_agents=frozenset(),
        store_is_lost=False,
    )


def test_the_line_counts_the_ranks_that_are_ready():
    assert progress_line(snapshot_of(STARTING, IDLE, IDLE)) == "starting 3 ranks ... 2 of 3 ready"
    assert progress_line(snapshot_of(STARTING)) == "starting 1 rank ... 0 of 1 ready"


def test_one_display_of_a_front_end_changes_in_place_and_keeps_the_last_text():
    page = PageSink()
    display = StartDisplay(page, "id", is_front_end=True)
    display.show(snapshot_of(STARTING, STARTING))
    display.show(snapshot_of(STARTING, STARTING))
    display.show(snapshot_of(STARTING, IDLE))
    assert page.messages == 2  # unchanged lines are not sent
    assert page.plain == "starting 2 ranks ... 1 of 2 ready"
    display.end("2 <processes>")
    assert len(page.outputs) == 1
    assert page.plain == "2 <processes>"
    assert "2 &lt;processes&gt;" in page.html


def test_without_a_last_text_nothing_stays():
    page = PageSink()
    display = StartDisplay(page, "id", is_front_end=True)
    display.end("")
    assert page.outputs == []
    display.show(snapshot_of(STARTING))
    display.end("")
    assert page.outputs == [{"text/plain": ""}]


def test_outside_a_front_end_the_last_text_is_printed(capsys: pytest.CaptureFixture[str]):
    display = StartDisplay(TerminalSink(), "id", is_front_end=False)
    display.show(snapshot_of(STARTING))  # stderr is no terminal here
    display.end("1 process")
    assert capsys.readouterr() == ("1 process\n", "")
