"""The English of the diagnosis: what is said of ranks, operations and lines, from facts.

Runs in: the notebook's process. Pure. Nobody reads a sentence back: who wants to know what a rank
does asks its `Predicate`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from nbddp.wire.flight_recorder.schema import ExceptionLine, Operation, Signature, Site
from nbddp.wire.rank_set import Rank, RankSet

#: Of one rank, of several.
Forms: TypeAlias = tuple[str, str]


class Doing(Enum):
    """What a rank does, or how it ended: the verb of a sentence about it."""

    WAITS = ("waits", "wait")
    RUNS = ("runs", "run")
    IS = ("is", "are")  #: at a prompt, stopped, being started
    DOES_NOT_ANSWER = ("does not answer", "do not answer")
    TAKES_NO_PART = ("takes no part in this cell", "take no part in this cell")
    MAKES_GROUPS = ("makes its groups again", "make their groups again")
    HAS_FINISHED = ("has finished the cell", "have finished the cell")
    RAISED = ("raised", "raised")
    LEFT_DEBUGGER = ("left the debugger", "left the debugger")
    EXITED = ("exited", "exited")
    NOT_SAID = ("", "")  #: all is in `Predicate.rest`


@dataclass(frozen=True)
class Predicate:
    """What is said of ranks; its verb agrees with how many they are.

    >>> Predicate(Doing.WAITS, " in all_reduce #17").said_of(2)
    'wait in all_reduce #17'
    """

    doing: Doing
    rest: str = ""  #: behind the verb, with what stands between: `` in all_reduce #17``
    aside: Forms = ("", "")  #: ``; its last operation was all_reduce #16``

    def said_of(self, count: int) -> str:
        """Behind the name of one rank, or of several."""
        return self.main_clause(count) + self.aside[count != 1]

    def main_clause(self, count: int = 1) -> str:
        """Likewise, without what is said aside."""
        verb: str = self.doing.value[count != 1]
        return verb + self.rest

    def __str__(self) -> str:
        return self.said_of(1)


# --- places --------------------------------------------------------------------------------------


def place(site: Site | None) -> str:
    """A line of code, quoted; empty if it is not known."""
    if site is None or not site.line:
        return ""
    return f"{site}: `{site.source}`" if site.source else str(site)


def quote(operation: Operation) -> str:
    """Where it was called, with the line."""
    return place(operation.site) or "an unknown line"


def seconds(amount_s: float) -> str:
    """``3.2 s``."""
    return f"{amount_s:.1f} s" if amount_s < 10 else f"{amount_s:.0f} s"


# --- operations and ranks ------------------------------------------------------------------------


def brought(signature: Signature, fields: Iterable[str]) -> str:
    """What a rank brought, as far as it matters: ``broadcast``, ``all_reduce of float32[4]``."""
    wanted = set(fields)
    text = signature.op
    if wanted & {"input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "tensors"}:
        is_output = wanted & {"output_sizes", "output_dtypes"}
        sizes = signature.output_sizes if is_output else signature.input_sizes
        dtypes = signature.output_dtypes if is_output else signature.input_dtypes
        shown = [f"{dtype}{list(size)}" for dtype, size in zip(dtypes[:3], sizes[:3], strict=False)]
        more = f" and {signature.tensors - 3} more" if signature.tensors > 3 else ""
        text += f" of {', '.join(shown) or 'nothing'}{more}"
    if "root" in wanted:
        text += f" with root {signature.root}"
    if "reduce_op" in wanted:
        text += f" with {signature.reduce_op}"
    if wanted & {"input_splits", "output_splits"}:
        text += f" with input_splits={list(signature.input_splits)}"
        text += f", output_splits={list(signature.output_splits)}"
    return text


def came_by(handled_by_rank: Mapping[Rank, ExceptionLine]) -> list[str]:
    """What sent ranks another way: ``rank 1 raised ValueError: boom (cell [3], line 2)``."""
    ranks_by_text: dict[str, list[Rank]] = {}
    for rank, handled in handled_by_rank.items():
        ranks_by_text.setdefault(str(handled), []).append(rank)
    told = []
    for ranks in map(RankSet.of, ranks_by_text.values()):
        handled = handled_by_rank[ranks.ranks[0]]
        what = f"raised {handled}"
        if handled.is_interrupt:
            place_text = f" ({handled.place})" if handled.place else ""
            what = f"{ranks.verb('was', 'were')} interrupted{place_text}"
        told.append(f"{ranks.describe()} {what}")
    return told


def start(ranks: RankSet) -> str:
    """``Rank 2`` or ``Ranks 0,2-3``, to begin a sentence."""
    return ranks.describe().capitalize()
