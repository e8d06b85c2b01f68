"""The merged output of many ranks: folding, order, results, displays."""

from collections.abc import Sequence
from typing import Any

import pytest

from nbddp.notebook.output.gatherer import Gatherer, Redraw, Rich, Show, Text
from nbddp.settings import Settings
from nbddp.wire.messages import ClearOutput, Display, Output, Result, Stream
from nbddp.wire.rank_set import RankSet
from tests.support.output_specs import spec_of

FOLD_S = Settings().output_fold_s


def make(ranks: int = 4, *, world_size: int | None = None, **settings: Any) -> Gatherer:
    return Gatherer(spec_of(ranks, Settings(**settings), world_size=world_size))


def out(rank: int, text: str, stream: Stream = "stdout", dropped: int = 0) -> Output:
    return Output(run_id="run1", rank=rank, stream=stream, text=text, dropped_bytes=dropped)


def display(
    rank: int, data: dict[str, Any], display_id: str | None = None, *, update: bool = False
) -> Display:
    transient = {"display_id": display_id} if display_id else {}
    return Display(
        run_id="run1", rank=rank, data=data, metadata={}, transient=transient, update=update
    )


def result(rank: int, text: str) -> Result:
    return Result(run_id="run1", rank=rank, data={"text/plain": text}, metadata={})


def clear(rank: int, *, wait: bool = False) -> ClearOutput:
    return ClearOutput(run_id="run1", rank=rank, wait=wait)


def text_of(shows: Sequence[Show]) -> str:
    """All text; bundles as ``<ranks html>``, redraws in braces."""
    parts = []
    for show in shows:
        if isinstance(show, Text):
            parts.append(show.text)
        elif isinstance(show, Rich):
            parts.append(f"<{show.ranks} {next(iter(show.data.values()))}>\n")
        else:
            parts.append("{" + text_of(show.blocks) + "}\n")
    return "".join(parts)


def add_all(gatherer: Gatherer, text: str, ranks: int = 4, now: float = 0.0) -> list[Show]:
    shows: list[Show] = []
    for rank in range(ranks):
        shows += gatherer.add(out(rank, text), now)
    return shows


# Folding


def test_a_line_of_all_ranks_is_shown_once_and_at_once():
    assert add_all(make(), "hello\n") == [Text("stdout", "[0-3] hello\n")]


def test_different_lines_keep_their_ranks_and_come_in_their_order():
    gatherer = make(3)
    for rank in (2, 0, 1):
        assert gatherer.add(out(rank, f"I am {rank}\n"), 0.0) == []
    assert gatherer.next_deadline() == FOLD_S
    assert gatherer.tick(FOLD_S / 2) == []
    assert text_of(gatherer.tick(FOLD_S)) == "[0]   I am 0\n[1]   I am 1\n[2]   I am 2\n"
    assert gatherer.next_deadline() is None


@pytest.mark.parametrize("late", range(4))
def test_an_odd_line_does_not_spoil_the_folding_of_the_rest(late: int):
    gatherer = make()
    shows: list[Show] = []
    for rank in range(4):
        text = "A\nodd\nB\nC\n" if rank == late else "A\nB\nC\n"
        shows += gatherer.add(out(rank, text), 0.0)
    assert text_of(shows) == f"[0-3] A\n[{late}]   odd\n[0-3] B\n[0-3] C\n"


def test_lines_in_another_order_are_never_swapped():
    gatherer = make(2)
    gatherer.add(out(0, "late\nB\nC\nD\n"), 0.0)
    shows = gatherer.add(out(1, "B\nC\nD\nlate\n"), 0.0)
    shows += gatherer.end(0.0)
    assert text_of(shows) == "[0]   late\n[0-1] B\n[0-1] C\n[0-1] D\n[1]   late\n"


def test_some_ranks_fold_when_the_window_ends():
    gatherer = make(output_expect_s=0.0)
    for rank in (0, 1, 3):
        gatherer.add(out(rank, "step 1\n"), 0.01 * rank)
    assert text_of(gatherer.tick(FOLD_S)) == "[0-1,3] step 1\n"
    assert text_of(gatherer.end(1.0)) == ""


