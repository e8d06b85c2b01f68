"""Lets faults on purpose strike: ``%%ddp --fault``, and `nbddp.faults.inject` on a rank.

Runs in: the rank process, in the thread that is struck. Faults at a line, at an iteration and at
the beginning of the cell strike on the main thread, from a trace function, which only cells with
such a fault have. Faults before an operation strike where a traced group would issue it: nothing is
in flight then, and the operation has no number yet.
"""

import builtins
import linecache
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist

from nbddp.rank import torch_private
from nbddp.rank.collectives.altered_tensors import first_leaf, flip
from nbddp.rank.collectives.recording.call_sites import Sites
from nbddp.rank.collectives.recording.upcoming import upcoming_operation
from nbddp.wire.fault_types import (
    ANY_OPERATION,
    ON_PURPOSE,
    RANDOM_DELAY_S,
    RANDOM_STOP_S,
    Fault,
    duration,
    missed_text,
)
from nbddp.wire.flight_recorder import CONSOLE, GroupInfo, Operation, Signature
from nbddp.wire.flight_recorder.matching import MESSAGES

#: So many faults of one text are told by a rank: random ones may strike at each operation.
MAX_TOLD = 50
#: The longest sleep without a look at interrupts.
_POLL_S = 0.05
#: Stops a process and continues it; interrupts of the cell are not for this shell.
_STOP = 'trap "" INT TERM; kill -STOP {pid}; sleep {seconds:.3f}; kill -CONT {pid}'


class Group(Protocol):
    """The facts about a group that faults need, see `GroupCounters`."""

    @property
    def info(self) -> GroupInfo:
        """Its members."""

    @property
    def seq(self) -> int:
        """The number of its last collective; -1: they have none."""

    @property
    def ended(self) -> Callable[[], BaseException] | None:
        """Makes the error of all its operations; None: it works."""


class Operations(Protocol):
    """Calls `Faults.before` before each operation, see `Recorder`."""

    rank: int
    sites: Sites
    inject: Callable[..., bool] | None

    def set_careful(self) -> None:
        """Note that ``inject`` has changed."""


class Backwards(Protocol):
    """Calls a function before each backward, see `GroupFactory`."""

    before_backward: Callable[[Any], None] | None


@dataclass(eq=False)
class _Armed:
    """A fault that may strike on this rank."""

    number: int  #: see `FaultStruck`
    fault: Fault
    file: str = ""  #: whose lines it counts; empty: those of the cell
    calls: int = 0  #: of its operation so far
    is_over: bool = False  #: it has struck, or, if it strikes each time, it was told
    told: int = 0  #: how often it was told
    chance: random.Random = field(default_factory=random.Random)

    @property
    def is_quiet(self) -> bool:
        """Whether nobody is told that it did not strike on a rank."""
        return self.fault.act in ("link", "store", "random")


@dataclass(frozen=True)
class _Place:
    """The moment at which a fault strikes, in words, and what it may act upon."""

    frame: types.FrameType | None  #: of the user's code
    what: str = ""  #: ``all_reduce #3``; empty: a line
    counters: Group | None = None
    tensors: Sequence[torch.Tensor] = ()  #: that the rank sends


