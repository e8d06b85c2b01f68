"""Tells over which groups ranks have combined what they trained: gradients, or weights.

Runs in: the rank process, main thread. Samples count several times only where what several ranks
make of them is added up. Ranks that search for hyperparameters, or that hold parts of one model
(tensor and pipeline parallelism), may all read the same data.
"""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, TypeAlias

from nbddp.wire.flight_recorder import Operation
from nbddp.wire.flight_recorder.matching import MESSAGES

_Shape: TypeAlias = tuple[int, ...]

#: Collectives that bring no values of several ranks together.
_NEVER_COMBINE: Final = frozenset(("barrier", "monitored_barrier", "broadcast", "scatter"))
_DDP_GRADIENTS: Final = "ddp-gradients"
_GRADIENTS: Final = frozenset((_DDP_GRADIENTS, "fsdp-gradients"))
#: Features of torch whose other operations carry activations, parts of parameters, or statistics.
_OTHERS: Final = frozenset(
    (
        "DTensor",
        "Join",
        "batch-statistics",
        "ddp-buckets",
        "ddp-buffers",
        "fsdp-parameters",
        "nn-gradient",
        "parameter-check",
        "parameter-copy",
        "torch.distributed.checkpoint",
        "torch.distributed.pipelining",
    )
)


def combines(operation: Operation | None) -> bool:
    """Return whether an operation brings values of ranks together; None: it is not known."""
    if operation is None:
        return True
    signature = operation.signature
    return signature.kind in ("collective", *MESSAGES) and signature.op not in _NEVER_COMBINE


def is_of_library(operation: Operation) -> bool:
    """Return whether a library has averaged gradients by it, those of the loop around it."""
    return operation.site.origin in _GRADIENTS


def _may_average(operation: Operation) -> bool:
    is_collective = operation.signature.kind == "collective"
    return is_collective and combines(operation) and operation.site.origin not in _OTHERS


@dataclass
class Combined:
    """The operations of a pass over data, or of a cell, that may have combined what was trained."""

    groups: set[str] = field(default_factory=set)  #: whose ranks averaged gradients for a library
    has_ddp: bool = False  #: `DistributedDataParallel` did
    #: By group: the shapes that the user's code has combined, the largest number of tensors of an
    #: operation, and the largest number of elements in the flat tensors of one batch.
    shapes: dict[str, set[_Shape]] = field(default_factory=dict)
    most: dict[str, int] = field(default_factory=dict)
    flat: dict[str, int] = field(default_factory=dict)

    def note(self, operations: Iterable[Operation], *, are_of_a_batch: bool) -> None:
        """Note operations; flat tensors of one batch may be the buckets of one model."""
        flat: dict[str, int] = {}
        for operation in operations:
            signature, group = operation.signature, operation.pg_id
            if is_of_library(operation):
                self.groups.add(group)
                self.has_ddp |= operation.site.origin == _DDP_GRADIENTS
            elif _may_average(operation):
                sizes = signature.input_sizes
                self.shapes.setdefault(group, set()).update(sizes)
                self.most[group] = max(self.most.get(group, 0), signature.tensors)
                buckets = sum(prod(size) for size in sizes if len(size) == 1)
                flat[group] = flat.get(group, 0) + buckets
        if are_of_a_batch:
            self.flat |= {one: max(size, self.flat.get(one, 0)) for one, size in flat.items()}


class TrainedModels:
    """Numbers the models that optimizers step: by the first parameter that an optimizer has.

    No parameter is kept alive, and another one may get its id.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._last = 0

    def number(self, optimizer: Any) -> int:
        """Return the number of the model of an optimizer; 0: it has no parameters."""
        first = next((one for group in optimizer.param_groups for one in group["params"]), None)
        if first is None:
            return 0
        known = self._known.get(id(first))
        if known is not None and known[0]() is first:
            return known[1]
        self._last += 1
        self._known[id(first)] = weakref.ref(first), self._last
        return self._last


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

    def groups_in(self, combined: Combined) -> frozenset[str]:
        """Return the groups whose ranks have combined gradients, or all weights of an optimizer.

        A flat copy counts, too, or one in several parts; without an optimizer, any tensor that is
        no single number.
        """
        by_shape = (group for group in combined.shapes if self._are_in(combined, group))
        return frozenset((*combined.groups, *by_shape))

    def _are_in(self, combined: Combined, group: str) -> bool:
        shapes = combined.shapes[group]
        if not self._by_optimizer:
            return any(shapes)
        sizes = set(map(prod, shapes))
        most, flat = combined.most[group], combined.flat.get(group, 0)
        return any(
            set(trained) <= shapes
            or (total := sum(map(prod, trained))) in sizes
            or flat >= total
            or most >= len(trained) > 1
            for trained in self._by_optimizer.values()
            if trained
        )
