"""Fingerprints of tensors: equal where the bits are, computed where the tensor is.

A fingerprint takes about as long as reading the memory once. For each block of 1 MiB there are two
sums of its 64-bit words, each word times a weight of its own, modulo 2**64: one of the words
themselves, one of their upper halves, since a sum alone would not see two flipped sign bits. Two
blocks that differ have equal sums with a chance of at most 1 in 2**32, and far less if they differ
in more than a few bits. Sums of integers are the same on every device and in any order.

Equal means: the same bits. A NaN equals a NaN of the same bits, and -0.0 is not 0.0.

Runs in: the rank process. Source of the idea: Carter and Wegman, "Universal classes of hash
functions", 1979.
"""

import hashlib
from functools import cache

import torch

#: Bytes that are compared at once.
BLOCK_BYTES = 1 << 20
_WORDS = BLOCK_BYTES // 8
_SEED = 0x6E6264  # any: it must be the same on all ranks


def blocks(tensor: torch.Tensor) -> list[bytes]:
    """Return the fingerprint of each block of a dense tensor, about 16 bytes each.

    Raises:
        RuntimeError, NotImplementedError: it has no memory that can be read as bytes.
    """
    flat = as_bytes(tensor)  # (n_bytes,), uint8
    n_words, rest = divmod(flat.numel(), 8)
    words = flat[: n_words * 8].view(torch.int64)
    sums = [_sums(part) for part in words.split(_WORDS)] if n_words else []
    found = [bytes(pair) for pair in _fetched(sums)]
    if rest:
        tail = bytes(flat[n_words * 8 :].cpu().tolist())
        if n_words % _WORDS:
            found[-1] += tail
        else:
            found.append(tail)
    return found


def of_tensor(tensor: torch.Tensor) -> bytes:
    """One fingerprint for its elements; shape and dtype are not part of it."""
    return joined(blocks(tensor))


def joined(parts: list[bytes]) -> bytes:
    """One fingerprint for several, in their order."""
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.digest()


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Its elements in order, as bytes, where it is; copied only if they do not lie in order."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        raise NotImplementedError(f"a tensor of layout {tensor.layout} on {tensor.device}")
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.stride() != (1,):  # of one element or none, which counts as contiguous all the same
        flat = flat.clone(memory_format=torch.contiguous_format)
    flat = flat.view(torch.uint8)
    return flat if flat.storage_offset() % 8 == 0 else flat.clone()


def _sums(words: torch.Tensor) -> torch.Tensor:
    """Both sums of one block."""
    first, second = (weights[: len(words)] for weights in _weights(words.device))
    if words.device.type == "cpu":  # a product with a vector needs no room for each word's
        upper = torch.bitwise_right_shift(words, 32, out=_room()[: len(words)])
        return torch.stack([words @ first, upper @ second])
    upper = words >> 32
    return torch.stack([(words * first).sum(), (upper * second).sum()])


def _fetched(sums: list[torch.Tensor]) -> list[bytearray]:
    """Return all at once: each copy from a device would wait for it."""
    if not sums:
        return []
    return [
        bytearray(b"".join(value.to_bytes(8, "little", signed=True) for value in pair))
        for pair in torch.stack(sums).tolist()
    ]


@cache
def _room() -> torch.Tensor:
    """Memory that is there already costs half the time of fresh memory."""
    return torch.empty(_WORDS, dtype=torch.int64, device="cpu")


@cache
def _weights(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Odd numbers, the same on every rank; the user's generators are not touched."""
    generator = torch.Generator(device="cpu").manual_seed(_SEED)
    shape = (2, _WORDS)
    found = torch.randint(-(2**63), 2**63 - 1, shape, generator=generator, device="cpu") | 1
    return found[0].to(device), found[1].to(device)
