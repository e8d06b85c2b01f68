"""Ranks whose processes ended when they had ended the cell, and others were still in it."""

from dataclasses import replace

import msgspec
import pytest

from nbddp.controller.cell_errors import cell_error, exit_report, freed_ranks
from nbddp.controller.cell_errors.build import ranks_to_debug
from nbddp.controller.diagnosis import Finding
from nbddp.controller.state import RankResult, RunOutcome
from nbddp.controller.state.outcome import exited_result
from nbddp.notebook.render import diagnosis_card
from nbddp.wire.flight_recorder import Operation
from nbddp.wire.message_types import AgentEnd, LostAgent
from nbddp.wire.rank_set import NO_RANKS, RankSet
from tests.support.cell_errors import ALL_REDUCE, died, freed, ok, raised, rendered, site

SCANCEL = AgentEnd("taken-away", 0, "1")


def after(before: RankResult, at_s: float = 4.8, end: AgentEnd | None = None, node: int = 0):
    """A rank that ended the cell at 1.0 s, and whose process ended later."""
    exited = died(before.rank).exited
    assert exited is not None
    if end is not None:
        exited = msgspec.structs.replace(exited, cause=LostAgent(node, end))
    exited = msgspec.structs.replace(exited, last_line=site(9, "from a formatter"))
    return exited_result(before, exited, at_s)


def raised_at(rank: int, line: int = 2) -> RankResult:
    result = raised(rank, "ZeroDivisionError", "division by zero")
    assert result.error is not None
    place = site(line, "1/0")
    return msgspec.structs.replace(result, error=msgspec.structs.replace(result.error, site=place))


def lost(rank: int, at_s: float, node: int, seq: int = 18) -> RankResult:
    last = Operation(
        record_id=3,
        pg_id="0",
        signature=ALL_REDUCE,
        state="completed",
        collective_seq_id=seq,
        site=site(5),
        run_id="r",
    )
    dead = died(rank, elapsed_s=at_s)
    assert dead.exited is not None
    exited = msgspec.structs.replace(
        dead.exited,
        cause=LostAgent(node, SCANCEL),
        last_operation=last,
        last_line=site(5),
        last_line_age_s=at_s / 10,
    )
    return msgspec.structs.replace(dead, exited=exited)


def outcome_of(
    *results: RankResult, fresh: RankSet = NO_RANKS, dead: RankSet = NO_RANKS
) -> RunOutcome:
    outcome = RunOutcome("r", {each.rank: each for each in results}, 8.0, fresh=fresh, dead=dead)
    return replace(outcome, report=exit_report(outcome))


def headline(outcome: RunOutcome) -> str:
    error = cell_error(outcome, "cell [7]", {})
    assert error is not None
    return error.headline.removeprefix("RankExitedError: ")


def finding(outcome: RunOutcome) -> Finding:
    assert outcome.report is not None
    return outcome.report.findings[0]


def test_the_error_of_a_rank_that_raised_and_then_died_is_kept():
    outcome = outcome_of(ok(0), after(raised_at(1)), fresh=RankSet.of([1]))
    assert headline(outcome) == (
        "rank 1 raised ZeroDivisionError at cell [7], line 2; its process exited with SIGKILL "
        "(signal 9) 3.8 s later, after its part of the cell"
    )
    error = cell_error(outcome, "cell [7]", {})
    assert error is not None
    for text in (str(error), rendered(error)):
        assert "<traceback of ZeroDivisionError: division by zero>" in text
        assert "seen" not in text
        assert "while it ran" not in text
    assert "before    it had raised ZeroDivisionError 3.8 s before, at cell [7], line 2" in str(
        error
    )
    assert error.by_rank[1] == ("ZeroDivisionError", "division by zero")
    assert str(finding(outcome).ranks[1]) == (
        "rank 1 exited; it had raised ZeroDivisionError 3.8 s before, at cell [7], line 2: `1/0`"
    )
    assert ranks_to_debug(outcome) == NO_RANKS  # its variables are gone


@pytest.mark.parametrize(
    ("results", "text"),
    [
        ([after(ok(1))], "rank 1 exited with SIGKILL (signal 9) after it had finished cell [7]"),
        (
            [after(ok(1)), died(2)],
            "ranks 1-2 exited with SIGKILL (signal 9): rank 2 while it ran cell [7], rank 1 after "
            "its part of it",
        ),
        (
            [after(ok(1)), after(raised_at(2))],
            "ranks 1-2 exited with SIGKILL (signal 9) after they had left cell [7]",
        ),
        (
            [after(raised_at(rank), 4.8, AgentEnd("signal", 9), 1) for rank in (1, 2)],
            "ranks 1-2 raised ZeroDivisionError at cell [7], line 2; their processes exited 3.8 s "
            "later, after their part of the cell",
        ),
        (
            [after(raised_at(rank), 61.0, AgentEnd("silent", 60, "n2"), 1) for rank in (1, 2)],
            "ranks 1-2 raised ZeroDivisionError at cell [7], line 2; they were lost 60.0 s later, "
            "after their part of the cell",
        ),
        (
            [after(ok(1), 61.0, AgentEnd("silent", 60, "n2"), 1)],
            "rank 1 was lost after it had finished cell [7]",
        ),
    ],
)
def test_the_headline_on_ranks_that_had_left_the_cell(results: list[RankResult], text: str):
    assert headline(outcome_of(ok(0), *results)) == text