def test_a_finished_rank_is_not_waited_for():
    gatherer = make(3)
    gatherer.add(out(0, "go on\n"), 0.0)
    gatherer.add(out(1, "go on\n"), 0.0)
    assert text_of(gatherer.finish_rank(2, 0.01)) == "[0-1] go on\n"


def test_output_of_a_finished_rank_still_folds():
    gatherer = make(2)
    gatherer.add(out(0, "same\n"), 0.0)
    assert gatherer.finish_rank(0, 0.0) == []
    assert text_of(gatherer.add(out(1, "same\n"), 0.01)) == "[0-1] same\n"


def test_the_end_of_all_ranks_shows_everything_in_rank_order():
    gatherer = make(3)
    for now, rank in enumerate((2, 0, 1)):
        gatherer.add(out(rank, f"{rank}a\n{rank}b\n"), now / 1000)
    assert gatherer.finish_rank(1, 0.003) == gatherer.finish_rank(0, 0.003) == []
    assert text_of(gatherer.finish_rank(2, 0.003)) == (
        "[0]   0a\n[0]   0b\n[1]   1a\n[1]   1b\n[2]   2a\n[2]   2b\n"
    )


def test_streams_do_not_fold_with_each_other():
    gatherer = make(2)
    gatherer.add(out(0, "x\n"), 0.0)
    gatherer.add(out(1, "x\n", "stderr"), 0.0)
    assert gatherer.end(0.0) == [Text("stdout", "[0]   x\n"), Text("stderr", "[1]   x\n")]


def test_a_pool_of_one_rank_has_no_labels():
    gatherer = make(1)
    assert gatherer.add(out(0, "plain\n\n"), 0.0) == [Text("stdout", "plain\n\n")]


def test_one_rank_of_a_larger_pool_is_labelled_and_shown_at_once():
    gatherer = make(1, world_size=4)
    assert gatherer.add(out(0, "a\n\nb\n"), 0.0) == [Text("stdout", "[0]   a\n[0]\n[0]   b\n")]


def test_a_rank_that_does_not_run_the_cell_is_shown_too():
    gatherer = make(1, world_size=2)
    gatherer.add(out(1, "from a thread\n"), 0.0)
    assert text_of(gatherer.end(0.0)) == "[1]   from a thread\n"


# Lines without end


def test_an_unfinished_line_is_open_until_its_newline():
    gatherer = make(2)
    for rank in range(2):
        assert gatherer.add(out(rank, "loss"), 0.0) == []
    assert gatherer.open_lines() == [(RankSet.all(2), "loss")]
    assert gatherer.tick(9.0) == []
    gatherer.add(out(0, " 1\n"), 9.0)
    assert text_of(gatherer.add(out(1, " 1\n"), 9.0)) == "[0-1] loss 1\n"
    assert gatherer.open_lines() == []


def test_an_unfinished_line_becomes_a_line_at_the_end():
    gatherer = make(2)
    gatherer.add(out(1, "no newline"), 0.0)
    assert text_of(gatherer.finish_rank(1, 0.0)) == ""
    assert text_of(gatherer.end(0.0)) == "[1]   no newline\n"


def test_progress_bars_do_not_flood():
    gatherer = make(2)
    shows: list[Show] = []
    for step in range(1000):
        for rank in range(2):
            shows += gatherer.add(out(rank, f"\r{step:4}/1000", "stderr"), step / 100)
        shows += gatherer.tick(step / 100)
    assert shows == []
    assert gatherer.open_lines() == [(RankSet.all(2), " 999/1000")]
    assert gatherer.end(10.0) == [Text("stderr", "[0-1]  999/1000\n")]


