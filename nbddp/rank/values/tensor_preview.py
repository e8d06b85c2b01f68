"""Selects the few numbers of a tensor that its picture shows.

Runs in: the rank process, main thread, inside the user's cell.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from nbddp.rank import torch_private
from nbddp.rank.values import tensor_hash
from nbddp.wire.values.tensor_preview import Grid, Part, TensorShown

#: Up to this many rows and columns are shown whole; else the first and the last.
_WHOLE_ROWS, _WHOLE_COLUMNS, _WHOLE_LINE = 8, 8, 12
_FIRST, _LAST = 3, 2
#: Number of slices that are shown of a tensor with more than two dimensions.
_MAX_SLICES = 3


def preview(tensor: torch.Tensor, name: str = "") -> TensorShown:
    """Return the preview of a tensor of any kind, without communication between ranks."""
    tensor = tensor.detach()
    sharding = torch_private.sharding_of(tensor)
    local = tensor if sharding is None else sharding.local.detach()
    part = None
    if sharding is not None:
        part = Part(
            placements=sharding.placements,
            mesh=sharding.mesh,
            shape=list(local.shape),
            offset=[] if sharding.offset is None else list(sharding.offset),
        )
    return TensorShown(
        name=name,
        shape=list(tensor.shape),
        dtype=dtype_text(tensor.dtype),
        device=str(local.device),
        grids=_grids(local),
        digest=_digest(local),
        part=part,
    )


def dtype_text(dtype: torch.dtype) -> str:
    """Return ``float32``."""
    return str(dtype).removeprefix("torch.")


def _digest(tensor: torch.Tensor) -> str:
    try:
        return tensor_hash.of_tensor(tensor).hex()
    except (RuntimeError, NotImplementedError):
        return ""


def _grids(tensor: torch.Tensor) -> list[Grid]:
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return []
    if tensor.dim() < 2:
        tensor = tensor.reshape(1, -1)
        return [_grid(tensor, _WHOLE_LINE, "")]
    leading = tensor.shape[:-2]
    count = math.prod(leading)
    grids = []
    for number in range(min(count, _MAX_SLICES)):
        index: list[int] = []
        rest = number
        for size in reversed(leading):
            index.insert(0, rest % size)
            rest //= size
        label = f"[{', '.join(map(str, index))}]" if index else ""
        if number == _MAX_SLICES - 1 and count > _MAX_SLICES:
            label += f" and {count - _MAX_SLICES} more"
        grids.append(_grid(tensor[tuple(index)], _WHOLE_COLUMNS, label))
    return grids


def _grid(matrix: torch.Tensor, whole_columns: int, label: str) -> Grid:
    rows, row_gap = _chosen(matrix.shape[0], _WHOLE_ROWS)
    columns, column_gap = _chosen(matrix.shape[1], whole_columns)
    corner = matrix[rows][:, columns] if matrix.numel() else matrix
    values = _plain(corner)
    return Grid(
        texts=_texts(values),
        values=[[_finite(value) for value in row] for row in values],
        row_gap=row_gap,
        column_gap=column_gap,
        label=label,
    )


def _chosen(size: int, whole: int) -> tuple[list[int], int | None]:
    """Return the indices that are shown, and the position of the gap between them."""
    if size <= whole:
        return list(range(size)), None
    return [*range(_FIRST), *range(size - _LAST, size)], _FIRST


def _plain(corner: torch.Tensor) -> list[list[Any]]:
    """Return the elements as Python numbers."""
    if corner.is_floating_point():
        corner = corner.to(torch.float64)  # `tolist` does not support every small dtype
    rows: list[list[Any]] = corner.resolve_conj().resolve_neg().cpu().tolist()
    return rows


def _finite(value: complex) -> float | None:
    """Return a number for the colour: the magnitude of a complex number; None: not finite."""
    if isinstance(value, complex):
        value = abs(value)
    return float(value) if math.isfinite(value) else None


def number_text(value: Any) -> str:
    """Return one number as a short text."""
    return _texts([[value]])[0][0]


def _texts(values: Sequence[Sequence[Any]]) -> list[list[str]]:
    """Return short texts with equal decimals, which depend on the largest number of the grid."""
    floats = [value for row in values for value in row if isinstance(value, float)]
    finite = [abs(value) for value in floats if math.isfinite(value)]
    decimals: int | None = None
    if all(value == int(value) and value < 1e6 for value in finite):
        decimals = 0
    elif len(finite) > 1 and 1e-3 <= max(finite) < 1e5:
        decimals = max(0, 2 - math.floor(math.log10(max(finite))))
    return [[_text(value, decimals) for value in row] for row in values]


def _text(value: Any, decimals: int | None) -> str:
    if isinstance(value, bool):
        return "T" if value else "F"
    if isinstance(value, complex):
        return f"{value.real:.2g}{value.imag:+.2g}j"
    if isinstance(value, float):
        return _float_text(value, decimals)
    text = str(value)
    return text if len(text) <= 7 else _short_exponent(f"{value:.2e}")


def _float_text(value: float, decimals: int | None) -> str:
    if not math.isfinite(value):
        return str(value)
    if decimals is None:
        return _short_exponent(f"{value:.3g}")
    text = f"{value:.{decimals}f}"
    if value and float(text) == 0.0:
        return _short_exponent(f"{value:.0e}")  # it is not zero
    return text.rstrip("0").rstrip(".") if "." in text else text


def _short_exponent(text: str) -> str:
    return text.replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
