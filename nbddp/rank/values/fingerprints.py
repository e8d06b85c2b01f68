"""Describes this rank's values to the notebook: fingerprints, shapes, short texts.

`DescribeValue` calls it. Like a pull, it comes between cells and can be interrupted. No collective
is used.

Runs in: the rank process, main thread, between cells.
"""

import ctypes
import itertools
import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from msgspec.structs import replace

from nbddp.rank import torch_private
from nbddp.rank.cells import RankShell
from nbddp.rank.values import tensor_hash
from nbddp.rank.values.tensor_preview import dtype_text
from nbddp.rank.values.torch_objects import type_name
from nbddp.rank.values.traversal import Outline, Placeholder, can_be_compared, text_of, walk
from nbddp.wire.values.preview_text import shape_text
from nbddp.wire.values.value_questions import (
    BLOCK_BYTES,
    BlockContents,
    Blocks,
    BlocksOf,
    ContentsOf,
    Leaf,
    TensorBlocks,
    Tree,
)

#: Number of leaves of one value that are compared.
MAX_LEAVES = 20_000
_MAX_VALUE = 40
#: The state of every random number generator, unless a variable has this name.
RNG = "rng"


class Fingerprints:
    """Fingerprints of one value; it keeps the tensors for later questions until `forget`."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        #: Tensors by path, and fingerprints of their blocks.
        self._tensors: dict[str, torch.Tensor] = {}
        self._blocks: dict[str, list[bytes]] = {}
        #: Texts that are too long to send.
        self._texts: dict[str, str] = {}

    def tree(
        self,
        names: dict[str, Any],
        expression: str,
        describing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Tree:
        """Return the leaves of a value, and keep its tensors until `forget`.

        Args:
            names: the user's namespace.
            expression: evaluated there; `RNG` is the state of the random number generators.
            describing: a block in which the user's classes are asked for their parts.
        """
        self.forget()
        try:
            value = _evaluate(names, expression)
            with describing():
                return self._tree(value)
        except Exception as error:  # noqa: BLE001 - the user's expression may raise anything
            return Tree(error=f"{type(error).__name__}: {error}".rstrip(": "))

    def blocks(self, question: BlocksOf) -> TensorBlocks:
        """Return fingerprints of the blocks of some tensors, if the question names this rank."""
        for path in question.ranks_by_path.keys() & self._texts.keys():
            self._tensors[path] = _characters(self._texts.pop(path))
            self._blocks[path] = tensor_hash.blocks(self._tensors[path])
        return TensorBlocks(
            {
                path: Blocks(tuple(self._blocks[path]), _norm(self._tensors[path]))
                for path, ranks in question.ranks_by_path.items()
                if self._rank in ranks and path in self._blocks
            }
        )

    def contents(self, question: ContentsOf) -> tuple[BlockContents, list[bytes]]:
        """Return some blocks, if the question names this rank, and a copy of the bytes of each."""
        numbers: dict[str, tuple[int, ...]] = {}
        frames: list[bytes] = []
        for path, blocks in question.blocks_by_path.items():
            if self._rank not in blocks.ranks or path not in self._tensors:
                continue
            numbers[path] = blocks.numbers
            flat = tensor_hash.as_bytes(self._tensors[path])
            for number in blocks.numbers:
                block = flat[number * BLOCK_BYTES :][:BLOCK_BYTES].cpu()
                # This copy needs no NumPy, and no list of numbers.
                frames.append(ctypes.string_at(block.data_ptr(), block.numel()))
        return BlockContents(numbers), frames

    def forget(self) -> None:
        """Release the tensors."""
        self._tensors.clear()
        self._blocks.clear()
        self._texts.clear()

    def leaf_of(self, path: str, value: Any) -> Leaf:
        """Describe one leaf; keeps tensors with their fingerprints, and long texts."""
        if isinstance(value, torch.Tensor):
            return self._tensor_leaf(path, value)
        text = text_of(value)
        digest = tensor_hash.joined([text.encode(errors="replace")]).hex()
        kind = value.type_name if isinstance(value, Placeholder) else type_name(value)
        if not can_be_compared(value):
            return Leaf(path=path, what=kind, digest="", value=text[:_MAX_VALUE])
        if len(text) <= _MAX_VALUE:
            return Leaf(path=path, what=kind, digest=digest, value=text)
        self._texts[path] = text = value if isinstance(value, str) else text
        return Leaf(
            path=path,
            what=kind,
            digest=digest,
            value=text_of(value)[: _MAX_VALUE - 1] + "…",
            size=_size(kind, value, text),
            shape=(len(text),),
            dtype="text",
        )

    def _tree(self, value: Any) -> Tree:
        outline = Outline()
        # The number is limited: objects that refer to each other have very many paths.
        pairs = list(itertools.islice(walk(value, outline), MAX_LEAVES + 1))
        return Tree(
            leaves=tuple(self.leaf_of(path, leaf) for path, leaf in pairs[:MAX_LEAVES]),
            gradients=tuple(
                self._gradient_leaf(f"{path}.grad", leaf)
                for path, leaf in pairs[:MAX_LEAVES]
                if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_leaf
            ),
            kinds=outline.kinds,
            modes=outline.modes,
            is_cut=len(pairs) > MAX_LEAVES,
        )

    def _gradient_leaf(self, path: str, parameter: torch.Tensor) -> Leaf:
        if parameter.grad is None:
            return self.leaf_of(path, None)
        leaf = self.leaf_of(path, parameter.grad)
        if not torch_private.is_flat_shard(parameter):
            return leaf
        _, part, sharding = local_of(parameter)
        return replace(leaf, what=dtype_text(parameter.grad.dtype), part=part, sharding=sharding)

    def _tensor_leaf(self, path: str, tensor: torch.Tensor) -> Leaf:
        local, part, sharding = local_of(tensor)
        if local.layout is not torch.strided:
            local = local.to_dense()
        nbytes, quantizer = local.nbytes, ""
        if local.is_quantized:
            quantizer = _quantizer_text(local)
            local = local.dequantize()
        try:
            blocks = tensor_hash.blocks(local)
        except (RuntimeError, NotImplementedError):
            digest = ""  # a meta tensor, or a tensor subclass without memory
        else:
            self._tensors[path], self._blocks[path] = local, blocks
            parts = [*blocks, quantizer.encode()] if quantizer else blocks
            digest = tensor_hash.joined(parts).hex()
        # Flat shards are cut at any element, so that their shapes differ between ranks.
        shape = "" if torch_private.is_flat_shard(tensor) else shape_text(tensor.shape)
        return Leaf(
            path=path,
            what=f"{dtype_text(tensor.dtype)} {shape}".strip(),
            digest=digest,
            is_tensor=True,
            nbytes=nbytes,
            shape=tuple(local.shape),
            dtype=dtype_text(local.dtype),
            part=part,
            sharding=sharding,
        )


def _size(kind: str, value: Any, text: str) -> str:
    if isinstance(value, str):
        return f"{kind} of {len(value):,} characters"
    if isinstance(value, bytes | bytearray | memoryview):
        return f"{kind}, {memoryview(value).nbytes:,} bytes"
    if isinstance(value, list | tuple | set | frozenset):
        return f"{kind} of {len(value):,} items"
    return f"{kind}, {len(text):,} characters as text"


def _characters(text: str) -> torch.Tensor:
    """Return a text in UTF-32, so that each element has the same size."""
    return torch.frombuffer(bytearray(text, "utf-32-le", "surrogatepass"), dtype=torch.uint8)


def local_of(tensor: torch.Tensor) -> tuple[torch.Tensor, str, str]:
    """Return the local tensor, the name of its shard, and the sharding; empty for a whole one."""
    sharding = torch_private.sharding_of(tensor)
    if sharding is not None:
        text = f"{sharding.placements} on mesh {sharding.mesh}"
        return sharding.local.detach(), sharding.part, text
    if torch_private.is_flat_shard(tensor):
        rank = RankShell.instance().rank
        return tensor.detach(), f"rank {rank}", "flat shard of FSDP"
    return tensor.detach(), "", ""


def rng_states() -> dict[str, Any]:
    """Return the states of all random number generators of imported modules."""
    states: dict[str, Any] = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    if (random := sys.modules.get("random")) is not None:
        states["python"] = random.getstate()
    if (numpy := sys.modules.get("numpy.random")) is not None:
        states["numpy"] = numpy.get_state()
    return states


def _evaluate(names: dict[str, Any], expression: str) -> Any:
    if expression == RNG and RNG not in names:
        return rng_states()
    return eval(expression, names)  # noqa: S307 - the user's own


def _quantizer_text(tensor: torch.Tensor) -> str:
    """Return the parameters that turn the integers of a quantized tensor into numbers."""
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return f"{tensor.q_scale()} {tensor.q_zero_point()}"
    scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return f"{scales.tolist()} {zeros.tolist()} {tensor.q_per_channel_axis()}"


def _norm(tensor: torch.Tensor) -> float | None:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.itemsize < 2:
        return None
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    norm = float(torch.linalg.vector_norm(tensor, dtype=wide))
    return norm if math.isfinite(norm) else None
