"""The memory of operations that the caller has not seen the end of, and what touches it.

Runs in: the rank process. Operations begin and end in any thread; memory is watched in the main
thread, and only while an operation is open.
"""

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from nbddp.rank.collectives.operation_tensors import OperationTensors
from nbddp.rank.collectives.rollback import tensors_in
from nbddp.rank.collectives.sanitizer.spans import Span, overlap, span_of
from nbddp.rank.torch_private import dispatch_watch
from nbddp.rank.torch_private.dispatch_watch import DispatchWatch


@dataclass(eq=False, slots=True)
class OpenOperation:
    """An operation that the caller has not waited for."""

    record: int
    read: list[Span]
    written: list[Span]
    handle: "weakref.ref[Any]"
    #: Its caller has got the handle; C++ follows the end of an operation by itself.
    is_handed_out: bool
    is_dropped: bool = False  #: its handle was deleted before the rank called another operation

    def uses(self, span: Span, *, writes: bool) -> bool:
        """Return whether an access to memory meets the operation's own."""
        return self.writes(span) or (writes and _is_in(span, self.read))

    def writes(self, span: Span) -> bool:
        """Return whether the operation writes some of this memory."""
        return _is_in(span, self.written)


_Storage: Any = torch.UntypedStorage
#: These read a tensor without the dispatcher, or switch off all modes.
_DIRECT_READS = ("__repr__", "tolist")


