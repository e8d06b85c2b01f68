"""The row of chips of a running cell."""

from dataclasses import replace

import pytest

from nbddp.controller.diagnosis import Finding, PerRank, Predicate, RankVerb, Report
from nbddp.controller.state import MISMATCH_ERROR, RankResult, RunOutcome, Silence
from nbddp.notebook.output import rank_states
from nbddp.notebook.output.rank_states import RankStates
from nbddp.notebook.output.sinks import Live, strip_bundle
from nbddp.notebook.render import rank_strip
from nbddp.notebook.render.rank_strip import Chip, ChipState
from nbddp.wire.flight_recorder import LEFT_DEBUGGER, LoopVariable, Site
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import RankAt, RankExited, RunFinished
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
        "0 runs", "1 done", "2 raised ValueError", "3 waited", "4 dead",
    ]  # fmt: skip
    states.diagnose(None)
    states.answer(2)
    assert states_of(states)[1:4] == ["1 done", "2 raised ValueError", "3 waited"]


def test_ranks_that_wait_are_shown_with_their_line_until_they_go_on():
    states = RankStates(RankSet.all(3))
    places = [place(0, RankVerb.WAITS, 4), place(1, RankVerb.RUNS, 7)]
    states.diagnose(Report(run_id="r", ranks={each.rank: each for each in places}))
    assert states_of(states) == ["0 waits line 4", "1 runs line 7", "2 runs"]
    states.diagnose(None)
    assert states_of(states) == ["0 runs", "1 runs", "2 runs"]


def test_a_rank_that_runs_has_its_iteration_or_its_line():
    states = RankStates(RankSet.all(3))
    step = LoopVariable(name="step", value=7)
    states.move(RankAt(run_id="r", rank=0, line=4, iteration=(step,)))
    states.move(RankAt(run_id="r", rank=1, line=5))
    assert states_of(states) == ["0 runs step 7", "1 runs line 5", "2 runs"]
    states.diagnose(Report(run_id="r", ranks={1: place(1, RankVerb.WAITS, 4)}))
    assert states_of(states) == ["0 runs step 7", "1 waits line 4", "2 runs"]
    states.diagnose(None)
    assert states_of(states)[1] == "1 runs line 5"
    states.finish(finished(0))
    states.move(RankAt(run_id="r", rank=0, line=9))
    assert states_of(states)[0] == "0 done"


def test_all_ranks_at_a_prompt_have_its_sign_and_one_of_them_is_asked():
    states = RankStates(RankSet.all(3))
    states.ask(1)
    states.ask(2)
    states.turn(2)
    states.diagnose(None)
    assert states_of(states) == ["0 runs", "1 at a prompt", "2 asks you now"]
    assert [chip.state.sign for chip in states.chips] == ["▸", "?", "?◂"]
    states.ask(2)  # the line was for another rank
    states.turn(1)
    assert states_of(states) == ["0 runs", "1 asks you now", "2 at a prompt"]
    states.answer(1)
    states.answer(2)
    assert states_of(states) == ["0 runs", "1 runs", "2 runs"]


def chips(count: int, *odd: int) -> list[Chip]:
    return [
        Chip(RankSet((rank,)), ChipState.WAITS if rank in odd else ChipState.RUNS, "line 4")
        for rank in range(count)
    ]


@pytest.mark.parametrize(("ranks", "shown"), [(2, 2), (64, 64), (128, 3)])
def test_neighbours_in_one_state_share_a_chip_where_there_are_many(ranks: int, shown: int):
    html = rank_strip.html(chips(ranks, 5) if ranks > 2 else chips(ranks))
    assert html.count("<b>") == shown
    if ranks == 128:
        assert "<b>0-4</b> ▸" in html
        assert "<b>5</b> ◌" in html
        assert "<b>6-127</b> ▸" in html


