"""Describes ranks from outside, when they cannot describe themselves.

Runs in: the agent's thread, step by step from its loop, which never waits for a rank. A rank writes
the Python stack of its main thread in a signal handler (`nbddp.rank.stack_writer`), in Python if it
can, or else in C. A rank that is stopped, or is blocked in the kernel, writes nothing; the answer
then has the state of its process.

    DumpStack --> StackDumps --two signals--> rank --StackPipe--> StackDumps --StackDumped--> hub
                        --py-spy, where it is installed-->

The second signal comes only when the main thread had the time to handle the first, and has not: a
thread that runs Python code would not survive it (`nbddp.system.stack_signals`). Without ``/proc``
nobody can know, and it never comes. A cell that installs handlers of its own for the signals gets
them; there is no stack then.
"""

import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from nbddp.agent.event_loop import EventLoop
from nbddp.agent.memory_usage import Memory, MemoryReader
from nbddp.agent.rank_process import RankProcess
from nbddp.agent.stall_monitor import StallMonitor
from nbddp.system import process_tree, stack_signals
from nbddp.wire.messages import DumpStack, StackDumped

#: Time for a dump to arrive: of a rank that a verdict waits for, and when the user asks.
_DUMP_S, _PATIENT_DUMP_S = 0.3, 1.0
#: A dump that does not look complete is complete if nothing more has arrived for this long, because
#: `faulthandler` writes without pauses.
_SILENCE_S = 0.03
#: Time between two signals to a rank. The handler in C does not restore ``errno`` (CPython 3.10 to
#: 3.13): a signal just after one that has ended a system call turns "try again" into ``OSError:
#: [Errno 0]``.
_PAUSE_S = 0.03
#: Time between two looks at a main thread that has not answered the first signal.
_LOOK_S = 0.015
#: A main thread that has used this much CPU time since the first signal is in C code.
_C_CODE_S = 0.02
#: Time limit of py-spy, which reads the symbols of torch for most of a second.
_SPY_S = 3.0
_SPY_BYTES = 1 << 20
_READ_BYTES = 1 << 16
#: States of a process in which it handles no signal: stopped, ended.
_NO_SIGNAL_STATES = ("T", "Z", "X")


@dataclass(frozen=True)
class MainThread:
    """The main thread of a rank, as the system describes it."""

    state: str  #: a letter, see proc(5); empty: the system does not tell
    cpu_s: float  #: time that it has used


class Spy:
    """One run of py-spy: a program that reads the stacks of another process."""

    def __init__(self, command: list[str], now: float) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdout is not None  # noqa: S101 - as asked for
        self.fd = self._process.stdout.fileno()
        os.set_blocking(self.fd, False)
        self.give_up_at = now + _SPY_S
        self._text = b""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def read(self) -> bool:
        """Read the output that has arrived; returns whether the program still runs."""
        try:
            chunk = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return True
        self._text = (self._text + chunk)[:_SPY_BYTES]
        return bool(chunk)

    def end(self) -> str:
        """End it, and return its stacks; empty if it lacks permission, or took too long."""
        self._process.kill()  # it has no more output
        self._process.wait()
        assert self._process.stdout is not None  # noqa: S101 - as asked for
        self._process.stdout.close()
        text = self._text.decode("utf-8", "replace")
        return text if "\nThread " in text else ""  # the lines before that only name the process


