"""Plans the rebuild of process groups: groups to form now, and groups that wait for a member.

Runs in: the hub thread. Pure; a part of `nbddp.controller.recovery.rebuild`.
"""

from collections.abc import Iterable, Mapping

import msgspec

from nbddp.wire.flight_recorder import GroupInfo, RankLook
from nbddp.wire.rank_set import Rank, RankSet


def groups_to_form(
    looks: Mapping[Rank, RankLook],
    able: RankSet,
    broken: Iterable[str],
    *,
    forms_all: bool,
) -> tuple[tuple[GroupInfo, ...], set[str]]:
    """Return the groups to form now, and the ids of those that must wait for a member.

    A group is formed if it is broken, if its members disagree on the number of its operations, or,
    with ``forms_all``, in any case. Groups are in the order of their creation, so that a group
    comes after the one that it was made from.

    Args:
        looks: answers of ranks outside cells, and perhaps of some that do not leave theirs.
        able: ranks that can take part.
        broken: ids of groups.
        forms_all: form all groups, because a rank has to learn all of its groups.
    """
    wanted = set(broken)
    known: dict[str, GroupInfo] = {}
    counts: dict[str, set[int]] = {}
    for _, look in sorted(looks.items()):
        for group in look.groups:
            known.setdefault(group.pg_id, group)
            counts.setdefault(group.pg_id, set()).add(group.collective_seq_id)
    due = [
        msgspec.structs.replace(group, collective_seq_id=max(counts[pg_id]))
        for pg_id, group in known.items()
        if forms_all or pg_id in wanted or len(counts[pg_id]) > 1
    ]
    now = tuple(group for group in due if set(group.ranks) <= set(able))
    return now, {group.pg_id for group in due} - {group.pg_id for group in now}
