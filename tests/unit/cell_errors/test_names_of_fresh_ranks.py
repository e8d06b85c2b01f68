"""A NameError of a fresh rank: the cell that it has not run, or why catchup left the name out."""

import pytest

from nbddp.controller.catch_up import CellHistory, PastCell
from nbddp.controller.state.lost_names import LeftOut, Reason
from nbddp.controller.state.outcome import RankResult, RunOutcome
from nbddp.wire.rank_set import NO_RANKS, RankSet
from tests.support.cell_errors import cell_error, freed, ok, raised, text

_INSTEAD = (
    "define model in a cell that begins with %%ddp -r 2, or copy it if it is data and the same on "
    "all ranks: model = %ddp pull model -r 0, then %ddp push model -r 2"
)


def test_a_name_that_only_a_fresh_rank_lacks():
    history = CellHistory()
    ended = RunOutcome("a", {rank: RankResult(rank, "ok") for rank in range(3)}, 0.1)
    history.begin("a", PastCell(3, "model = 1", 1, RankSet.all(3)))
    history.end(ended)
    history.note_restart(RankSet.of([2]))
    lacks = raised(2, "NameError", "name 'model' is not defined", name="model")

    def message(replaced: RankSet, origins: CellHistory | None = history) -> str:
        results = freed(0), lacks
        error = cell_error(*results, replacements=replaced, origins=origins, is_plain=False)
        return text(error)

    assert message(RankSet.of([2, 3])).endswith(
        "CellError: rank 2 raised NameError: name 'model' is not defined\n"
        "  likely    rank 2 is a fresh process: it has not run cell [3], which defines model\n"
        "  next      %ddp catchup -r 2 runs such cells there"
    )
    for others in (NO_RANKS, RankSet.of([3])):
        assert "fresh" not in message(others)
    assert "fresh" not in message(RankSet.of([2, 3]), None)


def test_the_cell_that_defines_a_name_which_a_fresh_rank_lacks():
    lacks = raised(2, "NameError", "name 'model' is not defined", name="model")
    history = CellHistory()
    for number, code, outcome in (
        (3, "model = 1", RunOutcome("a", {2: RankResult(2, "ok")}, 0.0)),
        (5, "1", RunOutcome("b", {2: RankResult(2, "exited")}, 0.0, fresh=RankSet.of([2]))),
    ):
        history.begin(outcome.run_id, PastCell(number, code, 1, RankSet.of([2])))
        history.end(outcome)
    message = text(cell_error(lacks, replacements=RankSet.of([2]), origins=history))
    assert (
        "  likely    rank 2 is a fresh process since cell [5]: it has not run cell [3], which "
        "defines model\n"
    ) in message


@pytest.mark.parametrize(
    ("reason", "why", "step"),
    [
        (Reason.FAILED, "cell [3], which defines it, had failed", _INSTEAD),
        (Reason.FAILS_NOW, "cell [3], which defines it, failed when it ran again", _INSTEAD),
        (Reason.NEEDS, "cell [3], which defines it, uses names that were not", _INSTEAD),
        (Reason.NO_CELL, "no cell defines it", _INSTEAD),
        (
            Reason.LOOP,
            "cell [3], which defines it, runs a loop with collectives",
            "%ddp catchup -r 2 --cells 3, to run it again",
        ),
        (
            Reason.ALONE,
            "cell [3], which defines it, did so on no other rank",
            "%ddp catchup -r 2 --cells 3, to run it again",
        ),
    ],
)
def test_a_name_that_a_rank_lacks_after_it_has_caught_up(reason: Reason, why: str, step: str):
    history = CellHistory()
    left = LeftOut(("model", "x"), reason, 3, copyable=frozenset(("model",)))
    history.note_left_out(RankSet.of([2]), [left])
    lacks = raised(2, "NameError", "name 'model' is not defined", name="model")
    message = text(cell_error(ok(0), lacks, replacements=RankSet.of([2]), origins=history))
    assert (
        f"  likely    rank 2 is a fresh process: %ddp catchup did not make model, as {why}"
        in message
    )
    assert message.endswith(f"\n  next      {step}")