def test_many_ranks_in_states_that_alternate_have_a_chip_for_each_state():
    html = rank_strip.html(chips(256, *range(0, 256, 3)))
    assert html.count("<b>") == 2
    assert "<b>0-255 in steps of 3</b> ◌ waits" in html


def test_words_are_beside_a_sign_where_there_is_room_and_in_a_legend_elsewhere():
    assert '▸ runs <span style="opacity:0.8">line 4</span></span>' in rank_strip.html(chips(4))
    html = rank_strip.html(chips(9, 5))
    assert "line 4</span></span>" not in html
    assert "waits</span>" not in html
    assert rank_strip.legend(chips(4)) == ""
    assert rank_strip.legend(chips(9, 5)) == "▸ runs  ◌ waits"
    many = chips(64, 5)
    assert "&ensp;" not in rank_strip.html(many)
    assert rank_strip.legend(many) == "▸ runs  ◌ waits"  # in the line below two rows of chips
    shown = strip_bundle(
        Live(("9 s",), strip=rank_strip.html(many), legend=rank_strip.legend(many))
    )
    assert "▸ runs  ◌ waits  |  9 s" in shown["text/html"]
    assert shown["text/plain"] == "9 s"
    assert 'title="rank 3: runs, line 4"' in html


# --- the row that stays --------------------------------------------------------------------------


def result(rank: int, end: str) -> RankResult:
    """A rank that ended: ``ok``, ``exited``, ``unfinished``, ``freed``, or with an exception."""
    if end in ("ok", "exited", "unfinished"):
        return RankResult(rank, end)  # type: ignore[arg-type]  # one of three
    error = ErrorInfo(
        ename="CollectiveAbortedError" if end == "freed" else end, evalue="", traceback=[]
    )
    return RankResult(rank, "error", error=error, was_freed=end == "freed")


def test_a_wait_that_an_interrupt_of_nbddp_ended_was_freed():
    """Python's own waits end with a KeyboardInterrupt, also if no user has pressed stop."""
    error = ErrorInfo(ename="KeyboardInterrupt", evalue="", traceback=[])
    results = {rank: result(rank, "ok") for rank in range(5)} | {5: result(5, "exited")}
    results[4] = RankResult(4, "error", error=error, was_freed=True)
    ends = rank_states.ends(RunOutcome("r", results, 0.1), has_card=True)
    assert rank_strip.ends(ends)["text/plain"] == "ranks  0-3 ✓ done  4 ◌ waited  5 † dead"


def row(*ends: str, has_card: bool = False) -> str:
    outcome = RunOutcome("r", {rank: result(rank, end) for rank, end in enumerate(ends)}, 0.1)
    found = rank_states.ends(outcome, has_card=has_card)
    return rank_strip.ends(found)["text/plain"] if found else ""


def test_the_row_says_how_each_rank_ended():
    ends = ["ok", "ok", "ValueError", "KeyboardInterrupt", "freed", "exited", "unfinished"]
    assert row(*ends, "Quit") == (
        "ranks  0-1 ✓ done  2 ✗ raised ValueError  3 ■ interrupted  4 ◌ waited  5 † dead  "
        "6 … given up  7 ✗ raised Quit"
    )
    assert row(*ends, LEFT_DEBUGGER).endswith("7 ■ interrupted in the debugger")


@pytest.mark.parametrize("end", ["ok", "ValueError", "freed"])
def test_no_row_stays_where_all_ranks_end_alike(end: str):
    assert row(*[end] * 64) == ""


@pytest.mark.parametrize(
    ("ends", "has_card", "has_row"),
    [
        (("ok", "ValueError"), False, False),  # the error says the same
        (("freed", "freed", "ok", "ok"), True, False),  # and so does the card
        (("ok", "ValueError", "KeyError", "ok"), False, True),
        (("ValueError", "KeyError"), False, True),
        (("ok", "ok", "ok", "ok", "ValueError"), False, True),
        (("ok", "ok", "ok", "ok", "freed"), True, True),
    ],
)
def test_few_ranks_have_a_row_where_nothing_else_names_them_all(
    ends: tuple[str, ...], *, has_card: bool, has_row: bool
):
    assert bool(row(*ends, has_card=has_card)) is has_row


