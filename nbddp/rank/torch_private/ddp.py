"""Private names of DDP and pipelines, and the reset of all modules after a recovery.

Only `reset_modules` and `hook_modules` are also about sharded modules: see `fsdp`.

Runs in: the rank process, main thread, between cells.
"""

import functools
import gc
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from nbddp.rank.torch_private import fsdp
from nbddp.rank.torch_private.gradients import gradient_of
from nbddp.rank.torch_private.warned_lines import pass_by_own_frames


def ddp_models() -> list[Any]:
    """Return the DistributedDataParallel modules of this process, in the order of creation."""
    return list(_ddp_modules)


def models_that_send() -> list[Any]:
    """Return the DistributedDataParallel modules of which one sends gradients in this thread.

    DDP sends a bucket in the hook of the last of its parameters whose gradient has come: autograd
    then runs the node of that parameter. Empty: autograd runs none, as where DDP sends all at the
    end of a backward pass (``static_graph``), or torch does not tell which.
    """
    current_node = getattr(torch._C, "_current_autograd_node", None)
    node = None if current_node is None else current_node()
    parameter = getattr(node, "variable", None)
    if parameter is None:
        return []
    # Modules compare by identity, tensors do not.
    return [model for model in _ddp_modules if any(parameter is p for p in model.parameters())]


def parts_on_purpose(model: Any) -> bool:
    """Return whether a DDP model averages its replicas only now and then (local SGD)."""
    states = (state for _, state in getattr(model, "_comm_hooks", ()))
    return any(type(state).__name__ == "PostLocalSGDState" for state in states)


@dataclass
class _Ddp:
    """A DDP module: its state is equal on all ranks of its group, or it must be reset."""

    number: int  #: of the module in its group, equal on all ranks
    reset_by: int = 0  #: number of the last rebuild that has reset it


_ddp_modules: "weakref.WeakKeyDictionary[Any, _Ddp]" = weakref.WeakKeyDictionary()
#: The hooks of C++ that reduce the gradients of DDP modules.
_builtin_hooks: "weakref.WeakKeyDictionary[Any, Any]" = weakref.WeakKeyDictionary()
#: Prefix of the backend name that C++ gets.
TRACED_PREFIX = "traced "
_last_numbers: dict[str, int] = {}  # by group name


def hook_modules(collectives_of: Callable[[Any], int]) -> None:
    """Track the DistributedDataParallel and FSDP modules and pipelines of this process.

    Args:
        collectives_of: returns the number of collectives that a group has begun. The constructor of
            a DDP module is at the same number on all ranks. A count of modules would not be: a rank
            that was replaced has made fewer, and so has one on which a constructor has failed.
    """
    ddp_type = torch.nn.parallel.DistributedDataParallel
    original = ddp_type.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        name = _group_name(self)
        # A module that was made without a collective (``init_sync=False``) has the next number.
        number = max(collectives_of(self.process_group), _last_numbers.get(name, -1) + 1)
        _last_numbers[name] = number
        _ddp_modules[self] = _Ddp(number)

    ddp_type.__init__ = init  # type: ignore[method-assign]
    pass_by_own_frames(sys.modules[ddp_type.__module__])
    register = ddp_type._register_builtin_comm_hook

    @functools.wraps(register)
    def register_builtin(self: Any, comm_hook_type: Any) -> None:
        register(self, comm_hook_type)
        _builtin_hooks[self] = comm_hook_type

    ddp_type._register_builtin_comm_hook = register_builtin  # type: ignore[method-assign]
    _hook_logging_data(ddp_type)
    fsdp.watch()
    _schedules.watch()


def _hook_logging_data(ddp_type: Any) -> None:
    """Let the logging data of DDP have torch's name of the backend, not the one that C++ got.

    For Gloo, also add the fields that C++ leaves out for a name that it does not know.
    """
    original = getattr(ddp_type, "_get_ddp_logging_data", None)
    if original is None:
        return

    @functools.wraps(original)
    def logging_data(self: Any) -> Any:
        data = original(self)
        name = data.get("backend_name")
        if isinstance(name, str):
            data["backend_name"] = name.removeprefix(TRACED_PREFIX)
            if name == f"{TRACED_PREFIX}gloo":
                for variable in ("GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT"):
                    data[variable.lower()] = os.environ.get(variable, "N/A")
                with suppress(AttributeError, RuntimeError):  # a wrapper of torch has no options
                    backend = self.process_group._get_backend(torch.device("cpu"))
                    data["gloo_num_threads"] = backend.options._threads
        return data

    ddp_type._get_ddp_logging_data = logging_data


def groups_of_unfinished() -> list[Any]:
    """Return the groups of DDP modules that began to reduce gradients and did not complete it."""
    return [module.process_group for module in list(_ddp_modules) if _is_unfinished(module)]


def whole_modules() -> list[tuple[Any, str]]:
    """Return DDP modules between two steps, or between forward and backward, and their states.

    If the states are equal on all ranks of a group, a module needs no reset. A reset would prevent
    the reduction of gradients in a backward that follows.
    """
    return [
        (module, f"{ddp.number}/{_buckets(module)}/{ddp.reset_by}")
        for module, ddp in list(_ddp_modules.items())
        if not _is_unfinished(module)
    ]


