"""Draws the tensors of several ranks side by side: small grids of coloured numbers.

Orange is below zero, white is zero, blue is above: colour-blind readers can distinguish them, and
the numbers are there too. All ranks of a picture share one scale, before and after a block.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

from nbddp.notebook.render.canvas import (
    LARGE,
    SMALL,
    WHITE,
    Colour,
    Picture,
    text_height,
    text_width,
)
from nbddp.wire.rank_set import RankSet, ranks_by
from nbddp.wire.values import preview_text
from nbddp.wire.values.tensor_preview import Grid, TensorShown

_ZERO = (244, 244, 242)
_ABOVE = (33, 102, 172)
_BELOW = (196, 98, 16)
_NO_NUMBER = (205, 205, 205)
_DARK: Colour = (28, 28, 28)
_FAINT: Colour = (128, 128, 128, 70)
_ELSEWHERE: Colour = (128, 128, 128, 34)  # elements that another rank holds
_SHADES = 16  # of blue, and of orange: with their edges they fit into 256 colours
_CELL_HEIGHT = 20.0
_CELL_PADDING = 5.0
_GAP = 13.0  # where rows or columns are left out
_BETWEEN = 18.0
_EDGE = 2.0  # left and right: a letter may extend beyond its box
_LINE = 16.0
_MAX_WIDTH = 860.0
#: Beyond this many ranks, equal ones share a tile.
_MAX_APART = 8
_MAX_TILES = 16
#: A shard is drawn in its place in a tensor of at most this many rows and columns.
_MAX_WHOLE = 12


@dataclass(frozen=True)
class Block:
    """One tensor on all ranks, at one moment or at two."""

    ranks: RankSet
    stages: Sequence[tuple[str, Mapping[int, TensorShown]]]  #: name and tensor by rank
    #: Open operations at the last moment, by rank.
    open: Mapping[int, Sequence[str]] = field(default_factory=dict)
    has_all_ranks: bool = True  #: ``ranks`` are all ranks of the pool

    @property
    def tensors(self) -> list[TensorShown]:
        """The tensors of all ranks and moments."""
        return [tensor for _, by_rank in self.stages for tensor in by_rank.values()]

    def columns(self) -> tuple[list[RankSet], int]:
        """The ranks of each tile, and the number of ranks without a tile."""
        if len(self.ranks) <= _MAX_APART:
            return [RankSet.of([rank]) for rank in self.ranks], 0
        by_look = ranks_by(
            (tuple(_look_key(tensors.get(rank), rank) for _, tensors in self.stages), rank)
            for rank in self.ranks
        )
        groups = list(by_look.values())
        return groups[:_MAX_TILES], sum(map(len, groups[_MAX_TILES:]))

    def remark(self, stage: int) -> str:
        """The text below a row of tiles: ranks with equal tensors, ranks without a tensor."""
        tensors = self.stages[stage][1]
        by_look = ranks_by(
            (_look_key(tensor, rank), rank)
            for rank, tensor in sorted(tensors.items())
            if tensor.part is None
        )
        parts = []
        groups = [ranks for ranks in by_look.values() if len(ranks) > 1]
        if len(groups) > 2:
            parts.append(f"{len(by_look)} different values")
        elif len(groups) == 1 and len(groups[0]) == len(self.ranks) and self.has_all_ranks:
            parts.append("equal on all ranks")
        elif groups:
            parts.append("; ".join(f"equal on {_name(group)}" for group in groups))
        if stage and self.open:
            names = [name for rank in sorted(self.open) for name in self.open[rank]]
            parts.append(preview_text.open_text(names, _name(RankSet.of(self.open))))
        missing = self.ranks - RankSet.of(tensors)
        if missing:
            verb = "reached" if stage else "shown"
            parts.append(f"not {verb} by {_name(missing)}")
        return ", ".join(parts)


def _look_key(tensor: TensorShown | None, rank: int) -> object:
    """A key that is equal for tiles that look the same."""
    if tensor is None:
        return None
    alike = tensor.digest or f"unknown, of rank {rank}"
    offset = (tensor.part.placements, *tensor.part.offset) if tensor.part else ()
    return tensor.dtype, tuple(tensor.shape), alike, offset


def _name(ranks: RankSet) -> str:
    """The ranks in at most 24 characters, or as a short list with their number."""
    if len(ranks.describe()) <= 24:
        return ranks.describe()
    first, second, *_ = ranks.ranks
    return f"ranks {first},{second},… ({len(ranks)})"


def text(title: str, blocks: Sequence[Block]) -> str:
    """The tensors of `draw` as text.

    Args:
        title: the first line; empty: none.
        blocks: the tensors, one below the other.
    """
    lines = [title] if title else []
    for block in blocks:
        lines.append(preview_text.heading(block.tensors))
        columns, more = block.columns()
        for number, (name, tensors) in enumerate(block.stages):
            head = " | ".join(part for part in (name, block.remark(number)) if part)
            lines += [head] if head else []
            lines += preview_text.side_by_side(
                [_text_tile(ranks, tensors, block) for ranks in columns]
            )
        if more:
            lines.append(f"and {more} more ranks")
    return "\n".join(lines)


def _text_tile(ranks: RankSet, tensors: Mapping[int, TensorShown], block: Block) -> list[str]:
    tensor = tensors.get(ranks.ranks[0])
    if tensor is None:
        return [_name(ranks), "-"]
    own_text = preview_text.own_properties(tensor, block.tensors)
    return [
        f"{_name(ranks)}: {own_text}" if own_text else _name(ranks),
        *preview_text.lines(tensor),
    ]


def draw(title: str, blocks: Sequence[Block]) -> Picture:
    """A picture of tensors on all ranks.

    Args:
        title: stands above; empty: none.
        blocks: the tensors, one below the other.

    Raises:
        ValueError: there are no blocks and no title, or the picture is too large.
    """
    layouts = [_BlockLayout(block) for block in blocks]
    top = _LINE + 8 if title else 0.0
    width = max([text_width(title, LARGE), *(layout.width for layout in layouts)])
    height = top + sum(layout.height for layout in layouts) - (layouts[-1].margin if layouts else 0)
    canvas = Picture(width + 2 * _EDGE, height)
    if title:
        canvas.text(_EDGE, 2, title, size=LARGE)
    for layout in layouts:
        layout.draw(canvas, top)
        top += layout.height
    return canvas


@dataclass
class _BlockLayout:
    """The places of all parts of a block."""

    block: Block
    cell_width: float = field(init=False)

    def __post_init__(self) -> None:
        self._columns, self._more = self.block.columns()
        tensors = self.block.tensors
        grids = [grid for tensor in tensors for grid in tensor.grids]
        texts = {text for grid in grids for row in grid.texts for text in row}
        widest = max(map(text_width, texts), default=0.0)
        self.cell_width = max(_CELL_HEIGHT, ceil(widest) + 2 * _CELL_PADDING)
        self._low, self._high = _limits(grids)
        self._is_whole = all(_fits_whole(tensor) for tensor in tensors)
        labels = [_name(ranks) for ranks in self._columns]
        own_texts = [self._own_text(tensor) for tensor in tensors]
        labels += own_texts
        sizes = [self._size(tensor) for tensor in tensors]
        self._tile_width = max([text_width(label) for label in labels] + [w for w, _ in sizes])
        self._stage_heights = [
            max([_CELL_HEIGHT, *(self._size(tensor)[1] for tensor in by_rank.values())])
            for _, by_rank in self.block.stages
        ]
        names = [name for name, _ in self.block.stages if name]
        self._left = _EDGE + max((text_width(name) + 14 for name in names), default=0)
        room = _MAX_WIDTH - self._left + _BETWEEN
        per_row = max(1, int(room // (self._tile_width + _BETWEEN)))
        self._per_row = _even_rows(len(self._columns), per_row)
        n_rows = -(-len(self._columns) // self._per_row)
        label_height = 2 * _LINE if any(own_texts) else _LINE
        self._label_height = label_height if any(labels) else 0.0
        remarks = [self.block.remark(number) for number in range(len(self.block.stages))]
        self._gaps = [_LINE + (8 if remark else 0) for remark in remarks]
        stages_height = sum(self._stage_heights) + sum(self._gaps)
        self._row_height = self._label_height + stages_height + 6
        self._heading = preview_text.heading(tensors)
        self.height = _LINE + 6 + n_rows * self._row_height + (_LINE if self._more else 0)
        tiles_width = self._per_row * (self._tile_width + _BETWEEN) - _BETWEEN
        #: The part of the height that is empty, at the bottom.
        self.margin = 0.0 if self._more else 8.0 if remarks[-1] else _LINE + 4
        self.width = max(
            text_width(self._heading),
            self._left + tiles_width,
            *(self._left + text_width(remark, SMALL) for remark in remarks),
        )

    def draw(self, canvas: Picture, top: float) -> None:
        canvas.text(_EDGE, top + 2, self._heading)
        top += _LINE + 6
        for start in range(0, len(self._columns), self._per_row):
            columns = self._columns[start : start + self._per_row]
            is_last = start + self._per_row >= len(self._columns)
            self._draw_row(canvas, top, columns, with_remarks=is_last)
            top += self._row_height
        if self._more:
            canvas.text(self._left, top, f"and {self._more} more ranks")

    def _draw_row(
        self, canvas: Picture, top: float, columns: list[RankSet], *, with_remarks: bool
    ) -> None:
        at = [self._left + i * (self._tile_width + _BETWEEN) for i in range(len(columns))]
        for x, ranks in zip(at, columns, strict=True):
            canvas.text(x, top, _name(ranks))
            row_tensors = (by_rank.get(ranks.ranks[0]) for _, by_rank in self.block.stages)
            own_texts = [self._own_text(tensor) for tensor in row_tensors if tensor is not None]
            canvas.text(x, top + _LINE, "".join(own_texts[:1]), size=SMALL)
        top += self._label_height
        for number, (name, tensors) in enumerate(self.block.stages):
            height = self._stage_heights[number]
            canvas.text(_EDGE, top + (min(height, _CELL_HEIGHT) - text_height()) / 2, name)
            for x, ranks in zip(at, columns, strict=True):
                tensor = tensors.get(ranks.ranks[0])
                if tensor is None:
                    self._draw_missing(canvas, x, top, min(height, 2 * _CELL_HEIGHT) - 1)
                else:
                    self._draw_tensor(canvas, x, top, tensor)
            if with_remarks:
                remark = self.block.remark(number)
                canvas.text(self._left, top + height + 4, remark, size=SMALL)
            top += height + self._gaps[number]

    def _draw_missing(self, canvas: Picture, x: float, y: float, height: float) -> None:
        canvas.hatch(x, y, self._tile_width, height, _FAINT, gap=6)
        canvas.frame(x, y, self._tile_width, height, _FAINT)

    def _own_text(self, tensor: TensorShown) -> str:
        """The text below the name of a rank; empty for a shard that is drawn in its place."""
        if self._is_whole and tensor.part is not None:
            return ""
        return preview_text.own_properties(tensor, self.block.tensors)

    # --- one tensor ----------------------------------------------------------------------------

    def _size(self, tensor: TensorShown) -> tuple[float, float]:
        if tensor.part is not None and self._is_whole:
            rows, columns = _matrix(tensor.shape)
            return columns * self.cell_width, rows * _CELL_HEIGHT
        width, height = text_width("(no elements)"), 0.0
        if tensor.grids:
            width = 0.0
        for grid in tensor.grids:
            columns = len(grid.texts[0]) if grid.texts else 0
            gap = 0.0 if grid.column_gap is None else _GAP
            width = max(width, columns * self.cell_width + gap, text_width(grid.label, SMALL))
            height += len(grid.texts) * _CELL_HEIGHT + (0.0 if grid.row_gap is None else _GAP)
            height += _LINE if grid.label else 0.0
        return width, height

    def _draw_tensor(self, canvas: Picture, x: float, y: float, tensor: TensorShown) -> None:
        if tensor.part is not None and self._is_whole:
            rows, columns = _matrix(tensor.shape)
            for row in range(rows):
                for column in range(columns):
                    at = (x + column * self.cell_width, y + row * _CELL_HEIGHT)
                    canvas.fill(*at, self.cell_width - 1, _CELL_HEIGHT - 1, _ELSEWHERE)
            offset = _matrix_offset(tensor)
            x += offset[1] * self.cell_width
            y += offset[0] * _CELL_HEIGHT
        elif not tensor.grids:
            canvas.text(x, y + (_CELL_HEIGHT - text_height()) / 2, preview_text.lines(tensor)[0])
        for grid in tensor.grids:
            if grid.label:
                canvas.text(x, y + 3, grid.label, size=SMALL)
                y += _LINE
            y = self._draw_grid(canvas, x, y, grid)

    def _draw_grid(self, canvas: Picture, x: float, top: float, grid: Grid) -> float:
        y = top
        for row, (texts, values) in enumerate(zip(grid.texts, grid.values, strict=True)):
            if row == grid.row_gap:
                _draw_dots(canvas, x + self.cell_width / 2, y + _GAP / 2 - 0.5, dx=0.0, dy=3.5)
                y += _GAP
            left = x
            for column, (text, value) in enumerate(zip(texts, values, strict=True)):
                if column == grid.column_gap:
                    if row == 0:
                        middle = y + _CELL_HEIGHT / 2 - 0.5
                        _draw_dots(canvas, left + _GAP / 2 - 0.5, middle, dx=3.5, dy=0.0)
                    left += _GAP
                self._draw_cell(canvas, left, y, text, value)
                left += self.cell_width
            y += _CELL_HEIGHT
        return y

    def _draw_cell(
        self, canvas: Picture, x: float, y: float, text: str, value: float | None
    ) -> None:
        colour = _NO_NUMBER if value is None else _colour(value, self._low, self._high)
        width, height = self.cell_width - 1, _CELL_HEIGHT - 1
        canvas.fill(x, y, width, height, colour)
        ink = ink_on(colour)
        middle = (width - text_width(text)) / 2
        canvas.text(x + middle, y + (height - text_height()) / 2, text, ink)


def _even_rows(count: int, most: int) -> int:
    """The number of tiles in a row: 4 for 16 tiles where 7 would fit, 3 for 6 tiles, not 4 and 2.

    Args:
        count: tiles in all.
        most: tiles that fit into a row.
    """
    for per_row in range(min(most, count), most // 2, -1):
        if count % per_row == 0:
            return per_row
    n_rows = -(-count // most)
    return -(-count // n_rows)


def _draw_dots(canvas: Picture, x: float, y: float, *, dx: float, dy: float) -> None:
    for step in (-1, 0, 1):
        canvas.dot(x + step * dx, y + step * dy, 1.5)


def _limits(grids: Sequence[Grid]) -> tuple[float, float]:
    """The limits of the one scale; zero is always inside."""
    values = [value for grid in grids for row in grid.values for value in row if value is not None]
    return min([0.0, *values]), max([0.0, *values])


def _colour(value: float, low: float, high: float) -> tuple[int, int, int]:
    """The colour of a value: zero is white, both sides have the same scale."""
    limit = max(high, -low)
    share = 0.0 if limit == 0 else min(1.0, abs(value) / limit)
    end = _ABOVE if value > 0 else _BELOW
    # Small numbers are visible, large ones are not too dark.
    share = 0.92 * round(share**0.8 * _SHADES) / _SHADES
    red, green, blue = (
        round(zero + (full - zero) * share) for zero, full in zip(_ZERO, end, strict=True)
    )
    return red, green, blue


def ink_on(colour: tuple[int, int, int]) -> Colour:
    """The colour of a text on ``colour``: dark or white, the one that can be read better."""
    red, green, blue = ((value / 255) ** 2.2 for value in colour)
    return _DARK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.19 else WHITE


def _matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a tensor of at most two dimensions."""
    rows, columns = ([1, 1, *shape])[-2:]
    return rows, columns


def _matrix_offset(tensor: TensorShown) -> tuple[int, int]:
    offset = [] if tensor.part is None else tensor.part.offset
    row, column = ([0, 0, *offset])[-2:]
    return row, column


def _fits_whole(tensor: TensorShown) -> bool:
    """Whether a shard can be drawn in its place; True for a tensor that is no shard."""
    part = tensor.part
    if part is None:
        return True
    has_gaps = any(grid.row_gap or grid.column_gap for grid in tensor.grids)
    is_small = len(tensor.shape) <= 2 and max([1, *tensor.shape]) <= _MAX_WHOLE
    return is_small and not has_gaps and len(part.offset) == len(tensor.shape)
