"""Private names of FSDP2 (`fully_shard`): the state of its steps.

Runs in: the rank process, main thread, at the end of cells and between them. See `fsdp`, which
calls these functions.
"""

import sys
from collections.abc import Iterator
from typing import Any


def shared(state: Any) -> Any:
    """Return the object that all states of a root module share; None: no step has begun yet."""
    is_new = getattr(state, "_is_root", None) is None and not is_torn([state])
    return None if is_new else state._state_ctx


def modules(state: Any) -> list[Any]:
    """Return the modules that were given to ``fully_shard``."""
    return list(getattr(state, "_modules", ()))


def groups(state: Any) -> list[Any]:
    """Return the process groups of its meshes: those that shard, and those that replicate."""
    return [
        process_group
        for group in _parameter_groups(state)
        for name in ("shard_process_group", "replicate_process_group")
        if (process_group := getattr(group.mesh_info, name, None)) is not None
    ]


def is_torn(states: list[Any]) -> bool:
    """Return whether a step was left in the middle."""
    return any(map(_is_torn, states)) or any(map(_is_context_torn, states))


def waits(states: list[Any]) -> bool:
    """Return whether some of the modules that were sharded together have run, and others have not.

    They stay in their forward until the last of them has run, or until the end of backward, as with
    `model.head(chunk)` of torch's chunked losses.
    """
    return any(len(modules(s)) > 1 and s._training_state.name == "FORWARD" for s in states)


def _is_torn(state: Any) -> bool:
    is_shared = len(modules(state)) > 1
    stages = [getattr(state, "_training_state", None)]
    for group in _parameter_groups(state):
        stages.append(group._training_state)
        parameters = group.fsdp_params
        if any(parameter.sharded_state is not group._sharded_state for parameter in parameters):
            return True
    whole_stages = ("IDLE", "FORWARD") if is_shared else ("IDLE",)
    return any(stage is not None and stage.name not in whole_stages for stage in stages)


def _is_context_torn(state: Any) -> bool:
    context = getattr(state, "_state_ctx", None)
    root = getattr(context, "iter_forward_root", None)
    is_queued = getattr(context, "post_backward_final_callback_queued", False)
    return bool(is_queued) or (root is not None and len(modules(root)) == 1)


def contents(states: list[Any]) -> list[Any]:
    """Return the state that is equal on all ranks, with gradients that wait for their reduction."""
    descriptions = []
    for group in (group for state in states for group in _parameter_groups(state)):
        partial = getattr(group, "_partial_reduce_output", None) is not None
        for parameter in group.fsdp_params:
            waiting = [_unsharded_grad(parameter), parameter.unsharded_accumulated_grad]
            # A version counts how often values were added to the gradient.
            versions = [None if tensor is None else tensor._version for tensor in waiting]
            descriptions.append(
                (parameter._param_fqn, tuple(parameter._orig_size), versions, partial)
            )
    return descriptions


def reset(states: list[Any]) -> None:
    """Reset all states of a root module to those before a step."""
    for state in states:
        if _is_being_set_up(state):
            _undo_set_up(state, states)
    for state in states:
        _reset_state(state)
    for parameter in (p for s in states for g in _parameter_groups(s) for p in g.fsdp_params):
        if _is_exposed(parameter):
            raise RuntimeError(f"{parameter._param_fqn} is still gathered")


def _is_being_set_up(state: Any) -> bool:
    """Return whether the first forward was left before the states were connected."""
    stage, context = state._training_state, state._state_ctx
    return state._is_root is True and stage.name == "FORWARD" and context.iter_forward_root is None


def _undo_set_up(root: Any, states: list[Any]) -> None:
    common = sys.modules["torch.distributed.fsdp._fully_shard._fsdp_state"]
    found_states = [common._get_module_fsdp_state(module) for module in root._modules[0].modules()]
    for state in filter(None, found_states):
        state._is_root = None
        if state not in states:
            states.append(state)
    root._state_ctx.all_states.clear()


def _reset_state(state: Any) -> None:
    common = sys.modules["torch.distributed.fsdp._fully_shard._fsdp_common"]
    idle = common.TrainingState.IDLE
    _set(state, "_training_state", idle)
    _clear(state, "_modules_to_run_forward")
    context = getattr(state, "_state_ctx", None)
    _set(context, "iter_forward_root", None)
    _set(context, "post_backward_final_callback_queued", False)
    for group in _parameter_groups(state):
        for name in (
            "_all_gather_result",
            "_post_reduce_event",
            "_reshard_after_forward_event",
            "_partial_reduce_output",
            "_all_reduce_state",
        ):
            _set(group, name, None)
        _set(group, "_training_state", idle)
        _clear(group, "_post_forward_indices")
        for parameter in group.fsdp_params:
            _reset_parameter(parameter)
        group._sharded_state = type(group._sharded_state).SHARDED
        communication = group.comm_ctx
        for name in ("all_gather_state", "reduce_scatter_state"):
            _set(communication, name, None)
        for name in ("post_forward_order", "reduce_scatter_states", "_last_post_reduce_events"):
            _clear(communication, name)


def _reset_parameter(parameter: Any) -> None:
    """Reset one parameter; its group may have been left between two of its parameters."""
    _set(parameter, "unsharded_accumulated_grad", None)
    _set(parameter, "grad_offload_event", None)
    _set(getattr(parameter, "_unsharded_param", None), "grad", None)
    # If it is sharded, the module may have got another parameter since, which must stay.
    if parameter.sharded_state.name != "SHARDED" or _is_exposed(parameter):
        parameter.to_sharded()
    else:
        parameter.free_unsharded_param()  # memory may be allocated, without its contents
    for name in ("_sharded_post_forward_param", "_sharded_post_forward_param_data"):
        _set(parameter, name, None)


def _is_exposed(parameter: Any) -> bool:
    """Return whether a module has its whole parameter, as only during its computation."""
    whole = getattr(parameter, "_unsharded_param", None)
    info = parameter._module_info
    owners = [(info.module, info.param_name)]
    owners += zip(info.shared_modules, info.shared_param_names, strict=False)
    return whole is not None and any(m._parameters.get(name) is whole for m, name in owners)


def _unsharded_grad(parameter: Any) -> Any:
    return getattr(getattr(parameter, "_unsharded_param", None), "grad", None)


def _parameter_groups(state: Any) -> Iterator[Any]:
    parameter_groups = getattr(state, "_fsdp_param_groups", None)
    if parameter_groups is None:
        parameter_groups = [getattr(state, "_fsdp_param_group", None)]
    return (group for group in parameter_groups if group is not None)


def _set(target: Any, name: str, value: Any) -> None:
    if target is not None and hasattr(target, name):
        setattr(target, name, value)


def _clear(target: Any, name: str) -> None:
    container = getattr(target, name, None)
    if container is not None:
        container.clear()
