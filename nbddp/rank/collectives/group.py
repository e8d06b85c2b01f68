"""A process group that records its operations, can be freed, and can be made again in place.

Runs in: the rank process, any thread.

    dist.all_reduce, DDP's reducer, FSDP2, functional collectives, ...
      --> TracedGroup.allreduce       (found by Python and, through pybind11, by C++)
            record, compare with the peers, then the same method of the stock group inside
      <-- TracedWork                  (records who waits, and the end)

The stock group inside can be exchanged (`TracedGroup.replace`), so that everything that holds the
outer one, DDP and DTensor for example, goes on working after a recovery. The pattern is that of
torchft (``torchft/process_group.py``).
"""

import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from nbddp.rank import torch_private
from nbddp.rank.collectives import (
    callback_rules,
    cross_node_check,
    failure_cause,
    fast_path,
    group_release,
    methods,
)
from nbddp.rank.collectives.gloo import waits
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.recorder import Recorder, in_words
from nbddp.rank.collectives.recording.signatures import CallSignature
from nbddp.rank.collectives.rollback import ASYNC_LIMIT_BYTES, Kept, keep
from nbddp.rank.collectives.work import AnySourceWork, MessageWork, TracedWork

_now = time.monotonic_ns
_ident = threading.get_ident
_frame = sys._getframe


class TracedGroup(dist.ProcessGroup):
    """A process group around a stock one."""

    def __init__(self, inner: Any, book: GroupCounters, recorder: Recorder) -> None:
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]  # two in torch
        self.book = book
        self.recorder = recorder
        self.fds: list[tuple[int, int]] = []  #: sockets of the inner group, with their inodes
        #: Told when the user destroys it.
        self.forget: Callable[[TracedGroup], None] = lambda group: None
        self.creation: dict[str, Any] = {}  #: the arguments with which the inner group was made
        self._name = ""
        self._rank = int(inner.rank())
        self._size = int(inner.size())
        self.replace(inner)

    def replace(self, inner: Any) -> None:
        """Use another stock group from now on."""
        self.inner = inner
        self.inner_allreduce = inner.allreduce
        self.is_careful = self.book.is_careful = inner.name() != "gloo"
        self.book.is_checked = torch_private.is_wrapped(inner)
        is_plain = self.is_careful or not self.book.has_peers
        self.wait_for = waits.wait_as_torch if is_plain else waits.wait
        self._calls = {
            name: getattr(inner, name)
            for name in (*methods.COLLECTIVES, *methods.MESSAGES)
            if hasattr(inner, name)
        }

    def __del__(self) -> None:
        owned = ("inner", "inner_allreduce", "_calls")
        group_release.release([self.__dict__.pop(name, None) for name in owned])

    def check(self, record: int, known: CallSignature) -> None:
        """Compare with all members, also on other machines.

        Raises:
            CollectiveMismatchError: they disagree.
            RuntimeError: a member never came.
        """
        with Waiting(self, record, ends=False):
            wrong = cross_node_check.compare(self, record, known)
        if wrong is not None:
            self.recorder.disagree(self.book, record, wrong)

    # --- what C++ and Python ask of any group --------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """For C++ only: for a name that it knows it would look for the backend in here."""
        return f"{torch_private.TRACED_PREFIX}{self.inner.name()}"

    def rank(self) -> int:
        """In this group."""
        return self._rank

    def size(self) -> int:
        """Number of members."""
        return self._size

    @property
    def group_name(self) -> str:  # type: ignore[override]  # a NewType of str
        """As torch registers it."""
        return self._name

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """As torch registers it."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802 - torch's name
        """For the outer group only: the inner one may have another after a recovery."""
        self._name = name

    _set_group_name = setGroupName

    @property
    def group_desc(self) -> str:
        """What the user gave, or torch's word for nothing."""
        return self.book.info.desc or str(self.inner.group_desc)

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        """What the user gave, or torch's word for nothing."""
        return self.group_desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802 - torch's name
        """Kept by the inner group."""
        self.inner._set_group_desc(desc)

    _set_group_desc = setGroupDesc

    @property
    def bound_device_id(self) -> Any:
        """The device that NCCL was bound to at once."""
        return self.inner.bound_device_id

    @bound_device_id.setter
    def bound_device_id(self, device: Any) -> None:
        self.inner.bound_device_id = device

    @property
    def _device_types(self) -> Any:
        return self.inner._device_types

    def set_timeout(self, timeout: timedelta) -> None:
        """As of a stock group."""
        self.inner.set_timeout(timeout)
        self.note_timeout(timeout)

    def note_timeout(self, timeout: timedelta) -> None:
        """The inner group has another time-out now; it keeps it when it is made again."""
        milliseconds = int(timeout.total_seconds() * 1000)
        self.book.info = msgspec.structs.replace(self.book.info, timeout_ms=milliseconds)
        self.book.timeout_ms = milliseconds
        self.book.offset = 0
        self.creation["timeout"] = timeout

    def shutdown(self) -> None:
        """As of a stock group; torch calls it when the user destroys the group."""
        self.forget(self)
        self.inner.shutdown()

    def abort(self) -> None:
        """As of a stock group."""
        self.inner.abort()

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names who is missing (Gloo only); it does not return before its end."""
        recorder = self.recorder
        if recorder.is_child:
            self.inner.monitored_barrier(timeout, wait_all_ranks)
            return
        if self.book.ended is not None:
            raise self.book.ended()
        known = methods.monitored_barrier(recorder)
        callback_rules.refuse(recorder, known.signature.op, self.book.info.ranks)
        milliseconds = 0 if timeout is None else int(timeout.total_seconds() * 1000)
        record = recorder.collective(self.book, known, timeout_ms=milliseconds)
        with Waiting(self, record):
            self.inner.monitored_barrier(timeout, wait_all_ranks)

    def _handle(
        self, work: Any, record: int, kind: type[TracedWork] = TracedWork, kept: Kept | None = None
    ) -> Any:
        if work is None:  # NCCL, synchronous: the stream has it
            self.recorder.writer.complete(record, _now())
            return None
        traced = kind(work, self.book, self.recorder, record, kept)
        self.recorder.opened(record, traced.opened)
        return traced

    def leave(self, work: Any, record: int, kept: Kept | None, error: BaseException) -> None:
        """Its caller has left it by ``error``: it goes on, and writes, until the group is freed."""
        handle = self._handle(work, record, kept=kept)
        handle.opened.was_interrupted = isinstance(error, KeyboardInterrupt)

    def _blocking(self, record: int, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A call that may wait for the other members before it gives a handle."""
        writer = self.recorder.writer
        began = _now()
        slot = writer.begin_wait(_ident(), record, began)
        try:
            return inner(*args, **kwargs)
        except RuntimeError as error:
            if self.book.ended is None:
                raise
            failure = failure_cause.failure(self.book, error)
            writer.complete(record, _now(), _now() - began, in_words(failure))
            raise failure from error
        finally:
            writer.end_wait(slot)

    def is_refused(self, record: int, error: BaseException) -> bool:
        """The call has failed: because of its arguments, and so before anything was sent?"""
        self.recorder.writer.complete(record, _now(), 0, in_words(error))
        if torch_private.is_bad_argument(error):
            return True
        self.book.is_broken = True
        return False