class OpenBuffers:
    """The open operations of this rank in a cell.

    Args:
        on_access: called with an open operation, the access, the function of torch that touches
            its memory, and whether the operation writes what is touched.
    """

    def __init__(self, on_access: Callable[[OpenOperation, str, str, bool], None]) -> None:
        self._on_access = on_access
        self._open: dict[int, OpenOperation] = {}  # by record
        self._watch = DispatchWatch(self._note)
        self._kept: list[Any] = []  #: memory of open operations that lost its tensor in this cell
        self._main = threading.main_thread().ident
        self.spent_ns = 0
        self._in_backward = 0  # passes that run in the main thread
        #: Code of the user has opened an operation in a backward pass: the next pass is watched.
        self._opens_in_backward = False

    def begin(self) -> None:
        """Begin a cell."""
        self.spent_ns = 0
        for name in _DIRECT_READS:
            setattr(torch.Tensor, name, self._noted(getattr(torch.Tensor, name)))
        _Storage.resize_ = self._noted_resize(_Storage.resize_)
        dispatch_watch.watch_data(self._gets_data)

    def _noted(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.read(tensor, original.__name__)
            return original(tensor, *args, **kwargs)

        return run

    def _noted_resize(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return `resize_` of a storage, which frees its memory, or moves it."""

        @functools.wraps(original)
        def run(storage: Any, size: int, *args: Any) -> Any:
            if self._open and self._is_main and size != storage.nbytes():
                begin = storage.data_ptr()
                span = Span(begin, begin + storage.nbytes(), 1)
                self._touches(span, "resize", "untyped_storage().resize_")
            return original(storage, size, *args)

        return run

    def _gets_data(self, tensor: torch.Tensor) -> None:
        """Note ``x.data = y``, which frees the memory of x."""
        if self._open and self._is_main and type(tensor) in (torch.Tensor, torch.nn.Parameter):
            span = span_of(tensor)
            if self._touches(span, "resize", "data"):
                # Gloo goes on with this memory, and would end the process.
                self._kept.append(tensor.untyped_storage())

    # --- operations ----------------------------------------------------------------------------

    def meets(self, tensors: OperationTensors) -> tuple[OpenOperation, bool] | None:
        """Return an open operation with which a new one shares memory that one of them writes.

        And whether the new one reads what the open one writes.
        """
        operations = list(self._open.values())
        if not operations:
            return None
        for tensor, writes in _with_access(tensors):
            span = span_of(tensor)
            for operation in operations:
                if span is not None and operation.uses(span, writes=writes):
                    read = (span_of(each) for each in tensors.inputs)
                    return operation, any(each and operation.writes(each) for each in read)
        return None

    def note_dropped(self) -> None:
        """Note which operations have no handle any more: another operation is called."""
        for operation in list(self._open.values()):
            operation.is_dropped |= operation.handle() is None

    def add(
        self, handle: Any, record: int, tensors: OperationTensors, *, is_handed_out: bool
    ) -> None:
        """Add an operation that was issued."""
        written = {id(tensor) for tensor in tensors.written}
        self._open[record] = OpenOperation(
            record,
            _spans(tensor for tensor in tensors.inputs if id(tensor) not in written),
            _spans(tensors.written),
            weakref.ref(handle),
            is_handed_out,
        )
        handle.note_seen = lambda: self._seen(record)
        if self._is_main:
            self._opens_in_backward |= is_handed_out and self._in_backward > 0
            self._watch.begin()

    def _seen(self, record: int) -> None:
        if self._open.pop(record, None) is not None and not self._open and self._is_main:
            self._watch.end()

    def without_watch(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call of a stock group that is not watched."""
        return self._watch.without(call) if self._open and self._is_main else call

    def end(self) -> Iterator[OpenOperation]:
        """End the cell, and yield the operations that nothing has waited for."""
        self._watch.end()
        for name in _DIRECT_READS:
            noted = getattr(torch.Tensor, name)
            setattr(torch.Tensor, name, noted.__wrapped__)
        _Storage.resize_ = _Storage.resize_.__wrapped__
        dispatch_watch.watch_data(None)
        self._kept.clear()
        left, self._open = self._open, {}
        self._opens_in_backward = False
        for operation in left.values():
            handle = operation.handle()
            if handle is not None:
                del handle.note_seen
            if operation.is_handed_out:
                yield operation

    # --- what the code does --------------------------------------------------------------------

    def backward(self, run: Callable[[], Any]) -> Any:
        """Run a backward pass, whose modes are those of its beginning.

        So a mode that is put on the stack inside of it is lost with the next node of the graph.
        """
        if not self._is_main:
            return run()
        if self._opens_in_backward:
            self._watch.begin()
        self._in_backward += 1
        try:
            return run()
        finally:
            self._in_backward -= 1
            if self._open:
                self._watch.begin()
            elif not self._in_backward:
                self._watch.end()

    @property
    def is_in_backward(self) -> bool:
        """Whether a backward pass runs in the main thread."""
        return self._in_backward > 0

    @property
    def _is_main(self) -> bool:
        return threading.get_ident() == self._main

    def read(self, tensor: torch.Tensor, function: str) -> None:
        """Note that a tensor is read by a function that goes past the dispatcher."""
        if self._open and self._is_main and type(tensor) in (torch.Tensor, torch.nn.Parameter):
            self._access(tensor, "read", function)

    def _note(self, function: Any, args: Any, kwargs: Any) -> None:
        """Compare the tensors of a call with those of open operations."""
        if not self._open or not self._is_main:  # a thread of Gloo has inherited the watch
            return
        began = time.monotonic_ns()
        for position, name, access in dispatch_watch.accesses_of(function):
            value = args[position] if position < len(args) else kwargs.get(name)
            for tensor in tensors_in(value):
                if access == "resize" and _keeps_size(tensor, args):
                    continue
                self._access(tensor, access, dispatch_watch.name_of(function))
        self.spent_ns += time.monotonic_ns() - began

    def _access(self, tensor: torch.Tensor, access: str, function: str) -> None:
        self._touches(span_of(tensor), access, function)

    def _touches(self, span: Span | None, access: str, function: str) -> bool:
        """Report an access to memory of open operations; return whether there was one."""
        if span is None:
            return False
        operations = self._open.values()
        met = [each for each in operations if each.uses(span, writes=access != "read")]
        for operation in met:
            self._on_access(operation, access, function, operation.writes(span))
        return bool(met)


def _is_in(span: Span, spans: Iterable[Span]) -> bool:
    return any(overlap(span, each) for each in spans if not each.is_gone)


def _keeps_size(tensor: torch.Tensor, args: Any) -> bool:
    size = args[1] if len(args) > 1 else None
    return isinstance(size, list | tuple) and tuple(size) == tuple(tensor.shape)


def _with_access(tensors: OperationTensors) -> Iterator[tuple[torch.Tensor, bool]]:
    yield from ((tensor, True) for tensor in tensors.written)
    yield from ((tensor, False) for tensor in tensors.inputs)


def _spans(tensors: Iterable[torch.Tensor]) -> list[Span]:
    spans = (span_of(tensor, lasts=True) for tensor in tensors)
    return [span for span in spans if span is not None]