def test_a_time_that_is_not_known_is_not_told():
    unknown = msgspec.structs.replace(after(raised_at(1)), is_time_known=False)
    outcome = outcome_of(ok(0), unknown)
    assert headline(outcome).endswith("(signal 9) later, after its part of the cell")
    assert finding(outcome).ranks[1].what == "exited; it had raised ZeroDivisionError"


def test_the_error_of_a_rank_that_was_freed_before_it_died_is_no_error_of_its_own():
    outcome = outcome_of(ok(0), after(freed(1)))
    assert headline(outcome) == ("rank 1 exited with SIGKILL (signal 9) after it had left cell [7]")
    assert finding(outcome).waiting == NO_RANKS
    error = cell_error(outcome, "cell [7]", {})
    assert "others    rank 1" not in str(error)


def test_ranks_that_were_lost_since_the_cell_ended_keep_nothing():
    dead = [lost(rank, 4.0, 0) for rank in (0, 1)]
    outcome = outcome_of(*dead, raised_at(2), raised_at(3), dead=RankSet.all(4))
    error = cell_error(outcome, "cell [7]", {})
    assert "keep" not in str(error)
    assert str(error).endswith("  next      %ddp restart")


def test_the_aside_of_a_sentence_stands_behind_one_blank():
    error = cell_error(outcome_of(ok(0), lost(1, 4.0, 1)), "cell [7]", {})
    assert str(error).endswith(
        "%ddp restart -r 1 asks for another agent in the place of node 1 (rank 0 keeps its "
        "variables)"
    )


# --- agents that ended ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        ([after(ok(1), 4.0, SCANCEL, 1)], "its agent has ended."),
        ([after(ok(1), 4.0, AgentEnd("engine", 0, "srun: killed"), 1)], "its agent has ended."),
        (
            [after(ok(1), 61.0, AgentEnd("silent", 60, "n2"), 1)],
            "the connection to its agent was given up.",
        ),
        (
            [after(ok(rank), 4.0, SCANCEL, 1) for rank in (1, 2)],
            "their agent has ended.",
        ),
        (
            [after(ok(rank), 4.0, SCANCEL, rank) for rank in (1, 2)],
            "their agents have ended.",
        ),
        (
            [after(ok(1), 4.0, SCANCEL, 1), died(2)],
            "the process of rank 2 has ended, and the agent of rank 1 has ended.",
        ),
        (
            [after(ok(1), 4.0, SCANCEL, 1), after(ok(2), 61.0, AgentEnd("silent", 60, "n2"), 2)],
            "the agent of rank 1 has ended, and the connection to the agent of rank 2 was given "
            "up.",
        ),
    ],
)
def test_only_a_silent_node_is_given_up(results: list[RankResult], reason: str):
    said = finding(outcome_of(ok(0), *results)).reason
    assert said.partition(" SIGKILL means")[0] == reason


def test_ranks_that_end_together_share_a_row():
    dead = [lost(0, 2.2, 0), lost(1, 2.3, 0), lost(2, 2.1, 1, seq=17), lost(3, 2.2, 1, seq=17)]
    outcome = outcome_of(*dead)
    card = diagnosis_card.card(exit_report(outcome), is_over=True)["text/plain"]
    text = " ".join(card.split())
    assert text.count("after the cell began") == 1
    assert (
        "> ranks 0-3 exited, the agents of nodes 0 and 1 ended (SIGTERM: Slurm takes the node "
        "away, since job 1 was cancelled (scancel) or preempted), 2.1 to 2.3 s after the cell "
        "began; their last operations were all_reduce #17 and all_reduce #18, at cell [7], line 5"
    ) in text


def test_ranks_that_end_one_long_after_the_other_have_rows_of_their_own():
    outcome = outcome_of(died(0, elapsed_s=1.0), died(1, elapsed_s=9.0), ok(2))
    what = [str(each) for each in finding(outcome).ranks.values()]
    assert "1.0 s after the cell began" in what[0]
    assert "9.0 s after the cell began" in what[1]


def test_a_rank_whose_connection_broke_with_an_exit_was_freed():
    broke = raised(0, "CollectiveFailedError", "closed")
    assert freed_ranks(outcome_of(broke, died(1), freed(2)))[0] == RankSet.of([0, 2])
    silent = lost(1, 61.0, 1)
    assert silent.exited is not None
    cause = LostAgent(1, AgentEnd("silent", 60, "n2"))
    silent = msgspec.structs.replace(
        silent, exited=msgspec.structs.replace(silent.exited, cause=cause)
    )
    assert freed_ranks(outcome_of(broke, silent))[0] == NO_RANKS  # its card says what it raised
