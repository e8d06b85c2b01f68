"""Finds gradients that the user's code has averaged: in place, or in one flat copy of all of them.

Runs in: the rank process, main thread.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeAlias

import torch

from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.sanitizer import finite
from nbddp.rank.torch_private import dispatch_watch
from nbddp.rank.torch_private.gradients import gradient_of

#: Tensors of reductions that are noted between two steps.
_MAX_REDUCED = 100_000
#: Flat tensors that are kept until the next step: more memory, or more tensors, are not held.
_MAX_FLAT_BYTES = 64 << 20
_MAX_FLAT = 256
#: Tensors of a cell that are compared with gradients, to which nobody has copied them back.
_MAX_COPIES = 256

_HashOf: TypeAlias = Callable[[torch.Tensor], bytes]


class Reduction(NamedTuple):
    """A reduction that gradients have gone through."""

    pg_id: str
    size: int  #: number of ranks of the group
    number: int  #: of the collective in its group

    @classmethod
    def upcoming(cls, counters: GroupCounters) -> Self:
        """Return the reduction that a group does next."""
        return cls(counters.info.pg_id, len(counters.ranks), counters.seq + 1)


class ReducedGradients:
    """The tensors that groups have added up since the last step of an optimizer."""

    def __init__(self) -> None:
        #: By identity of the memory. A weak reference keeps that number from other memory.
        self._reduced: dict[int, tuple[Any, Reduction]] = {}
        #: By identity, the newest last: flat tensors, the size of their memory, and the reduction.
        self._flat: dict[int, tuple[torch.Tensor, int, Reduction]] = {}
        self._flat_bytes = 0
        #: By what a tensor held before it was added up, and its length.
        self._copies: dict[tuple[int, bytes], Reduction] = {}
        self._left_copies = _MAX_COPIES

    def __bool__(self) -> bool:
        return bool(self._reduced)

    def clear(self) -> None:
        """Forget all: the optimizer has stepped, or the cell has ended."""
        self._reduced.clear()
        self._flat.clear()
        self._flat_bytes = 0
        self._copies.clear()

    def begin(self) -> None:
        """Begin a cell."""
        self.clear()
        self._left_copies = _MAX_COPIES

    def note(self, reduction: Reduction, tensors: Iterable[torch.Tensor]) -> None:
        """Note tensors that a group is about to add up: they may be gradients."""
        for tensor in tensors:
            is_plain = tensor.layout is torch.strided and tensor.device.type != "meta"
            if is_plain and len(self._reduced) < _MAX_REDUCED:
                reference = dispatch_watch.storage_of(tensor)
                self._reduced[reference.cdata] = reference, reduction

    def note_copies(
        self, reduction: Reduction, tensors: Iterable[torch.Tensor], hash_of: _HashOf
    ) -> None:
        """Note tensors that the user's code adds up: they may be copies of gradients.

        Args:
            reduction: does it next.
            tensors: the tensors.
            hash_of: returns the hash of a tensor.
        """
        for tensor in tensors:
            if not (_is_plain(tensor) and tensor.is_floating_point()):
                continue
            if tensor.dim() == 1:
                self._keep(tensor, reduction)
            if self._left_copies:
                self._left_copies -= 1
                if tensor.nbytes <= _MAX_FLAT_BYTES:
                    self._copies[tensor.numel(), hash_of(tensor)] = reduction

    def _keep(self, tensor: torch.Tensor, reduction: Reduction) -> None:
        """Keep a tensor until the next step, and with it the memory that it is a view of."""
        size = tensor.untyped_storage().nbytes()
        if size > _MAX_FLAT_BYTES:
            return
        self._drop(id(tensor))  # a loop may add up one tensor many times
        self._flat[id(tensor)] = tensor, size, reduction
        self._flat_bytes += size
        while self._flat_bytes > _MAX_FLAT_BYTES or len(self._flat) > _MAX_FLAT:
            self._drop(next(iter(self._flat)))

    def _drop(self, number: int) -> None:
        _, size, _ = self._flat.pop(number, (None, 0, None))
        self._flat_bytes -= size

    def unused_of(self, gradients: Sequence[torch.Tensor], hash_of: _HashOf) -> Reduction | None:
        """Return the reduction of copies of these gradients, which still hold what they held.

        Args:
            gradients: all of a model, in the order of its parameters.
            hash_of: returns the hash of a tensor.
        """
        if not gradients or not all(map(_is_plain, gradients)):
            return None
        sizes = {size for size, _ in self._copies}
        counts = [gradient.numel() for gradient in gradients]
        copied: list[Reduction | None] = []
        if sizes.issuperset(counts):
            pairs = zip(counts, gradients, strict=True)
            copied = [self._copies.get((size, hash_of(gradient))) for size, gradient in pairs]
        elif sum(counts) in sizes:
            with torch.no_grad(), dispatch_watch.unseen():
                flat = torch.cat([gradient.detach().flatten() for gradient in gradients])
            copied = [self._copies.get((sum(counts), hash_of(flat)))]
        reductions = [each for each in copied if each is not None]
        is_all = bool(reductions) and len(reductions) == len(copied)
        if not is_all or len({each.pg_id for each in reductions}) > 1:
            return None
        return max(reductions, key=lambda each: each.number)

    def forgotten_of(
        self, gradients: Mapping[str, torch.Tensor]
    ) -> tuple[tuple[str, ...], Reduction] | None:
        """Return gradients that were not reduced while others of their layer were; None: none.

        Args:
            gradients: of one layer, by the names of its parameters.
        """
        if not all(map(_is_plain, gradients.values())):
            return None
        reduction_by_name = {
            name: self._reduced.get(dispatch_watch.storage_of(gradient).cdata)
            for name, gradient in gradients.items()
        }
        reductions = [each[1] for each in reduction_by_name.values() if each is not None]
        if not reductions or len(reductions) == len(reduction_by_name):
            return None
        return tuple(name for name, each in reduction_by_name.items() if each is None), max(
            reductions, key=lambda each: each.number
        )

    def is_of_group(self, gradient: torch.Tensor | None, pg_id: str) -> bool:
        """Return whether a group has reduced this very tensor."""
        if gradient is None or not _is_plain(gradient):
            return False
        known = self._reduced.get(dispatch_watch.storage_of(gradient).cdata)
        return known is not None and known[1].pg_id == pg_id

    def named(
        self, module: torch.nn.Module | None, parameters: Sequence[torch.Tensor], pg_id: str
    ) -> tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]:
        """Return the parameters of an optimizer by their names, and all that its model trains.

        Args:
            module: has exactly these parameters; None: there is none.
            parameters: those of the optimizer. Ranks may share those of one model among them.
            pg_id: of the group that has reduced their gradients.
        """
        tensors: Mapping[str, torch.Tensor]
        if module is not None:
            tensors = dict(module.named_parameters())
            return tensors, tensors
        root = finite.module_with(parameters)
        if root is None:
            tensors = {f"parameter {n}": one for n, one in enumerate(parameters)}
            return tensors, tensors
        mine = set(map(id, parameters))
        named = list(root.named_parameters())
        tensors = {name: one for name, one in named if id(one) in mine}
        reduced = {name: one for name, one in named if self.is_of_group(gradient_of(one), pg_id)}
        return tensors, reduced if reduced.keys() >= tensors.keys() else tensors

    def reduction_of(self, gradients: Sequence[torch.Tensor]) -> Reduction | None:
        """Return the last reduction of these gradients; None: one of them went through none.

        Args:
            gradients: all of a model, in the order of its parameters.
        """
        if not gradients or not all(map(_is_plain, gradients)):
            return None
        numbers = [dispatch_watch.storage_of(gradient).cdata for gradient in gradients]
        if all(number in self._reduced for number in numbers):
            reductions = [self._reduced[number][1] for number in numbers]
            is_one_group = len({reduction.pg_id for reduction in reductions}) == 1
            return max(reductions, key=lambda each: each.number) if is_one_group else None
        count = sum(gradient.numel() for gradient in gradients)
        flat = (each for each in reversed(self._flat.values()) if each[0].numel() == count)
        return next((by for each, _, by in flat if _holds(each, gradients, by.size)), None)


def _is_plain(gradient: torch.Tensor) -> bool:
    return type(gradient) is torch.Tensor and gradient.layout is torch.strided


def _holds(flat: torch.Tensor, gradients: Sequence[torch.Tensor], size: int) -> bool:
    """Return whether gradients are copies of the parts of a flat tensor, perhaps averaged."""
    begin = 0
    with torch.no_grad(), dispatch_watch.unseen():
        for gradient in gradients:
            part = flat[begin : begin + gradient.numel()]
            begin += gradient.numel()
            copy = gradient.detach().flatten()
            if copy.dtype != part.dtype or copy.device != part.device:
                return False
            if not (torch.equal(copy, part) or torch.equal(copy, part / size)):
                return False
    return True
