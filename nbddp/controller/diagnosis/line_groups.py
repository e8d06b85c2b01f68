"""Finds the groups in which ranks called one line, where they differ, and the odd rank among them.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.wire.flight_recorder import Operation
from nbddp.wire.rank_set import Rank, RankSet, ranks_by_value


@dataclass(frozen=True)
class LineGroups:
    """The groups in which ranks called a line."""

    ranks_by_groups: Mapping[tuple[str, ...], RankSet]  #: by the names of their groups
    #: The one rank, and the name of the group, with which all members of each group call the line.
    odd: tuple[Rank, str] | None
    is_repeated: bool  #: a rank called the line several times


def has_called_line(rank: Rank, operation: Operation, reports: RankReports) -> bool:
    """Return whether a rank has called the line of an operation, or its records may lack that call.

    Args:
        rank: the rank.
        operation: a collective of another rank.
        reports: the ranks.
    """
    is_whole = reports.graph.histories[rank].is_whole(operation.run_id)
    return not is_whole or bool(_calls(rank, operation, reports))


def line_groups(
    operation: Operation, culprits: Iterable[Rank], reports: RankReports
) -> LineGroups | None:
    """Return the groups in which ranks called the line of an operation.

    Args:
        operation: a collective in which ranks wait.
        culprits: the ranks that they wait for.
        reports: the ranks.

    Returns:
        None: not all of these ranks called the line in another group; or calls are not known; or
        they are in a function that ranks called several times, perhaps for different groups.
    """
    graph = reports.graph
    calls = {rank: _calls(rank, operation, reports) for rank in graph.histories}
    calls = {rank: made for rank, made in calls.items() if made}
    is_known = all(graph.histories[rank].is_whole(operation.run_id) for rank in (*calls, *culprits))
    is_repeated = any(len(made) > 1 for made in calls.values())
    is_other = all(
        any(each.pg_id != operation.pg_id for each in calls.get(rank, ())) for rank in culprits
    )
    if not operation.site.line or not is_known or not is_other:
        return None
    if is_repeated and operation.site.function != "<module>":
        return None
    labels, members = {}, {}
    for made in calls.values():
        for call in made:
            group = graph.group(call)
            if group is None:
                return None
            labels[call.pg_id], members[call.pg_id] = group.label, set(group.ranks)
    named = {
        rank: tuple(dict.fromkeys(labels[each.pg_id] for each in made))
        for rank, made in calls.items()
    }
    odd = None
    if not is_repeated:
        group_by_rank = {rank: made[0].pg_id for rank, made in calls.items()}
        odd = _odd(group_by_rank, members, {*culprits, *members[operation.pg_id]})
    ranks_by_groups = ranks_by_value(named)
    if len(ranks_by_groups) < 2:
        return None
    return LineGroups(
        ranks_by_groups, None if odd is None else (odd[0], labels[odd[1]]), is_repeated
    )


def _calls(rank: Rank, operation: Operation, reports: RankReports) -> list[Operation]:
    """The collectives that a rank called at the line of an operation, in its run."""
    return [
        each
        for each in reports.graph.histories[rank].operations.values()
        if each.signature.kind == "collective" and each.run_id == operation.run_id
        if each.site.position == operation.site.position and not each.is_replaced
    ]


def _odd(
    group_by_rank: Mapping[Rank, str], members: Mapping[str, set[Rank]], ranks: Iterable[Rank]
) -> tuple[Rank, str] | None:
    """The one rank that makes all groups whole by a call in another group, and this group."""
    changes = [
        (rank, pg_id)
        for rank in ranks
        if rank in group_by_rank
        for pg_id, group in members.items()
        if rank in group and pg_id != group_by_rank[rank]
        if _is_whole({**group_by_rank, rank: pg_id}, members)
    ]
    return changes[0] if len(changes) == 1 else None


def _is_whole(group_by_rank: Mapping[Rank, str], members: Mapping[str, set[Rank]]) -> bool:
    """Whether all members of each group that is called call it."""
    return all(
        group_by_rank.get(member) == pg_id
        for pg_id in set(group_by_rank.values())
        for member in members[pg_id]
    )
