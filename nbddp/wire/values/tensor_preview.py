"""The preview of a tensor that `nbddp.show` sends from one rank: a few numbers, never the tensor.

It travels inside a display, as JSON under `MIME`. A front end that does not know this type shows
the plain text beside it.

Runs in: ranks write it, the notebook's process reads it.
"""

from typing import Literal, TypeAlias

import msgspec

#: MIME type of the displays that `nbddp.notebook.output.show_pictures` draws.
MIME = "application/vnd.nbddp.tensor+json"

#: ``now``: a plain call. ``opened``: a ``with`` block begins. ``after``: that block has ended.
Stage: TypeAlias = Literal["now", "opened", "after"]


class Grid(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Elements in rows and columns; those at the corners if there are too many."""

    texts: list[list[str]]
    values: list[list[float | None]]  #: for the colour; None: not a finite number
    row_gap: int | None = None  #: rows were left out before this one
    column_gap: int | None = None  #: columns were left out before this one
    label: str = ""  #: name of the slice, for a tensor with more than two dimensions


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The place of a shard in the whole tensor."""

    placements: str  #: ``Shard(0)``
    mesh: str  #: ``dp=4``
    shape: list[int]  #: of the shard
    offset: list[int]


class TensorShown(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tensor, as it was on one rank at one moment."""

    name: str  #: as written in the call; empty: not known
    shape: list[int]  #: of the whole tensor, also if this is a shard
    dtype: str
    device: str
    grids: list[Grid]
    digest: str  #: equal if all elements are; empty: not known
    part: Part | None = None


class ShowCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One call of `nbddp.show` on one rank, or the end of its ``with`` block."""

    key: str  #: equal for the calls of several ranks that belong together
    stage: Stage
    title: str = ""
    tensors: list[TensorShown] = []
    open: list[str] = []  #: operations of the block that were not over after it
