"""Shown tensors as text: for terminals, and beside every picture.

Runs in: ranks and the notebook's process. Pure.
"""

from collections.abc import Sequence

from nbddp.wire.values.tensor_preview import Grid, ShowCall, TensorShown

WIDTH = 100
_GAP = "…"


def shape_text(shape: Sequence[int]) -> str:
    """``(2, 4)``, ``(3,)``, ``()``."""
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def heading(tensors: Sequence[TensorShown]) -> str:
    """``grad  float32 (2, 4)``, how it is sharded: what those of several ranks have in common."""
    first = tensors[0]
    kind = [first.dtype] if _is_common(tensors, "dtype") else []
    kind.append(shape_text(first.shape) if _is_common(tensors, "shape") else "of different shapes")
    words = [first.name, " ".join(kind)]
    if _is_common(tensors, "device"):
        words.append(f"on {first.device}" if first.device != "cpu" else "")
    else:  # of GPUs each rank has its own
        kinds = dict.fromkeys(tensor.device.partition(":")[0] for tensor in tensors)
        words.append(f"on {' and '.join(kinds)}")
    if first.part is not None:
        words.append(f"{first.part.placements} on mesh {first.part.mesh}")
    return "  ".join(word for word in words if word)


def own(tensor: TensorShown, tensors: Sequence[TensorShown]) -> str:
    """What this one has that others do not: its dtype, its shape, its place in the whole."""
    words = [] if _is_common(tensors, "dtype") else [tensor.dtype]
    if not _is_common(tensors, "shape"):
        words.append(shape_text(tensor.shape))
    return " ".join([*words, place(tensor)]).strip()


def _is_common(tensors: Sequence[TensorShown], what: str) -> bool:
    return all(getattr(tensor, what) == getattr(tensors[0], what) for tensor in tensors)


def place(tensor: TensorShown) -> str:
    """``rows 512-1023`` of a shard; empty for a whole tensor, or where it is not known."""
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
    """The numbers of one tensor, aligned."""
    if not tensor.grids:
        return ["(no elements)" if 0 in tensor.shape or tensor.part else "(no numbers)"]
    found: list[str] = []
    for grid in tensor.grids:
        if grid.label:
            found.append(grid.label)
        found += _grid_lines(grid)
    return found


def beside(blocks: Sequence[Sequence[str]], width: int = WIDTH) -> list[str]:
    """Blocks of lines side by side, as many as fit, the rest below."""
    found: list[str] = []
    row: list[Sequence[str]] = []
    used = 0
    for block in blocks:
        size = max(map(len, block)) + 3
        if row and used + size > width:
            found += [*_joined(row), ""]
            row, used = [], 0
        row.append(block)
        used += size
    return found + _joined(row)


def alone(call: ShowCall) -> str:
    """What one rank shows, where nobody puts the ranks together."""
    found = [call.title] if call.title else []
    if call.open:
        found.append(open_text(call.open))
    for tensor in call.tensors:
        found += [" | ".join(part for part in (heading([tensor]), place(tensor)) if part)]
        found += lines(tensor)
    return "\n".join(found)


def open_text(names: Sequence[str], who: str = "") -> str:
    """``may be early: all_reduce was not over on ranks 0-1``."""
    was = "was" if len(set(names)) == 1 else "were"
    return (
        f"may be early: {', '.join(dict.fromkeys(names))} {was} not over{f' on {who}' * bool(who)}"
    )


def _grid_lines(grid: Grid) -> list[str]:
    rows = [list(row) for row in grid.texts]
    if grid.column_gap is not None:
        for row in rows:
            row.insert(grid.column_gap, _GAP)
    if not rows or not rows[0]:
        return ["(no elements)"]
    size = [max(map(len, column)) for column in zip(*rows, strict=True)]
    found = [
        " ".join(text.rjust(width) for text, width in zip(row, size, strict=True)) for row in rows
    ]
    if grid.row_gap is not None:
        found.insert(grid.row_gap, _GAP)
    return found


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