class Faults:
    """The faults of this rank.

    Args:
        recorder: calls `before` while a fault may strike before an operation.
        factory: calls `_before_backward` while one may strike there.
    """

    def __init__(self, recorder: Operations, factory: Backwards) -> None:
        self._recorder = recorder
        self._factory = factory
        #: Reports a fault, by its number and in words, before it strikes. Set by the server.
        self.tell: Callable[[int, str], None] = lambda number, text: None
        #: Returns how many interrupts have reached the process. Set by the server.
        self.interrupts: Callable[[], int] = lambda: 0
        self._armed: list[_Armed] = []
        self._lock = threading.Lock()
        self._cell = 0
        self._pid = os.getpid()
        self._hooks: list[Any] = []  #: of gradients
        self._is_tracing = False
        self._traced_before: Any = None  #: the trace function of the main thread before ours
        self._restore_store: Callable[[], None] | None = None

    def begin_cell(self, faults: Sequence[Fault], cell: int) -> None:
        """Arm the faults of a cell."""
        self._cell = cell or CONSOLE
        self._pid = os.getpid()
        if faults:
            self._arm([_Armed(number, fault) for number, fault in enumerate(faults)])

    def end_cell(self) -> None:
        """Drop all faults."""
        if self._armed or self._hooks:
            self._disarm(self._armed)

    @contextmanager
    def within(self, faults: Sequence[Fault], frame: types.FrameType) -> Iterator[None]:
        """Arm faults within a block of the user's code, which ``frame`` runs."""
        armed = [_Armed(-1, fault, frame.f_code.co_filename) for fault in faults]
        self._arm(armed, frame)
        try:
            yield
        finally:
            self._disarm(armed)
        here = [each for each in armed if self._recorder.rank in each.fault.ranks]
        missed = [str(each.fault) for each in here if not (each.is_over or each.is_quiet)]
        if missed:
            print(missed_text(tuple(missed)), flush=True)  # noqa: T201 - output of the program

    def _arm(self, armed: list[_Armed], frame: types.FrameType | None = None) -> None:
        rank = self._recorder.rank
        armed = [each for each in armed if rank in each.fault.ranks]
        for armed_fault in armed:
            armed_fault.chance.seed(f"{armed_fault.fault.seed}/{rank}")
        self._armed = [*self._armed, *armed]
        self._connect(frame)

    def _disarm(self, armed: list[_Armed]) -> None:
        self._armed = [each for each in self._armed if each not in armed]
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._connect(None)

    def _connect(self, frame: types.FrameType | None) -> None:
        """Connect what the armed faults need, and nothing else."""
        whens = {each.fault.moment.when for each in self._armed if each.fault.act != "store"}
        is_at_operations = bool(whens & {"operation", "always"})
        self._recorder.inject = self.before if is_at_operations else None
        self._recorder.set_careful()
        has_nan = any(each.fault.act == "nan" for each in self._armed)
        self._factory.before_backward = self._before_backward if has_nan else None
        slow = [each for each in self._armed if each.fault.act == "store"]
        if self._restore_store is not None:
            self._restore_store()
            self._restore_store = None
        if slow:
            self._restore_store = torch_private.slow_store(lambda: self._slow_store(slow))
        if any(map(_is_at_line, self._armed)):
            if not self._is_tracing:
                self._is_tracing, self._traced_before = True, sys.gettrace()
            sys.settrace(self._trace)
            while frame is not None:  # frames that run already are traced only if told so
                if self._is_users(frame):
                    frame.f_trace = self._trace_line
                frame = frame.f_back
        else:
            self._end_trace()

    # --- at lines ------------------------------------------------------------------------------

    def _is_users(self, frame: types.FrameType) -> bool:
        return self._recorder.sites.cell_of(frame) is not None

    def _trace(self, frame: types.FrameType, event: str, arg: object) -> Any:
        """Trace the frames of the user's code: Python calls this for each new frame."""
        del event, arg
        return self._trace_line if self._is_users(frame) else None

    def _trace_line(self, frame: types.FrameType, event: str, arg: object) -> Any:
        """Strike before a line. Python calls this for each line of the user's code."""
        del arg
        # Before Python 3.13, Python writes this copy back into the frame after this call. While it
        # has a second reference, `counting_loops.local_integer` does not empty it.
        variables = frame.f_locals
        if event == "line" and os.getpid() == self._pid:
            for armed in self._armed:
                if _is_at_line(armed) and self._is_due(armed, frame):
                    armed.is_over = True
                    self._strike(armed, armed.fault, _Place(frame))
            if not any(map(_is_at_line, self._armed)):
                self._end_trace()
        del variables
        return self._trace_line

    def _end_trace(self) -> None:
        """Give the main thread the trace function that it had before; a debugger may have one."""
        # Python has removed ours if it has raised; any other came after it, and stays.
        if self._is_tracing and sys.gettrace() in (self._trace, None):
            sys.settrace(self._traced_before)
        self._is_tracing, self._traced_before = False, None

    def _is_due(self, armed: _Armed, frame: types.FrameType) -> bool:
        moment, sites = armed.fault.moment, self._recorder.sites
        if moment.when == "loop":
            return self._is_in_iteration(armed.fault, frame) and not _is_at_try(frame)
        is_here = (
            frame.f_code.co_filename == armed.file
            if armed.file
            else sites.cell_of(frame) == self._cell
        )
        return (
            is_here
            and moment.when in ("begin", "line")
            and (moment.when == "begin" or frame.f_lineno == moment.number)
        )

    def _is_in_iteration(self, fault: Fault, frame: types.FrameType | None) -> bool:
        wanted = fault.moment.name, fault.moment.number
        variables = self._recorder.sites.loop_variables(frame)
        return any((each.name, each.value) == wanted for each in variables)

    # --- before operations ---------------------------------------------------------------------

    def before(
        self, counters: Group, signature: Signature, tensors: Sequence[torch.Tensor], peer: int,
        tag: int,
    ) -> bool:  # fmt: skip
        """Let the faults strike that are due before this operation.

        Args:
            counters: its group.
            signature: its kind and name.
            tensors: those that the rank sends.
            peer: of a message: the other rank.
            tag: of a message.

        Returns:
            Whether the operation is left out.
        """
        armed = [each for each in self._armed if not each.is_over or each.fault.act == "random"]
        due = [each for each in self._armed if each.fault.act == "link"]
        due += [each for each in armed if each.fault.act == "random"]
        with self._lock:
            due += [each for each in armed if _is_called(each, signature.op, tensors)]
        if not due:
            return False
        operation = upcoming_operation(counters.info.pg_id, counters.seq, signature, peer, tag)
        frame = self._recorder.sites.user_frame(sys._getframe(1))
        place = _Place(frame, operation.label(), counters, tensors)
        skips = False
        for armed_fault in sorted(due, key=self._armed.index):
            if armed_fault.fault.act == "link":
                self._slow_link(armed_fault, operation, place)
            elif armed_fault.fault.act == "random":
                fault = _drawn(armed_fault, tensors)
                skips |= fault is not None and self._strike(armed_fault, fault, place)
            else:
                skips |= self._strike(armed_fault, armed_fault.fault, place)
        return skips

    def _slow_link(self, armed: _Armed, operation: Operation, place: _Place) -> None:
        assert place.counters is not None  # noqa: S101 - of an operation
        here, ends = self._recorder.rank, armed.fault.ranks
        other = ends[1] if here == ends[0] else ends[0]
        signature = operation.signature
        group = place.counters.info
        members = (operation.peer,) if signature.kind in MESSAGES else group.ranks
        if other not in members or signature.kind == "recv":
            return  # the sender delays a message
        seconds = armed.fault.link_s(signature.nbytes)
        if not armed.is_over:
            armed.is_over = True
            delay = f"rank {here} was delayed {duration(seconds)} before {place.what}"
            self._tell(armed, f"{delay}, and before each operation with rank {other}", place)
        self.delay_on_purpose(seconds, place.counters)

    def _slow_store(self, slow: list[_Armed]) -> None:
        if threading.current_thread().name.startswith("nbddp") or os.getpid() != self._pid:
            return
        for armed in slow:
            if not armed.is_over:
                armed.is_over = True
                seconds = duration(armed.fault.seconds)
                text = f"rank {self._recorder.rank} was delayed {seconds} before each store call"
                self._tell(armed, text, _Place(self._recorder.sites.user_frame(sys._getframe(1))))
            self.delay_on_purpose(armed.fault.seconds, None)

    # --- in a backward -------------------------------------------------------------------------

    def _before_backward(self, outputs: Any) -> None:
        frame = self._recorder.sites.user_frame(sys._getframe(1))
        for armed in self._armed:
            fault = armed.fault
            if fault.act != "nan" or armed.is_over:
                continue
            if fault.moment.when == "loop" and not self._is_in_iteration(fault, frame):
                continue
            leaf = first_leaf(outputs)
            if leaf is not None:
                armed.is_over = True
                self._put_nan(armed, leaf, _Place(frame))

    def _put_nan(self, armed: _Armed, leaf: torch.Tensor, place: _Place) -> None:
        def put(gradient: torch.Tensor) -> torch.Tensor:
            hook.remove()
            changed = gradient.clone(memory_format=torch.contiguous_format)
            changed.view(-1)[0] = float("nan")
            return changed

        shape = tuple(leaf.shape)
        text = f"rank {self._recorder.rank} got a NaN in the gradient of a parameter of shape"
        self._tell(armed, f"{text} {shape}", place)
        hook = leaf.register_hook(put)
        self._hooks.append(hook)

    # --- strikes -------------------------------------------------------------------------------

    def _strike(self, armed: _Armed, fault: Fault, place: _Place) -> bool:
        """Do what a fault does; returns whether the operation is left out."""
        rank, before = f"rank {self._recorder.rank}", f" before {place.what}" * bool(place.what)
        match fault.act:
            case "delay":
                self._tell(armed, f"{rank} was delayed {duration(fault.seconds)}{before}", place)
                self.delay_on_purpose(fault.seconds, place.counters)
            case "raise":
                self._tell(armed, f"{rank} raised {fault.error}{before}", place)
                raise _error(fault.error, f"{ON_PURPOSE} ({armed.fault})")
            case "kill":
                self._tell(armed, f"{rank} was killed{before}", place, is_last=True)
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                text = f"{rank} was stopped for {duration(fault.seconds)}{before}"
                self._tell(armed, text, place)
                script = _STOP.format(pid=os.getpid(), seconds=fault.seconds)
                subprocess.run(["/bin/sh", "-c", script], check=False)
            case "skip":
                self._tell(armed, f"{rank} left out {place.what}", place)
                return True
            case "flip":
                old, new = flip(place.tensors[0])
                what = f"{place.what}: its first element was {old}, and became {new}"
                self._tell(armed, f"{rank} sent a flipped bit in {what}", place)
            case "nan" | "link" | "store" | "random":
                pass  # these do not strike here
        return False

    def _tell(self, armed: _Armed, text: str, place: _Place, *, is_last: bool = False) -> None:
        armed.told += 1
        if armed.told > MAX_TOLD and not is_last:
            return
        if armed.told == MAX_TOLD:
            text += f'; its next faults of "{armed.fault}" are not told'
        sites = self._recorder.sites
        # Before the first line, a loop of the cell has not begun: its variable is an old one.
        frame = None if armed.fault.moment.when == "begin" else place.frame
        loops = "".join(f", {each}" for each in sites.loop_variables(frame))
        moment = armed.fault.moment
        if moment.when == "operation" and moment.number > 1:  # torch's number counts on
            block = "block" if armed.file else "cell"
            counted = f"call {moment.number} of {moment.name} in"
            if moment.name == ANY_OPERATION:
                counted = f"operation {moment.number} of"
            text += f" ({counted} the {block})"
        where = "" if place.frame is None else f", {sites.site_of(place.frame).place}{loops}"
        self.tell(armed.number, f"{text}{where}")

    def delay_on_purpose(self, seconds: float, counters: Group | None) -> None:
        """Sleep; an interrupt of the cell, or the end of the group, ends it.

        Cards show the name of this function.
        """
        is_main = threading.current_thread() is threading.main_thread()
        interrupts, until = self.interrupts(), time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            time.sleep(min(left_s, _POLL_S))
            if not is_main and self.interrupts() != interrupts:
                raise KeyboardInterrupt  # the main thread is in C, and waits for this thread
            if counters is not None and counters.ended is not None:
                raise counters.ended()


