"""Signatures of operations, from the arguments of a method of `ProcessGroup`.

Runs in: the rank process, any thread. A signature is built once for each kind of call; every call
only builds a key and looks it up.

Source of the methods: ``torch/csrc/distributed/c10d/ProcessGroup.hpp`` and ``init.cpp``.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nbddp.wire.flight_recorder import OperationKind, Signature, matching

_MAX_SHAPES = 16
#: Torch's default for these is SUM.
_REDUCING = {op for op, rules in matching.RULES.items() if matching.REDUCE_OP in rules}


@dataclass(eq=False, slots=True)
class CallSignature:
    """A signature with its fingerprints, cached for repeated calls."""

    signature: Signature
    hard: int  #: fingerprint of `matching.hard_key`: compared before data moves
    full: int  #: fingerprint of `matching.full_key`: compared after the cell
    is_uneven: bool = False  #: ``hard`` does not cover all, see `matching.is_uneven`
    has_gaps: bool = False  #: a tensor that is sent as it lies in memory does not fill it
    offset: int = 0  #: in shared memory
    keep: object = None  #: the object whose id is in the key

    def is_only_read_by(self, rank: int) -> bool:
        """Return whether the operation writes no tensor of a rank: it is the source of a broadcast.

        The root of a scatter writes its own part.
        """
        return self.signature.root == rank and self.signature.op == "broadcast"


class Signatures:
    """The signatures of one rank. ``root`` in a key is a global rank."""

    def __init__(self) -> None:
        self.known: dict[tuple[Any, ...], CallSignature] = {}

    def find(
        self, key: tuple[Any, ...], make: Callable[[], Signature], keep: object = None
    ) -> CallSignature:
        """Return the signature with this key.

        Args:
            key: equal for calls with equal signatures.
            make: builds the signature; called only for a new key.
            keep: the object whose id is in the key; it stays alive with the signature.
        """
        signature = self.known.get(key)
        if signature is None:
            if len(self.known) > 4096:
                self.known.clear()
            signature = self.known[key] = known(make(), keep)
        return signature


def known(signature: Signature, keep: object = None) -> CallSignature:
    """Return a signature with its fingerprints, not cached."""
    return CallSignature(
        signature,
        fingerprint(matching.hard_key(signature)),
        fingerprint(matching.full_key(signature)),
        matching.is_uneven(signature),
        _has_gaps(signature),
        keep=keep,
    )


def fingerprint(parts: object) -> int:
    """Return a positive number of 62 bits, equal in every process for equal parts."""
    data = repr(parts).encode()
    return zlib.crc32(data) << 30 ^ zlib.crc32(data, 0x9E3779B9)


def make(
    kind: OperationKind,
    op: str,
    inputs: Sequence[torch.Tensor] = (),
    outputs: Sequence[torch.Tensor] = (),
    *,
    reduce_op: object = None,
    root: int = -1,
    input_splits: Sequence[int] = (),
    output_splits: Sequence[int] = (),
    keys: tuple[str, ...] = (),
    places: tuple[str, ...] = (),
) -> Signature:
    """Return the signature of a call."""
    return Signature(
        kind=kind,
        op=op,
        input_sizes=_sizes(inputs),
        input_dtypes=_dtypes(inputs),
        output_sizes=_sizes(outputs),
        output_dtypes=_dtypes(outputs),
        tensors=len(inputs),
        nbytes=sum(tensor.numel() * tensor.element_size() for tensor in inputs),
        reduce_op=_reduce_op_name(reduce_op) or ("SUM" if op in _REDUCING else ""),
        root=root,
        input_splits=tuple(map(int, input_splits)),
        output_splits=tuple(map(int, output_splits)),
        strides=_strides(op, [*inputs, *outputs]),
        keys=keys,
        places=places,
    )


def places_of(tensors: Sequence[torch.Tensor], backend: str) -> tuple[str, ...]:
    """Return the layout or device of each tensor; empty: a group can mix all of them.

    Several tensors with one place, as those of a list, count once: ranks may list other numbers.

    Args:
        tensors: of a call.
        backend: of the group; Gloo alone copies tensors of a GPU to the CPU, so that ranks may mix.
    """
    places = [_place(tensor, backend) for tensor in tensors[:_MAX_SHAPES]]
    return tuple(dict.fromkeys(places)) if any(places) else ()


def _place(tensor: torch.Tensor, backend: str) -> str:
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    device = tensor.device.type
    is_mixed = device == "cpu" or (device != "meta" and backend == "gloo")
    return "" if is_mixed else device


def _sizes(tensors: Sequence[torch.Tensor]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(n) for n in tensor.shape) for tensor in tensors[:_MAX_SHAPES])


def _dtypes(tensors: Sequence[torch.Tensor]) -> tuple[str, ...]:
    return tuple(str(tensor.dtype).removeprefix("torch.") for tensor in tensors[:_MAX_SHAPES])


def _strides(op: str, tensors: Sequence[torch.Tensor]) -> tuple[tuple[int, ...], ...]:
    """Return the strides of tensors that are sent in the order of memory; empty: contiguous."""
    if op not in matching.IN_MEMORY_ORDER or all(map(torch.Tensor.is_contiguous, tensors)):
        return ()
    if any(tensor.layout is not torch.strided for tensor in tensors):
        return ()  # a sparse tensor; its parts are sent
    strides = [
        tuple(
            0 if size == 1 else stride
            for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        )
        for tensor in tensors[:_MAX_SHAPES]
    ]
    # A root scatters a list in the order of its own tensor: they must all be alike.
    return tuple(sorted(set(strides))) if op == "scatter" else tuple(strides)


def _has_gaps(signature: Signature) -> bool:
    """Return whether elements of a tensor are apart in memory, or share a place."""
    shapes = signature.input_sizes or signature.output_sizes
    if signature.op == "scatter":
        shapes = signature.output_sizes * len(signature.strides)
    for shape, strides in zip(shapes, signature.strides, strict=False):
        expected = 1
        for stride, size in sorted(zip(strides, shape, strict=True)):
            if size != 1 and stride != expected:
                return True
            expected *= size
    return False


def _reduce_op_name(op: object) -> str:
    if op is None:
        return ""
    kind = getattr(op, "op", op)
    return str(getattr(kind, "name", kind))
