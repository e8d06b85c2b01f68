"""Checks the tensors of operations during a sanitized cell, see docs/sanitizer.md.

Runs in: the rank process; the cell begins and ends on the main thread, operations are issued in any
thread. A cell that is not sanitized has no `Recorder.sanitizer`, and pays nothing.

    TracedGroup --issues--> Sanitizer --> OpenBuffers <-- each call of torch while one is open
                                      --> Replicas <-- steps of optimizers
                                      --> DataReads <-- data loaders
                                      --> SanitizerReport --end_cell--> RunFinished
"""

import sys
import time
import types
from collections.abc import Callable
from typing import Any

import torch

from nbddp.rank import torch_private
from nbddp.rank.collectives.operation_tensors import tensors_of
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.collectives.recording.signatures import CallSignature
from nbddp.rank.collectives.recording.upcoming import upcoming_operation
from nbddp.rank.collectives.sanitizer import finite
from nbddp.rank.collectives.sanitizer.data_reads import DataReads
from nbddp.rank.collectives.sanitizer.open_buffers import OpenBuffers, OpenOperation
from nbddp.rank.collectives.sanitizer.replica_hashes import Replicas
from nbddp.rank.torch_private import dispatch_watch
from nbddp.wire.flight_recorder import (
    LoaderReads,
    Operation,
    SanitizerFinding,
    SanitizerFindingKind,
    SanitizerReport,
    Site,
    shortened,
)
from nbddp.wire.flight_recorder.matching import MESSAGES

#: The most findings of a rank in one cell.
_MAX_FINDINGS = 16
#: Operations among which the line of a reduction is looked for.
_MAX_OPERATIONS = 1024


