"""How each rank exited, for the rows of the card: ranks that ended alike share a row.

Runs in: the notebook's process. Pure; a part of `nbddp.controller.cell_errors.exited_ranks`.
"""

from collections.abc import Sequence
from dataclasses import replace

from nbddp.controller.cell_errors import evidence
from nbddp.controller.cell_errors.exit_headline import before_end, ended_as
from nbddp.controller.diagnosis import PerRank, Predicate, RankVerb, iteration, last_operation
from nbddp.controller.state import RankResult, RunOutcome, exit_phrase
from nbddp.wire.flight_recorder import Operation, Site
from nbddp.wire.message_types import AgentEnd, LostAgent
from nbddp.wire.messages import RankExited
from nbddp.wire.rank_set import Rank, ranks_by_value

_NO_OPERATION = "; it called no operation in this cell", "; they called no operation in this cell"
#: Ranks that end within this time have ended together: which of them was first says nothing.
_TOGETHER_S = 1.0
#: Operations that a row of several ranks names.
_MAX_OPERATIONS = 3


def exit_rows(outcome: RunOutcome) -> dict[Rank, PerRank]:
    """Return how the ranks ended whose processes have ended, by rank."""
    ends = {rank: end for rank, each in outcome.results.items() if (end := each.exited) is not None}
    if len(ends) == 1:  # the headline says how
        return {rank: _row(outcome, rank, [rank], is_alone=True) for rank in ends}
    alike = ranks_by_value({rank: _kind(outcome, rank, end) for rank, end in ends.items()})
    rows: dict[Rank, PerRank] = {}
    for ranks in alike.values():
        times = [outcome.results[rank].elapsed_s for rank in ranks]
        is_folded = max(times) - min(times) <= _TOGETHER_S
        if is_folded:
            row = _row(outcome, ranks.ranks[0], ranks.ranks)
            rows |= {rank: replace(row, rank=rank) for rank in ranks}
        else:
            rows |= {rank: _row(outcome, rank, [rank]) for rank in ranks}
    return rows


def predicate(results: Sequence[RankResult]) -> Predicate:
    """``exited with SIGKILL (signal 9), 2.1 to 2.3 s after the cell began``: of equal ends."""
    exits = [each.exited for each in results if each.exited is not None]
    ended = Predicate.of_end(exit_phrase(exits[0], exits))
    return replace(ended, rest=f"{ended.rest}, {evidence.time_of(*results)}")


def _kind(
    outcome: RunOutcome, rank: Rank, exited: RankExited
) -> tuple[AgentEnd | str, bool, bool, str, Site | None]:
    """Return the facts that are equal for ranks that share a row."""
    result = outcome.results[rank]
    cause = exited.cause
    is_of_agent = isinstance(cause, LostAgent) and not cause.never_came
    end = cause.end if isinstance(cause, LostAgent) and is_of_agent else str(exit_phrase(exited))
    return end, exited.was_lost, result.is_time_known, *ended_as(outcome, rank)


def _row(
    outcome: RunOutcome, rank: Rank, alike: Sequence[Rank], *, is_alone: bool = False
) -> PerRank:
    """The row of a rank, as it reads for all ranks that share it."""
    results = [outcome.results[each] for each in alike]
    exits = [each.exited for each in results if each.exited is not None]
    verb = RankVerb.LOST if exits[0].was_lost else RankVerb.EXITED
    ended = Predicate(verb) if is_alone else predicate(results)
    if before := before_end(outcome, alike):
        aside = f"; it {before}", f"; they {before}"
        return PerRank(rank, "dead", replace(ended, aside=aside), ended_as(outcome, rank)[1])
    calls = [_last_call(outcome, end) for end in exits]
    # Where the call is known that ended it, a line that was seen before misleads.
    seen = None if len(alike) > 1 or rank in outcome.exit_calls else exits[0].last_line
    age = f", last seen {exits[0].last_line_age_s:.1f} s before its end" if seen else ""
    sites = {each.site if each is not None else None for each in calls}
    site = seen or (sites.pop() if len(sites) == 1 else None)
    one, several = (f"{text}{age}" for text in _last_calls(calls, of_agent=exits[0].lost_agent))
    return PerRank(rank, "dead", replace(ended, aside=(one, several)), site)


def _last_call(outcome: RunOutcome, exited: RankExited) -> Operation | None:
    last = exited.last_operation
    return last if last is not None and last.run_id == outcome.run_id else None


def _last_calls(calls: Sequence[Operation | None], *, of_agent: bool) -> tuple[str, str]:
    """The aside on the last operations of ranks: ``; its last operation was all_reduce #17``."""
    known = [each for each in calls if each is not None]
    if not known:  # of a rank whose agent is lost, nothing is known
        return ("", "") if of_agent else _NO_OPERATION
    names = dict.fromkeys(
        f"{each.label()}{f' at {iteration(each)}' if each.iteration else ''}" for each in known
    )
    if len(known) < len(calls) or len(names) > _MAX_OPERATIONS:
        return "", ""
    if len(names) == 1:
        return last_operation(*names)
    last = f"; their last operations were {' and '.join(sorted(names))}"
    return last, last