def test_a_rank_that_lost_the_connection_to_a_dead_one_only_waited():
    assert row("freed", "CollectiveFailedError", "exited", "CollectiveFailedError", "freed") == (
        "ranks  0-1 ◌ waited  2 † dead  3-4 ◌ waited"
    )


def test_a_mismatch_has_no_row_since_chance_decides_which_rank_raises():
    assert row("ok", "ok", "ok", "freed", MISMATCH_ERROR) == ""


@pytest.mark.parametrize("ends", [("freed", MISMATCH_ERROR), (MISMATCH_ERROR, "freed")])
def test_the_chips_of_a_mismatch_are_those_of_the_calls(ends: tuple[str, ...]):
    results = {rank: result(rank, end) for rank, end in enumerate((*ends, "freed", "ok"))}
    finding = Finding(
        kind="mismatched-collective",
        proven=True,
        culprits=RankSet.of([1]),
        waiting=RankSet.of([0, 2]),
        headline="",
        reason="",
        next_step="",
        op="all_reduce",
    )
    outcome = RunOutcome("r", results, 0.1, report=Report("r", (finding,)))
    chips = rank_strip.ends(rank_states.all_ends(outcome))["text/plain"]
    assert chips == "ranks  0 ◌ waited  1 ✗ mismatch in all_reduce  2 ◌ waited  3 ✓ done"


def test_64_ranks_have_one_line_also_if_neighbours_differ():
    assert row(*["ok"] * 63, "KeyError") == "ranks  0-62 ✓ done  63 ✗ raised KeyError"
    text = row(*["ok", "KeyError"] * 8)
    assert text == "ranks  even 0-14 ✓ done  odd 1-15 ✗ raised KeyError"


def test_the_row_is_a_list_of_words_without_colours():
    html = rank_strip.ends([Chip(RankSet((1,)), ChipState.RAISED, "ValueError")])["text/html"]
    assert "<b>1</b> ✗ raised ValueError</span>" in html
    assert 'role="list" aria-label="how the ranks ended"' in html


def test_ranks_that_never_made_a_call_are_not_shown_as_done():
    results = {rank: result(rank, "ok" if rank else "freed") for rank in range(12)}
    finding = Finding(
        kind="missing-rank",
        proven=True,
        culprits=RankSet.of(range(1, 12)),
        waiting=RankSet.of([0]),
        headline="",
        reason="",
        next_step="",
        op="all_reduce",
    )
    outcome = RunOutcome("r", results, 0.1, report=Report("r", (finding,)))
    chips = rank_states.ends(outcome, has_card=True)
    row = rank_strip.ends(chips)["text/plain"]
    assert row == "ranks  0 ◌ waited  1-11 ✗ never called all_reduce"
    finding = replace(finding, origin="gradients")
    outcome = replace(outcome, report=Report("r", (finding,)))
    row = rank_strip.ends(rank_states.ends(outcome, has_card=True))["text/plain"]
    assert row == "ranks  0 ◌ waited  1-11 ✗ never called all_reduce (gradients)"


def test_ranks_on_a_silent_node_are_not_said_to_be_given_up():
    results = {0: result(0, "KeyboardInterrupt"), 1: result(1, "unfinished")}
    results[2] = result(2, "unfinished")
    silent = (Silence(1, "n2", 4.0, 60.0, RankSet.of([2])),)
    outcome = RunOutcome("r", results, 0.1, interrupted=True, silent=silent)
    assert rank_strip.ends(rank_states.ends(outcome, has_card=False))["text/plain"] == (
        "ranks  0 ■ interrupted  1 … given up  2 ~ not heard"
    )