def test_nested_progress_bars_stay_in_place():
    gatherer = make(1)
    shows: list[Show] = []
    for outer in range(3):
        shows += gatherer.add(out(0, f"\router {outer}", "stderr"), 0.0)
        for inner in range(5):
            shows += gatherer.add(out(0, "\n", "stderr"), 0.0)
            shows += gatherer.add(out(0, f"\rinner {inner}\x1b[A", "stderr"), 0.0)
    rows = [row for _, row in gatherer.open_lines()]
    assert rows[-2:] == ["outer 2", "inner 4"]
    assert len(text_of([*shows, *gatherer.end(0.0)]).splitlines()) <= 3


# Results and displays


def test_a_result_of_one_line():
    gatherer = make()
    shows = [show for rank in range(4) for show in gatherer.add(result(rank, "tensor(6.)"), 0.0)]
    assert shows == [Text("stdout", "[0-3] Out: tensor(6.)\n")]


def test_a_result_of_several_lines_stays_together_and_keeps_its_columns():
    gatherer = make(2)
    for rank in range(2):
        gatherer.add(result(rank, f"tensor([[{rank}],\n        [7]])"), 0.0)
    assert text_of(gatherer.end(0.0)) == (
        "[0]   Out:\n[0]   tensor([[0],\n[0]           [7]])\n"
        "[1]   Out:\n[1]   tensor([[1],\n[1]           [7]])\n"
    )


def test_a_display_that_is_only_text_is_lines():
    gatherer = make(1, world_size=2)
    assert gatherer.add(display(0, {"text/plain": "a\nb"}), 0.0) == [
        Text("stdout", "[0]   a\n[0]   b\n")
    ]


def test_equal_bundles_fold():
    gatherer = make(2)
    assert gatherer.add(display(0, {"text/html": "<b>x</b>"}), 0.0) == []
    assert gatherer.add(display(1, {"text/html": "<b>x</b>"}), 0.01) == [
        Rich(RankSet.all(2), "display", {"text/html": "<b>x</b>"}, {})
    ]


def test_bundles_fold_only_when_exactly_equal():
    gatherer = make(2)
    gatherer.add(display(0, {"application/json": {"a": 1}}), 0.0)
    gatherer.add(display(1, {"application/json": {"a": True}}), 0.0)
    assert [show.ranks for show in gatherer.end(0.0) if isinstance(show, Rich)] == [
        RankSet.of([0]),
        RankSet.of([1]),
    ]


def test_a_rich_result_is_a_result():
    gatherer = make(1)
    data = {"text/plain": "df", "text/html": "<table>"}
    shows = gatherer.add(Result(run_id="run1", rank=0, data=data, metadata={}), 0.0)
    assert shows == [Rich(RankSet.of([0]), "result", data, {})]


def test_text_printed_before_a_display_is_shown_before_it():
    gatherer = make(2)
    gatherer.add(out(1, "before\nopen"), 0.0)
    gatherer.add(display(1, {"text/html": "H"}), 0.0)
    gatherer.add(out(1, "after\n"), 0.0)
    shows = gatherer.add(display(0, {"text/html": "H"}), 0.0)
    assert (
        text_of([*shows, *gatherer.end(0.0)]) == "[1]   before\n[1]   open\n<0-1 H>\n[1]   after\n"
    )


def test_displays_with_an_id_do_not_fold_and_have_an_id_of_their_own():
    gatherer = make(2)
    shows = gatherer.add(display(1, {"text/plain": "x"}, "bar"), 0.0)
    shows += gatherer.add(display(0, {"text/plain": "x"}, "bar"), FOLD_S / 2)
    assert shows == []  # they come together, and are shown in the order of ranks
    shows = gatherer.tick(FOLD_S)
    assert [(show.ranks.ranks, show.display_id) for show in shows if isinstance(show, Rich)] == [
        ((0,), "nbddp-scope-0-bar"),
        ((1,), "nbddp-scope-1-bar"),
    ]


