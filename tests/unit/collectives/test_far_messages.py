"""The sum over messages with other nodes, by which the notebook sees that some do not match."""

from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.collectives.recording.signatures import CallSignature, known
from nbddp.rank.user_code_context import Callbacks
from nbddp.wire.flight_recorder import GroupInfo, Signature
from nbddp.wire.flight_recorder.schema import FAR_MESSAGES
from nbddp.wire.flight_recorder.writer import NodeMemory


def _rank(rank: int) -> tuple[Recorder, GroupCounters]:
    """The only rank of its node."""
    recorder = Recorder(
        NodeMemory.create(1), 0, rank, lambda file: 0, (), first_local=rank, callbacks=Callbacks()
    )
    info = GroupInfo.of(pg_id="0", name="0", desc="", ranks=(0, 1), backend="gloo")
    return recorder, GroupCounters(info)


def _call(kind: str, size: int) -> CallSignature:
    signature = Signature(kind=kind, op=kind, input_sizes=((size,),), tensors=1)  # type: ignore[arg-type]
    return known(signature)


def test_a_message_that_torch_has_refused_is_not_in_the_sum():
    (sender, sent), (receiver, received) = _rank(0), _rank(1)
    sender.message(sent, _call("send", 2), "send", 1, 0, is_async=False)
    before = sent.far_messages
    sender.withdraw_message(sent, _call("send", 2), "send", 1, 0)
    assert (before != 0, sent.far_messages) == (True, 0)

    sender.message(sent, _call("send", 3), "send", 1, 0, is_async=False)
    receiver.message(received, _call("recv", 3), "recv", 0, 0, is_async=False)
    assert (sent.far_messages + received.far_messages) % FAR_MESSAGES == 0