class Sanitizer:
    """One per rank.

    Args:
        recorder: knows the operations and the lines of the user's code.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._buffers = OpenBuffers(self._touched)
        self.replicas = Replicas(recorder.sites)
        self.reads = DataReads(recorder)
        self._findings: dict[tuple[Any, ...], SanitizerFinding] = {}
        self._told: set[int] = set()  #: records of operations with a finding
        self._is_hooked = False
        self._spent_ns = 0
        self._checks_values = False  #: this cell has sent finite values only

    @property
    def _is_on(self) -> bool:
        return self._recorder.sanitizer is self and not self._recorder.is_child

    def begin_cell(self, *, is_on: bool, reads_data: bool = False) -> None:
        """Begin a cell, sanitized or not.

        Args:
            is_on: tensors of operations, and replicas, are checked.
            reads_data: what data loaders read is noted.
        """
        self._recorder.sanitizer = self if is_on else None
        self._checks_values = is_on
        self._spent_ns = 0
        self._recorder.set_careful()
        if (is_on or reads_data) and not self._is_hooked:
            self._is_hooked = True
            torch_private.hook_backward(self._wrap_backward)
        if is_on:
            self._buffers.begin()
            self.replicas.begin()
        if reads_data:
            self.reads.begin()

    def end_cell(self, *, has_failed: bool) -> SanitizerReport | None:
        """End the cell; returns what was seen, or None if it was not sanitized."""
        began = time.monotonic_ns()
        reads: tuple[LoaderReads, ...] = ()
        spent_ns = 0
        if self.reads.is_on:
            spent_ns = self.reads.spent_ns
            reads = self.reads.end()
        if self._recorder.sanitizer is not self:
            after_ns = time.monotonic_ns() - began
            report = SanitizerReport(
                reads=reads, only_data=True, spent_ns=spent_ns + after_ns, after_ns=after_ns
            )
            return report if reads else None
        spent_ns += self._spent_ns + self._buffers.spent_ns + self.replicas.spent_ns
        told_lines = {finding.operation.site.position for finding in self._findings.values()}
        for operation in self._buffers.end():
            # An error explains why the code did not come to its wait, unless a message was dropped
            # before, for which another rank may have waited until it was interrupted. Another
            # finding about an operation of this line says the same, and more.
            is_explained = has_failed and not (operation.is_dropped and self._is_message(operation))
            if not is_explained and self._line_of(operation) not in told_lines:
                has_handle = operation.handle() is not None
                self._add("not-awaited", operation.record, has_handle=has_handle)
        self._recorder.sanitizer = None
        self._recorder.set_careful()
        findings, self._findings = self._findings, {}
        self._told.clear()
        replicas = self.replicas.end(
            lambda: self._recorder.operations(_MAX_OPERATIONS), has_failed=has_failed
        )
        after_ns = time.monotonic_ns() - began
        return SanitizerReport(
            findings=tuple(findings.values()),
            replicas=replicas,
            reads=reads,
            spent_ns=spent_ns + after_ns,
            after_ns=after_ns,
        )

    def issues(  # noqa: PLR0917 - all facts about the call
        self, counters: GroupCounters, call: CallSignature, method: str, inner: Callable[..., Any],
        args: Any, kwargs: dict[str, Any], peer: int = -1, tag: int = 0,
    ) -> tuple[Callable[..., Any], Callable[[Any, int], None]]:  # fmt: skip
        """Check a call before it is issued.

        Args:
            counters: of its group.
            call: its signature.
            method: of `ProcessGroup`, or ``send`` or ``recv``.
            inner: the method of the stock group.
            args: arguments of the method.
            kwargs: see above.
            peer: the other end of a message.
            tag: of a message.

        Returns:
            The method to call instead, and what to call with the handle and the record, if the
            caller continues before the end of the operation.
        """
        began = time.monotonic_ns()
        tensors = tensors_of(call.signature, self._recorder.rank, method, args, kwargs)
        frame = sys._getframe(1)
        self._buffers.note_dropped()
        met = self._buffers.meets(tensors)
        if met is not None:
            other = self._operation(counters, call, peer, tag, frame)
            opened_before, needs_result = met
            self._add(
                "overlap", opened_before.record, frame, other=other, needs_result=needs_result
            )
        if self._checks_values:
            self._check_values(counters, call, tensors.inputs, peer, tag, frame)
        options = args[-1] if args and not kwargs else kwargs.get("opts")
        is_handed_out = not dispatch_watch.is_called_by_torch(options, frame)
        if call.signature.reduce_op in ("SUM", "AVG"):
            self.replicas.note_reduced(counters, tensors.inputs, is_of_user=is_handed_out)

        def opened(handle: Any, record: int) -> None:
            self._buffers.add(handle, record, tensors, is_handed_out=is_handed_out)

        self._spent_ns += time.monotonic_ns() - began
        return self._buffers.without_watch(inner), opened

    def _check_values(  # noqa: PLR0917 - all facts about the call
        self, counters: GroupCounters, call: CallSignature, inputs: list[torch.Tensor],
        peer: int, tag: int, frame: types.FrameType,
    ) -> None:  # fmt: skip
        """Look for NaN and Inf in what an operation sends, until the first in this cell."""
        value = finite.not_finite(inputs, call.signature.reduce_op)
        if not value:
            return
        in_backward = self._buffers.is_in_backward
        parameter = finite.parameter_of(inputs, in_backward=in_backward)
        if (in_backward or parameter) and finite.is_scaled():
            return
        self._checks_values = False
        sites = self._recorder.sites
        operation = self._operation(counters, call, peer, tag, frame)
        finding = SanitizerFinding(
            kind="not-finite",
            operation=operation,
            site=operation.site,
            value=value,
            caller=next(iter(sites.stack(sites.user_frame(frame))[1:]), Site()),
            parameter=shortened(parameter),
            time_ns=time.time_ns(),
        )
        self._findings["not-finite",] = finding

    def _touched(
        self, operation: OpenOperation, access: str, function: str, is_result: bool
    ) -> None:
        kind: SanitizerFindingKind = access  # type: ignore[assignment]  # one of three
        frame = sys._getframe(1)
        self._add(kind, operation.record, frame, function=function, needs_result=is_result)

    def _add(
        self,
        kind: SanitizerFindingKind,
        record: int,
        frame: types.FrameType | None = None,
        **facts: Any,
    ) -> None:
        if record in self._told or len(self._findings) == _MAX_FINDINGS:
            return  # a `wait()` before the first access comes before the later ones, too
        operation = self._recorder.operation(record)
        if operation is None:
            return
        self._told.add(record)
        sites = self._recorder.sites
        site = sites.site_of(sites.user_frame(frame))
        # The line that writes a buffer often reads it, too.
        access = "access" if kind in ("read", "write", "resize") else kind
        key = (access, operation.site.position, site.position)
        age_ns = 0
        if kind == "not-awaited":  # it is seen at the end of the cell
            age_ns = time.monotonic_ns() - operation.time_created_ns
        self._findings.setdefault(
            key,
            SanitizerFinding(
                kind=kind,
                operation=operation,
                site=site,
                time_ns=time.time_ns() - age_ns,
                **facts,
            ),
        )

    def _is_message(self, operation: OpenOperation) -> bool:
        known = self._recorder.operation(operation.record)
        return known is not None and known.signature.kind in MESSAGES

    def _line_of(self, operation: OpenOperation) -> object:
        known = self._recorder.operation(operation.record)
        return None if known is None else known.site.position

    def _operation(
        self, counters: GroupCounters, call: CallSignature, peer: int, tag: int,
        frame: types.FrameType,
    ) -> Operation:  # fmt: skip
        """Describe an operation that is about to be issued."""
        sites = self._recorder.sites
        user_frame = sites.user_frame(frame)
        return upcoming_operation(
            counters.info.pg_id,
            counters.seq,
            call.signature,
            peer,
            tag,
            site=sites.site_of(user_frame),
            iteration=sites.loop_variables(user_frame),
        )

    def _wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            if self.reads.is_on:
                self.reads.note_step()
            if not self._is_on:
                return original(*args, **kwargs)
            return self._buffers.backward(lambda: original(*args, **kwargs))

        return run
