"""Private names of DDP and pipelines: their state after a recovery. See `fsdp` for what is sharded.

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
from nbddp.rank.torch_private.process_groups import default_group


@dataclass
class _Ddp:
    """A DDP module: equal on all ranks of its group, or it must be brought back there."""

    number: int  #: among those of its group
    reset_by: int = 0  #: number of the last re-forming that has reset it


_ddp_modules: "weakref.WeakKeyDictionary[Any, _Ddp]" = weakref.WeakKeyDictionary()
#: Before the name of a backend, as C++ gets it.
TRACED_PREFIX = "traced "
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
    _hook_logging_data(ddp_type)
    fsdp.watch()
    _schedules.watch()


def _hook_logging_data(ddp_type: Any) -> None:
    """What DDP logs has the name that C++ was given for the backend; users know it by torch's.

    And for Gloo it has more, which C++ leaves out where it does not know the name.
    """
    original = getattr(ddp_type, "_get_ddp_logging_data", None)
    if original is None:
        return

    @functools.wraps(original)
    def logging_data(self: Any) -> Any:
        found = original(self)
        name = found.get("backend_name")
        if isinstance(name, str):
            found["backend_name"] = name.removeprefix(TRACED_PREFIX)
            if name == f"{TRACED_PREFIX}gloo":
                for variable in ("GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT"):
                    found[variable.lower()] = os.environ.get(variable, "N/A")
                with suppress(AttributeError, RuntimeError):  # a wrapper of torch's has no options
                    backend = self.process_group._get_backend(torch.device("cpu"))
                    found["gloo_num_threads"] = backend.options._threads
        return found

    ddp_type._get_ddp_logging_data = logging_data


def groups_of_torn(*, has_failed: bool) -> list[Any]:
    """The groups of sharded modules that a step has left in the middle, and the default group.

    Not all ranks of a mesh share one of its groups, and all of them must hear of it.
    """
    units = fsdp.torn_units(has_failed=has_failed)
    torn = [group for unit in units for group in unit.groups()]
    world = default_group()
    return torn if world is None or not torn else [world, *torn]


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


def reset_modules(number: int, spared: list[Any], units: list[fsdp.Unit]) -> None:
    """Bring DDP, FSDP and pipelines back to the state between two steps.

    An aborted backward leaves them in the middle: DDP would wait for buckets that were never
    reduced, and FSDP2 would train without communicating.

    Args:
        number: of the re-forming.
        spared: DDP modules that are to stay as they are.
        units: what is sharded and is not to stay as it is.
    """
    left_alone = set(map(id, spared))
    for module, known in list(_ddp_modules.items()):
        if id(module) not in left_alone:
            known.reset_by = number
            _reset(_reset_ddp, module)
    for unit in units:
        _reset(fsdp.Unit.reset, unit, unit.name())
    for schedule in _schedules.living():
        _reset(_reset_schedule, schedule)


def _reset(reset: Callable[[Any], None], found: Any, name: str = "") -> None:
    """One object that cannot be mended must not keep the groups from being made again."""
    try:
        reset(found)
    except Exception as error:  # noqa: BLE001 - private parts of torch: anything may be missing
        warnings.warn(
            f"{name or f'a {type(found).__name__}'} was left in the middle of a step and could not "
            f"be brought back to its beginning ({type(error).__name__}: {error}): make it anew, it "
            "would give wrong numbers",
            stacklevel=2,
        )


def _reset_ddp(module: Any) -> None:
    module.reducer._reset_state()
    module._has_rebuilt_buckets = False


def _reset_schedule(schedule: Any) -> None:
    losses = getattr(schedule, "_internal_losses", None)
    if losses is not None:
        losses.clear()


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


_schedules = _Instances("torch.distributed.pipelining.schedules", "_PipelineSchedule")
