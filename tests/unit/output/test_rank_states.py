"""The row of chips of a running cell."""

import pytest

from nbddp.controller.diagnosis import PerRank, Predicate, RankVerb, Report
from nbddp.notebook.output.rank_states import RankStates
from nbddp.notebook.render import rank_strip
from nbddp.notebook.render.rank_strip import Chip, ChipState
from nbddp.wire.flight_recorder import Site
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import RankExited, RunFinished
from nbddp.wire.rank_set import RankSet


def finished(rank: int, error: str = "") -> RunFinished:
    info = ErrorInfo(ename=error, evalue="", traceback=[]) if error else None
    return RunFinished(run_id="r", rank=rank, elapsed_s=0.1, error=info)


def place(rank: int, verb: RankVerb, line: int) -> PerRank:
    site = Site(file="x", line=line, cell=3)
    return PerRank(rank, "running", Predicate(verb, " in all_reduce #1"), site)


def states_of(states: RankStates) -> list[str]:
    return [f"{chip.ranks} {chip.state.word} {chip.note}".rstrip() for chip in states.chips]


def test_ranks_end_in_the_state_that_they_reached():
    states = RankStates(RankSet.all(5))
    states.finish(finished(1))
    states.finish(finished(2, "ValueError"))
    states.finish(finished(3, "CollectiveAbortedError"))
    states.exit(RankExited(rank=4, pid=1, exit_code=-9, out_of_memory=False, last_output=""))
    assert states_of(states) == [
        "0 runs", "1 done", "2 raised ValueError", "3 was freed", "4 dead",
    ]  # fmt: skip
    states.diagnose(None)
    states.answer(2)
    assert states_of(states)[1:4] == ["1 done", "2 raised ValueError", "3 was freed"]


def test_ranks_that_wait_are_shown_with_their_line_until_they_go_on():
    states = RankStates(RankSet.all(3))
    places = [place(0, RankVerb.WAITS, 4), place(1, RankVerb.RUNS, 7)]
    states.diagnose(Report(run_id="r", ranks={each.rank: each for each in places}))
    assert states_of(states) == ["0 waits line 4", "1 runs line 7", "2 runs"]
    states.diagnose(None)
    assert states_of(states) == ["0 runs", "1 runs", "2 runs"]


def test_a_rank_that_asks_is_at_a_prompt_until_it_has_its_answer():
    states = RankStates(RankSet.all(2))
    states.ask(1)
    states.diagnose(None)
    assert states_of(states) == ["0 runs", "1 asks"]
    states.answer(1)
    assert states_of(states) == ["0 runs", "1 runs"]


def chips(count: int, *odd: int) -> list[Chip]:
    return [
        Chip(RankSet((rank,)), ChipState.WAITS if rank in odd else ChipState.RUNS, "line 4")
        for rank in range(count)
    ]


@pytest.mark.parametrize(("ranks", "shown"), [(2, 2), (32, 32), (64, 3)])
def test_neighbours_in_one_state_share_a_chip_where_there_are_many(ranks: int, shown: int):
    html = rank_strip.html(chips(ranks, 5) if ranks > 2 else chips(ranks))
    assert html.count("<b>") == shown
    if ranks == 64:
        assert "<b>0-4</b> ▸" in html
        assert "<b>5</b> ◌" in html
        assert "<b>6-63</b> ▸" in html


def test_a_note_is_beside_its_chip_only_where_there_is_room():
    assert "line 4</span></span>" in rank_strip.html(chips(8))
    html = rank_strip.html(chips(9))
    assert "line 4</span></span>" not in html
    assert 'title="rank 3: runs, line 4"' in html
