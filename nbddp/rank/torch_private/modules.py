"""Private names of DDP, FSDP and pipelines: their state after a recovery.

Runs in: the rank process, main thread, between cells.
"""

import functools
import gc
import sys
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass
class _Ddp:
    """A DDP module: equal on all ranks of its group, or it must be brought back there."""

    number: int  #: among those of its group
    reset_by: int = 0  #: number of the last re-forming that has reset it


_ddp_modules: "weakref.WeakKeyDictionary[Any, _Ddp]" = weakref.WeakKeyDictionary()
_ddp_counts: dict[str, int] = {}  # by name of the group


def hook_ddp() -> None:
    """Remember the DistributedDataParallel modules of this process, and others like them."""
    ddp_type = torch.nn.parallel.DistributedDataParallel
    original = ddp_type.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        name = str(getattr(self.process_group, "group_name", ""))
        _ddp_counts[name] = _ddp_counts.get(name, 0) + 1
        _ddp_modules[self] = _Ddp(_ddp_counts[name])

    ddp_type.__init__ = init  # type: ignore[method-assign]
    _older_fsdp.watch()
    _schedules.watch()


def groups_of_unfinished() -> list[Any]:
    """The groups of DDP modules that have begun to reduce gradients and not come to the end."""
    return [module.process_group for module in list(_ddp_modules) if _is_unfinished(module)]


def whole_modules() -> list[tuple[Any, str]]:
    """DDP modules between two steps, or between forward and backward; and where they are.

    Where all ranks of a group say the same, a module needs no reset. That would cost the gradients
    of a backward that is to come their reduction.
    """
    return [
        (module, f"{known.number}/{module._has_rebuilt_buckets}/{known.reset_by}")
        for module, known in list(_ddp_modules.items())
        if not _is_unfinished(module)
    ]


def _is_unfinished(module: Any) -> bool:
    try:
        module.reducer._check_reducer_finalized()
    except (RuntimeError, AttributeError):
        return True  # also where torch cannot tell
    return False


def reset_modules(number: int, spared: list[Any]) -> None:
    """Bring DDP, FSDP and pipelines back to the state between two steps.

    An aborted backward leaves them in the middle: DDP would wait for buckets that were never
    reduced, and FSDP2 would train without communicating.

    Args:
        number: of the re-forming.
        spared: DDP modules that are to stay as they are.
    """
    left_alone = set(map(id, spared))
    for module, known in list(_ddp_modules.items()):
        if id(module) not in left_alone:
            known.reset_by = number
            _reset(_reset_ddp, module)
    for module in _older_fsdp.living():
        _reset(_reset_older_fsdp, module)
    for schedule in _schedules.living():
        _reset(_reset_schedule, schedule)
    composable = sys.modules.get("torch.distributed._composable_state")
    fsdp = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
    if composable is None or fsdp is None:
        return
    for reference in list(getattr(composable, "_module_state_mapping", {}).values()):
        state = reference() if isinstance(reference, weakref.ref) else reference
        if isinstance(state, fsdp.FSDPState):
            _reset(_reset_fsdp_state, state)


def _reset(reset: Callable[[Any], None], found: Any) -> None:
    """One object that cannot be mended must not keep the groups from being made again."""
    try:
        reset(found)
    except Exception as error:  # noqa: BLE001 - private parts of torch: anything may be missing
        name = type(found).__name__
        warnings.warn(
            f"a {name} was interrupted in the middle of a step and could not be brought back to "
            f"the beginning of one ({type(error).__name__}: {error}); make it anew",
            stacklevel=2,
        )


def _reset_ddp(module: Any) -> None:
    module.reducer._reset_state()
    module._has_rebuilt_buckets = False


def _reset_schedule(schedule: Any) -> None:
    losses = getattr(schedule, "_internal_losses", None)
    if losses is not None:
        losses.clear()


def _reset_fsdp_state(state: Any) -> None:
    common = sys.modules["torch.distributed.fsdp._fully_shard._fsdp_common"]
    idle = common.TrainingState.IDLE
    _set(state, "_training_state", idle)
    context = getattr(state, "_state_ctx", None)
    _set(context, "iter_forward_root", None)
    _set(context, "post_backward_final_callback_queued", False)
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:
        groups = [getattr(state, "_fsdp_param_group", None)]
    for group in groups:
        if group is None:
            continue
        for name in (
            "_all_gather_result",
            "_post_reduce_event",
            "_reshard_after_forward_event",
            "_partial_reduce_output",
            "_all_reduce_state",
        ):
            _set(group, name, None)
        _set(group, "_training_state", idle)
        if hasattr(group, "_reset_iter_state"):
            group._reset_iter_state()
        group._to_sharded()
        for parameter in group.fsdp_params:
            _set(parameter, "unsharded_accumulated_grad", None)
        indices = getattr(group, "_post_forward_indices", None)
        if indices is not None:
            indices.clear()
        communication = group.comm_ctx
        communication.post_forward_order.clear()
        for name in ("all_gather_state", "reduce_scatter_state"):
            _set(communication, name, None)
        states = getattr(communication, "reduce_scatter_states", None)
        if states is not None:
            states.clear()


def _set(target: Any, name: str, value: Any) -> None:
    if target is not None and hasattr(target, name):
        setattr(target, name, value)


class _Instances:
    """The living objects of a class that may be imported later, or never."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name
        self._found: weakref.WeakSet[Any] | None = None

    def watch(self) -> None:
        """There is none yet: note them from now on, if the class is there."""
        self._begin(search=False)

    def living(self) -> list[Any]:
        """All of them. Those that were not noted are searched for, once."""
        if self._found is None:
            self._begin(search=True)
        return list(self._found or ())

    def _begin(self, *, search: bool) -> None:
        kind: Any = getattr(sys.modules.get(self._module), self._name, None)
        if kind is None:
            return
        # Of the fork server's objects there are none among these (`gc.freeze`).
        older = gc.get_objects() if search else []
        found = self._found = weakref.WeakSet(
            each for each in older if issubclass(type(each), kind)
        )
        original = kind.__init__

        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            found.add(self)

        kind.__init__ = init


_older_fsdp = _Instances(
    "torch.distributed.fsdp.fully_sharded_data_parallel", "FullyShardedDataParallel"
)
_schedules = _Instances("torch.distributed.pipelining.schedules", "_PipelineSchedule")


def _reset_older_fsdp(state: Any) -> None:
    """Of a module of the first FSDP: like the end of a backward, without its checks."""
    common = sys.modules["torch.distributed.fsdp._common_utils"]
    runtime = sys.modules["torch.distributed.fsdp._runtime_utils"]
    state.training_state = common.TrainingState.IDLE
    _set(state, "_post_backward_callback_queued", False)
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
    if hasattr(parameter, "_post_backward_hook_state"):
        parameter._post_backward_hook_state[-1].remove()
        del parameter._post_backward_hook_state
    if hasattr(parameter, "_saved_grad_shard"):
        del parameter._saved_grad_shard
    _set(parameter, "_post_backward_called", False)
    for name in ("_ran_pre_backward_hook", "_needs_pre_backward_unshard", "_prefetched"):
        _set(handle, name, False)
    _set(handle, "_post_forward_index", None)
