"""A digest of what a dataset holds, so that the notebook can tell whether ranks have the same one.

Runs in: the rank process, main thread. No sample is read: only what the dataset and its attributes
hold in memory counts, such as tensors, arrays and lists of paths.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils.data import Dataset

from nbddp.rank.torch_private import dispatch_watch

#: Of a longer list, that many items count; of a larger tensor or array, that many at each end.
_MAX_ITEMS = 1000
_MAX_ELEMENTS = 1 << 18
_MAX_DEPTH = 5
_DIGEST_BYTES = 16


def contents_of(dataset: Any, hash_of: Callable[[torch.Tensor], bytes]) -> bytes:
    """Return the digest; empty: the dataset holds nothing that can be compared.

    Args:
        dataset: any map-style dataset.
        hash_of: returns the hash of a tensor.
    """
    walk = _Walk(hash_of)
    with torch.no_grad(), dispatch_watch.unseen():
        walk.add(dataset, 0)
    return walk.digest.digest() if walk.has_values else b""


class _Walk:
    """Adds values to a digest."""

    def __init__(self, hash_of: Callable[[torch.Tensor], bytes]) -> None:
        self._hash_of = hash_of
        self.digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self.has_values = False

    def add(self, value: Any, depth: int) -> None:
        kind = type(value)
        self._note(kind.__qualname__)
        if depth > _MAX_DEPTH:
            return
        match value:
            case None | bool() | int() | float() | complex() | str() | bytes() | range():
                self._note(repr(value))
                self.has_values |= isinstance(value, range | str | bytes)
            case torch.Tensor():
                self._add_tensor(value)
            case Mapping():
                for key in list(value)[:_MAX_ITEMS]:
                    self.add(key, depth + 1)
                    self.add(value[key], depth + 1)
            case Sequence() if kind in (list, tuple):
                self._note(len(value))
                self.has_values |= bool(value)
                for item in value[:: max(1, len(value) // _MAX_ITEMS)]:
                    self.add(item, depth + 1)
            case Dataset():
                self._add_attributes(value, depth)
            case _ if kind.__module__ == "numpy" and hasattr(value, "dtype"):
                self._add_array(value)
            case _ if depth == 0:
                self._add_attributes(value, depth)
            case _:
                pass  # a transform, a lock, a client: it does not say which samples there are

    def _add_attributes(self, value: Any, depth: int) -> None:
        for name, attribute in getattr(value, "__dict__", {}).items():
            self._note(name)
            self.add(attribute, depth + 1)

    def _add_tensor(self, tensor: torch.Tensor) -> None:
        self._note((tuple(tensor.shape), str(tensor.dtype)))
        with suppress(RuntimeError, NotImplementedError):  # it has no plain memory
            flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach()
            large = flat.dim() == 1 and flat.numel() > 2 * _MAX_ELEMENTS
            parts = [flat[:_MAX_ELEMENTS], flat[-_MAX_ELEMENTS:]] if large else [flat]
            for part in parts:
                self.digest.update(self._hash_of(part))
            self.has_values |= bool(tensor.numel())

    def _add_array(self, array: Any) -> None:
        self._note((getattr(array, "shape", ()), str(array.dtype)))
        if array.dtype.hasobject:
            return
        flat = array.reshape(-1)
        for part in (flat[:_MAX_ELEMENTS], flat[-_MAX_ELEMENTS:]):
            self.digest.update(part.tobytes())
        self.has_values |= bool(array.size)

    def _note(self, text: object) -> None:
        self.digest.update(repr(text).encode())
