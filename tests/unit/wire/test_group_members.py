"""The members of a group as spans: the same ranks in the same order, in few bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbddp.wire import codec
from nbddp.wire.flight_recorder import GroupInfo, RankSpan, ranks_in, spans_of
from nbddp.wire.messages import RankDescribed
from tests.support.looks import Ranks


@given(st.lists(st.integers(0, 300), max_size=40))
def test_spans_hold_any_ranks_in_their_order(ranks: list[int]):
    assert ranks_in(spans_of(ranks)) == tuple(ranks)


@pytest.mark.parametrize(
    ("ranks", "spans"),
    [
        ((), ()),
        ((7,), (RankSpan(7, 1),)),
        (range(8192), (RankSpan(0, 8192),)),
        (range(3, 8192, 8), (RankSpan(3, 1024, 8),)),
        ((3, 2, 1), (RankSpan(3, 3, -1),)),
        ((0, 1, 8, 9), (RankSpan(0, 2), RankSpan(8, 2))),
    ],
)
def test_ranks_with_a_rule_are_one_span(ranks: tuple[int, ...], spans: tuple[RankSpan, ...]):
    assert spans_of(ranks) == spans


def test_groups_with_the_same_members_share_them():
    one, other = (GroupInfo.of(name, name, ranks=range(100)) for name in "ab")
    assert one.ranks is other.ranks


def test_more_members_than_any_group_has_make_no_sense():
    assert GroupInfo("a", "a", spans=(RankSpan(0, 1 << 62), RankSpan(0, 1 << 62))).ranks == ()


def test_the_answer_of_a_rank_does_not_grow_with_the_other_ranks():
    sizes = []
    for count in (8, 8192):
        pool = Ranks(count)
        pool[0].blocked("all_reduce", line=1)
        look = pool[0].view().look
        assert look is not None
        sizes.append(len(codec.encode(RankDescribed(number=1, rank=0, look=look))))
    assert sizes[1] < sizes[0] + 10
