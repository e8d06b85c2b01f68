"""Private names of the first FSDP (`FullyShardedDataParallel`): the state of its steps.

Runs in: the rank process, main thread, at the end of cells and between them. See `fsdp`, which
calls these functions.
"""

import sys
from typing import Any


def shared(state: Any) -> Any:
    """What all states of a root module share; None: no step has begun yet."""
    is_new = getattr(state, "_is_root", None) is None and not is_torn([state])
    return None if is_new else getattr(state, "_exec_order_data", state)


def modules(state: Any) -> list[Any]:
    """A state is a module."""
    return [state]


def groups(state: Any) -> list[Any]:
    """Its process groups: the one that shards, and the one that replicates."""
    found = [getattr(state, name, None) for name in ("process_group", "_inter_node_pg")]
    return [group for group in found if group is not None]


def is_torn(states: list[Any]) -> bool:
    """Whether a step was left in the middle."""
    return any(map(_is_torn, states))


def waits(states: list[Any]) -> bool:
    """Never: a forward is of one module."""
    del states
    return False


def _is_torn(state: Any) -> bool:
    handle = getattr(state, "_handle", None)
    stages = [getattr(state, "training_state", None), getattr(handle, "_training_state", None)]
    return (
        any(stage is not None and stage.name != "IDLE" for stage in stages)
        or bool(getattr(state, "_post_backward_callback_queued", False))
        or _is_being_set_up(state)
    )


def _is_being_set_up(state: Any) -> bool:
    """Whether the first forward was left before all states had what they need."""
    if getattr(state, "_is_root", None) is not True:
        return False
    known = getattr(state, "_all_fsdp_states", ())
    handles = [each._handle for each in known if each._handle is not None]
    is_ready = hasattr(state, "_all_handles") and all(each._is_root is not None for each in known)
    return not (is_ready and all(map(_has_memory, handles)))


def _has_memory(handle: Any) -> bool:
    names = ["_local_shard"]
    if handle.uses_sharded_strategy:
        names.append("_padded_unsharded_size")
        if handle._uses_param_mixed_precision:
            names.append("_full_prec_full_param_padded")
    return all(hasattr(handle.flat_param, name) for name in names)


def contents(states: list[Any]) -> list[Any]:
    """What of it is the same on all ranks, with the gradients that wait for their reduction."""
    found = []
    for handle in (handle for state in states if (handle := getattr(state, "_handle", None))):
        parameter = handle.flat_param
        gradient, size = parameter.grad, getattr(parameter, "_unpadded_unsharded_size", None)
        is_waiting = gradient is not None and gradient.size() == size
        # A version counts how often something was added to it.
        version = gradient._version if is_waiting and gradient is not None else None
        found.append((list(parameter._fqns), size, version))
    return found


def reset(states: list[Any]) -> None:
    """Bring all states of a root module back to where no step has begun."""
    for state in states:
        if _is_being_set_up(state):
            for other in state.modules():
                _set(other, "_is_root", None)
            state._exec_order_data.all_handles.clear()
    for state in states:
        _reset_state(state)


def _reset_state(state: Any) -> None:
    """Like the end of a backward, without its checks."""
    common = sys.modules["torch.distributed.fsdp._common_utils"]
    runtime = sys.modules["torch.distributed.fsdp._runtime_utils"]
    state.training_state = common.TrainingState.IDLE
    _set(state, "_post_backward_callback_queued", False)
    _set(state, "_unshard_event", None)
    order = getattr(state, "_exec_order_data", None)
    if order is not None and getattr(state, "_is_root", False):
        if order.is_first_iter:
            order.handles_pre_forward_order.clear()
        order.handles_post_forward_order.clear()
    handle = getattr(state, "_handle", None)
    if handle is None or not hasattr(handle.flat_param, "_local_shard"):
        return  # nothing of its own, or never used
    handle._training_state = common.HandleTrainingState.IDLE
    parameter = handle.flat_param
    for name in ("_saved_grad_shard", "_cpu_grad"):
        _set(parameter, name, None)
    parameter.grad = None
    # Also where the shard is in use: memory for the whole may be there, without its contents.
    runtime._reshard(state, handle, handle.uses_sharded_strategy)
    _free_whole(handle)
    if hasattr(parameter, "_post_backward_hook_state"):
        parameter._post_backward_hook_state[-1].remove()
        del parameter._post_backward_hook_state
    if hasattr(parameter, "_saved_grad_shard"):
        del parameter._saved_grad_shard
    _set(parameter, "_post_backward_called", False)
    for name in ("_ran_pre_backward_hook", "_needs_pre_backward_unshard", "_prefetched"):
        _set(handle, name, False)
    _set(handle, "_post_forward_index", None)
    if getattr(handle, "_use_orig_params", False):
        handle._use_sharded_grad_views()


def _free_whole(handle: Any) -> None:
    """Whatever is there counts as gathered in the next forward, in either precision."""
    if handle.uses_sharded_strategy:
        for name in ("_full_param_padded", "_full_prec_full_param_padded", "_mp_shard"):
            tensor = getattr(handle.flat_param, name, None)
            if tensor is not None:
                tensor.untyped_storage().resize_(0)


def _set(target: Any, name: str, value: Any) -> None:
    if target is not None and hasattr(target, name):
        setattr(target, name, value)