@dataclass
class _Dump:
    """A rank that was asked for its stacks."""

    process: RankProcess
    ask_at: float
    limit_s: float
    #: By number. Requests that arrive before its end share the dump.
    requests: dict[int, DumpStack]
    thread: MainThread = MainThread("", 0.0)  #: just before the last signal
    is_asked: bool = False
    is_asked_in_c: bool = False
    look_at: float = 0.0  #: the next look at a thread that has not answered the first signal
    #: The first look after the delivery of that signal.
    first_seen: MainThread | None = None
    silent_at: float = 0.0  #: the dump is complete by then, if nothing more arrives
    seen_bytes: int = 0

    @property
    def give_up_at(self) -> float:
        """The time at which the wait for the dump ends."""
        return self.ask_at + self.limit_s

    def ask(self, now: float) -> None:
        """Send the first signal, unless the rank does not handle it."""
        self.is_asked = True
        self.look_at = now + _PAUSE_S
        self.process.pipes.stacks.forget_dumps()
        # Not earlier: the rank may have gone on since it was to be described.
        self.thread = main_thread(self.process.pid)
        if self.thread.state in _NO_SIGNAL_STATES or not _handles(
            self.process, stack_signals.PYTHON
        ):
            self.limit_s = 0.0
        else:
            process_tree.kill_quietly(self.process.pid, stack_signals.PYTHON)

    def ask_in_c(self, now: float) -> None:
        """Send the second signal, if it is time and the main thread runs no Python code."""
        if self.is_asked_in_c or now < self.look_at or self.process.pipes.stacks.dump_bytes:
            return
        self.look_at = now + _LOOK_S
        if is_pending(self.process.pid, stack_signals.PYTHON):
            return
        seen = main_thread(self.process.pid)
        if self.first_seen is None:
            self.first_seen = seen
        elif is_outside_python(self.first_seen, seen):
            self._send_in_c(seen)

    def _send_in_c(self, seen: MainThread) -> None:
        self.is_asked_in_c = True
        self.thread = seen
        if _handles(self.process, stack_signals.C):
            process_tree.kill_quietly(self.process.pid, stack_signals.C)

    def has_ended(self, now: float) -> bool:
        """Return whether the dump has arrived, or the wait for it has ended."""
        if not self.is_asked:
            return False
        stacks = self.process.pipes.stacks
        if stacks.has_whole_dump or now >= self.give_up_at:
            return True
        if stacks.dump_bytes > self.seen_bytes:
            self.seen_bytes = stacks.dump_bytes
            self.silent_at = now + _SILENCE_S
        return self.seen_bytes > 0 and now >= self.silent_at

    @property
    def next_at(self) -> float:
        """The time at which there is something to do if nothing arrives."""
        if not self.is_asked:
            return self.ask_at
        if self.seen_bytes:
            return min(self.give_up_at, self.silent_at)
        return self.give_up_at if self.is_asked_in_c else min(self.give_up_at, self.look_at)


@dataclass
class _Answer:
    """An answer that still lacks native frames."""

    process: RankProcess
    peeked: StackDumped
    spy: Spy | None = None  #: None: it waits for its turn


class StackDumps:
    """The ranks that are being described.

    Args:
        loop: reports when the output of py-spy is readable.
        monitor: has the records of the ranks.
        helpers: children of the agent that are no orphans.
        send: takes the answers.
    """

    def __init__(
        self,
        loop: EventLoop,
        monitor: StallMonitor,
        helpers: set[int],
        send: Callable[[StackDumped], None],
    ) -> None:
        self._loop = loop
        self._monitor = monitor
        self._helpers = helpers
        self._send = send
        self._dumps: dict[int, _Dump] = {}  # by rank
        self._asked_at: dict[int, float] = {}  # by rank, the time of the last signal
        self._answers: list[_Answer] = []
        self._glances: deque[tuple[DumpStack, RankProcess]] = deque()
        self._memory = MemoryReader()

    def begin(self, request: DumpStack, process: RankProcess, now: float) -> None:
        """Begin to describe a rank; `advance` sends the answer."""
        if not request.stack:
            self._glances.append((request, process))
            return
        under_way = self._dumps.get(process.rank)
        if under_way is not None:
            under_way.requests[request.number] = request
            return
        ask_at = max(now, self._asked_at.get(process.rank, 0.0) + _PAUSE_S)
        self._asked_at[process.rank] = ask_at
        self._dumps[process.rank] = _Dump(
            process=process,
            ask_at=ask_at,
            limit_s=_PATIENT_DUMP_S if request.native else _DUMP_S,
            requests={request.number: request},
        )

    def _glance(self, request: DumpStack, process: RankProcess, now: float) -> None:
        """Send the facts that can be read without disturbing the rank."""
        seen = main_thread(process.pid)
        memory = self._read_memory(request, process, now)
        self._send(
            StackDumped(
                number=request.number,
                rank=process.rank,
                version=0,
                operations=(),
                stack="",
                process_state=seen.state,
                cpu_s=seen.cpu_s,
                memory_bytes=memory.size_bytes,
                memory_is_pss=memory.is_pss,
            )
        )

    def _read_memory(self, request: DumpStack, process: RankProcess, now: float) -> Memory:
        if not request.memory:
            return Memory(0, is_pss=False)
        return self._memory.read(process.rank, process.pid, now)

    @property
    def next_at(self) -> float:
        """The time at which `advance` has something to do even if nothing arrives before."""
        if self._glances:
            return 0.0
        times = [dump.next_at for dump in self._dumps.values()]
        times += [answer.spy.give_up_at for answer in self._answers if answer.spy is not None]
        return min(times, default=float("inf"))

    def advance(self, now: float) -> None:
        """Take the dumps that have arrived, give up late ones, and answer. Called in each turn."""
        if self._glances:  # one in each turn, because counting memory takes time
            self._glance(*self._glances.popleft(), now)
        for rank, dump in list(self._dumps.items()):
            if not dump.is_asked and now >= dump.ask_at:
                dump.ask(now)
            elif dump.is_asked:
                dump.ask_in_c(now)
            if dump.has_ended(now):
                del self._dumps[rank]
                self._take(dump, now)
        for answer in list(self._answers):
            if answer.spy is None:
                self._begin_spy(answer, now)
            elif now >= answer.spy.give_up_at:
                self._end_spy(answer)

    def _take(self, dump: _Dump, now: float) -> None:
        version, operations = self._monitor.records(dump.process.rank)
        for number, request in dump.requests.items():
            memory = self._read_memory(request, dump.process, now)
            peeked = StackDumped(
                number=number,
                rank=dump.process.rank,
                version=version,
                operations=operations,
                stack=dump.process.pipes.stacks.dump(),
                process_state=dump.thread.state,
                cpu_s=dump.thread.cpu_s,
                memory_bytes=memory.size_bytes,
                memory_is_pss=memory.is_pss,
            )
            if request.native:
                self._answers.append(_Answer(dump.process, peeked))
            else:
                self._send(peeked)

    def forget(self, rank: int) -> None:
        """Drop the requests for a rank that has ended; the message about its end answers them."""
        self._dumps.pop(rank, None)
        self._asked_at.pop(rank, None)
        self._memory.forget(rank)
        self._glances = deque(glance for glance in self._glances if glance[1].rank != rank)
        for answer in [answer for answer in self._answers if answer.process.rank == rank]:
            self._answers.remove(answer)
            self._stop(answer)

    def _begin_spy(self, answer: _Answer, now: float) -> None:
        """Start py-spy, unless it runs once per core already, or runs on this rank."""
        busy = [other.process.rank for other in self._answers if other.spy is not None]
        if len(busy) >= (os.cpu_count() or 1) or answer.process.rank in busy:
            return
        command = _spy_command(answer.process.pid, answer.peeked.process_state)
        if command:
            with suppress(OSError):  # e.g. no more processes; the rest of the answer matters more
                answer.spy = Spy(command, now)
        if answer.spy is None:
            self._end_spy(answer)
            return
        self._helpers.add(answer.spy.pid)
        self._loop.listen(answer.spy.fd, lambda: self._read_spy(answer))

    def _read_spy(self, answer: _Answer) -> None:
        if answer.spy is not None and not answer.spy.read():
            self._end_spy(answer)

    def _end_spy(self, answer: _Answer) -> None:
        self._answers.remove(answer)
        self._send(msgspec.structs.replace(answer.peeked, native=self._stop(answer)))

    def _stop(self, answer: _Answer) -> str:
        if answer.spy is None:
            return ""
        self._loop.ignore(answer.spy.fd)
        text = answer.spy.end()
        self._helpers.discard(answer.spy.pid)
        return text