def test_updates_come_at_most_ten_times_a_second_and_the_last_one_wins():
    gatherer = make(1)
    gatherer.add(display(0, {"text/html": "start"}, "bar"), 0.0)
    shows: list[Show] = []
    for step in range(100):
        shows += gatherer.add(display(0, {"text/html": str(step)}, "bar", update=True), step / 1000)
    assert text_of(shows) == "<0 0>\n"
    assert all(isinstance(show, Rich) and show.update for show in shows)
    deadline = gatherer.next_deadline()
    assert deadline is not None
    assert text_of(gatherer.tick(deadline)) == "<0 99>\n"
    assert gatherer.next_deadline() is None


def test_an_update_of_a_display_that_waits_changes_it():
    gatherer = make(2, output_expect_s=0.0)
    gatherer.add(out(0, "in front\n"), 0.0)
    gatherer.add(display(0, {"text/html": "old"}, "d"), 0.0)
    gatherer.add(display(0, {"text/html": "new"}, "d", update=True), 0.0)
    assert text_of(gatherer.tick(FOLD_S)) == "[0]   in front\n<0 new>\n"


# clear_output


def test_clear_takes_one_rank_away_at_once():
    gatherer = make(2)
    add_all(gatherer, "both\n", 2)
    gatherer.add(out(1, "mine\n"), 0.0)
    gatherer.tick(1.0)
    assert text_of(gatherer.add(clear(1), 1.0)) == "{[0]   both\n}\n"


def test_clear_by_all_leaves_nothing():
    gatherer = make(2)
    add_all(gatherer, "both\n", 2)
    gatherer.add(clear(0), 1.0)
    assert gatherer.add(clear(1), 1.0) == []
    assert gatherer.tick(1.1) == [Redraw(())]


def test_clear_of_nothing_shows_nothing():
    gatherer = make(2)
    gatherer.add(out(0, "never seen\n"), 0.0)
    assert gatherer.add(clear(0), 0.0) == []
    assert gatherer.end(1.0) == []


def test_clear_that_waits_comes_with_the_next_output():
    gatherer = make(1)
    gatherer.add(out(0, "step 1\n"), 0.0)
    assert gatherer.add(clear(0, wait=True), 1.0) == []
    assert gatherer.tick(5.0) == []
    assert gatherer.add(out(0, "step 2\n"), 5.0) == [Redraw((Text("stdout", "step 2\n"),))]


def test_clear_that_waits_on_all_ranks_is_one_redraw():
    gatherer = make(2)
    add_all(gatherer, "step 1\n", 2)
    shows: list[Show] = []
    for rank in range(2):
        shows += gatherer.add(clear(rank, wait=True), 1.0)
    for rank in range(2):
        shows += gatherer.add(out(rank, "step 2\n"), 1.0)
    assert text_of(shows) == "{[0-1] step 2\n}\n"


def test_redraws_are_limited_and_the_last_state_wins():
    gatherer = make(1)
    redraws = 0
    shown = ""
    for step in range(1000):
        now = step / 1000
        shows = gatherer.add(clear(0, wait=True), now)
        shows += [*gatherer.add(out(0, f"step {step}\n"), now), *gatherer.tick(now)]
        redraws += sum(isinstance(show, Redraw) for show in shows)
        shown = text_of(shows) or shown
    assert 9 <= redraws <= 11
    assert text_of(gatherer.end(1.0)) == "{step 999\n}\n"


def test_a_redraw_has_the_latest_content_of_displays():
    gatherer = make(2)
    gatherer.add(display(0, {"text/html": "old"}, "d"), 0.0)
    gatherer.add(out(1, "gone\n"), 0.0)
    gatherer.tick(1.0)
    gatherer.add(display(0, {"text/html": "new"}, "d", update=True), 1.0)
    assert text_of(gatherer.add(clear(1), 1.0)) == "{<0 new>\n}\n"


# What can be asked


def test_the_last_line_of_a_rank():
    gatherer = make(1)
    assert gatherer.last_line(0) is None
    gatherer.add(out(0, "a\nb\n"), 0.0)
    assert gatherer.last_line(0) == "b"
    gatherer.add(out(0, "open"), 0.0)
    assert gatherer.last_line(0) == "open"
