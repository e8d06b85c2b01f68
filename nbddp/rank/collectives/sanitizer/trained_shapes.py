"""Tells whether ranks have combined what they trained: in a loop, or by an average after it.

Runs in: the rank process, main thread. Ranks that train a model of their own each, as in a search
for hyperparameters, may read the same data.
"""

from collections.abc import Iterable
from math import prod
from typing import Any, TypeAlias

from nbddp.wire.flight_recorder import Operation

_Shape: TypeAlias = tuple[int, ...]

#: Collectives that bring no values of several ranks together.
_NEVER_COMBINE = frozenset(("barrier", "monitored_barrier", "broadcast", "scatter"))


def combines(operation: Operation | None) -> bool:
    """Return whether an operation brings values of ranks together; None: it is not known."""
    if operation is None:
        return True
    signature = operation.signature
    return signature.kind in ("collective", "send", "recv") and signature.op not in _NEVER_COMBINE


class TrainedShapes:
    """The shapes of the parameters that optimizers have stepped in a cell."""

    def __init__(self) -> None:
        self._by_optimizer: dict[int, tuple[_Shape, ...]] = {}

    def note(self, optimizer: Any) -> None:
        """Note the parameters of an optimizer that steps."""
        if id(optimizer) not in self._by_optimizer:
            self._by_optimizer[id(optimizer)] = tuple(
                tuple(one.shape) for group in optimizer.param_groups for one in group["params"]
            )

    def are_in(self, operations: Iterable[Operation]) -> bool:
        """Return whether operations have combined all parameters of an optimizer.

        A flat copy counts, too; without an optimizer, any operation that combines values.
        """
        combining = [each.signature for each in operations if combines(each)]
        if not self._by_optimizer:
            return bool(combining)
        shapes = {shape for signature in combining for shape in signature.input_sizes}
        sizes = set(map(prod, shapes))
        most = max((signature.tensors for signature in combining), default=0)
        return any(
            set(trained) <= shapes or sum(map(prod, trained)) in sizes or most >= len(trained) > 1
            for trained in self._by_optimizer.values()
        )
