"""Fingerprints of tensors: equal for equal bits, computed on the tensor's device.

A fingerprint takes about as long as reading the memory once. For each block of 1 MiB there are two
sums of its 64-bit words, each word times its own weight, modulo 2**64: one of the words themselves,
one of their upper halves, since one sum would miss two flipped sign bits. Two different blocks have
equal sums with a probability of at most 1 in 2**32, and far less if more than a few bits differ.
Sums of integers are equal on every device and in any order. A tensor of at most 4 KiB has the
BLAKE2b hash of its bytes instead, which takes less time than the calls that would sum them.

Equality compares bits: a NaN equals a NaN with the same bits, and -0.0 is not 0.0.

Runs in: the rank process. Source of the idea: Carter and Wegman, "Universal classes of hash
functions", 1979.
"""

import ctypes
import hashlib
from functools import cache

import torch

from nbddp.wire.values.value_questions import BLOCK_BYTES

_WORDS = BLOCK_BYTES // 8
#: Bytes of a tensor that is copied to the CPU and hashed there.
_SMALL_BYTES = 4096
_SEED = 0x6E6264  # any: it must be the same on all ranks


def blocks(tensor: torch.Tensor) -> list[bytes]:
    """Return the fingerprint of each block of a dense tensor, about 16 bytes each.

    Raises:
        RuntimeError, NotImplementedError: the tensor has no memory that can be read as bytes.
    """
    flat = as_bytes(tensor)  # (n_bytes,), uint8
    if 0 < flat.numel() <= _SMALL_BYTES:
        return [hashlib.blake2b(_content(flat), digest_size=16).digest()]
    n_words, rest = divmod(flat.numel(), 8)
    words = flat[: n_words * 8].view(torch.int64)
    sums = [_sums(part) for part in words.split(_WORDS)] if n_words else []
    digests = [bytes(pair) for pair in _fetched(sums)]
    if rest:
        tail = bytes(flat[n_words * 8 :].cpu().tolist())
        if n_words % _WORDS:
            digests[-1] += tail
        else:
            digests.append(tail)
    return digests


def of_tensor(tensor: torch.Tensor) -> bytes:
    """Return one fingerprint of a tensor's elements, without shape and dtype; see `blocks`."""
    return joined(blocks(tensor))


def joined(parts: list[bytes]) -> bytes:
    """Return one fingerprint for several, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements in order, as bytes on its device; copies it if not contiguous.

    Raises:
        NotImplementedError: the tensor is not strided, or a meta tensor.
    """
    tensor = tensor.detach()
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        raise NotImplementedError(f"a tensor of layout {tensor.layout} on {tensor.device}")
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.stride() != (1,):  # at most one element, which counts as contiguous with any stride
        flat = flat.clone(memory_format=torch.contiguous_format)
    flat = flat.view(torch.uint8)
    return flat if flat.storage_offset() % 8 == 0 else flat.clone()


def _content(flat: torch.Tensor) -> bytes:
    flat = flat.cpu()
    if not flat.data_ptr():  # a fake tensor, or its memory was freed, as by FSDP
        raise RuntimeError("the tensor has no memory")
    return ctypes.string_at(flat.data_ptr(), flat.numel())


def _sums(words: torch.Tensor) -> torch.Tensor:
    """Return both sums of one block."""
    first, second = (weights[: len(words)] for weights in _weights(words.device))
    if words.device.type == "cpu":  # the product of vectors needs no memory for each word
        upper = torch.bitwise_right_shift(words, 32, out=_scratch()[: len(words)])
        return torch.stack([words @ first, upper @ second])
    upper = words >> 32
    return torch.stack([(words * first).sum(), (upper * second).sum()])


def _fetched(sums: list[torch.Tensor]) -> list[bytearray]:
    """Return all sums with one copy: each copy from a device would wait for it."""
    if not sums:
        return []
    return [
        bytearray(b"".join(value.to_bytes(8, "little", signed=True) for value in pair))
        for pair in torch.stack(sums).tolist()
    ]


@cache
def _scratch() -> torch.Tensor:
    """Return memory that is reused: it costs half the time of fresh memory."""
    return torch.empty(_WORDS, dtype=torch.int64, device="cpu")


@cache
def _weights(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return odd numbers, equal on every rank, without the user's random number generators."""
    generator = torch.Generator(device="cpu").manual_seed(_SEED)
    shape = (2, _WORDS)
    weights = torch.randint(-(2**63), 2**63 - 1, shape, generator=generator, device="cpu") | 1
    return weights[0].to(device), weights[1].to(device)
