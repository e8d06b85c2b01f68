"""The outcome of a cell, on each rank and as a whole.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import msgspec
from msgspec import structs

from nbddp.controller.diagnosis import Report
from nbddp.controller.state.silent_nodes import Silence
from nbddp.errors import CollectiveMismatchError
from nbddp.wire.flight_recorder import EndedReduce, GroupMark, Mismatch, SanitizerReport
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import (
    RankExited,
)
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet, ranks_by

#: The error of a rank that saw a mismatch.
MISMATCH_ERROR = CollectiveMismatchError.__name__
#: Faults on purpose that only make ranks late.
ONLY_DELAYS = frozenset(("stop", "delay"))

RankStatus: TypeAlias = Literal["ok", "error", "exited", "unfinished"]


#: The command after which the ranks of a pool go on without its process.
DETACHED = "%ddp detach"


class RankResult(msgspec.Struct, frozen=True, gc=False):
    """The end of a cell on one rank.

    Example:
        >>> outcome = pool.run("x = 1")
        >>> outcome.results[1].status, outcome.results[1].error
        ('ok', None)
    """

    rank: Rank
    status: RankStatus  #: ``unfinished``: the rank was still inside the cell when the wait ended
    elapsed_s: float = 0.0  #: seconds from the beginning of the cell on this rank to its end
    error: ErrorInfo | None = None  #: the exception as text; None: the rank raised none
    failed_at_ns: int = 0  #: when it raised, by the monotonic clock of its machine
    exited: RankExited | None = None  #: how its process ended; None: it lives
    #: Seconds from the beginning of the cell to its end on this rank, if its process has ended
    #: since: then ``error`` is how the cell ended there. None: the rank was inside, or it lives.
    left_s: float | None = None
    is_time_known: bool = True  #: False: it was lost with its node while there was no notebook
    was_freed: bool = False  #: ``error`` came about because nbddp ended an operation
    mismatches: tuple[Mismatch, ...] = ()  #: seen by this rank, raised or not
    marks: tuple[GroupMark, ...] = ()
    torn: tuple[str, ...] = ()  #: operations whose tensors may hold partial results
    group_count: int = 0  #: torch's number for the next group
    made_groups: bool = False  #: it became a member of a new group
    sanitizer: SanitizerReport | None = None  #: what ``--sanitize`` saw; None: it was off
    stuck: str = ""  #: why a blocked operation could not be aborted


def exited_result(
    before: RankResult | None, exited: RankExited, elapsed_s: float, *, is_time_known: bool = True
) -> RankResult:
    """Return the result of a rank whose process has ended, with its answer if that had come.

    Args:
        before: how the cell had ended on it; None: it was inside.
        exited: the end of its process.
        elapsed_s: seconds from the beginning of the cell to that.
        is_time_known: whether that time is known.
    """
    died = RankResult(
        exited.rank, "exited", elapsed_s=elapsed_s, exited=exited, is_time_known=is_time_known
    )
    if before is None or before.status not in ("ok", "error"):
        return died
    return structs.replace(
        died,
        left_s=before.elapsed_s,
        error=before.error,
        failed_at_ns=before.failed_at_ns,
        was_freed=before.was_freed,
        sanitizer=before.sanitizer,
    )


@dataclass(frozen=True, repr=False)
class RunOutcome:
    """The end of a cell on all of its ranks, as `Pool.run` gives it.

    Example:
        >>> outcome = pool.run("total = rank")
        >>> outcome
        <RunOutcome: ranks 0-1 ok; ... s>
        >>> sorted(outcome.results)
        [0, 1]
    """

    run_id: str  #: names the run
    results: dict[Rank, RankResult]  #: by rank
    elapsed_s: float  #: seconds until the last rank had finished
    interrupted: bool = False  #: the user interrupted the cell
    timed_out: bool = False  #: the timeout of the cell ran out
    timeout_s: float | None = None  #: that timeout; None: it has none
    ended_by: str = ""  #: the command that ended it on ranks that had not finished
    #: Ranks that had raised before the interrupt, which may have caused the errors of the others.
    raised_before: RankSet = NO_RANKS
    is_plain: bool = False  #: the pool cannot free or replace ranks
    report: Report | None = None  #: the verdict on it, if there was one
    #: The call in the cell by which a rank perhaps ended itself, in words; by rank.
    exit_calls: Mapping[Rank, str] = field(default_factory=dict)
    fresh: RankSet = NO_RANKS  #: these ranks exited and were replaced
    #: Ranks that had been replaced before this cell: they lack the names of earlier cells.
    replacements: RankSet = NO_RANKS
    dead: RankSet = NO_RANKS  #: these have no process, also if they exited before this cell
    beside: RankSet = NO_RANKS  #: living ranks that were not to run it
    rebuild_failure: str = ""  #: why the pool could not be repaired; empty: it was, or need not be
    #: Faults on purpose that struck, in words; see `docs/faults.md`.
    injected: tuple[str, ...] = ()
    #: Ranks on which one of them struck that kills, or may have.
    struck_dead: RankSet = NO_RANKS
    struck_acts: frozenset[str] = frozenset()  #: what they did; empty text: not known
    left_out: tuple[str, ...] = ()  #: operations that the user has skipped at the prompt, in words
    #: Calls and code that the user has typed there, and that may have changed the cell, in words.
    typed: tuple[str, ...] = ()
    missed_faults: tuple[str, ...] = ()  #: faults on purpose that did not strike
    silent: tuple[Silence, ...] = ()  #: silent nodes, with ranks that had not finished
    knows_cells: bool = True  #: False: other notebooks had run cells before %ddp attach
    leaves_loops: bool = False  #: %ddp catchup may not make the names of a loop with collectives
    is_wrong: bool = False  #: it ended well on all ranks, and an error was found in their records

    @property
    def was_struck(self) -> bool:
        """Whether a fault on purpose struck that does more than to delay.

        For the notebook layer.
        """
        return not self.struck_acts <= ONLY_DELAYS

    @property
    def has_skips(self) -> bool:
        """Whether ranks have perhaps left out operations, which leave no record then.

        For the notebook layer.
        """
        return bool(self.left_out or {"skip", ""} & self.struck_acts)

    def __repr__(self) -> str:
        counts = [
            f"{self.ranks(status).describe()} {status}"
            for status in get_args(RankStatus)
            if self.ranks(status)
        ]
        return f"<RunOutcome: {', '.join(counts)}; {self.elapsed_s:.2f} s>"

    @property
    def goes_on(self) -> bool:
        """Whether its ranks go on without this process: `Pool.detach`.

        Example:
            >>> outcome.goes_on
            False
        """
        return self.ended_by == DETACHED

    def ranks(self, *statuses: RankStatus) -> RankSet:
        """Get the ranks on which the cell ended in one of these ways.

        Args:
            statuses: ``ok``, ``error`` (it raised), ``exited`` or ``unfinished``.

        Returns:
            The set of these ranks; it may be empty.

        Example:
            >>> outcome.ranks("ok"), outcome.ranks("error", "exited")
            (RankSet(0-1), RankSet())
        """
        return RankSet.of(r for r, result in self.results.items() if result.status in statuses)

    @property
    def torn(self) -> dict[str, RankSet]:
        """Operations whose tensors may hold partial results, and on which ranks.

        That happens to a collective that was ended in the middle.

        Example:
            >>> outcome.torn
            {}
        """
        return ranks_by(
            (name, rank) for rank, result in self.results.items() for name in result.torn
        )

    @property
    def scratch(self) -> RankSet:
        """Ranks on which a ``reduce`` has ended, but not on its root: they may hold partial sums.

        Gloo adds up in the tensors of ranks that are not the root.

        Example:
            >>> outcome.scratch
            RankSet()
        """
        if not self.ranks("error", "exited", "unfinished"):
            return NO_RANKS
        return RankSet.of(
            rank
            for rank, result in self.results.items()
            for mark in result.marks
            for reduce in mark.reduces
            if reduce.root != rank and not _has_result(self.results.get(reduce.root), mark, reduce)
        )

    @property
    def raised_mismatches(self) -> list[Mismatch]:
        """Mismatches of operations that were raised in the user's line, the first one first.

        Example:
            >>> outcome.raised_mismatches
            []
        """
        raised = [
            (result.failed_at_ns, result.rank, mismatch)
            for result in self.results.values()
            if result.error is not None and result.error.ename == MISMATCH_ERROR
            for mismatch in result.mismatches[-1:]
        ]
        return [mismatch for *_, mismatch in sorted(raised, key=lambda entry: entry[:2])]


def _has_result(root: RankResult | None, mark: GroupMark, reduce: EndedReduce) -> bool:
    """Whether a ``reduce`` has ended on its root, too, as far as that is known."""
    if root is None:
        return False
    last = root.exited.last_operation if root.exited is not None else None
    if last is not None and last.pg_id == mark.pg_id:
        is_ended = last.state == "completed"
        return last.collective_seq_id + is_ended > reduce.collective_seq_id
    return any(
        each.root == reduce.root and each.collective_seq_id >= reduce.collective_seq_id
        for own in root.marks
        if own.pg_id == mark.pg_id
        for each in own.reduces
    )
