"""Private names of ``torch.distributed.distributed_c10d``: creation and registration of groups.

Runs in: the rank process.
"""

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed.distributed_c10d
from torch.distributed.distributed_c10d import Store

#: As Any, because most of the names used here have no types.
c10d: Any = torch.distributed.distributed_c10d

#: ``(original, arguments by name) -> (group, store)``; see `hook_group_creation`.
Creation = Callable[[Callable[..., Any], dict[str, Any]], Any]


def hook_group_creation(create: Creation, split: Callable[[Any], Any]) -> Callable[..., Any] | None:
    """Let ``create`` make each group, and pass groups of split_group to ``split``.

    Returns:
        torch's own function; None: this version of torch makes groups elsewhere, and they stay
        stock groups.
    """
    original = getattr(c10d, "_new_process_group_helper", None)
    if original is None or not hasattr(c10d, "_world"):
        return None
    signature = inspect.signature(original)

    def helper(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return create(original, dict(bound.arguments))

    c10d._new_process_group_helper = helper
    original_split = getattr(c10d, "split_group", None)
    if original_split is not None:

        def split_group(*args: Any, **kwargs: Any) -> Any:
            return split(original_split(*args, **kwargs))

        split_group.__doc__ = original_split.__doc__
        c10d.split_group = torch.distributed.split_group = split_group
    return original  # type: ignore[no-any-return]


def hook_default_group(is_kept: Callable[[], bool]) -> None:
    """Let calls that make or destroy the default group do nothing while ``is_kept()``."""
    init, destroy = c10d.init_process_group, c10d.destroy_process_group

    @functools.wraps(init)
    def init_process_group(*args: Any, **kwargs: Any) -> None:
        if not is_kept():
            init(*args, **kwargs)

    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        if not (is_kept() and group in (None, c10d.GroupMember.WORLD)):
            destroy(group)

    distributed: Any = torch.distributed
    c10d.init_process_group = distributed.init_process_group = init_process_group
    c10d.destroy_process_group = distributed.destroy_process_group = destroy_process_group


_TABLES = ("pg_map", "pg_names", "pg_backend_config", "pg_to_tag", "pg_group_ranks")


def exchange_registered(stock: Any, other: Any, name: str) -> None:
    """Replace ``stock`` by ``other`` in all of torch's tables."""
    world = c10d._world
    for table in (getattr(world, table, {}) for table in _TABLES):
        if stock in table:
            table[other] = table.pop(stock)
    for groups in world.tags_to_pg.values():
        groups[:] = [other if group is stock else group for group in groups]
    c10d._unregister_process_group(name)
    c10d._register_process_group(name, other)


def forget_registered(stock: Any, name: str) -> None:
    """Remove a group from torch's tables; the group still works."""
    world = c10d._world
    for table in (getattr(world, table, {}) for table in _TABLES):
        table.pop(stock, None)
    for tag, groups in list(world.tags_to_pg.items()):
        groups[:] = [group for group in groups if group is not stock]
        if not groups:
            del world.tags_to_pg[tag]
    c10d._unregister_process_group(name)


def registered(group: Any) -> tuple[str, Any]:
    """Return ``(backend, store)`` of a group."""
    backend, store = c10d._world.pg_map[group]
    return str(backend), store


def set_registered_store(group: Any, store: Store) -> None:
    """Set the store of a group, from which later groups get their stores.

    A group that is missing in a table was being destroyed when an interrupt came: it is removed.
    """
    world = c10d._world
    entry = world.pg_map.get(group)
    if entry is None:
        forget_registered(group, group.group_name)
    else:
        world.pg_map[group] = (entry[0], store)


def group_named(name: str) -> Any:
    """Return the group that torch has registered by this name; None: there is none."""
    names = getattr(c10d._world, "pg_names", {})
    return next((group for group, group_name in names.items() if group_name == name), None)


def group_count() -> int:
    """Return torch's counter for the names of groups."""
    return int(getattr(c10d._world, "group_count", 0))


def set_group_count(count: int) -> None:
    """Set torch's counter, so that the next group has the same name on all ranks."""
    c10d._world.group_count = count


def hook_hashed_names() -> None:
    """Let the names of ``use_local_synchronization`` count groups of the same ranks only.

    torch makes these names from the number of all groups that a rank has. After a cell that failed,
    ranks may have different numbers, and would not find each other although all make the same call.
    """
    if not hasattr(c10d, "_hash_ranks_to_str"):
        return

    def hash_ranks(ranks: list[int]) -> str:
        members = list(ranks)
        taken = set(c10d._world.pg_names.values())
        count = sum(
            list(group_ranks) == members for group_ranks in c10d._world.pg_group_ranks.values()
        )
        while (name := _hashed(members, count)) in taken:  # an earlier group was destroyed
            count += 1
        return name

    c10d._hash_ranks_to_str = hash_ranks


def _hashed(ranks: list[int], count: int) -> str:
    text = "_".join(map(str, (*ranks, count)))
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def default_group() -> Any:
    """Return the default group; None: there is none."""
    return c10d._world.default_pg


def set_default_group(group: Any) -> None:
    """Make a group the default one, as ``init_process_group`` does."""
    c10d._update_default_pg(group)
    c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(group.size())}


def register_group(group: Any, backend: str, store: Store, name: str, ranks: Sequence[int]) -> None:
    """Add a group that the user's code has not made to torch's tables.

    Newer versions of torch have a function for this; the tables are the same in all versions.
    """
    world = c10d._world
    world.pg_map[group] = (c10d.Backend(backend), store)
    world.pg_names[group] = name
    world.pg_backend_config[group] = str(c10d.BackendConfig(c10d.Backend(backend)))
    world.pg_group_ranks[group] = {rank: index for index, rank in enumerate(ranks)}
    tag = f"ptd:{name}"  # codespell:ignore ptd
    world.pg_to_tag[group] = tag
    for group_tag in ("", tag):
        world.tags_to_pg.setdefault(group_tag, []).append(group)
    c10d._register_process_group(name, group)


def forget_failed_groups() -> None:
    """Reset the counter for the names of process groups if there is no group left.

    torch names a group by a counter before it connects to the other ranks. After an
    ``init_process_group`` that failed on some ranks only, the next one would have another name on
    these, and the ranks would not find each other.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    if world is not None and getattr(world, "default_pg", True) is None:
        world.group_count = 0


def is_in_bad_fork() -> bool:
    """Return whether CUDA was used before this process was forked, which prevents its use here."""
    check = getattr(__import__("torch").cuda, "_is_in_bad_fork", None)
    return bool(check and check())
