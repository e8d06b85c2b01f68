"""The two ends of a message are compared after a cell that ended well."""

from dataclasses import replace

import msgspec
import pytest

from nbddp.controller.diagnosis import compare_records
from nbddp.wire.flight_recorder.schema import MessageCount
from nbddp.wire.rank_set import RankSet
from tests.support.looks import RUN, Ranks


def test_ends_of_a_message_that_differ():
    pool = Ranks(2)
    pool[0].done("send", peer=1, input_sizes=((3,),))
    pool[1].done("recv", peer=0, input_sizes=((4,),))
    for state in pool:
        state.finished()
    (finding,) = pool.compare()
    assert finding.fields == ("input_sizes",)
    assert finding.culprits == RankSet.all(2)
    assert finding.headline == (
        "Rank 0 called send of float32[3], rank 1 called recv of float32[4], as the two ends of "
        "one message; that does not hang, but the tensor of rank 1 does not hold what was sent."
    )
    assert finding.is_error


def test_one_end_of_a_message_may_be_of_an_earlier_cell():
    pool = Ranks(2)
    pool[0].done("send", peer=1, input_sizes=((3,),), run_id="before")
    pool[1].done("recv", peer=0, input_sizes=((4,),))
    for state in pool:
        state.finished()
    (finding,) = pool.compare(scope="messages")
    assert finding.fields == ("input_sizes",)
    assert pool.compare(scope="sanitizer") == ()


def test_collectives_and_open_messages_are_not_told_where_only_messages_are_odd():
    pool = Ranks(2)
    pool[0].issue("send", peer=1)
    pool[1].issue()
    for state in pool:
        state.finished()
    assert pool.compare(scope="messages") == ()


def test_messages_from_any_source_are_not_compared():
    pool = Ranks(2)
    pool[0].done("send", peer=1, input_sizes=((3,),))
    pool[0].done("send", peer=1, input_sizes=((4,),))
    pool[1].done("recv", peer=-1, input_sizes=((3,),))
    pool[1].done("recv", peer=0, input_sizes=((4,),))
    for state in pool:
        state.finished()
    assert pool.compare() == ()


@pytest.mark.parametrize(
    ("counts_of_any", "is_told"),
    [(0, True), (1, False), pytest.param(None, False, id="more tags than are reported")],
)
def test_messages_that_an_earlier_receive_may_have_shifted_are_not_compared(
    counts_of_any: int | None, is_told: bool
):
    """Of the receive from any source no record is left: its counter tells of it."""
    pool = Ranks(2)
    for state in pool:
        state.done()
    pool[0].done("send", peer=1, input_sizes=((3,),))
    pool[1].done("recv", peer=0, input_sizes=((9,),))
    for state in pool:
        state.finished()
    views = pool.views(last=1)
    look = views[1].look
    assert look is not None
    if counts_of_any is not None:
        count = MessageCount(direction="recv", peer=-1, tag=0, count=counts_of_any)
        groups = [msgspec.structs.replace(group, messages=(count,)) for group in look.groups]
        look = msgspec.structs.replace(look, groups=tuple(groups))
    views[1] = replace(views[1], look=look)
    assert bool(compare_records(views, run_id=RUN, scope="messages")) is is_told
