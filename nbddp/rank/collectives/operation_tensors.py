"""The tensors that an operation reads and writes, from the arguments of a method of a group.

Runs in: the rank process, any thread.
"""

from typing import Any, NamedTuple

import torch

from nbddp.rank.collectives import methods
from nbddp.rank.collectives.rollback import tensors_in
from nbddp.wire.flight_recorder import Signature

#: Operations whose only tensors are written, mostly after they were read.
_IN_PLACE = ("all_reduce", "all_reduce_coalesced", "recv")
_FIRST = ("tensors", "outputs", "output")
_SECOND = ("inputs", "input")


class OperationTensors(NamedTuple):
    """The tensors of one call on one rank."""

    inputs: list[torch.Tensor]  #: their values go to other ranks
    written: list[torch.Tensor]


NO_TENSORS = OperationTensors([], [])


def tensors_of(
    signature: Signature, rank: int, method: str, args: Any, kwargs: dict[str, Any]
) -> OperationTensors:
    """Return the tensors of a call.

    Args:
        signature: of the call.
        rank: this rank, which may be the root.
        method: of `ProcessGroup`, or ``send`` or ``recv``.
        args: arguments of the method.
        kwargs: see above.
    """
    named = methods.renamed(method, kwargs) if kwargs else {}
    values = list(args[:2])
    for index, names in enumerate((_FIRST, _SECOND)):
        if len(values) == index:
            values.append(next((named[name] for name in names if name in named), None))
    first, second = (list(tensors_in(value)) for value in values)
    op = signature.op
    if op == "recv":
        return OperationTensors([], first)
    if op in _IN_PLACE:
        return OperationTensors(first, first)
    if op == "send":
        return OperationTensors(first, [])
    if op == "broadcast":
        is_root = signature.root == rank
        return OperationTensors(first, []) if is_root else OperationTensors([], first)
    if op == "reduce":
        return OperationTensors(first, first if signature.root == rank else [])
    return OperationTensors(second, first)
