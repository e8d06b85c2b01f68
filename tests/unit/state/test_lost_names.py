"""The words about names that a fresh rank lacks, and the command that makes them again."""

import pytest

from nbddp.controller.state import LeftOut, Reason, catch_up_command, run_loops_text, used_text
from nbddp.wire.rank_set import NO_RANKS, RankSet

ONE = RankSet.of([1])


@pytest.mark.parametrize(
    ("ranks", "cells", "command"),
    [
        (NO_RANKS, [], "%ddp catchup"),
        (ONE, [], "%ddp catchup -r 1"),
        (NO_RANKS, [5], "%ddp catchup --cells 5"),
        (RankSet.of([0, 1, 3]), (2, 5), "%ddp catchup -r 0-1,3 --cells 2,5"),
    ],
)
def test_the_command_names_ranks_and_cells(ranks: RankSet, cells: list[int], command: str):
    assert catch_up_command(ranks, cells) == command


def left(uses: str, *loops: int) -> LeftOut:
    return LeftOut(("x",), Reason.NEEDS, 7, uses=tuple(uses), loops=loops)


def test_a_loop_is_named_for_what_is_made_in_it():
    assert used_text(left("")) == "uses names that were not made again"
    assert used_text(left("y", 2)) == (
        "uses y, for which cell [2] would have to run again, a loop with collectives"
    )
    assert used_text(left("abc", 2, 5)) == (
        "uses a, b and c, for which cells [2], [5] would have to run again, loops with collectives"
    )
    assert used_text(left("abcdefghij", 2)).startswith(
        "uses a, b, c, d, e, f, g, h and 2 more, for"
    )
    assert run_loops_text(left("y", 2), ONE) == "%ddp catchup -r 1 --cells 2, to run it again"
    assert run_loops_text(left("ab", 2, 5), ONE).endswith("--cells 2,5, to run them again")
