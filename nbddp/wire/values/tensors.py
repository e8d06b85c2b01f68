"""Pickles torch tensors without copying them into the pickle stream.

Runs in: notebook and rank processes. Imports torch, so it is itself imported only if torch is
already imported (packing), or if a tensor arrives (unpacking).

A plain tensor becomes its memory, as a buffer beside the pickle stream, and a call of
`rebuild_tensor`. All other tensors (subclasses such as DTensor; sparse, quantized, nested, meta
tensors) are pickled by torch itself.

Memory that several tensors of one value share is sent once and shared again on arrival. A view of
less than half of its memory sends only its own elements, so a view of a huge tensor is small; it
then shares memory with equal views, and with tensors before it in the value. Not shared again: such
views that come before the whole tensor, memory of accelerators, and numpy arrays.

A tensor on an accelerator travels as CPU bytes with the name of its device. It arrives on the CPU,
unless the receiver already uses CUDA: importing torch or starting CUDA without the user's request
would cost seconds and hundreds of megabytes. With CUDA in use it goes to the device of the same
number in a notebook, and to the rank's current device in a rank.
"""

import ctypes
import os
import pickle
from typing import Any

import torch

from nbddp.settings import POOL_ID_ENV


class SentMemory:
    """CPU memory that tensors of one value share: one object, so that it is sent once."""

    def __init__(self, address: int, size: int, owner: torch.Tensor) -> None:
        # ctypes: the memory is writable, and numpy may be absent.
        self.array = (ctypes.c_ubyte * size).from_address(address)
        self.array.owner = owner  # type: ignore[attr-defined]  # keeps the memory alive


#: Memory sent so far with one value, by address and size.
Sent = dict[tuple[int, int], SentMemory]


def reduce_tensor(value: object, sent: Sent) -> Any:
    """Return the result of `pickle.Pickler.reducer_override`; NotImplemented: no plain tensor."""
    kind = type(value)
    if kind is SentMemory:
        assert isinstance(value, SentMemory)  # noqa: S101  # for mypy
        return rebuild_memory, (pickle.PickleBuffer(value.array),)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        return NotImplemented
    assert isinstance(value, torch.Tensor)  # noqa: S101  # for mypy
    device = "" if value.device.type == "cpu" else str(value.device)
    if not _is_plain(value):
        if device and value.device.type != "meta" and kind is torch.Tensor:
            return _move, (value.detach().cpu(), device, value.requires_grad)
        return NotImplemented
    if value.numel() and not value.untyped_storage().nbytes():
        raise ValueError("a tensor in it has no memory: it was freed, as FSDP does between uses")
    plain = value.detach().cpu().resolve_conj().resolve_neg()
    memory, offset, stride = _memory(plain, sent)
    return rebuild_tensor, (
        memory,
        offset,
        str(plain.dtype).removeprefix("torch."),
        tuple(plain.shape),
        stride,
        device,
        value.requires_grad,
        kind is torch.nn.Parameter,
        value.__dict__ or None,
    )


def rebuild_memory(buffer: Any) -> torch.UntypedStorage:
    """Return memory that several tensors may share, on top of ``buffer``, which it keeps alive."""
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def rebuild_tensor(  # noqa: PLR0917  # a pickle passes arguments by position
    memory: torch.UntypedStorage | None,
    offset: int,
    dtype: str,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    device: str,
    requires_grad: bool,
    is_parameter: bool,
    attributes: dict[str, Any] | None,
) -> torch.Tensor:
    """Return the tensor that `reduce_tensor` reduced; no ``memory``: it has no elements."""
    tensor = torch.empty(0, dtype=getattr(torch, dtype))
    if memory is not None:
        # No view: autograd treats views differently.
        tensor.set_(memory, offset, shape, stride)
    else:
        tensor = tensor.as_strided(shape, stride).clone()
    tensor = _on_arrival(tensor, device)
    if is_parameter:
        tensor = torch.nn.Parameter(tensor, requires_grad=requires_grad)
    elif requires_grad:
        tensor.requires_grad_()
    if attributes:
        tensor.__dict__.update(attributes)
    return tensor


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and tensor.device.type != "meta"
    )


def _fills_its_memory(tensor: torch.Tensor) -> bool:
    """Return whether the elements fill their memory in some order, as in a transposed tensor."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 0:
            return True
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _memory(plain: torch.Tensor, sent: Sent) -> tuple[SentMemory | None, int, tuple[int, ...]]:
    """Return the memory of a CPU tensor, with its offset and strides there, in elements."""
    size = plain.numel() * plain.element_size()
    if not size:
        return None, 0, plain.stride()
    storage = plain.untyped_storage()
    whole = storage.data_ptr(), storage.nbytes()
    if whole in sent or 2 * size >= storage.nbytes():
        memory = sent.get(whole) or sent.setdefault(whole, SentMemory(*whole, plain))
        return memory, int(plain.storage_offset()), plain.stride()
    if not _fills_its_memory(plain):
        plain = plain.contiguous()
    own = plain.data_ptr(), size
    memory = sent.get(own) or sent.setdefault(own, SentMemory(*own, plain))
    return memory, 0, plain.stride()


def _move(tensor: torch.Tensor, device: str, requires_grad: bool) -> torch.Tensor:
    return _on_arrival(tensor, device).requires_grad_(requires_grad)


def _on_arrival(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Return ``tensor`` on its device in this process, which is not always ``device``."""
    kind, _, index = device.partition(":")
    if kind != "cuda" or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return tensor
    in_rank = POOL_ID_ENV in os.environ
    if in_rank or int(index or 0) >= torch.cuda.device_count():
        return tensor.to("cuda")
    return tensor.to(device)
