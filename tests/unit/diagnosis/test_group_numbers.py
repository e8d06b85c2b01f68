"""A group that its members make under different numbers of torch."""

import pytest

from tests.support.looks import Ranks, only

_MEMBERS = ("0", "1", "2")


def _pool(first_group: str, second_group: str) -> Ranks:
    """Rank 0 made a group alone, and makes the next one; ranks 1 and 2 make their first one."""
    pool = Ranks(3)
    pool[0].done("new_group", group=first_group, keys=("0",), line=3, at_s=9.0, ended_s=8.0)
    pool[0].blocked("new_group", group=second_group, keys=_MEMBERS, line=5)
    for rank in (1, 2):
        pool[rank].blocked("new_group", group="1@world@y", keys=_MEMBERS, line=5)
    return pool


def test_the_numbers_and_the_line_of_the_group_too_many():
    finding = only(_pool("1@world@x", "2@world@y"))
    assert (finding.kind, finding.culprits.ranks) == ("store-wait", (0,))
    assert finding.headline == (
        "new_group for ranks 0-2 is group 1 on ranks 1-2 and group 2 on rank 0, so its members "
        "wait for each other."
    )
    assert "Rank 0 made group 1 at cell [3], line 3" in finding.reason
    assert "in the same order; or pass use_local_synchronization=True" in finding.next_step
    assert finding.suspicions == ()


def test_a_group_of_another_world_is_not_the_one_too_many():
    """Torch counts the groups of each default group from the start."""
    finding = only(_pool("1@earlier@x", "2@world@y"))
    assert "is group 1 on ranks 1-2 and group 2 on rank 0" in finding.headline
    assert "made group" not in finding.reason


@pytest.mark.parametrize("group", ["2@other@y", "1@other@y"])
def test_groups_in_different_worlds_are_not_one_group(group: str):
    finding = only(_pool("1@world@x", group))
    assert "was never called by rank 0" in finding.headline
