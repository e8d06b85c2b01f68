"""Describes the state of this rank from inside: threads, waits, groups, operations.

Runs in: the rank process, I/O thread, also while the main thread waits in C++ without the GIL.
"""

import functools
import os
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nbddp.rank import exception_text, torch_private
from nbddp.rank.collectives import thread_waits
from nbddp.rank.collectives.processor_shares import ProcessorShares, Shares, ticks_of
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.collectives.store_polls import StorePolls
from nbddp.system import process_tree
from nbddp.wire.flight_recorder import (
    AT_BREAKPOINT,
    CALLBACK_THREAD,
    Activity,
    ExceptionLine,
    Operation,
    RankLook,
    ThreadLook,
    Wait,
    shortened,
)

#: Functions in which a thread waits for another thread of its own process: file, name. Such a
#: thread issues no operation before the other thread gives it work.
_DORMANT = (
    ("multiprocessing/queues.py", "_feed"),
    ("torch/utils/data/_utils/pin_memory.py", "_pin_memory_loop"),
    ("tqdm/_monitor.py", "run"),
    ("multiprocessing/resource_sharer.py", "_serve"),
)
#: Functions in which a thread waits for work if they are innermost; else the thread does its work.
_DORMANT_INSIDE = (("concurrent/futures/thread.py", "_worker"),)
_OWN_THREADS = ("nbddp-",)
#: A thread in C++ counts as asleep if it used less processor time than this between two looks.
_IDLE_TICKS = 0


