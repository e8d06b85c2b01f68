"""Compares an operation with those of all members before any data moves: ``%%ddp --check``.

Runs in: the rank process, the thread that issues the operation. For groups with members on other
machines, whose board this rank cannot read: the members exchange fingerprints by an extra
all_gather, and if these differ also the operations, to name both lines.
"""

from datetime import timedelta
from typing import Any

import msgspec
import torch
from torch.distributed.constants import default_pg_timeout

from nbddp.rank import torch_private
from nbddp.rank.collectives.recording.signatures import CallSignature
from nbddp.wire.flight_recorder import Mismatch, Operation, matching

_TEXT_BYTES = 8192


def compare(group: Any, record: int, known: CallSignature) -> Mismatch | None:
    """Exchange fingerprints, and return the first mismatch with this rank; None: all agree.

    Args:
        group: the traced group.
        record: record of the operation.
        known: signature of the operation.

    Raises:
        RuntimeError: a member never came, and the group was freed or the timeout passed.
    """
    mine = torch.tensor([known.hard], dtype=torch.int64)
    fingerprints = [int(value.item()) for value in _gather(group, mine)]
    if len(set(fingerprints)) == 1 and not known.is_uneven:  # equal on all members, too
        return None
    operation = group.recorder.operation(record)
    if operation is None:
        return None
    payload = msgspec.msgpack.encode(operation)[:_TEXT_BYTES]
    text = torch.zeros(_TEXT_BYTES + 8, dtype=torch.uint8)
    text[:8] = torch.tensor(list(len(payload).to_bytes(8, "little")), dtype=torch.uint8)
    text[8 : 8 + len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    texts = _gather(group, text)
    ranks = group.counters.ranks
    own = ranks.index(group.recorder.rank)
    for index, rank in enumerate(ranks):
        theirs = _operation(texts[index])
        if index == own or theirs is None:
            continue
        fields = matching.compare(
            operation.signature, theirs.signature, me=own, other=index, size=len(ranks)
        ).hard
        if fields:
            return Mismatch(
                rank=group.recorder.rank, peer=rank, mine=operation, theirs=theirs, fields=fields
            )
    return None


def _gather(group: Any, mine: torch.Tensor) -> list[torch.Tensor]:
    mine = mine.to(torch_private.supported_device(group.inner))
    gathered = [torch.empty_like(mine) for _ in range(group.size())]
    work = group.inner.allgather([gathered], [mine], _options())
    if work is not None:
        work.wait(timedelta(milliseconds=group.counters.info.timeout_ms) or default_pg_timeout)
    return gathered


def _options() -> Any:
    return torch_private.c10d.AllgatherOptions()


def _operation(text: torch.Tensor) -> Operation | None:
    data = bytes(text.cpu().tolist())
    length = int.from_bytes(data[:8], "little")
    try:
        return msgspec.msgpack.decode(data[8 : 8 + length], type=Operation)
    except msgspec.DecodeError:
        return None  # too long for the exchange