#: ``try:``, ``with suppress(OSError):``
_TRY = re.compile(r"\s*(try|with\s+(contextlib\s*\.\s*)?suppress\s*\(.*\))\s*:\s*(#.*)?$")

#: Those of this process; None: it traces no groups, and `stock_faults` has made none yet.
current: Faults | None = None


def _is_at_line(armed: _Armed) -> bool:
    """Return whether a fault strikes before a line, and has not yet."""
    fault = armed.fault
    is_there = fault.moment.when in ("begin", "line", "loop") and fault.act != "nan"
    return is_there and not armed.is_over


def _is_at_try(frame: types.FrameType) -> bool:
    """Return whether a frame is at a line after which only an exception is taken, see `_TRY`."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno, frame.f_globals)
    return _TRY.match(line) is not None


def _is_called(armed: _Armed, op: str, tensors: Sequence[torch.Tensor]) -> bool:
    """Count a call for a fault; returns whether it strikes before this one."""
    fault = armed.fault
    moment = fault.moment
    if moment.when != "operation" or moment.name not in (op, ANY_OPERATION):
        return False
    if fault.act == "flip" and not tensors:
        return False
    armed.calls += 1
    armed.is_over = armed.calls == moment.number
    return armed.is_over


def _drawn(armed: _Armed, tensors: Sequence[torch.Tensor]) -> Fault | None:
    """Return the random fault that strikes now; None: none does."""
    chance, drawn = armed.chance, armed.fault
    if chance.random() >= drawn.rate:
        return None
    act: Any = chance.choice(drawn.acts)
    longest_s = {"delay": RANDOM_DELAY_S, "stop": RANDOM_STOP_S}.get(act, 0.0)
    seconds = round(chance.uniform(0.001, longest_s), 3) if longest_s else 0.0
    if act == "flip" and not tensors:
        return None
    return Fault(act=act, ranks=drawn.ranks, seconds=seconds, error="RuntimeError")


def _error(name: str, text: str) -> Exception:
    kind = getattr(builtins, name, None) or getattr(torch, name, None) or getattr(dist, name)
    error: Exception = kind(text)
    return error