def _buckets(module: Any) -> str:
    """Return a word on the buckets: they are new, or will be sorted in the next forward, or are.

    The first backward notes an order of gradients, also on a rank that waits at its end and is
    freed there. Torch does not tell whether it began; without one a module has no gradients. A
    backward under ``no_sync()`` notes none: the forward before it has cleared a flag.
    """
    if module._has_rebuilt_buckets or (module.find_unused_parameters and not module.static_graph):
        return str(module._has_rebuilt_buckets)
    if all(gradient_of(each) is None for each in module.parameters()):
        return "new"
    return "noted" if module.require_forward_param_sync else "unsynchronized"


def _is_unfinished(module: Any) -> bool:
    try:
        module.reducer._check_reducer_finalized()
    except (RuntimeError, AttributeError):
        return True  # also if torch has no such check
    return False


def reset_modules(number: int, spared: list[Any], units: list[fsdp.Unit]) -> None:
    """Reset DDP, FSDP and pipelines to the state between two steps.

    An aborted backward leaves them in the middle of a step: DDP would wait for buckets that were
    never reduced, and FSDP2 would train without communicating.

    Args:
        number: of the rebuild.
        spared: DDP modules that stay as they are.
        units: sharded modules to reset.
    """
    spared_ids = set(map(id, spared))
    for module, ddp in list(_ddp_modules.items()):
        if id(module) not in spared_ids:
            ddp.reset_by = number
            _reset(_reset_ddp, module)
    for unit in units:
        _reset(fsdp.Unit.reset, unit, unit.name())
    for schedule in _schedules.living():
        _reset(_reset_schedule, schedule)


def _reset(reset: Callable[[Any], None], target: Any, name: str = "") -> None:
    """Reset one object; a failure is a warning, because groups must be rebuilt in any case."""
    try:
        reset(target)
    except Exception as error:  # noqa: BLE001 - private parts of torch: anything may be missing
        warnings.warn(
            f"{name or f'a {type(target).__name__}'} was left in the middle of a step and could "
            "not be brought back to its beginning "
            f"({type(error).__name__}: {error}): create it again, because it would give wrong "
            "numbers",
            stacklevel=2,
        )


def _reset_ddp(module: Any) -> None:
    module.reducer._reset_state()
    module._has_rebuilt_buckets = False


@dataclass(frozen=True)
class DdpNumbers:
    """The state of a DDP module that decides on its collectives, and is not in its state dict."""

    number: int  #: of the module in its group
    is_forward_synced: bool  #: the next forward broadcasts the buffers


def numbers_of(module: Any) -> DdpNumbers:
    """Return the numbers of a DDP module, for `renew`."""
    return DdpNumbers(_ddp_modules[module].number, module.require_forward_param_sync)


def renew(module: Any, numbers: DdpNumbers) -> None:
    """Give a DDP module new buckets of gradients, as its constructor does. No collective.

    After its first step DDP sorts gradients into other buckets, so a module that has stepped and a
    new one would add up gradients of different parameters. Source: ``__setstate__`` of
    ``DistributedDataParallel``, and ``Reducer::rebuild_buckets`` in ``reducer.cpp``.

    Args:
        module: the DDP module.
        numbers: those that it has on all ranks from now on.
    """
    parameters, is_sparse = module._build_params_for_reducer()
    names = module._build_debug_param_to_name_mapping(parameters)
    module._ddp_init_helper(parameters, is_sparse, names, module.static_graph)
    if module.static_graph:
        module.reducer._set_static_graph()
        module.logger._set_static_graph()
    module._has_rebuilt_buckets = False
    # A forward without gradients clears it, so a module that was evaluated differs from a new one.
    module.require_forward_param_sync = numbers.is_forward_synced
    package: Any = torch.distributed
    for hook, state in module._comm_hooks:
        package._register_comm_hook(module.reducer, state, hook)
    if module in _builtin_hooks:
        package._register_builtin_comm_hook(module.reducer, _builtin_hooks[module])
    _ddp_modules[module] = _Ddp(numbers.number)


def _group_name(module: Any) -> str:
    return str(getattr(module.process_group, "group_name", ""))


def _reset_schedule(schedule: Any) -> None:
    losses = getattr(schedule, "_internal_losses", None)
    if losses is not None:
        losses.clear()


class _Instances:
    """The living instances of a class that may be imported later, or never."""

    def __init__(self, module: str, name: str) -> None:
        self._module = module
        self._name = name
        self._instances: weakref.WeakSet[Any] | None = None

    def watch(self) -> None:
        """Track instances from now on, if the class is imported; there are none before."""
        self._begin(search=False)

    def living(self) -> list[Any]:
        """Return all instances. Those that were not tracked are searched for, once."""
        if self._instances is None:
            self._begin(search=True)
        return list(self._instances or ())

    def _begin(self, *, search: bool) -> None:
        kind: Any = getattr(sys.modules.get(self._module), self._name, None)
        if kind is None:
            return
        # Objects of the fork server are not among these, because they are frozen (`gc.freeze`).
        older = gc.get_objects() if search else []
        instances = self._instances = weakref.WeakSet(
            candidate for candidate in older if issubclass(type(candidate), kind)
        )
        original = kind.__init__

        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            instances.add(self)

        kind.__init__ = init


_schedules = _Instances("torch.distributed.pipelining.schedules", "_PipelineSchedule")
