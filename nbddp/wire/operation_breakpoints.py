"""Break points before operations, as data: ``%ddp break all_reduce -r 2 --if 'loss.isnan()'``.

Runs in: the notebook, the rank. Pure. `nbddp.rank.collectives.stops` stops the rank at them.
"""

import ast
import difflib
from collections.abc import Sequence
from typing import Final

import msgspec

from nbddp.errors import BadOptionError
from nbddp.wire.fault_grammar import OPERATIONS
from nbddp.wire.flight_recorder import GroupInfo, Operation
from nbddp.wire.rank_set import Rank, RankSet

_LEGAL: Final = (
    "an operation (all_reduce), its number (#17), or line 7; with -r RANKS, --group NAME, "
    "--if 'EXPRESSION', --nan"
)


class OperationBreakpoint(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One break point: a rank stops before an operation that has all of these properties."""

    number: int  #: as ``%ddp breaks`` lists it, from 1
    op: str = ""  #: name of the operation; empty: any
    seq: int = 0  #: number of the collective in its group; 0: any
    line: int = 0  #: line of a cell; 0: any
    ranks: tuple[Rank, ...] = ()  #: on these ranks; empty: on all
    group: str = ""  #: name or description of the process group; empty: any
    condition: str = ""  #: an expression in the user's frame; empty: none
    nan: bool = False  #: a tensor that the rank sends has a NaN or an infinity

    def matches(self, operation: Operation, info: GroupInfo, rank: Rank) -> bool:
        """Whether an operation of a rank has the properties that need no evaluation.

        Args:
            operation: the operation, which is not issued yet.
            info: its group.
            rank: the rank that calls it.
        """
        return (
            self.op in ("", operation.signature.op)
            and self.seq in (0, operation.collective_seq_id)
            and self.line in (0, operation.site.line if operation.site.cell else -1)
            and (not self.ranks or rank in self.ranks)
            and self.group in ("", info.name, info.desc)
        )

    def __str__(self) -> str:
        """Return the words that ``%ddp break`` reads."""
        words = [self.op, f"#{self.seq}" * bool(self.seq), f"line {self.line}" * bool(self.line)]
        words.append(f"-r {RankSet.of(self.ranks)}" * bool(self.ranks))
        words.append(f"--group {self.group}" * bool(self.group))
        words.append(f"--if {self.condition!r}" * bool(self.condition))
        words.append("--nan" * self.nan)
        return " ".join(word for word in words if word)


def read_breakpoint(
    words: Sequence[str],
    number: int,
    *,
    ranks: tuple[Rank, ...] = (),
    group: str = "",
    condition: str = "",
    nan: bool = False,
) -> OperationBreakpoint:
    """Read a break point.

    Args:
        words: the operation, its number, a line of a cell; all may be left out if there is a
            condition, a group, or ``nan``.
        number: the number that it gets.
        ranks: stops these ranks only; empty: all.
        group: stops before operations of this group only.
        condition: stops where this expression is true in the user's frame.
        nan: stops where a tensor that the rank sends has a NaN or an infinity.

    Returns:
        The break point.

    Raises:
        BadOptionError: a word is not legal, or there is nothing to stop at.
    """
    op, seq, line = "", 0, 0
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "line" and rest and _is_number(rest[0]) and not line:
            line = int(rest.pop(0))
        elif word.startswith("#") and _is_number(word[1:]) and not seq:
            seq = int(word[1:])
        elif word in OPERATIONS and not op:
            op = word
        else:
            guesses = difflib.get_close_matches(word, [*OPERATIONS, "line"], n=1)
            guess = f" Did you mean {guesses[0]}?" if guesses else ""
            raise BadOptionError(
                f"%ddp break: {word!r} is no place to stop at.{guess} Legal: {_LEGAL}"
            )
    if condition:
        try:
            ast.parse(condition, mode="eval")
        except (SyntaxError, ValueError) as error:
            fault = getattr(error, "msg", error)  # without the line of a file
            raise BadOptionError(
                f"%ddp break: --if {condition!r} is no expression of Python ({fault}). Next: for "
                "example --if 'rank == 2 and loss.isnan()'"
            ) from None
    if not (op or seq or line or group or condition or nan):
        raise BadOptionError(f"%ddp break needs a place to stop at. Legal: {_LEGAL}")
    return OperationBreakpoint(
        number=number, op=op, seq=seq, line=line, ranks=ranks, group=group, condition=condition,
        nan=nan,
    )  # fmt: skip


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) > 0
