"""Every private name of torch that nbddp touches, feature-detected, in one place.

Runs in: the rank process. Checked with torch 2.13; where a name is missing, what depends on it is
left out and said so in the docstring.
"""

from nbddp.rank.torch_private.fsdp import Unit, units
from nbddp.rank.torch_private.groups import (
    c10d,
    default_group,
    exchange_registered,
    forget_failed_groups,
    forget_registered,
    group_count,
    hook_group_creation,
    is_in_bad_fork,
    register_group,
    registered,
    set_default_group,
    set_group_count,
    set_registered_store,
)
from nbddp.rank.torch_private.hooks import (
    BLOCKING_FUNCTIONS,
    hide_from_compiler,
    hook_backward,
    hook_batched_messages,
    hook_join,
    hook_options,
    hook_store_waits,
    hook_timeouts,
    is_bad_argument,
    nccl_backends,
    original_store_wait,
    set_async,
)
from nbddp.rank.torch_private.modules import (
    groups_of_torn,
    groups_of_unfinished,
    hook_ddp,
    reset_modules,
    whole_modules,
)
from nbddp.rank.torch_private.rendezvous import (
    mark_pool_store,
    new_store_client,
    pool_prefix,
    separate_rendezvous,
)
from nbddp.rank.torch_private.sharding import Sharding, is_flat_shard, sharding_of

__all__ = [
    "BLOCKING_FUNCTIONS",
    "Sharding",
    "Unit",
    "c10d",
    "default_group",
    "exchange_registered",
    "forget_failed_groups",
    "forget_registered",
    "group_count",
    "groups_of_torn",
    "groups_of_unfinished",
    "hide_from_compiler",
    "hook_backward",
    "hook_batched_messages",
    "hook_ddp",
    "hook_group_creation",
    "hook_join",
    "hook_options",
    "hook_store_waits",
    "hook_timeouts",
    "is_bad_argument",
    "is_flat_shard",
    "is_in_bad_fork",
    "mark_pool_store",
    "nccl_backends",
    "new_store_client",
    "original_store_wait",
    "pool_prefix",
    "register_group",
    "registered",
    "reset_modules",
    "separate_rendezvous",
    "set_async",
    "set_default_group",
    "set_group_count",
    "set_registered_store",
    "sharding_of",
    "units",
    "whole_modules",
]