class Waiting:
    """A call into torch that waits by itself: recorded like the wait of a work."""

    def __init__(self, group: TracedGroup, record: int, *, ends: bool = True) -> None:
        self._group = group
        self._record = record
        self._ends = ends  #: the operation ends with the call

    def __enter__(self) -> None:
        self._began = _now()
        self._slot = self._group.recorder.writer.begin_wait(_ident(), self._record, self._began)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        writer = self._group.recorder.writer
        writer.end_wait(self._slot)
        failure = (
            failure_cause.failure(self._group.book, error)
            if isinstance(error, RuntimeError)
            else error
        )
        now = _now()
        if self._ends or error is not None:
            writer.complete(self._record, now, now - self._began, in_words(failure))
        try:
            if failure is not None and failure is not error:
                raise failure from error
        finally:
            del failure  # see `works.TracedWork.wait`


def _traced(method: str, describe: Callable[..., Any]) -> Callable[..., Any]:
    """A method of `TracedGroup` for a collective."""

    def run(self: TracedGroup, *args: Any, **kwargs: Any) -> Any:
        recorder = self.recorder
        inner = self._calls[method]
        if recorder.is_child:
            return inner(*args, **kwargs)
        book = self.book
        if book.ended is not None:
            raise book.ended()
        try:
            if kwargs:
                known = describe(self, recorder, *args, **methods.renamed(method, kwargs))
            else:
                known = describe(self, recorder, *args)
        except (TypeError, AttributeError, IndexError, ValueError):
            # Torch says what is wrong with the arguments. Others must not see them: a call that
            # is refused uses up no number, and theirs with this number may be the next one.
            callback_rules.refuse(recorder, method, book.info.ranks)
            work = inner(*args, **kwargs)
            known = methods.undescribed(recorder, method)
            is_async = methods.is_async(args, kwargs)
            return self._handle(work, recorder.collective(book, known, is_async=is_async))
        if recorder.is_careful:
            callback_rules.refuse(recorder, known.signature.op, book.info.ranks)
        if recorder.check or kwargs or len(args) < 2 or getattr(args[-1], "asyncOp", True):
            digest = book.digest
            is_async = methods.is_async(args, kwargs)
            record = recorder.collective(book, known, is_async=is_async)
            if recorder.check:
                self.check(record, known)
            has_copies = args and book.has_peers
            kept = keep(args[0], ASYNC_LIMIT_BYTES) if has_copies else None
            try:
                work = (
                    self._blocking(record, inner, *args, **kwargs)
                    if book.is_checked
                    else inner(*args, **kwargs)
                )
            except BaseException as error:
                if book.ended is None and self.is_refused(record, error):
                    recorder.withdraw(book, digest)
                raise
            return self._handle(work, record, kept=kept)
        if self.is_careful:
            torch_private.set_async(args[-1], is_async=False)
        return fast_path.run(self, inner, known, *args)

    run.__name__ = method
    return run


