"""The fast path for synchronous operations, which are the most frequent ones.

Runs in: the rank process, any thread. ``dist.all_reduce(x)`` tells torch's group that it waits
(``asyncOp``). Then this module waits, and no `TracedWork` is needed.

Between two operations the thread sleeps, and its caches are cold afterwards: this code costs four
times as much as in a tight loop. So it is one function, with as few steps as possible, which
repeats the code of `Recorder.collective`, `Sites.here` and `TracedWork.wait`; read those instead.
``tests/bench/bench_trace.py`` measures it.
"""

import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from nbddp.rank.collectives import failure_cause
from nbddp.rank.collectives.gloo import waits
from nbddp.rank.collectives.recording.group_counters import SPARSE
from nbddp.rank.collectives.recording.recorder import failure_of
from nbddp.rank.collectives.recording.signatures import CallSignature
from nbddp.rank.collectives.rollback import WrittenCopies, copy_written, has_failed

if TYPE_CHECKING:
    from nbddp.rank.collectives.group import TracedGroup

_now = time.monotonic_ns
_ident = threading.get_ident
_frame = sys._getframe


def run(  # noqa: PLR0915 - one function, see above
    group: "TracedGroup", inner: Any, known: CallSignature, args: tuple[Any, ...]
) -> None:
    """Record, compare, issue, and wait. Only the method of the group may call it, directly.

    Args:
        group: the traced group.
        inner: the method of the stock group.
        known: signature of the call.
        args: arguments of the method; the first one has the tensors that it writes.

    Raises:
        CollectiveMismatchError: another rank of this machine has issued another operation.
        RuntimeError: an error of torch, or the reason why the group was freed.
    """
    recorder, counters = group.recorder, group.counters
    writer, sites = recorder.writer, recorder.sites
    oldest = writer.oldest_text

    between = sites.between
    try:
        frame = _frame(2 + between)
        site, found_between, _, has_loops = sites.known[id(frame.f_code), frame.f_lasti]
    except (ValueError, KeyError):
        site, found_between = 0, -1
    if found_between != between or site <= oldest:
        site, looping = sites.search(_frame(2))
    else:
        looping = frame if has_loops else None

    signature, group_text = known.offset, counters.offset
    if signature <= oldest or group_text <= oldest:
        signature, group_text = recorder.texts(known, counters)
    thread = _ident()
    slot = writer.slots.get(thread) or writer.slot(thread)

    digest = counters.digest
    counters.seq = seq = counters.seq + 1
    counters.digest = digest ^ (known.full + seq)
    loops = outer = innermost = 0
    if looping is not None and (seq <= counters.dense_until or not seq % SPARSE):
        loops, outer, innermost = sites.iteration(looping)
    began = _now()
    record = writer.issue(
        signature, site, group_text, recorder.run_offset, seq, 0, -1, 0, 0, thread,
        counters.timeout_ms, began, slot, loops, outer, innermost,
    )  # fmt: skip
    kept = work = None
    try:
        if counters.has_peers:
            if recorder.board.is_on:
                wrong = recorder.board.check(counters, seq, known, record)
                if wrong is not None:
                    recorder.disagree(counters, record, wrong)
            kept = None if known.is_only_read_by(recorder.rank) else copy_written(args[0])
            work = inner(*args)
            writer.accept(slot, record, began)
        else:  # there is no other member to compare with, to wait for, or to lose
            work = inner(*args)
        group.wait_for(work, counters)
    except BaseException as error:
        try:
            writer.end_wait(slot)
            # In a list, see `work.TracedWork.wait`.
            failures = [_failure(group, record, error, began, digest, work, kept)]
        except KeyboardInterrupt as interrupt:  # during torch's wait: raised at our first call
            writer.end_wait(slot)
            _failure(group, record, interrupt, began, digest, work, kept)
            failures = [interrupt]
        if failures[0] is not error:
            inner = work = kept = None  # see `work.EndedWork`
            raise failures.pop() from error.with_traceback(None)
        failures.clear()
        raise
    ended = _now()
    writer.end(slot, record, ended, ended - began)


def _failure(  # noqa: PLR0917 - all facts about the call
    group: "TracedGroup", record: int, error: BaseException, began: int, digest: int, work: Any,
    kept: WrittenCopies | None,
) -> BaseException:  # fmt: skip
    """Record the failure of a call, and return the exception to raise."""
    recorder, counters = group.recorder, group.counters
    if work is not None:
        if not isinstance(error, RuntimeError) and not work.is_completed():
            group.leave(work, record, kept, error)
            return error
        if (
            kept is not None
            and failure_cause.was_cut_off(counters, error)
            and _is_over(work, error)
        ):
            recorder.put_back(record, kept)
        failure = (
            failure_cause.failure(counters, error) if isinstance(error, RuntimeError) else error
        )
        now = _now()
        recorder.writer.complete(record, now, now - began, failure_of(failure))
        return failure
    if counters.ended is not None and isinstance(error, RuntimeError):  # it was blocked in the call
        failure = failure_cause.failure(counters, error)
        recorder.writer.complete(record, _now(), _now() - began, failure_of(failure))
        return failure
    if counters.ended is None and group.is_refused(record, error):
        recorder.withdraw(counters, digest)
    return error


def _is_over(work: Any, error: BaseException) -> bool:
    """Return whether no thread writes the tensors any more."""
    return isinstance(error, waits.NeverWokenError) or has_failed(work)
