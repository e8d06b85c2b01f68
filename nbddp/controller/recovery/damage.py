"""Damage that a cell has left behind, which a rebuild has to repair.

Runs in: the hub thread. Pure.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from nbddp.controller.diagnosis import CompareScope, Report
from nbddp.controller.recovery.abort import OperationAbort
from nbddp.controller.state import RunOutcome, exited_result, results_of
from nbddp.wire.flight_recorder import FAR_MESSAGES, RING_LENGTH
from nbddp.wire.messages import GroupsRebuilt, RankExited, RunFinished, RunsFinished
from nbddp.wire.rank_set import Rank


@dataclass(frozen=True)
class Damage:
    """Groups that cannot be used as they are."""

    broken: frozenset[str] = frozenset()  #: ids of groups
    is_suspicious: bool = False  #: ranks may be out of step: their groups are to be compared
    is_unsure: bool = False  #: any group may be broken
    is_silent: bool = False  #: nothing is broken, but operations differed
    is_far_odd: bool = False  #: nothing is broken, but messages between nodes do not add up
    is_sanitized: bool = False  #: sanitizers have watched the cell, which ended well

    @property
    def is_any(self) -> bool:
        """True if the pool has to be rebuilt."""
        return bool(self.broken) or self.is_suspicious or self.is_unsure

    @property
    def scope(self) -> CompareScope | None:
        """The records to compare after a cell that ended well; None: none."""
        if self.is_silent:
            return "all"
        if self.is_far_odd:
            return "messages"
        return "sanitizer" if self.is_sanitized else None

    @property
    def record_count(self) -> int:
        """How many of the newest records of a rank are compared."""
        return RING_LENGTH if self.is_sanitized or self.is_far_odd else 64


def damage_of(outcome: RunOutcome, abort: OperationAbort) -> Damage:
    """Return the damage after the end of a cell on its ranks.

    After a cell that ended well on all ranks, their groups may stand at different operations: an
    operation that was issued and not waited for is no fault.
    """
    broken = set(abort.armed)
    has_failed = bool(outcome.ranks("error", "exited", "unfinished"))
    far: Counter[str] = Counter()
    places: dict[str, list[tuple[int, int]]] = {}  # by group, one for each rank with a mark
    for result in outcome.results.values():
        for mark in result.marks:
            place = mark.collective_seq_id, mark.digest
            places.setdefault(mark.pg_id, []).append(place)
            far[mark.pg_id] += mark.far_messages
            if mark.is_broken or (mark.open and has_failed):
                broken.add(mark.pg_id)
    if has_failed:
        # A rank without a mark has not used the group in this cell, or is no member of it.
        finished = outcome.ranks("ok", "error")
        is_suspicious = any(
            len(set(marks)) > 1 or len(marks) < len(finished) for marks in places.values()
        )
        # Ranks that left while they made groups may have made different numbers of them.
        counts = {outcome.results[rank].group_count for rank in finished}
        is_suspicious = is_suspicious or abort.was_outside or len(counts) > 1
        return Damage(frozenset(broken), is_suspicious, abort.is_unsure)
    is_sanitized = any(result.sanitizer for result in outcome.results.values())
    is_silent = any(
        len(set(marks)) > len({sequence for sequence, _ in marks}) for marks in places.values()
    )
    return Damage(
        frozenset(broken),
        is_unsure=abort.is_unsure,
        is_silent=is_silent,
        is_far_odd=any(total % FAR_MESSAGES for total in far.values()),
        is_sanitized=is_sanitized,
    )


def with_torn(outcome: RunOutcome, answer: GroupsRebuilt) -> RunOutcome:
    """Return ``outcome`` with operations that a rank has given up and that nothing waited for."""
    result = outcome.results.get(answer.rank)
    if result is None or not answer.torn:
        return outcome
    torn = tuple(dict.fromkeys((*result.torn, *answer.torn)))
    return replace(
        outcome, results={**outcome.results, answer.rank: structs.replace(result, torn=torn)}
    )


def has_just_lost_agent(outcome: RunOutcome, within_s: float) -> bool:
    """Whether ranks have exited with their agent within a time before the end of the cell."""
    return any(
        each.exited is not None
        and each.exited.lost_agent
        and outcome.elapsed_s - each.elapsed_s < within_s
        for each in outcome.results.values()
    )


def with_exit(outcome: RunOutcome, exited: RankExited, after_s: float) -> RunOutcome:
    """Return ``outcome`` with the exit of a rank that had left the cell, before the user saw it.

    Args:
        outcome: held back until the pool is whole.
        exited: the exit; a rank that took the place of one that exited is left out.
        after_s: time since the end of the cell, in seconds.
    """
    rank, result = exited.rank, outcome.results.get(exited.rank)
    if result is None or result.status == "exited":
        return outcome
    died = exited_result(result, exited, outcome.elapsed_s + after_s)
    died = structs.replace(died, marks=result.marks)
    return replace(outcome, results={**outcome.results, rank: died})


def with_late_ends(outcome: RunOutcome | None, late: object) -> RunOutcome | None:
    """Return ``outcome`` with ranks that have left the cell before the user saw its end.

    Args:
        outcome: held back until the pool is whole; None: none is held back.
        late: a message; the end of another cell changes nothing.
    """
    ended = RunsFinished.of((late,)) if isinstance(late, RunFinished) else late
    if outcome is None or not isinstance(ended, RunsFinished) or ended.run_id != outcome.run_id:
        return outcome
    inside = outcome.ranks("unfinished")
    ends = {rank: end for rank, end in results_of(ended).items() if rank in inside}
    silent = tuple(each for each in outcome.silent if ends.keys().isdisjoint(each.ranks))
    return replace(outcome, results={**outcome.results, **ends}, silent=silent)


def with_recovery(
    outcome: RunOutcome, report: Report | None, stuck: Mapping[Rank, str]
) -> RunOutcome:
    """Return ``outcome`` with the verdict, and with operations that could not be aborted."""
    results = {
        rank: structs.replace(result, stuck=stuck.get(rank, result.stuck))
        if result.status == "unfinished"
        else result
        for rank, result in outcome.results.items()
    }
    return replace(outcome, report=report, results=results)