class RankIntrospection:
    """Describes one rank.

    Args:
        recorder: has the operations and groups of the rank.
        rank: the global rank.
        key_check_age_ns: returns `RankLook.key_check_age_ns`.
        store_polls: has the questions of the rank to the store.
        imported_library: returns the module of a library whose import has led to a frame.
    """

    def __init__(
        self,
        recorder: Recorder,
        rank: int,
        key_check_age_ns: Callable[[], int | None],
        store_polls: StorePolls,
        imported_library: Callable[[types.FrameType | None], str],
    ) -> None:
        self._recorder = recorder
        self._key_check_age_ns = key_check_age_ns
        self._store_polls = store_polls
        self._imported_library = imported_library
        self._rank = rank
        self._processor = ProcessorShares()
        self._told_threads: set[int] = set()  # of which the user was told
        self.activity: Activity = "idle"
        self.is_fresh = False
        self._ticks: dict[int, int] = {}  # processor time of threads at the last look

    def look(self, last: int = 64, *, memory: bool = False, is_brief: bool = False) -> RankLook:
        """Return the state of the rank now.

        Args:
            last: number of complete operations that are included.
            memory: whether to include torch's GPU memory.
            is_brief: only what shows whether the rank has changed, see `DescribeRank.is_brief`.
        """
        recorder = self._recorder
        recorder.sweep()
        self._store_polls.expire()
        version = recorder.writer.version
        if is_brief:
            return RankLook(
                rank=self._rank,
                pid=os.getpid(),
                activity=self._activity(),
                version=version,
                time_ns=time.monotonic_ns(),
                key_check_age_ns=self._key_check_age_ns(),
            )
        waits = {
            thread: (record, since)
            for thread, record, since in recorder.waits()
            if not self._may_be_refused(recorder.operation(record))
        }
        shares = self._processor.shares() if self.activity == "idle" else Shares()
        threads = tuple(self._threads(waits, shares))
        return RankLook(
            rank=self._rank,
            pid=os.getpid(),
            activity=self._activity(),
            version=version,
            time_ns=time.monotonic_ns(),
            clock=_clock(),
            run_id=recorder.run_id,
            threads=threads,
            groups=tuple(
                counters.snapshot() for counters in list(recorder.counters_by_group.values())
            ),
            operations=tuple(
                operation
                for operation in recorder.operations(last)
                if not self._may_be_refused(operation)
            ),
            group_count=torch_private.group_count(),
            is_fresh=self.is_fresh,
            has_children=_has_children(),
            gpu_bytes=_gpu_bytes() if memory else 0,
            key_check_age_ns=self._key_check_age_ns(),
            cpu_percent=shares.process,
            set_keys=self._store_polls.keys,
        )

    def _may_be_refused(self, operation: Operation | None) -> bool:
        """Return whether torch has not accepted the call yet: its thread is not blocked.

        Gloo returns from a call at once; other backends may wait for their peers in it, and torch's
        debug wrapper does.
        """
        if operation is None or operation.signature.kind != "collective":
            return False
        counters = self._recorder.counters_by_group.get(operation.pg_id)
        is_prompt = (
            counters is not None and counters.info.backend == "gloo" and not counters.is_checked
        )
        return is_prompt and not self._recorder.is_taken(operation)

    def _activity(self) -> Activity:
        runs_callback = self.activity == "idle" and self._recorder.callbacks.thread != 0
        return "callback" if runs_callback else self.activity

    def end_cell(self) -> None:
        """Note that a cell has ended."""
        self.activity = "idle"
        self._processor.begin()

    def left_threads(self) -> list[ThreadLook]:
        """Return threads of ended cells that go on, each once; at the beginning of a cell."""
        idents = {
            each.name: each.ident or 0
            for each in threading.enumerate()
            if not each.name.startswith(_OWN_THREADS)
        }
        self._told_threads.intersection_update(idents.values())
        if len(idents) < 2:  # the main thread only
            return []
        shares = self._processor.shares(again=False)
        left = [
            look
            for look in self._threads({}, shares)
            if look.is_left and idents.get(look.name) not in self._told_threads
        ]
        self._told_threads.update(idents.get(look.name, 0) for look in left)
        return left

    def _threads(self, waits: dict[int, tuple[int, int]], shares: Shares) -> list[ThreadLook]:
        frames = sys._current_frames()
        in_callback = self._recorder.callbacks.thread
        # The frame of this thread would keep itself, and the frames and objects of all threads.
        del frames[threading.get_ident()]
        threads = [
            (thread.ident, thread)
            for thread in threading.enumerate()
            if thread.ident is not None
            and (not thread.name.startswith(_OWN_THREADS) or thread.ident == in_callback)
        ]
        ticks_now: dict[int, int] = {}
        own: dict[int, Wait | None] = {}
        for ident, thread in threads:
            frame = frames.get(ident)
            own[ident] = None
            if ident in waits:
                record, since = waits[ident]
                own[ident] = Wait(kind="operation", record_ids=(record,), since_ns=since)
            elif frame is not None and _is_in(frame, torch_private.BLOCKING_FUNCTIONS):
                # After a fork, Python may not know the native id of its main thread.
                is_main = thread is threading.main_thread()
                native = os.getpid() if is_main else thread.native_id or 0
                own[ident] = self._pending(native, ticks_now)
        self._ticks = ticks_now
        looks = [
            self._thread(
                thread,
                frames.get(ident),
                own[ident] or self._inherited(ident, own, frames),
                shares.threads.get(thread.native_id or 0),
            )
            for ident, thread in threads
        ]
        # Threads of `_thread` and of C++ that run Python code now, for example a future's callback.
        known = {thread.ident for thread in threading.enumerate()}
        looks += [
            self._foreign(ident, frame, waits)
            for ident, frame in frames.items()
            if ident not in known
        ]
        return looks

    def _foreign(
        self, ident: int, frame: types.FrameType, waits: dict[int, tuple[int, int]]
    ) -> ThreadLook:
        """Describe a thread that `threading` does not know."""
        record, since = waits.get(ident, (0, 0))
        return ThreadLook(
            name=f"thread {ident}",
            is_main=False,
            wait=Wait(kind="operation", record_ids=(record,), since_ns=since) if record else None,
            stack=self._recorder.sites.stack(frame),
            innermost=_innermost(frame),
        )

    def _inherited(
        self, ident: int, own: dict[int, Wait | None], frames: dict[int, types.FrameType]
    ) -> Wait | None:
        """Return the wait of the thread that this thread waits for."""
        awaited = thread_waits.awaited_thread(ident, frames)
        return None if awaited is None else own.get(awaited)

    def _thread(
        self,
        thread: threading.Thread,
        frame: types.FrameType | None,
        wait: Wait | None,
        cpu_percent: int | None,
    ) -> ThreadLook:
        is_main = thread is threading.main_thread()
        return ThreadLook(
            name=CALLBACK_THREAD
            if thread.name.startswith(_OWN_THREADS)
            else shortened(str(thread.name)),
            is_main=is_main,
            wait=wait,
            is_dormant=not is_main
            and frame is not None
            and (_has(frame, _DORMANT) or _is_in(frame, _DORMANT_INSIDE)),
            stack=self._recorder.sites.stack(frame),
            innermost=_innermost(frame),
            handling=_handling(thread.ident) if is_main else None,
            cpu_percent=cpu_percent,
            importing=shortened(self._imported_library(frame)) if is_main else "",
        )

    def _pending(self, native: int, ticks_now: dict[int, int]) -> Wait | None:
        """Return the wait of a thread inside torch's C++: it sleeps while operations are open."""
        ticks = _sleeping_ticks(native)
        if ticks is None:
            return None
        ticks_now[native] = ticks
        pending = [
            operation
            for operation in self._recorder.operations(0)
            if operation.state == "scheduled"
        ]
        before = self._ticks.get(native)
        if not pending or before is None or ticks - before > _IDLE_TICKS:
            return None
        return Wait(
            kind="pending",
            record_ids=tuple(operation.record_id for operation in pending),
            since_ns=max(operation.time_created_ns for operation in pending),
        )