def main_thread(pid: int) -> MainThread:
    """Return the state of a main thread; an empty one where the system does not tell."""
    try:
        # The name of the program is in parentheses and may hold anything.
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return MainThread("", 0.0)
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return MainThread(fields[0].upper(), cpu_s)


def is_outside_python(before: MainThread, now: MainThread) -> bool:
    """Return whether a main thread is in C code, or blocked, so that its frames do not change.

    Both looks are later than a signal that it handles between two instructions, and has not
    handled. It has run for a while since then, or it sleeps all the time.
    """
    if now.cpu_s - before.cpu_s >= _C_CODE_S:
        return True
    return (before.state, now.state, now.cpu_s) == ("S", "S", before.cpu_s)


def is_pending(pid: int, number: int) -> bool:
    """Return whether a signal has not reached its process, as far as the system tells."""
    sets = _signal_sets(pid)
    return sets is None or number in sets["SigPnd"] | sets["ShdPnd"]


def _handles(process: RankProcess, number: int) -> bool:
    """Return whether a signal makes a dump and does not end the process.

    A rank that has just begun has no handler yet, and a cell may remove the handler.
    """
    sets = _signal_sets(process.pid)
    return process.is_ready if sets is None else number in sets["SigCgt"]


def _signal_sets(pid: int) -> dict[str, set[int]] | None:
    """Return sets of signals of a process by their name in proc(5); None: they are not known."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines)
    masks = {name: int(fields[name], 16) for name in ("SigPnd", "ShdPnd", "SigCgt")}
    return {
        name: {number for number in range(1, 65) if mask >> (number - 1) & 1}
        for name, mask in masks.items()
    }


def _spy_command(pid: int, process_state: str) -> list[str]:
    """Return the command of py-spy, first that of this environment; empty if there is none."""
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("py-spy", path=folders)
    # py-spy pauses a process to read native frames, which fails if it is stopped already.
    mode = "--nonblocking" if process_state == "T" else "--native"
    return [program, "dump", mode, "--pid", str(pid)] if program else []
