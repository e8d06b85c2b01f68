"""Process groups and handles of operations, as a user knows them.

Runs in: the rank process, main thread, between cells. What is inside of them each rank notes for
itself, so that it is no part of what ranks should have alike.
"""

from typing import Any

import torch.distributed as dist

from nbddp.wire.rank_set import RankSet


def type_name(value: Any) -> str:
    """Return ``ProcessGroup`` and ``Work``: the classes around them are nobody's concern."""
    for kind in (dist.ProcessGroup, dist.Work):
        if isinstance(value, kind):
            return kind.__name__
    return type(value).__name__


def text_of(value: Any) -> str:
    """Return ``group '1', ranks 0-1, gloo`` or ``all_reduce #5``; empty: it is neither of them."""
    try:
        if isinstance(value, dist.ProcessGroup):
            return _group_text(value)
        if isinstance(value, dist.Work):
            return str(getattr(value, "description", ""))
    except (RuntimeError, ValueError, KeyError):  # of a group that was destroyed
        pass
    return ""


def is_no_member(value: Any) -> bool:
    """Return whether it is what ``new_group`` gives to ranks that are no members."""
    return value is dist.GroupMember.NON_GROUP_MEMBER


def _group_text(group: Any) -> str:
    name, desc = group.group_name, group.group_desc
    if desc == "default_pg":
        called = "default group"
    else:
        called = f"group {(name if desc in ('', 'undefined') else desc)!r}"
    ranks = RankSet.of(dist.get_process_group_ranks(group))
    return f"{called}, {ranks.describe()}, {dist.get_backend(group)}"
