"""Sees each call of torch's dispatcher in one thread, below the modes of the user.

Runs in: the rank process, main thread. Source: ``torch/utils/_python_dispatch.py`` of torch 2.13.
"""

import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils import _python_dispatch

#: Subclasses whose calls arrive again with the plain tensors inside: DTensor, and the results of
#: functional collectives, which wait before they are read.
_UNWRAPPED = "torch.distributed."
#: These are operations themselves.
_OPERATIONS = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")
#: These give a tensor other memory.
_REPLACING = ("resize_", "resize_as_", "set_")
_c10d: Any = torch.distributed.distributed_c10d
_TORCH = f"{Path(torch.__file__).parent}{os.sep}"
#: Between the function that the user calls and the method of the group.
_CALLERS = (
    _c10d.__file__,
    sys.modules["torch.distributed.c10d_logger"].__file__,
    sys.modules["typing_extensions"].__file__,  # its decorator of functions with an old name
)
#: These take a tensor for its size, or note it, and do not read it.
_UNREAD = ("record_stream", "is_same_size", "is_pinned", "size", "stride", "numel", "result_type")


class DispatchWatch(_python_dispatch.TorchDispatchMode):
    """Calls ``note(function, args, kwargs)`` before each call.

    It is put below the modes of the user, so that a ``with`` of the user ends what it has begun. It
    does not disturb `torch.compile`, and sees nothing inside of what that has compiled.
    """

    supports_higher_order_operators = True

    def __init__(self, note: Callable[[Any, Any, Any], None]) -> None:
        super().__init__()
        self._note = note

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: functions are compiled as without it."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: the wrapper of torch would import `torch._dynamo`.

        nbddp's own code is never compiled, see `hide_from_compiler`.
        """
        return False

    def __torch_dispatch__(
        self, func: Any, kinds: Iterable[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Note a call, and do it."""
        if kinds and all(kind.__module__.startswith(_UNWRAPPED) for kind in kinds):
            return NotImplemented
        self._note(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    @property
    def is_on(self) -> bool:
        """Whether this thread is watched."""
        return any(mode is self for mode in _python_dispatch._get_current_dispatch_mode_stack())

    def begin(self) -> None:
        """Watch this thread, unless torch traces code in it."""
        modes = list(_python_dispatch._get_current_dispatch_mode_stack())
        if not any(mode is self or mode.is_infra_mode() for mode in modes):
            _replace(modes, [self, *modes])

    def end(self) -> None:
        """Watch this thread no more."""
        modes = list(_python_dispatch._get_current_dispatch_mode_stack())
        if any(mode is self for mode in modes):
            _replace(modes, [mode for mode in modes if mode is not self])

    def without(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``call``, during which this thread is not watched: Gloo's threads inherit it."""
        if not self.is_on:
            return call

        def unwatched(*args: Any, **kwargs: Any) -> Any:
            self.end()
            try:
                return call(*args, **kwargs)
            finally:
                self.begin()

        return unwatched


@contextmanager
def unseen() -> Iterator[None]:
    """Hide calls of torch within this block from all modes of this thread."""
    if not torch._C._len_torch_dispatch_stack():
        yield
        return
    with _python_dispatch._disable_current_modes():
        yield


def _replace(modes: list[Any], others: list[Any]) -> None:
    for _ in modes:
        _python_dispatch._pop_mode()
    for mode in others:
        _python_dispatch._push_mode(mode)


@cache
def accesses_of(function: Any) -> tuple[tuple[int, str, str], ...]:
    """Return the tensors that a function of torch touches: position, name, access.

    The access is ``read``, ``write`` or ``resize``, writes first. Views, and what only looks at
    sizes, touch none.
    """
    schema = getattr(function, "_schema", None)
    if schema is None or function.namespace in _OPERATIONS:
        return ()
    name = schema.name.rpartition("::")[2]
    if name in _REPLACING:
        return ((0, schema.arguments[0].name, "resize"),)
    is_blind = name in _UNREAD or name.endswith("_like") or name.startswith(("new_", "sym_"))
    if is_blind or torch.Tag.inplace_view in function.tags:
        return ()
    accesses = []
    for position, argument in enumerate(schema.arguments):
        if "Tensor" not in str(argument.type):
            continue
        alias = argument.alias_info
        if alias is None or alias.is_write:
            accesses.append((position, argument.name, "read" if alias is None else "write"))
    return tuple(sorted(accesses, key=lambda access: access[2], reverse=True))


def name_of(function: Any) -> str:
    """Return the name of a function of torch: ``add_``."""
    return str(function._schema.name.rpartition("::")[2])


def is_called_by_torch(options: Any, frame: types.FrameType | None) -> bool:
    """Return whether torch has called an operation, and follows its end by itself.

    Args:
        options: of the operation; DDP and functional collectives make them in C++.
        frame: of the method of the group.
    """
    kind = type(options)
    has_options = kind.__module__.startswith(("torch.", "nbddp."))
    if has_options and getattr(_c10d, kind.__name__, None) is not kind:
        return True
    between = (*_CALLERS, "" if frame is None else frame.f_code.co_filename)
    while frame is not None and frame.f_code.co_filename in between:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_TORCH)


def watch_data(note: Callable[[torch.Tensor], None] | None) -> None:
    """Call ``note(tensor)`` before code that is not torch's sets ``tensor.data``; None: no more.

    No function of the dispatcher is called then.
    """
    if note is None:
        del torch.Tensor.data
        return
    original: Any = torch._C.TensorBase.data

    def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
        if not sys._getframe(1).f_code.co_filename.startswith(_TORCH):
            note(tensor)
        original.__set__(tensor, value)

    torch.Tensor.data = property(original.__get__, set_data)  # type: ignore[assignment]


def is_fake(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has a shape and no memory: DTensor computes shapes with such ones."""
    fakes: Any = sys.modules.get("torch._subclasses.fake_tensor")
    return isinstance(tensor, getattr(fakes, "FakeTensor", ()))


def storage_of(tensor: torch.Tensor) -> Any:
    """Return a weak reference to the memory of a tensor; it has ``expired()`` and ``cdata``."""
    from torch.multiprocessing.reductions import StorageWeakRef  # noqa: PLC0415 - only if it is used

    return StorageWeakRef(tensor.untyped_storage())
