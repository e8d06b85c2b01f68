"""The error of a cell in which ranks called operations that do not match."""

from dataclasses import replace

from nbddp.controller.cell_errors import build
from nbddp.controller.state.outcome import RankResult, RunOutcome
from nbddp.errors import CellError, MismatchError
from nbddp.wire.flight_recorder.schema import Mismatch
from tests.support.cell_errors import (
    LOGS,
    cell_error,
    freed,
    mismatch,
    ok,
    raised,
    rendered,
    report,
    text,
)


def test_a_verdict_on_a_mismatch():
    error = cell_error(
        freed(0), ok(1), freed(2), report=report("mismatched-collective"), is_plain=False
    )
    assert type(error) is MismatchError


def test_a_mismatch_that_was_seen_before_data_moved():
    wrong = raised(1, "CollectiveMismatchError", "broadcast against all_reduce", at_ns=1)
    wrong = RankResult(1, "error", error=wrong.error, failed_at_ns=1, mismatches=(mismatch(),))
    error = cell_error(freed(0), wrong, freed(2), report=report("first-error"), is_plain=False)
    assert type(error) is MismatchError
    assert text(error) == (
        "rank 1\n<traceback of CollectiveMismatchError: broadcast against all_reduce>\n\n"
        "ranks 0,2 waited in all_reduce #17 (cell [7], line 5) and were freed\n"
        "MismatchError: rank 0 called all_reduce, rank 1 called broadcast; "
        "it was seen before any data was lost\n"
        "  rank 0    called all_reduce at cell [7], line 5: `dist.all_reduce(x)`\n"
        "  rank 1    called broadcast at cell [7], line 9: `dist.broadcast(x, 0)`\n"
        "  kept      every variable is kept; the process groups are ready again\n"
        "  next      Call it on all ranks."
    )


def test_a_mismatch_error_names_the_ranks_that_its_card_names():
    """A rank that saw the mismatch knows one other rank, the one that came first."""
    wrong, usual = mismatch().mine, mismatch().theirs
    seen = {
        0: Mismatch(rank=0, peer=1, mine=usual, theirs=wrong, fields=("op",)),
        2: Mismatch(rank=2, peer=1, mine=usual, theirs=wrong, fields=("op",)),
    }
    results = [
        RankResult(
            rank,
            "error",
            error=raised(rank, "CollectiveMismatchError", f"of {rank}").error,
            failed_at_ns=9 - rank,
            mismatches=(each,),
        )
        for rank, each in seen.items()
    ]
    card = report("mismatched-collective")
    headline = "Rank 1 called broadcast, ranks 0,2 called all_reduce, as collective #17"
    told = replace(card.findings[0], headline=f"{headline}.", collective_seq_id=17)
    error = cell_error(*results, freed(1), is_plain=False, report=replace(card, findings=(told,)))
    assert f"MismatchError: {headline}\n" in text(error)
    assert (
        "  ranks 0,2 called all_reduce at cell [7], line 5: `dist.all_reduce(x)`\n"
        "  rank 1    called broadcast at cell [7], line 9: `dist.broadcast(x, 0)`\n"
    ) in text(error)
    # Without a report, the error says all that is known.
    error = cell_error(*results, freed(1), is_plain=False)
    assert "MismatchError: rank 1 called broadcast, ranks 0,2 called all_reduce;" in text(error)


def test_one_traceback_is_enough_for_a_mismatch_that_several_ranks_saw():
    results = [
        RankResult(
            rank,
            "error",
            error=raised(rank, "CollectiveMismatchError", f"of {rank}").error,
            failed_at_ns=at_ns,
            mismatches=(mismatch(),),
        )
        for rank, at_ns in ((1, 5), (2, 3))
    ]
    error = cell_error(freed(0), *results, is_plain=False)
    assert type(error) is MismatchError
    assert text(error).startswith(
        "rank 2\n<traceback of CollectiveMismatchError: of 2>\n\n"
        "rank 0 waited (cell [7], line 5) and was freed\n"
        "rank 1 raised CollectiveMismatchError too\n"
        "MismatchError: "
    )


def test_a_mismatch_that_was_only_warned_of_is_no_error():
    warned = RankResult(1, "ok", mismatches=(mismatch(),))
    outcome = RunOutcome("r", {0: ok(0), 1: warned}, 1.0)
    assert build.cell_error(outcome, "cell [7]", LOGS) is None
    error = cell_error(warned, raised(0))
    assert type(error) is CellError


def test_a_cell_that_ended_well_and_wrong():
    wrong = report("silent-mismatch", is_error=True)
    error = cell_error(ok(0), ok(1), ok(2), report=wrong, is_wrong=True)
    assert type(error) is MismatchError
    assert text(error) == (
        "MismatchError: Rank 1 never called all_reduce #17; ranks 0,2 wait for it\n"
        "  proven    it has finished.\n"
        "  next      Call it on all ranks."
    )
    assert rendered(error) == (
        "MismatchError: Rank 1 never called all_reduce #17; ranks 0,2 wait for it\n"
        "  next      Call it on all ranks."
    )
    assert error.by_rank == {}
