"""Text form of shown tensors: for terminals, and beside every picture.

Runs in: ranks and the notebook's process. Pure.
"""

from collections.abc import Sequence

from nbddp.wire.values.tensor_preview import Grid, ShowCall, TensorShown

WIDTH = 100
_GAP = "…"


def shape_text(shape: Sequence[int]) -> str:
    """Return ``(2, 4)``, ``(3,)``, ``()``."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def heading(tensors: Sequence[TensorShown]) -> str:
    """Return the properties that the tensors of several ranks share: ``grad  float32 (2, 4)``."""
    first = tensors[0]
    kind = [first.dtype] if _is_common(tensors, "dtype") else []
    kind.append(shape_text(first.shape) if _is_common(tensors, "shape") else "of different shapes")
    words = [first.name, " ".join(kind)]
    if _is_common(tensors, "device"):
        words.append(f"on {first.device}" if first.device != "cpu" else "")
    else:  # each rank has its own GPU
        kinds = dict.fromkeys(tensor.device.partition(":")[0] for tensor in tensors)
        words.append(f"on {' and '.join(kinds)}")
    if first.part is not None:
        words.append(f"{first.part.placements} on mesh {first.part.mesh}")
    return "  ".join(word for word in words if word)


def own_properties(tensor: TensorShown, tensors: Sequence[TensorShown]) -> str:
    """Return the properties that differ between ranks: dtype, shape, place in the whole tensor."""
    words = [] if _is_common(tensors, "dtype") else [tensor.dtype]
    if not _is_common(tensors, "shape"):
        words.append(shape_text(tensor.shape))
    return " ".join([*words, place(tensor)]).strip()


def _is_common(tensors: Sequence[TensorShown], field: str) -> bool:
    return all(getattr(tensor, field) == getattr(tensors[0], field) for tensor in tensors)


def place(tensor: TensorShown) -> str:
    """Return ``rows 512-1023`` for a shard; empty for a whole tensor, or if it is not known."""
    part = tensor.part
    if part is None or not part.offset or 0 in part.shape:
        return ""
    names = ["rows", "columns"] if len(part.shape) <= 2 else []
    names += [f"dim {dim}:" for dim in range(len(names), len(part.shape))]
    return ", ".join(
        f"{name} {first}-{first + size - 1}" if size > 1 else f"{name} {first}"
        for name, first, size, whole in zip(
            names, part.offset, part.shape, tensor.shape, strict=False
        )
        if size != whole
    )


def lines(tensor: TensorShown) -> list[str]:
    """Return the numbers of one tensor, aligned."""
    if not tensor.grids:
        return ["(no elements)" if 0 in tensor.shape or tensor.part else "(no numbers)"]
    text_lines: list[str] = []
    for grid in tensor.grids:
        if grid.label:
            text_lines.append(grid.label)
        text_lines += _grid_lines(grid)
    return text_lines


def side_by_side(blocks: Sequence[Sequence[str]], width: int = WIDTH) -> list[str]:
    """Place blocks of lines side by side, as many as fit into ``width`` columns, the rest below."""
    text_lines: list[str] = []
    row: list[Sequence[str]] = []
    used = 0
    for block in blocks:
        size = max(map(len, block)) + 3
        if row and used + size > width:
            text_lines += [*_joined(row), ""]
            row, used = [], 0
        row.append(block)
        used += size
    return text_lines + _joined(row)


def call_text(call: ShowCall) -> str:
    """Return the text of the call of one rank, for an output that does not join the ranks."""
    text_lines = [call.title] if call.title else []
    if call.open:
        text_lines.append(open_text(call.open))
    for tensor in call.tensors:
        text_lines += [" | ".join(part for part in (heading([tensor]), place(tensor)) if part)]
        text_lines += lines(tensor)
    return "\n".join(text_lines)


def open_text(names: Sequence[str], ranks: str = "") -> str:
    """Return ``may be early: all_reduce was not over on ranks 0-1``."""
    was = "was" if len(set(names)) == 1 else "were"
    where = f" on {ranks}" if ranks else ""
    return f"may be early: {', '.join(dict.fromkeys(names))} {was} not over{where}"


def _grid_lines(grid: Grid) -> list[str]:
    rows = [list(row) for row in grid.texts]
    if grid.column_gap is not None:
        for row in rows:
            row.insert(grid.column_gap, _GAP)
    if not rows or not rows[0]:
        return ["(no elements)"]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text_lines = [
        " ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows
    ]
    if grid.row_gap is not None:
        text_lines.insert(grid.row_gap, _GAP)
    return text_lines


def _joined(blocks: Sequence[Sequence[str]]) -> list[str]:
    height = max((len(block) for block in blocks), default=0)
    widths = [max(map(len, block)) for block in blocks]
    return [
        "   ".join(
            (block[number] if number < len(block) else "").ljust(width)
            for block, width in zip(blocks, widths, strict=True)
        ).rstrip()
        for number in range(height)
    ]
