"""The two ends of a message are compared after a cell that ended well."""

from dataclasses import replace

import msgspec
import pytest

from nbddp.controller.diagnosis import PoolNodes, Report, compare_records
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
        "one message; that does not hang, but only the first 12 of the 16 bytes of the tensor of "
        "rank 1 were written."
    )
    assert finding.next_step == (
        "Use the same shape at both ends of the message. Do not trust the other bytes."
    )
    assert finding.is_error


@pytest.mark.parametrize(
    ("sent", "received", "result"),
    [
        (
            ("float32", 4, 16),
            ("uint8", 16, 16),
            "the tensor of rank 1 holds the bytes of float32 as uint8",
        ),
        (("int8", 3, 3), ("uint8", 3, 3), "the tensor of rank 1 holds the bytes of int8 as uint8"),
        (
            ("float32", 2, 8),
            ("float64", 2, 16),
            "only the first 8 of the 16 bytes of the tensor of "
            "rank 1 were written, and they are of float32",
        ),
        (("float32", 2, 8), ("uint8", 2, 2), "the tensor of rank 1 does not hold what was sent"),
    ],
)
def test_what_the_tensor_of_a_message_holds(
    sent: tuple[str, int, int], received: tuple[str, int, int], result: str
):
    pool = Ranks(2)
    for (dtype, count, nbytes), rank, op in ((sent, 0, "send"), (received, 1, "recv")):
        pool[rank].done(
            op, peer=1 - rank, input_sizes=((count,),), input_dtypes=(dtype,), nbytes=nbytes
        )
        pool[rank].finished()
    (finding,) = pool.compare()
    assert finding.headline.endswith(f"; that does not hang, but {result}.")
    assert " at both ends of the message" in finding.next_step


def test_the_node_of_one_end_alone_is_not_told():
    pool = Ranks(2)
    pool[0].done("send", peer=1, input_sizes=((3,),))
    pool[1].done("recv", peer=0)
    for state in pool:
        state.finished()
    report = Report(RUN, pool.compare()).with_nodes(PoolNodes({0: [0], 1: [1]}, {}))
    assert report.findings[0].nodes == ()


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