@functools.cache
def _clock() -> str:
    """Return the identity of this machine's clock; empty: not known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _has_children() -> bool:
    """Return whether this process has living children; False if the system does not list them."""
    return not all(map(process_tree.has_ended, process_tree.children_of(os.getpid())))


def _handling(ident: int | None) -> ExceptionLine | None:
    """Return the exception that a thread handles now, in its ``except`` or ``finally``."""
    error: Any = sys._current_exceptions().get(ident or 0)
    if isinstance(error, tuple):  # before Python 3.12
        error = error[1]
    while error is not None and exception_text.is_debugger_error(error):
        error = error.__context__  # the exception that the user's code handled at the prompt
    return None if error is None else exception_text.summary_line(error)


def _is_in(frame: types.FrameType, functions: tuple[tuple[str, str], ...]) -> bool:
    """Return whether the innermost frame is one of these functions: below it is C++."""
    code = frame.f_code
    return any(code.co_name == name and code.co_filename.endswith(file) for file, name in functions)


def _innermost(frame: types.FrameType | None) -> str:
    if _has(frame, (("pydevd.py", AT_BREAKPOINT),)):
        return AT_BREAKPOINT  # below it debugpy waits for the front end
    return shortened(frame.f_code.co_name) if frame is not None else ""


def _has(frame: types.FrameType | None, functions: tuple[tuple[str, str], ...]) -> bool:
    while frame is not None:
        if _is_in(frame, functions):
            return True
        frame = frame.f_back
    return False


def _gpu_bytes() -> int:
    """Return the memory that torch has reserved on all devices, without using a device."""
    if not torch.cuda.is_initialized():
        return 0
    return sum(torch.cuda.memory_reserved(index) for index in range(torch.cuda.device_count()))


def _sleeping_ticks(native: int) -> int | None:
    """Return a sleeping thread's processor time in clock ticks; None: it runs, or not known."""
    try:
        text = Path(f"/proc/self/task/{native}/stat").read_text()
    except OSError:
        return None
    return ticks_of(text) if text.rpartition(")")[2].split()[0] == "S" else None