def _message(method: str, direction: str) -> Callable[..., Any]:
    """A method of `TracedGroup` for a message: ``(tensors, peer, tag)`` or ``(tensors, tag)``."""
    is_any = method == "recv_anysource"

    def run(self: TracedGroup, tensors: list[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        recorder = self.recorder
        inner = self._calls[method]
        args = (*args, *kwargs.values())
        if recorder.is_child:
            return inner(tensors, *args)
        book = self.book
        if book.ended is not None:
            raise book.ended()
        if is_any:
            peer = -1
        elif 0 <= args[0] < self._size:
            peer = book.info.ranks[args[0]]
        else:  # what Gloo does then ranges from waiting for ever to a segmentation fault
            raise ValueError(f"{method}: there is no rank {args[0]} in a group of {self._size}")
        known = methods.message(recorder, direction, tensors)
        if recorder.is_careful:
            callback_rules.refuse(recorder, direction, book.info.ranks)
        is_async = not torch_private.is_awaited_message(_frame(0))
        record = recorder.message(book, known, direction, peer, int(args[-1]), is_async=is_async)
        try:
            work = inner(tensors, *args)
        except BaseException as error:
            if self.is_refused(record, error):
                recorder.withdraw_message(book, direction, peer, int(args[-1]))
            raise
        traced = self._handle(work, record, AnySourceWork if is_any else MessageWork)
        if traced is not None:
            traced.size = sum(tensor.nbytes for tensor in tensors)
            traced.is_receive = direction == "recv"
        return traced

    run.__name__ = method
    return run


def _inner(name: str) -> Callable[..., Any]:
    """A method that only the inner group can answer."""

    def run(self: TracedGroup, *args: Any, **kwargs: Any) -> Any:
        if name in methods.BY_ALL:
            callback_rules.refuse(self.recorder, name.strip("_"), self.book.info.ranks)
        return getattr(self.inner, name)(*args, **kwargs)

    run.__name__ = name
    return run


def _all_reduce(general: Callable[..., Any]) -> Callable[..., Any]:
    """The most frequent method, with less on its way."""

    def run(
        self: TracedGroup, tensors: Any = None, options: Any = None, *more: Any, **names: Any
    ) -> Any:
        recorder = self.recorder
        try:
            tensor = tensors[0]
            # Options that `dist.all_reduce` has made have both.
            known = recorder.signatures.known[id(options.nbddp_op), tensor.dtype, tensor.shape]
            is_async = options.asyncOp
        except (TypeError, AttributeError, IndexError, KeyError):
            is_async = True
        if is_async or self.is_careful or recorder.is_careful or self.book.ended is not None:
            args = (tensors, options, *more)
            return general(self, *(each for each in args if each is not None), **names)
        return fast_path.run(self, self.inner_allreduce, known, tensors, options)

    run.__name__ = "allreduce"
    return run


def _complete_class() -> None:
    stock = dist.ProcessGroup
    for name, describe in methods.COLLECTIVES.items():
        if hasattr(stock, name):
            setattr(TracedGroup, name, _traced(name, describe))
    TracedGroup.allreduce = _all_reduce(TracedGroup.allreduce)  # type: ignore[method-assign]
    for name, direction in methods.MESSAGES.items():
        if hasattr(stock, name):
            setattr(TracedGroup, name, _message(name, direction))
    for name in methods.OF_INNER:
        if hasattr(stock, name):
            setattr(TracedGroup, name, _inner(name))


_complete_class()
