"""Tells the notebook of this rank's values: fingerprints, shapes, a few words.

Called for a `DescribeValue`, which comes between cells as any pull does, and can be interrupted. No
collective is used.

Runs in: the rank process, main thread, between cells.
"""

import ctypes
import itertools
import math
import sys
from typing import Any

import torch
from msgspec.structs import replace

from nbddp.rank import torch_private
from nbddp.rank.cells.shell import RankShell
from nbddp.rank.values import tensor_hash
from nbddp.rank.values.tensor_preview import dtype_text
from nbddp.rank.values.torch_objects import type_name
from nbddp.rank.values.traversal import Hollow, Outline, can_be_compared, text_of, walk
from nbddp.wire.values.fingerprints import (
    BlockContents,
    Blocks,
    BlocksOf,
    ContentsOf,
    Leaf,
    TensorBlocks,
    Tree,
)
from nbddp.wire.values.preview_text import shape_text

#: Of one value.
MAX_LEAVES = 20_000
_MAX_VALUE = 40
#: The state of every generator of random numbers, unless a variable has this name.
RNG = "rng"


class Fingerprints:
    """Fingerprints of one value, and its tensors for the questions that follow, until `forget`."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        #: Tensors by path, and fingerprints of their blocks.
        self._tensors: dict[str, torch.Tensor] = {}
        self._blocks: dict[str, list[bytes]] = {}
        #: Values that are too long to be told.
        self._texts: dict[str, str] = {}

    def tree(self, names: dict[str, Any], expression: str) -> Tree:
        """Return the leaves of a value; keeps its tensors until `forget`."""
        self.forget()
        try:
            value = _evaluate(names, expression)
            return self._tree(value)
        except Exception as error:  # noqa: BLE001 - the user's expression may raise anything
            return Tree(error=f"{type(error).__name__}: {error}".rstrip(": "))

    def blocks(self, wanted: BlocksOf) -> TensorBlocks:
        """Fingerprints of the blocks of some tensors, if this rank is named for them."""
        for path in wanted.ranks_by_path.keys() & self._texts.keys():
            self._tensors[path] = _characters(self._texts.pop(path))
            self._blocks[path] = tensor_hash.blocks(self._tensors[path])
        return TensorBlocks(
            {
                path: Blocks(tuple(self._blocks[path]), _norm(self._tensors[path]))
                for path, ranks in wanted.ranks_by_path.items()
                if self._rank in ranks and path in self._blocks
            }
        )

    def contents(self, wanted: ContentsOf) -> tuple[BlockContents, list[bytes]]:
        """Some blocks, if this rank is named for them, and a copy of the bytes of each."""
        numbers: dict[str, tuple[int, ...]] = {}
        frames: list[bytes] = []
        for path, asked in wanted.blocks_by_path.items():
            if self._rank not in asked.ranks or path not in self._tensors:
                continue
            numbers[path] = asked.numbers
            flat = tensor_hash.as_bytes(self._tensors[path])
            for number in asked.numbers:
                piece = flat[number * tensor_hash.BLOCK_BYTES :][: tensor_hash.BLOCK_BYTES].cpu()
                # Neither needs NumPy nor goes through a list of numbers.
                frames.append(ctypes.string_at(piece.data_ptr(), piece.numel()))
        return BlockContents(numbers), frames

    def forget(self) -> None:
        """Let go of the tensors."""
        self._tensors.clear()
        self._blocks.clear()
        self._texts.clear()

    def leaf_of(self, path: str, value: Any) -> Leaf:
        """Describe one leaf; a tensor is kept, and its fingerprints too."""
        if isinstance(value, torch.Tensor):
            return self._tensor_leaf(path, value)
        text = text_of(value)
        digest = tensor_hash.joined([text.encode(errors="replace")]).hex()
        kind = value.type_name if isinstance(value, Hollow) else type_name(value)
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
        # Not more: objects that know each other are reached on ever so many paths.
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
            found = tensor_hash.blocks(local)
        except (RuntimeError, NotImplementedError):
            found = []  # a meta tensor, or of a kind of its own
            digest = ""
        else:
            self._tensors[path], self._blocks[path] = local, found
            digest = tensor_hash.joined([*found, quantizer.encode()] if quantizer else found).hex()
        # A flat shard is cut anywhere, so that its shape is another on each rank.
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
    """So that a place in it is the place of a character."""
    return torch.frombuffer(bytearray(text, "utf-32-le", "surrogatepass"), dtype=torch.uint8)


def local_of(tensor: torch.Tensor) -> tuple[torch.Tensor, str, str]:
    """What lies on this rank; which part it is, and how the whole is sharded: empty for a whole."""
    sharding = torch_private.sharding_of(tensor)
    if sharding is not None:
        text = f"{sharding.placements} on mesh {sharding.mesh}"
        return sharding.local.detach(), sharding.part, text
    if torch_private.is_flat_shard(tensor):
        rank = RankShell.instance().rank
        return tensor.detach(), f"rank {rank}", "flat shard of FSDP"
    return tensor.detach(), "", ""


def rng_states() -> dict[str, Any]:
    """Return the state of every generator that is there already."""
    found: dict[str, Any] = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state()
    if (random := sys.modules.get("random")) is not None:
        found["python"] = random.getstate()
    if (numpy := sys.modules.get("numpy.random")) is not None:
        found["numpy"] = numpy.get_state()
    return found


def _evaluate(names: dict[str, Any], expression: str) -> Any:
    if expression == RNG and RNG not in names:
        return rng_states()
    return eval(expression, names)  # noqa: S307 - the user's own


def _quantizer_text(tensor: torch.Tensor) -> str:
    """What turns its integers into numbers."""
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return f"{tensor.q_scale()} {tensor.q_zero_point()}"
    scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    return f"{scales.tolist()} {zeros.tolist()} {tensor.q_per_channel_axis()}"


def _norm(tensor: torch.Tensor) -> float | None:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.itemsize < 2:
        return None
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    found = float(torch.linalg.vector_norm(tensor, dtype=wide))
    return found if math.isfinite(found) else None
