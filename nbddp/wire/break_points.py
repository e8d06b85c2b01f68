"""Break points before operations: ``%ddp break``.

Runs in: the notebook, the rank. Pure. They travel in `Execute`: a cell has those of its
beginning.
"""

from typing import Literal, TypeAlias

import msgspec

from nbddp.wire.flight_recorder import GroupInfo
from nbddp.wire.rank_set import RankSet

#: An event at which ranks stop; empty: they stop at a place.
BreakEvent: TypeAlias = Literal["", "mismatch", "deadlock", "error"]
_EVENTS = {
    "mismatch": "an operation that does not match",
    "deadlock": "a proven deadlock is ended",
    "error": "an error ends the cell",
}


class BreakPoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Operations before which ranks stop: those for which all of this is true."""

    number: int  #: from 1, as ``%ddp breaks`` lists it
    op: str = ""  #: its name; empty: any
    collective: int = 0  #: its number in its group; 0: any
    line: int = 0  #: a line of a cell that issues it, or leads to it; 0: any
    cell: int = 0  #: the cell of that line; 0: the one that runs
    ranks: tuple[int, ...] = ()  #: ranks that stop; empty: all
    group: str = ""  #: its group's name or description; empty: any
    condition: str = ""  #: an expression in the frame of the user's code; empty: none
    has_nan: bool = False  #: a tensor that the rank sends holds NaN or Inf
    #: ``mismatch``: operations that do not match those of other ranks; ``deadlock``: all ranks,
    #: before they are freed; ``error``: an error of the cell, before it ends the cell.
    on: BreakEvent = ""

    def __str__(self) -> str:
        """Return ``all_reduce at line 7 on rank 2 if loss.isnan()``."""
        if self.on:
            ranks = f" on {RankSet(self.ranks).describe()}" if self.ranks else ""
            return f"{_EVENTS[self.on]}{ranks}"
        where = f"line {self.line}{f' of cell [{self.cell}]' if self.cell else ''}"
        number = f"#{self.collective}" if self.collective else ""
        texts = {
            "": " ".join(part for part in (self.op, number) if part) or "each operation",
            "at ": where if self.line else "",
            "of group ": self.group,
            "on ": RankSet(self.ranks).describe() if self.ranks else "",
            "with ": "NaN or Inf" if self.has_nan else "",
            "if ": self.condition,
        }
        return " ".join(word + text for word, text in texts.items() if text)


def group_names(info: GroupInfo) -> tuple[str, ...]:
    """Return the names by which a break point may name a group, the best one first."""
    if info.is_default:
        return ("default", info.desc, info.name)
    mesh = info.desc.removeprefix("mesh_")
    described = info.desc not in ("", "undefined")
    return tuple(dict.fromkeys((mesh, info.desc, info.name) if described else (info.name,)))
