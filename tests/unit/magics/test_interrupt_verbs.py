"""The message about an interrupted background cell that has not ended yet."""

from nbddp.notebook.magics.pool_verbs import _still_running
from nbddp.wire.rank_set import RankSet


def test_ranks_that_are_still_inside_are_named():
    text = _still_running("cell [3]", RankSet.of([1]))
    assert "has not ended yet: rank 1 is still inside it. Next: %ddp stacks" in text


def test_a_cell_that_only_waits_for_its_groups_has_its_own_text():
    text = _still_running("cell [3]", RankSet())
    assert "all ranks have left it; the process groups are still being made again" in text
    assert "stacks" not in text
