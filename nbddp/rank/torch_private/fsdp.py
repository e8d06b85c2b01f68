"""The FSDP modules of this process, of both versions, and whether they are in the middle of a step.

Runs in: the rank process, main thread, at the end of cells and between them.

Between forward and backward a module is not torn: the step may continue in another cell. If an
error or the stop button has ended its forward or backward, torch would continue without
communication, or with half gathered parameters, and not report it.
"""

import functools
import itertools
import math
import sys
import threading
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.distributed import _composable_state

from nbddp.rank.torch_private import fsdp1, fsdp2
from nbddp.rank.torch_private.process_groups import default_group

#: The kinds of states, by class name: a module each, with the same functions.
_KINDS: dict[str, Any] = {"FSDPState": fsdp2, "FullyShardedDataParallel": fsdp1}

#: The living states with their keys, in the order of creation. A state is created in the same cell
#: on all of its ranks. A count of all states would not be equal: a rank that was replaced has made
#: fewer.
_keys: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()
_cell = ""  #: the id of the cell that runs, or has run last
_next_number = itertools.count()  #: of the states that it creates

#: Keys of units at the end of the last cell: those that may be whole, and those that cannot be.
_waiting: set[str] = set()
_abandoned: set[str] = set()


class Unit:
    """A root module with all sharded modules in it, which take their steps together."""

    def __init__(self, key: str, kind: Any) -> None:
        self.key = key  #: of its first state, equal on all ranks that created it in the same cell
        self.states: list[Any] = []
        self._kind = kind

    def is_torn(self) -> bool:
        """Return whether a forward or a backward was not completed."""
        return self.key in _abandoned or bool(self._kind.is_torn(self.states))

    def waits(self) -> bool:
        """Return whether the rest of a forward may follow or not, which cannot be determined."""
        return bool(self._kind.waits(self.states))

    def fingerprint(self) -> str:
        """Return a fingerprint of its state, which must be equal on all ranks for it to stay."""
        return f"{zlib.crc32(repr(self._kind.contents(self.states)).encode()):08x}"

    def groups(self) -> list[Any]:
        """Return the process groups in which it communicates."""
        return list({id(g): g for state in self.states for g in self._kind.groups(state)}.values())

    def size(self) -> int:
        """Return the number of ranks that have it."""
        return math.prod(group.size() for group in self.groups())

    def modules(self) -> list[Any]:
        """Return the sharded modules."""
        return list(itertools.chain.from_iterable(map(self._kind.modules, self.states)))

    def reset(self) -> None:
        """Reset it to the state before a step. Gradients not yet reduced are dropped.

        Raises:
            RuntimeError: some of its state cannot be reset.
        """
        _abandoned.discard(self.key)
        self._kind.reset(self.states)

    def name(self) -> str:
        """Return its name for an error."""
        roots = [state for state in self.states if getattr(state, "_is_root", None)]
        modules = self._kind.modules((roots or self.states)[0])
        return f"the sharded model {type(modules[0]).__name__}" if modules else "a sharded model"


def watch() -> None:
    """Note the states that are created from now on; classes may be imported later, or never."""
    base: Any = getattr(_composable_state, "_State", None)
    if base is None:
        return

    def init_subclass(cls: Any, /, **kwargs: Any) -> None:
        super(base, cls).__init_subclass__(**kwargs)
        _note_instances(cls)

    base.__init_subclass__ = classmethod(init_subclass)
    for kind in base.__subclasses__():
        _note_instances(kind)
        for subkind in kind.__subclasses__():
            _note_instances(subkind)


def begin_cell(run_id: str) -> None:
    """Begin a cell, whose id is equal on all of its ranks."""
    global _cell, _next_number
    _cell, _next_number = run_id, itertools.count()


def _note_instances(cls: Any) -> None:
    if cls.__name__ not in _KINDS:
        return
    original: Callable[..., None] = cls.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _keys[self] = f"{_cell}/{next(_next_number)}"

    cls.__init__ = init


def units() -> list[Unit]:
    """Return the units that have begun at least one step."""
    units_by_root: dict[int, Unit] = {}
    for state, key in list(_keys.items()):
        kind = next(_KINDS[c.__name__] for c in type(state).__mro__ if c.__name__ in _KINDS)
        shared = kind.shared(state)
        if shared is not None:
            units_by_root.setdefault(id(shared), Unit(key, kind)).states.append(state)
    return list(units_by_root.values())


def torn_units(*, has_failed: bool) -> list[Unit]:
    """Return units that were left in the middle of a step, and that no thread is working on.

    Args:
        has_failed: the cell that has just ended failed, so units that wait since then were left by
            its error.
    """
    known = units()
    waiting = {unit.key for unit in known if unit.waits()}
    if has_failed:
        _abandoned.update(waiting - _waiting)
    _waiting.clear()
    _waiting.update(waiting)
    candidates = [unit for unit in known if unit.is_torn()]
    # A thread may have been at work at the first check, so each unit is checked again.
    torn = [unit for unit in candidates if not _is_at_work(unit) and unit.is_torn()]
    _abandoned.intersection_update(unit.key for unit in torn)
    return torn


def groups_of_torn(*, has_failed: bool) -> list[Any]:
    """Return the groups of sharded modules that were left in the middle of a step.

    The default group is among them, because all ranks of a mesh must be notified, and not all of
    them share one of its groups.
    """
    torn = [group for unit in torn_units(has_failed=has_failed) for group in unit.groups()]
    world = default_group()
    return torn if world is None or not torn else [world, *torn]


def _is_at_work(unit: Unit) -> bool:
    """Return whether a thread is in its forward, or in a backward."""
    modules = set(map(id, unit.modules()))
    forward = torch.nn.Module._call_impl.__code__
    return any(
        (frame.f_code is forward and id(frame.f_locals.get("self")) in modules)
        or frame.f_code.co_name == "_engine_run_backward"
        for frame in _frames_of_others()
    )


def _frames_of_others() -> Iterator[Any]:
    own = threading.get_ident()
    for thread, newest in sys._current_frames().items():
        frame = newest if thread != own else None
        while frame is not None:
            yield frame
            frame = frame.f_back
