"""The FSDP modules of this process, old and new: which of them a step has left in the middle.

Runs in: the rank process, main thread, at the end of cells and between them.

Between forward and backward a module is not in the middle of anything: the step may go on in
another cell. Where an error or the stop button has left its forward or its backward, torch would go
on without communicating, or with what was half gathered, and not say so.
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

#: The kinds of states, by the name of their class: a file each, with the same functions.
_KINDS: dict[str, Any] = {"FSDPState": fsdp2, "FullyShardedDataParallel": fsdp1}

#: The living states with their numbers, in the order of creation.
_numbers: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()
_next_number = itertools.count()

#: Units by number, at the end of the last cell: those that may be whole, and those that cannot be.
_waiting: set[int] = set()
_left: set[int] = set()


class Unit:
    """A root module with all that is sharded in it: it takes its steps as a whole."""

    def __init__(self, number: int, kind: Any) -> None:
        self.number = number  #: of the first state, among all of this process
        self.states: list[Any] = []
        self._kind = kind

    def is_torn(self) -> bool:
        """Whether a forward or a backward has not come to its end."""
        return self.number in _left or bool(self._kind.is_torn(self.states))

    def waits(self) -> bool:
        """Whether the rest of a forward may be yet to come, or never; nothing tells which."""
        return bool(self._kind.waits(self.states))

    def place(self) -> str:
        """What must be equal on all ranks for it to stay as it is."""
        return f"{zlib.crc32(repr(self._kind.contents(self.states)).encode()):08x}"

    def groups(self) -> list[Any]:
        """The process groups that it communicates in."""
        return list({id(g): g for state in self.states for g in self._kind.groups(state)}.values())

    def size(self) -> int:
        """How many ranks have it."""
        return math.prod(group.size() for group in self.groups())

    def modules(self) -> list[Any]:
        """Those that were sharded."""
        return list(itertools.chain.from_iterable(map(self._kind.modules, self.states)))

    def reset(self) -> None:
        """Bring it back to where no step has begun. Gradients not yet reduced are dropped.

        Raises:
            RuntimeError: some of it cannot be mended.
        """
        _left.discard(self.number)
        self._kind.reset(self.states)

    def name(self) -> str:
        """As an error tells it."""
        roots = [state for state in self.states if getattr(state, "_is_root", None)]
        modules = self._kind.modules((roots or self.states)[0])
        return f"the sharded model {type(modules[0]).__name__}" if modules else "a sharded model"


def watch() -> None:
    """Number the states from now on. Their classes may be imported later, or never."""
    base: Any = getattr(_composable_state, "_State", None)
    if base is None:
        return

    def init_subclass(cls: Any, /, **kwargs: Any) -> None:
        super(base, cls).__init_subclass__(**kwargs)
        _number_instances(cls)

    base.__init_subclass__ = classmethod(init_subclass)
    for known in base.__subclasses__():
        _number_instances(known)
        for below in known.__subclasses__():
            _number_instances(below)


def _number_instances(cls: Any) -> None:
    if cls.__name__ not in _KINDS:
        return
    original: Callable[..., None] = cls.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _numbers[self] = next(_next_number)

    cls.__init__ = init


def units() -> list[Unit]:
    """All that have begun at least one step."""
    found: dict[int, Unit] = {}
    for state, number in sorted(_numbers.items(), key=lambda item: item[1]):
        kind = next(_KINDS[c.__name__] for c in type(state).__mro__ if c.__name__ in _KINDS)
        shared = kind.shared(state)
        if shared is not None:
            found.setdefault(id(shared), Unit(number, kind)).states.append(state)
    return list(found.values())


def torn_units(*, has_failed: bool) -> list[Unit]:
    """Those that were left in the middle, and that no other thread is working on.

    Args:
        has_failed: the cell that has ended now. What waits since then was left by its error.
    """
    known = units()
    waiting = {unit.number for unit in known if unit.waits()}
    if has_failed:
        _left.update(waiting - _waiting)
    _waiting.clear()
    _waiting.update(waiting)
    found = [unit for unit in known if unit.is_torn()]
    # A thread may have been at work when it was first looked at.
    torn = [unit for unit in found if not _is_at_work(unit) and unit.is_torn()]
    _left.intersection_update(unit.number for unit in torn)
    return torn


def _is_at_work(unit: Unit) -> bool:
    """Whether a thread is in its forward, or in a backward."""
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
