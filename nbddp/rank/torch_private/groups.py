"""Private names of ``torch.distributed.distributed_c10d``: how groups are made and registered.

Runs in: the rank process.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.distributed_c10d
from torch.distributed.distributed_c10d import Store

#: As Any: most of what is used here has no types.
c10d: Any = torch.distributed.distributed_c10d

#: ``(original, arguments by name) -> (group, store)``; see `hook_group_creation`.
Creation = Callable[[Callable[..., Any], dict[str, Any]], Any]


def hook_group_creation(create: Creation, split: Callable[[Any], Any]) -> Callable[..., Any] | None:
    """Let ``create`` make every group, and ``split`` see those that split_group made.

    Returns:
        torch's own function; None where this version makes groups elsewhere: they stay stock ones.
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


_TABLES = ("pg_map", "pg_names", "pg_backend_config", "pg_to_tag", "pg_group_ranks")


def exchange_registered(stock: Any, other: Any, name: str) -> None:
    """Put ``other`` wherever torch has registered ``stock``."""
    world = c10d._world
    for table in (getattr(world, table, {}) for table in _TABLES):
        if stock in table:
            table[other] = table.pop(stock)
    for groups in world.tags_to_pg.values():
        groups[:] = [other if group is stock else group for group in groups]
    c10d._unregister_process_group(name)
    c10d._register_process_group(name, other)


def forget_registered(stock: Any, name: str) -> None:
    """Take a group out of torch's tables; it goes on working."""
    world = c10d._world
    for table in (getattr(world, table, {}) for table in _TABLES):
        table.pop(stock, None)
    for groups in world.tags_to_pg.values():
        groups[:] = [group for group in groups if group is not stock]
    c10d._unregister_process_group(name)


def registered(group: Any) -> tuple[str, Any, dict[int, int]]:
    """``(backend, store, global to group rank)`` of a group."""
    backend, store = c10d._world.pg_map[group]
    return str(backend), store, c10d._world.pg_group_ranks.get(group, {})


def set_registered_store(group: Any, store: Store) -> None:
    """The store from which later groups get theirs."""
    backend, _ = c10d._world.pg_map[group]
    c10d._world.pg_map[group] = (backend, store)


def group_count() -> int:
    """Torch's counter for the names of groups."""
    return int(getattr(c10d._world, "group_count", 0))


def set_group_count(count: int) -> None:
    """So that the next group has the same name on all ranks."""
    c10d._world.group_count = count


def default_group() -> Any:
    """The default group; None if there is none."""
    return c10d._world.default_pg


def set_default_group(group: Any) -> None:
    """Make a group the default one, as ``init_process_group`` does."""
    c10d._update_default_pg(group)
    c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(group.size())}


def register_group(
    group: Any, backend: str, store: Store, name: str, ranks: tuple[int, ...]
) -> None:
    """Enter a group that no call of the user's has made into torch's tables."""
    c10d._register_pg_in_world(
        group,
        backend_name=c10d.Backend(backend),
        store=store,
        group_name=name,
        backend_config=str(c10d.BackendConfig(c10d.Backend(backend))),
        rank_mapping={rank: index for index, rank in enumerate(ranks)},
        add_to_default_tag=True,
    )


def forget_failed_groups() -> None:
    """Let the names of process groups begin again where none is left.

    torch names a group before it looks for the other ranks, by counting. After an
    ``init_process_group`` that failed on some ranks only, the next one would have another name
    there, and no rank would find the others.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    world = getattr(c10d, "_world", None)
    if world is not None and getattr(world, "default_pg", True) is None:
        world.group_count = 0


def is_in_bad_fork() -> bool:
    """CUDA was touched before this process was forked, so it cannot be used here."""
    check = getattr(__import__("torch").cuda, "_is_in_bad_fork", None)
    return bool(check and check())
