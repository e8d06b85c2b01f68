"""All private names of torch that nbddp uses, feature-detected, in one place.

Runs in: the rank process. Checked with torch 2.13. Where a name is missing, the feature that
depends on it is left out, as the docstrings say.
"""

from nbddp.rank.torch_private.ddp import (
    TRACED_PREFIX,
    groups_of_torn,
    groups_of_unfinished,
    hook_ddp,
    reset_modules,
    whole_modules,
)
from nbddp.rank.torch_private.device_meshes import forget_meshes
from nbddp.rank.torch_private.fsdp import Unit, units
from nbddp.rank.torch_private.hooks import (
    BLOCKING_FUNCTIONS,
    hide_from_compiler,
    hook_backward,
    hook_batched_messages,
    hook_builtin_comm_hooks,
    hook_join,
    hook_options,
    hook_store_waits,
    hook_timeouts,
    is_bad_argument,
    is_wrapped,
    nccl_backends,
    original_store_wait,
    set_async,
)
from nbddp.rank.torch_private.process_groups import (
    c10d,
    default_group,
    exchange_registered,
    forget_failed_groups,
    forget_registered,
    group_count,
    group_named,
    hook_group_creation,
    hook_hashed_names,
    is_in_bad_fork,
    register_group,
    registered,
    set_default_group,
    set_group_count,
    set_registered_store,
)
from nbddp.rank.torch_private.rendezvous import (
    new_store_client,
    separate_rendezvous,
    share_store,
    shared_prefix,
)
from nbddp.rank.torch_private.rpc import has_rpc, hook_init_rpc, rpc_timeout, shut_rpc_down
from nbddp.rank.torch_private.sharding import Sharding, is_flat_shard, sharding_of

__all__ = [
    "BLOCKING_FUNCTIONS",
    "TRACED_PREFIX",
    "Sharding",
    "Unit",
    "c10d",
    "default_group",
    "exchange_registered",
    "forget_failed_groups",
    "forget_meshes",
    "forget_registered",
    "group_count",
    "group_named",
    "groups_of_torn",
    "groups_of_unfinished",
    "has_rpc",
    "hide_from_compiler",
    "hook_backward",
    "hook_batched_messages",
    "hook_builtin_comm_hooks",
    "hook_ddp",
    "hook_group_creation",
    "hook_hashed_names",
    "hook_init_rpc",
    "hook_join",
    "hook_options",
    "hook_store_waits",
    "hook_timeouts",
    "is_bad_argument",
    "is_flat_shard",
    "is_in_bad_fork",
    "is_wrapped",
    "nccl_backends",
    "new_store_client",
    "original_store_wait",
    "register_group",
    "registered",
    "reset_modules",
    "rpc_timeout",
    "separate_rendezvous",
    "set_async",
    "set_default_group",
    "set_group_count",
    "set_registered_store",
    "sharding_of",
    "share_store",
    "shared_prefix",
    "shut_rpc_down",
    "units",
    "whole_modules",
]
