"""Finds messages that pair in another order than their tensors are named, where shapes agree.

Runs in: the notebook's process. Pure. A sender may call a tensor ``hidden`` that its receiver calls
``x``. So names count only if both ends use the same ones, each as often, in another order.
"""

from collections import Counter
from collections.abc import Mapping

from nbddp.controller.diagnosis.crossed_lines import CrossedLines, tensor_of
from nbddp.controller.diagnosis.history import is_local_failure
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import Operation
from nbddp.wire.flight_recorder.matching import MESSAGES, compare_message
from nbddp.wire.rank_set import Rank, RankSet

#: Messages of one direction: group, sender, receiver, tag.
_Channel = tuple[str, Rank, Rank, int]


def find_crossed_messages(graph: WaitForGraph, run_id: str) -> list[CrossedLines]:
    """Find for each pair of ranks the first message whose ends have crossed names.

    Args:
        graph: the ranks after the cell.
        run_id: only operations of this run count; empty: those of all runs.
    """
    sent: dict[_Channel, dict[int, Operation]] = {}
    received: dict[_Channel, dict[int, Operation]] = {}
    for rank, history in graph.histories.items():
        for operation in history.operations.values():
            kind, peer = operation.signature.kind, operation.peer
            if kind not in MESSAGES or peer < 0 or is_local_failure(operation):
                continue
            if run_id not in ("", operation.run_id):
                continue
            ends = (rank, peer) if kind == "send" else (peer, rank)
            by_channel = sent if kind == "send" else received
            channel = operation.pg_id, *ends, operation.tag
            by_channel.setdefault(channel, {})[operation.p2p_seq_id] = operation
    return [
        crossed
        for channel in sorted(sent.keys() & received.keys())
        if (crossed := _first_crossed(channel, sent[channel], received[channel])) is not None
    ]


def _first_crossed(
    channel: _Channel, sent: Mapping[int, Operation], received: Mapping[int, Operation]
) -> CrossedLines | None:
    numbers = sorted(sent.keys() & received.keys())
    names = [(tensor_of(sent[number]), tensor_of(received[number])) for number in numbers]
    theirs, ours = (Counter(each) for each in zip(*names, strict=True)) if names else ({}, {})
    if theirs != ours or "" in theirs:
        return None
    for number, (name, received_as) in zip(numbers, names, strict=True):
        if name != received_as and not _differ(sent[number], received[number]):
            _, sender, receiver, _ = channel
            clusters = RankSet.of([sender]), RankSet.of([receiver])
            return CrossedLines({sender: sent[number], receiver: received[number]}, clusters)
    return None


def _differ(sent: Operation, received: Operation) -> bool:
    """Whether the ends of a message do not match: then another finding names it."""
    return bool(compare_message(sent.signature, received.signature))
