"""The words about a group that its members make under different numbers of torch.

Runs in: the notebook's process. Pure.

Torch numbers the groups of each rank in the order of their creation, and the members of a group
meet under its number. A rank that has made one group more than the others never meets them again.
"""

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.phrases import place
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.wire.flight_recorder import Operation, group_counter_of, group_name_of
from nbddp.wire.rank_set import Rank, RankSet


def sentences(
    cause: Cause, operation: Operation, reports: RankReports
) -> tuple[str, str, str] | None:
    """Return the headline, the reason and the next step of a group with several numbers.

    Args:
        cause: ranks wait in ``operation`` for the culprits.
        operation: a call that makes a group.
        reports: the ranks.

    Returns:
        None if the culprits do not all make a group of the same members under another number.
    """
    calls = _calls_of_culprits(cause, operation, reports)
    if not calls:
        return None
    ranks_by_number: dict[str, list[Rank]] = {group_name_of(operation.pg_id): list(cause.direct)}
    for rank, call in calls.items():
        ranks_by_number.setdefault(group_name_of(call.pg_id), []).append(rank)
    lowest = min(ranks_by_number, key=int)
    first = ""
    for ranks in (ranks for number, ranks in ranks_by_number.items() if number != lowest):
        history = reports.graph.histories[ranks[0]]
        made = history.creation_of(lowest, calls.get(ranks[0], operation))
        if made is not None and (line := place(made.site)):
            first = f" {RankSet.of(ranks).describe().capitalize()} made group {lowest} at {line}."
    parts = [f"group {n} on {RankSet.of(ranks).describe()}" for n, ranks in ranks_by_number.items()]
    return (
        f"{reports.name(operation)} is {' and '.join(parts)}, so its members wait for each other.",
        "torch numbers the groups of each rank in the order of their creation, and members meet "
        f"by that number.{first}",
        f"Call {operation.signature.op} for every group on all ranks, members or not, in the same "
        "order; or pass use_local_synchronization=True.",
    )


def _calls_of_culprits(
    cause: Cause, operation: Operation, reports: RankReports
) -> dict[Rank, Operation]:
    """The call of each culprit; empty if one of them makes another group, or none."""
    calls: dict[Rank, Operation] = {}
    number, counter = group_name_of(operation.pg_id), group_counter_of(operation.pg_id)
    for rank in cause.culprits:
        for call in reports.graph.histories[rank].operations.values():
            other = group_name_of(call.pg_id)
            is_counted = other.isdecimal() and group_counter_of(call.pg_id) == counter
            is_like = call.signature == operation.signature and call.state == "scheduled"
            if is_like and is_counted and other != number:
                calls[rank] = call
    return calls if number.isdecimal() and len(calls) == len(cause.culprits) else {}
