"""Sets of ranks, parsed from the text that users write."""

import doctest
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbddp.errors import BadOptionError
from nbddp.wire import rank_set
from nbddp.wire.rank_set import RankSet

rank_sets = st.sets(st.integers(min_value=0, max_value=99), min_size=1).map(RankSet.of)


def test_doctest():
    assert doctest.testmod(rank_set).attempted > 0
    assert doctest.testmod(rank_set).failed == 0


@given(rank_sets)
def test_text_and_back(chosen: RankSet):
    assert RankSet.parse(str(chosen), world_size=100) == chosen


@given(rank_sets, rank_sets)
def test_difference_is_that_of_sets(left: RankSet, right: RankSet):
    assert set(left - right) == set(left) - set(right)
    assert list(left - right) == sorted(set(left - right))


@given(st.lists(st.integers(min_value=0, max_value=9)))
def test_order_and_repetition_do_not_matter(numbers: list[int]):
    chosen = RankSet.of(numbers)
    assert chosen == RankSet.of(reversed(numbers))
    assert len(chosen) == len(set(numbers))
    assert all(number in chosen for number in numbers)
    assert hash(chosen) == hash(RankSet.of(set(numbers)))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("all", (0, 1, 2, 3)),
        (" all ", (0, 1, 2, 3)),
        ("0", (0,)),
        ("3,1", (1, 3)),
        ("0, 2 - 3", (0, 2, 3)),
        ("1-", (1, 2, 3)),
        ("0-1,1-2", (0, 1, 2)),
        ("003", (3,)),
    ],
)
def test_legal(text: str, found: tuple[int, ...]):
    assert RankSet.parse(text, world_size=4).ranks == found


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "'' is not a list of ranks"),
        (",", "',' is not a list of ranks"),
        ("0,", "'0,' is not a list of ranks"),
        ("a", "'a' is not a list of ranks"),
        ("-1", "'-1' is not a list of ranks"),
        ("0--1", "'0--1' is not a list of ranks"),
        ("1.5", "'1.5' is not a list of ranks"),
        ("0 1", "'0 1' is not a list of ranks"),
        ("\u0663", "'\u0663' is not a list of ranks"),  # a digit, but not an ASCII one
        ("4", "rank 4 is out of range in a pool of 4 ranks"),
        ("0,7", "rank 7 is out of range in a pool of 4 ranks"),
        ("2-4", "ranks 2-4 are out of range in a pool of 4 ranks"),
        ("3-1", "ranks 3-1 are out of range in a pool of 4 ranks"),
        ("9-", "ranks 9-3 are out of range in a pool of 4 ranks"),
    ],
)
def test_illegal(text: str, wrong: str):
    with pytest.raises(BadOptionError) as caught:
        RankSet.parse(text, world_size=4)
    assert str(caught.value) == (
        f"{wrong}; legal: 'all', a rank, or a list such as '0,2-3', with ranks 0 to 3"
    )


def test_a_pool_of_one_rank_is_told_as_one():
    with pytest.raises(BadOptionError, match="rank 7 is out of range in a pool of 1 rank; legal"):
        RankSet.parse("7", world_size=1)


def test_words():
    assert RankSet.of([2]).describe() == "rank 2"
    assert RankSet.of([0, 2, 3]).describe() == "ranks 0,2-3"
    assert repr(RankSet.all(3)) == "RankSet(0-2)"
    assert not RankSet()


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        (range(1, 12, 2), "ranks 1,3,5,7,9,11"),  # short enough
        (range(1, 16, 2), "odd ranks 1-15"),
        ([0, 2, 4, 6, 8, 11, 13, 15], "ranks 0,2,4,6,8,11,13,15"),
        (range(0, 64, 2), "even ranks 0-62"),
        (range(0, 64, 4), "ranks 0-60 in steps of 4"),
        (set(range(64)) - set(range(0, 64, 4)), "ranks 1-63 except 4-60 in steps of 4"),
        ([*range(1, 20, 2), 40], "ranks 1,3,5,7,9,11,13,15,17,19,40"),
        (
            [rank for rank in range(64) if rank % 4 < 2],
            "ranks 0-1,4-5,8-9,12-13,16-17,20-21,… (32 ranks)",
        ),
    ],
)
def test_long_lists_have_a_short_name_that_is_exact(ranks: Iterable[int], name: str):
    chosen = RankSet.of(ranks)
    assert chosen.describe() == name
    if "…" in name:
        assert chosen.describe(in_full=True) == f"ranks {chosen}"
        assert not chosen.short_name


def test_ranks_that_a_broken_peer_names_cost_no_memory():
    ranks = RankSet.of(2**power for power in range(60))
    assert ranks.describe().endswith("… (60 ranks)")


def test_a_number_that_is_longer_than_the_limit_is_not_cut():
    ranks = RankSet.of([10**70, 10**71, 10**72 + 5, 7 * 10**73])
    assert ranks.describe() == f"ranks {10**70},… (4 ranks)"
