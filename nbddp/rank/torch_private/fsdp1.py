"""Private names of the first FSDP (`FullyShardedDataParallel`): the state of its steps.

Runs in: the rank process, main thread, at the end of cells and between them. See `fsdp`, which
calls these functions.
"""

import sys
from typing import Any


def shared(state: Any) -> Any:
    """Return the object that all states of a root module share; None: no step has begun yet."""
    is_new = getattr(state, "_is_root", None) is None and not is_torn([state])
    return None if is_new else getattr(state, "_exec_order_data", state)


def modules(state: Any) -> list[Any]:
    """Return the state itself, which is a module."""
    return [state]


def groups(state: Any) -> list[Any]:
    """Return its process groups: the one that shards, and the one that replicates."""
    candidates = [getattr(state, name, None) for name in ("process_group", "_inter_node_pg")]
    return [group for group in candidates if group is not None]


def is_torn(states: list[Any]) -> bool:
    """Return whether a step was left in the middle."""
    return any(map(_is_torn, states))


def waits(states: list[Any]) -> bool:
    """Return False: a forward belongs to one module."""
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
    """Return whether the first forward was left before all states were initialised."""
    if getattr(state, "_is_root", None) is not True:
        return False
    known_states = getattr(state, "_all_fsdp_states", ())
    handles = [known._handle for known in known_states if known._handle is not None]
    is_ready = hasattr(state, "_all_handles") and all(
        known._is_root is not None for known in known_states
    )
    return not (is_ready and all(map(_has_memory, handles)))


def _has_memory(handle: Any) -> bool:
    names = ["_local_shard"]
    if handle.uses_sharded_strategy:
        names.append("_padded_unsharded_size")
        if handle._uses_param_mixed_precision:
            names.append("_full_prec_full_param_padded")
    return all(hasattr(handle.flat_param, name) for name in names)


def contents(states: list[Any]) -> list[Any]:
    """Return the state that is equal on all ranks, with gradients that wait for their reduction."""
    descriptions = []
    for handle in (handle for state in states if (handle := getattr(state, "_handle", None))):
        parameter = handle.flat_param
        gradient, size = parameter.grad, getattr(parameter, "_unpadded_unsharded_size", None)
        is_waiting = gradient is not None and gradient.size() == size
        # A version counts how often values were added to the gradient.
        version = gradient._version if is_waiting and gradient is not None else None
        descriptions.append((list(parameter._fqns), size, version))
    return descriptions


def reset(states: list[Any]) -> None:
    """Reset all states of a root module to those before a step."""
    for state in states:
        if _is_being_set_up(state):
            for other in state.modules():
                _set(other, "_is_root", None)
            state._exec_order_data.all_handles.clear()
    for state in states:
        _reset_state(state)


def _reset_state(state: Any) -> None:
    """Reset as at the end of a backward, without its checks."""
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
        return  # it has no parameters of its own, or was never used
    handle._training_state = common.HandleTrainingState.IDLE
    parameter = handle.flat_param
    for name in ("_saved_grad_shard", "_cpu_grad"):
        _set(parameter, name, None)
    parameter.grad = None
    # Also if the shard is in use: memory for the whole may be allocated, without its contents.
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
    """Free the whole parameters, which the next forward would take as gathered."""
    if handle.uses_sharded_strategy:
        for name in ("_full_param_padded", "_full_prec_full_param_padded", "_mp_shard"):
            tensor = getattr(handle.flat_param, name, None)
            if tensor is not None:
                tensor.untyped_storage().resize_(0)


def _set(target: Any, name: str, value: Any) -> None:
    if target is not None and hasattr(target, name):
        setattr(target, name, value)
