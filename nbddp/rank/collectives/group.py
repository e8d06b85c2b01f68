"""A process group that records its operations, can be aborted, and can be rebuilt in place.

Runs in: the rank process, any thread.

    dist.all_reduce, DDP's reducer, FSDP2, functional collectives, ...
      --> TracedGroup.allreduce       (called by Python and, through pybind11, by C++)
            record, compare with the peers, then the same method of the stock group inside
      <-- TracedWork                  (records waits and the end)

The stock group inside can be replaced (`TracedGroup.replace`), so that objects which hold the outer
group, such as DDP and DTensor, still work after a recovery. The pattern is that of torchft
(``torchft/process_group.py``).
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

from nbddp.errors import CollectiveAbortedError
from nbddp.rank import torch_private
from nbddp.rank.collectives import (
    cross_node_check,
    failure_cause,
    fast_path,
    group_release,
    methods,
    refusals,
)
from nbddp.rank.collectives.gloo import waits
from nbddp.rank.collectives.operation_tensors import NO_TENSORS, OperationTensors, tensors_of
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.recorder import CallReplacedError, Recorder, failure_of
from nbddp.rank.collectives.recording.signatures import CallSignature
from nbddp.rank.collectives.rollback import ASYNC_LIMIT_BYTES, WrittenCopies, copy_written
from nbddp.rank.collectives.work import (
    AnySourceWork,
    Instead,
    MessageWork,
    SkippedWork,
    TracedWork,
)
from nbddp.rank.user_code_context import Question

_now = time.monotonic_ns
_ident = threading.get_ident
_frame = sys._getframe


class TracedGroup(dist.ProcessGroup):
    """A process group around a stock one."""

    def __init__(self, inner: Any, counters: GroupCounters, recorder: Recorder) -> None:
        super().__init__(inner.rank(), inner.size())  # type: ignore[call-arg]  # two in torch
        self.counters = counters
        self.recorder = recorder
        self.fds: list[tuple[int, int]] = []  #: sockets of the inner group, with their inodes
        #: Called when the user destroys the group.
        self.forget: Callable[[TracedGroup], None] = lambda group: None
        self.creation: dict[str, Any] = {}  #: the arguments with which the inner group was made
        self._name = ""
        self._rank = int(inner.rank())
        self._size = int(inner.size())
        self.replace(inner)

    def __repr__(self) -> str:
        """Return the text of the stock group that the user has made, for errors of torch."""
        kind = dist.ProcessGroup
        return f"<{kind.__module__}.{kind.__qualname__} object at {id(self):#x}>"

    def replace(self, inner: Any) -> None:
        """Replace the stock group inside."""
        self.inner = inner
        self.inner_allreduce = inner.allreduce
        self.is_careful = self.counters.is_careful = inner.name() != "gloo"
        self.counters.is_checked = torch_private.is_wrapped(inner)
        is_plain = self.is_careful or not self.counters.has_peers
        self.wait_for = waits.wait_as_torch if is_plain else waits.wait
        self._calls = {
            name: getattr(inner, name)
            for name in (*methods.COLLECTIVES, *methods.MESSAGES)
            if hasattr(inner, name)
        }

    def __del__(self) -> None:
        owned = ("inner", "inner_allreduce", "_calls")
        group_release.release([self.__dict__.pop(name, None) for name in owned])

    def check(self, record: int, call: CallSignature) -> None:
        """Compare with all members, also on other machines.

        Raises:
            CollectiveMismatchError: they disagree.
            RuntimeError: a member never came.
        """
        with RecordedCall(self, record, ends=False):
            wrong = cross_node_check.compare(self, record, call)
        if wrong is not None:
            self.recorder.disagree(self.counters, record, wrong)

    # --- methods of any group, called by C++ and Python ----------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return a name for C++ only, which would search a known name's backend in this group."""
        return f"{torch_private.TRACED_PREFIX}{self.inner.name()}"

    def rank(self) -> int:
        """Return the rank of this process in this group."""
        return self._rank

    def size(self) -> int:
        """Return the number of members."""
        return self._size

    @property
    def group_name(self) -> str:  # type: ignore[override]  # a NewType of str
        """The name by which torch registers the group."""
        return self._name

    def getGroupName(self) -> str:  # noqa: N802 - torch's name
        """Return the name by which torch registers the group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802 - torch's name
        """Set the name of the outer group; after a recovery the inner group has another one."""
        self._name = name

    _set_group_name = setGroupName

    @property
    def group_desc(self) -> str:
        """The description of the user, or torch's default."""
        return self.counters.info.desc or str(self.inner.group_desc)

    def getGroupDesc(self) -> str:  # noqa: N802 - torch's name
        """Return the description of the user, or torch's default."""
        return self.group_desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802 - torch's name
        """Set the description of the inner group."""
        self.inner._set_group_desc(desc)

    _set_group_desc = setGroupDesc

    @property
    def bound_device_id(self) -> Any:
        """The device to which NCCL was bound at its creation."""
        return self.inner.bound_device_id

    @bound_device_id.setter
    def bound_device_id(self, device: Any) -> None:
        self.inner.bound_device_id = device

    @property
    def _device_types(self) -> Any:
        return self.inner._device_types

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout, as of a stock group."""
        self.inner.set_timeout(timeout)
        self.note_timeout(timeout)

    def note_timeout(self, timeout: timedelta) -> None:
        """Note a new timeout of the inner group, which it keeps after a rebuild."""
        milliseconds = int(timeout.total_seconds() * 1000)
        self.counters.info = msgspec.structs.replace(self.counters.info, timeout_ms=milliseconds)
        self.counters.timeout_ms = milliseconds
        self.counters.offset = 0
        self.creation["timeout"] = timeout

    def shutdown(self) -> None:
        """Shut the group down; torch calls this when the user destroys the group."""
        self.forget(self)
        self.inner.shutdown()

    def abort(self) -> None:
        """Abort, as a stock group does."""
        self.inner.abort()

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Run a barrier that names missing ranks (Gloo only); returns at its end."""
        recorder = self.recorder
        if recorder.is_child:
            self.inner.monitored_barrier(timeout, wait_all_ranks)
            return
        if self.counters.ended is not None:
            raise self.counters.ended()
        call = methods.monitored_barrier(recorder)
        if self._prepare(call, NO_TENSORS)[1] is not None:
            return
        milliseconds = 0 if timeout is None else int(timeout.total_seconds() * 1000)
        record = recorder.collective(self.counters, call, timeout_ms=milliseconds)
        with RecordedCall(self, record):
            self.inner.monitored_barrier(timeout, wait_all_ranks)

    def _handle(
        self,
        work: Any,
        record: int,
        kind: type[TracedWork] = TracedWork,
        copies: WrittenCopies | None = None,
        uses: Callable[[TracedWork, int], None] | None = None,
    ) -> Any:
        if work is None:  # NCCL, synchronous: the operation is on the stream
            self.recorder.writer.complete(record, _now())
            return None
        traced = kind(work, self.counters, self.recorder, record, copies)
        self.recorder.opened(record, traced.pending)
        if uses is not None:
            uses(traced, record)
        return traced

    def leave(
        self, work: Any, record: int, copies: WrittenCopies | None, error: BaseException
    ) -> None:
        """Note that ``error`` ended a caller's wait: the operation continues until an abort."""
        handle = self._handle(work, record, copies=copies)
        handle.pending.was_interrupted = isinstance(error, KeyboardInterrupt)

    def _blocking(self, record: int, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Issue a call that may wait for the other members before it returns a handle."""
        writer = self.recorder.writer
        began = _now()
        slot = writer.begin_wait(_ident(), record, began)
        try:
            return inner(*args, **kwargs)
        except RuntimeError as error:
            if self.counters.ended is None:
                raise
            failure = failure_cause.failure(self.counters, error)
            writer.complete(record, _now(), _now() - began, failure_of(failure))
            raise failure from error
        finally:
            writer.end_wait(slot)

    def _prepare(
        self, call: CallSignature, tensors: OperationTensors, peer: int = -1, tag: int = 0
    ) -> tuple[Question | None, Instead | None]:
        """Refuse a call that some members would not make; stop before it; let faults strike.

        Returns:
            The query for whose expression the call is made, None: for none; what stands for the
            operation, None: it is issued.
        """
        recorder = self.recorder
        refusals.refuse(recorder, call.signature.op, self.counters.ranks)
        pull = refusals.pull(recorder)
        if pull is not None or recorder.callbacks.is_in_callback:
            return pull, None
        instead: Instead | None = None
        if recorder.before_operation is not None:
            instead = recorder.before_operation(self.counters, call.signature, tensors, peer, tag)
        if instead is None and recorder.inject is not None:
            struck = recorder.inject(self.counters, call.signature, tensors.inputs, peer, tag)
            instead = Instead() if struck else None
        if self.counters.ended is not None:
            raise self.counters.ended()
        return None, instead

    def _tensors(
        self, call: CallSignature, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> OperationTensors:
        """Return the tensors of a call, if a stop or a fault may look at them."""
        recorder = self.recorder
        if recorder.before_operation is None and recorder.inject is None:
            return NO_TENSORS
        return tensors_of(call.signature, recorder.rank, method, args, kwargs)

    def _sanitized(
        self, call: CallSignature, method: str, inner: Callable[..., Any], args: tuple[Any, ...],
        kwargs: dict[str, Any], *message: int,
    ) -> tuple[Callable[..., Any], Callable[[TracedWork, int], None] | None]:  # fmt: skip
        """See `sanitizer.Sanitizer.issues`; in a cell without ``--sanitize`` nothing changes."""
        sanitizer = self.recorder.sanitizer
        if sanitizer is None:
            return inner, None
        calls: tuple[Callable[..., Any], Callable[[TracedWork, int], None] | None]
        calls = sanitizer.issues(self.counters, call, method, inner, args, kwargs, *message)
        return calls

    def _await_members(
        self, question: Question, record: int, call: CallSignature, digest: int
    ) -> None:
        """Wait until all members call a collective, or take it back."""
        try:
            refusals.await_members(self.recorder, self.counters, question, call.signature.op)
        except BaseException as error:
            self.recorder.writer.complete(record, _now(), 0, failure_of(error))
            self.recorder.withdraw(self.counters, digest)
            raise

    def _refuse(self, op: str) -> None:
        """Refuse a call if operations of the group were freed, or some members would not make it.

        Raises:
            CollectiveError: it is refused.
        """
        if self.counters.ended is not None:
            raise self.counters.ended()
        refusals.refuse(self.recorder, op, self.counters.ranks)

    def _refused(
        self, call: CallSignature, message: tuple[str, int, int] | None = None
    ) -> BaseException:
        """Return the error of a call after operations were freed; a late rank has come to it."""
        counters = self.counters
        error = counters.ended() if counters.ended is not None else RuntimeError("not ended")
        if isinstance(error, CollectiveAbortedError) and not counters.has_refused:
            self.recorder.refused(counters, call, error, message)
        return error

    def is_refused(self, record: int, error: BaseException) -> bool:
        """Record a failed call; returns whether its arguments failed, so that no data was sent."""
        self.recorder.writer.complete(record, _now(), 0, failure_of(error))
        if torch_private.is_bad_argument(error):
            return True
        self.counters.is_broken = True
        return False


class RecordedCall:
    """Records a call that waits inside torch, like the wait of a work."""

    def __init__(self, group: TracedGroup, record: int, *, ends: bool = True) -> None:
        self._group = group
        self._record = record
        self._ends = ends  #: True if the operation ends with the call

    def __enter__(self) -> None:
        self._began = _now()
        self._slot = self._group.recorder.writer.begin_wait(_ident(), self._record, self._began)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        writer = self._group.recorder.writer
        writer.end_wait(self._slot)
        failure = (
            failure_cause.failure(self._group.counters, error)
            if isinstance(error, RuntimeError)
            else error
        )
        now = _now()
        if self._ends or error is not None:
            writer.complete(self._record, now, now - self._began, failure_of(failure))
        try:
            if failure is not None and failure is not error:
                raise failure from error
        finally:
            del failure  # see `work.TracedWork.wait`


def _traced(method: str, describe: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method of `TracedGroup` for a collective."""

    def run(self: TracedGroup, *args: Any, **kwargs: Any) -> Any:  # noqa: PLR0912 - one frame
        recorder = self.recorder
        inner = self._calls[method]
        if recorder.is_child:
            return inner(*args, **kwargs)
        counters = self.counters
        try:
            keywords = methods.renamed(method, kwargs) if kwargs else {}
            call = describe(self, recorder, *args, **keywords)
        except (TypeError, AttributeError, IndexError, ValueError, RuntimeError):
            # Torch reports what is wrong with the arguments. The peers must not see the call before
            # that: a refused call takes no number, and their next call may have this number.
            self._refuse(method)
            work = inner(*args, **kwargs)
            call = methods.undescribed(recorder, method)
            is_async = methods.is_async(args, kwargs)
            return self._handle(work, recorder.collective(counters, call, is_async=is_async))
        if counters.ended is not None:
            raise self._refused(call)
        if call.has_gaps:
            refusals.refuse_gaps(recorder, counters, call.signature)
        pull = uses = None
        is_watched = False
        if recorder.is_careful:
            pull, instead = self._prepare(call, self._tensors(call, method, args, kwargs))
            if instead is not None:
                return instead.work or SkippedWork(args[0] if args else ())
            inner, uses = self._sanitized(call, method, inner, args, kwargs)
            is_watched = pull is not None or recorder.check or recorder.before_mismatch is not None
        options = args[-1] if args and not kwargs else kwargs.get("opts")
        is_async = getattr(options, "asyncOp", True)  # as `methods.is_async`, with one call less
        if is_watched or kwargs or len(args) < 2 or is_async:
            digest = counters.digest
            try:
                record = recorder.collective(counters, call, is_async=is_async)
            except CallReplacedError as replaced:
                return replaced.instead.work or SkippedWork(args[0] if args else ())
            if pull is not None:
                self._await_members(pull, record, call, digest)
            if recorder.check:
                self.check(record, call)
            has_copies = args and counters.has_peers and not call.is_only_read_by(recorder.rank)
            copies = copy_written(args[0], ASYNC_LIMIT_BYTES) if has_copies else None
            try:
                work = (
                    self._blocking(record, inner, *args, **kwargs)
                    if counters.is_checked
                    else inner(*args, **kwargs)
                )
            except BaseException as error:
                if counters.ended is None and self.is_refused(record, error):
                    recorder.withdraw(counters, digest)
                raise
            return self._handle(work, record, copies=copies, uses=uses)
        if self.is_careful:
            torch_private.set_synchronous(args[-1])
        return fast_path.run(self, inner, call, args)

    run.__name__ = method
    return run


def _message(method: str, direction: str) -> Callable[..., Any]:
    """Make a method of `TracedGroup` for a message.

    Its arguments are ``(tensors, peer, tag)`` or ``(tensors, tag)``.
    """
    is_any = method == "recv_anysource"

    def run(self: TracedGroup, tensors: list[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        recorder = self.recorder
        inner = self._calls[method]
        args = (*args, *kwargs.values())
        if recorder.is_child:
            return inner(tensors, *args)
        counters = self.counters
        if is_any:
            peer = -1
        elif 0 <= args[0] < self._size:
            peer = counters.ranks[args[0]]
        else:  # Gloo would wait forever, or end with a segmentation fault
            raise ValueError(f"{method}: there is no rank {args[0]} in a group of {self._size}")
        call = methods.message(self, recorder, direction, tensors)
        if counters.ended is not None:
            raise self._refused(call, (direction, peer, int(args[-1])))
        uses = None
        if recorder.is_careful:
            own = self._tensors(call, direction, (tensors,), {})
            instead = self._prepare(call, own, peer, int(args[-1]))[1]
            if instead is not None:
                return instead.work or SkippedWork(tensors)
            inner, uses = self._sanitized(
                call, direction, inner, (tensors,), {}, peer, int(args[-1])
            )
        is_async = not torch_private.is_awaited_message(_frame(0))
        try:
            record = recorder.message(
                counters, call, direction, peer, int(args[-1]), is_async=is_async
            )
        except CallReplacedError as replaced:
            return replaced.instead.work or SkippedWork(tensors)
        try:
            work = inner(tensors, *args)
        except BaseException as error:
            if self.is_refused(record, error):
                recorder.withdraw_message(counters, call, direction, peer, int(args[-1]))
            raise
        kind = AnySourceWork if is_any else MessageWork
        traced = self._handle(work, record, kind, uses=uses)
        if traced is not None:
            traced.size = sum(tensor.nbytes for tensor in tensors)
            traced.is_receive = direction == "recv"
        return traced

    run.__name__ = method
    return run


def _inner(name: str) -> Callable[..., Any]:
    """Make a method that only the inner group can answer."""

    def run(self: TracedGroup, *args: Any, **kwargs: Any) -> Any:
        if name in methods.BY_ALL:
            refusals.refuse(self.recorder, name.strip("_"), self.counters.ranks)
        return getattr(self.inner, name)(*args, **kwargs)

    run.__name__ = name
    return run


def _all_reduce(general: Callable[..., Any]) -> Callable[..., Any]:
    """Make the most frequent method, with a shorter path."""

    def run(
        self: TracedGroup, tensors: Any = None, options: Any = None, *more: Any, **names: Any
    ) -> Any:
        recorder = self.recorder
        is_usual = False
        op = getattr(options, "nbddp_op", None)
        if op is not None:  # options made by `dist.all_reduce`, not by C++ for DDP
            try:
                tensor = tensors[0]
                # See `methods` for the key.
                call = recorder.signatures.known[id(op), tensor.dtype, tensor.shape]
                is_usual = tensor.is_cpu and tensor.is_contiguous() and not options.asyncOp
            except (TypeError, AttributeError, IndexError, KeyError, RuntimeError):
                pass
        is_careful = self.is_careful or recorder.is_careful
        if not is_usual or is_careful or self.counters.ended is not None:
            args = (tensors, options, *more)
            return general(self, *(value for value in args if value is not None), **names)
        return fast_path.run(self, self.inner_allreduce, call, (tensors, options))

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
