"""Texts for process groups and handles of operations, in the user's terms.

Runs in: the rank process, main thread, between cells. The attributes of these objects are private
notes of each rank, so ranks do not compare them.
"""

from typing import Any

import torch.distributed as dist

from nbddp.wire.flight_recorder import DEFAULT_GROUP
from nbddp.wire.rank_set import RankSet


def type_name(value: Any) -> str:
    """Return the name of a type: ``ProcessGroup`` and ``Work`` also for nbddp's subclasses."""
    for kind in (dist.ProcessGroup, dist.Work):
        if isinstance(value, kind):
            return kind.__name__
    return type(value).__name__


def text_of(value: Any) -> str:
    """Return ``group '1', ranks 0-1, gloo`` or ``all_reduce #5``; empty for other objects."""
    try:
        if isinstance(value, dist.ProcessGroup):
            return _group_text(value)
        if isinstance(value, dist.Work):
            return str(getattr(value, "description", ""))
    except (RuntimeError, ValueError, KeyError):  # of a group that was destroyed
        pass
    return ""


def is_no_member(value: Any) -> bool:
    """Return whether a value is the result of ``new_group`` on ranks that are no members."""
    return value is dist.GroupMember.NON_GROUP_MEMBER


def _group_text(group: Any) -> str:
    name, desc = group.group_name, group.group_desc
    if desc == DEFAULT_GROUP:
        title = "default group"
    else:
        title = f"group {(name if desc in ('', 'undefined') else desc)!r}"
    ranks = RankSet.of(dist.get_process_group_ranks(group))
    return f"{title}, {ranks.describe()}, {dist.get_backend(group)}"
