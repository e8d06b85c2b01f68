"""Describes ranks from outside, when they cannot describe themselves.

Runs in: the agent's thread, step by step from its loop, which never waits for a rank. A rank that
is blocked in C++ or holds the GIL writes the Python stack of its main thread in a signal handler
(`faulthandler`, registered by `nbddp.rank.main`). A rank that is stopped, or is blocked in the
kernel, writes nothing; the answer then has the state of its process.

    DumpStack --> StackDumps --SIGUSR2--> rank --FaultPipe--> StackDumps --StackDumped--> hub
                        --py-spy, where it is installed-->

A cell that installs a handler of its own for SIGUSR2 gets these signals; there is no stack then.
"""

import os
import shutil
import signal
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
from nbddp.system import process_tree
from nbddp.wire.messages import DumpStack, StackDumped

#: Time for a dump to arrive: of a rank that a verdict waits for, and on request of the user.
_DUMP_S, _PATIENT_DUMP_S = 0.3, 1.0
#: A dump that does not look complete is complete if nothing more has arrived for this long, because
#: `faulthandler` writes without pauses.
_SILENCE_S = 0.03
#: Time between two signals to a rank. The handler does not restore ``errno`` (CPython 3.10 to
#: 3.13): a signal just after one that has ended a system call turns "try again" into ``OSError:
#: [Errno 0]``.
_PAUSE_S = 0.03
#: Time limit of py-spy, which reads the symbols of torch for most of a second.
_SPY_S = 3.0
_SPY_BYTES = 1 << 20
_READ_BYTES = 1 << 16
#: States of a process in which it handles no signal: stopped, ended.
_NO_SIGNAL_STATES = ("T", "Z", "X")


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
    process_state: str
    cpu_s: float
    ask_at: float
    limit_s: float
    #: By number. Requests that arrive before its end share the dump.
    requests: dict[int, DumpStack]
    is_asked: bool = False
    silent_at: float = 0.0  #: the dump is complete by then, if nothing more arrives
    seen_bytes: int = 0

    @property
    def give_up_at(self) -> float:
        """The time at which the wait for the dump ends."""
        return self.ask_at + self.limit_s

    def ask(self) -> None:
        """Send the signal, unless the rank does not handle it."""
        self.is_asked = True
        self.process.pipes.faults.forget_dumps()
        if self.limit_s:
            process_tree.kill_quietly(self.process.pid, signal.SIGUSR2)

    def has_ended(self, now: float) -> bool:
        """Return whether the dump has arrived, or the wait for it has ended."""
        if not self.is_asked:
            return False
        faults = self.process.pipes.faults
        if faults.has_whole_dump or now >= self.give_up_at:
            return True
        if faults.dump_bytes > self.seen_bytes:
            self.seen_bytes = faults.dump_bytes
            self.silent_at = now + _SILENCE_S
        return self.seen_bytes > 0 and now >= self.silent_at

    @property
    def next_at(self) -> float:
        """The time at which there is something to do if nothing arrives."""
        if not self.is_asked:
            return self.ask_at
        return min(self.give_up_at, self.silent_at) if self.seen_bytes else self.give_up_at


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
        state, cpu_s = _main_thread(process.pid)
        limit_s = _PATIENT_DUMP_S if request.native else _DUMP_S
        is_able = state not in _NO_SIGNAL_STATES and _would_dump(process)
        ask_at = max(now, self._asked_at.get(process.rank, 0.0) + _PAUSE_S) if is_able else now
        self._asked_at[process.rank] = ask_at
        self._dumps[process.rank] = _Dump(
            process=process,
            process_state=state,
            cpu_s=cpu_s,
            ask_at=ask_at,
            limit_s=limit_s if is_able else 0.0,
            requests={request.number: request},
        )

    def _glance(self, request: DumpStack, process: RankProcess, now: float) -> None:
        """Send the facts that can be read without disturbing the rank."""
        state, cpu_s = _main_thread(process.pid)
        memory = self._read_memory(request, process, now)
        self._send(
            StackDumped(
                number=request.number,
                rank=process.rank,
                version=0,
                operations=(),
                stack="",
                process_state=state,
                cpu_s=cpu_s,
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
                dump.ask()
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
                stack=dump.process.pipes.faults.dump(),
                process_state=dump.process_state,
                cpu_s=dump.cpu_s,
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


def _main_thread(pid: int) -> tuple[str, float]:
    """Return state and CPU time of a main thread; ``("", 0.0)`` where the system has neither."""
    try:
        # The name of the program is in parentheses and may hold anything.
        fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0.0
    return fields[0].upper(), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _would_dump(process: RankProcess) -> bool:
    """Return whether SIGUSR2 makes a dump and does not end the process.

    A rank that has just begun has no handler yet, and a cell may remove the handler.
    """
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return process.is_ready
    caught = status.partition("SigCgt:")[2].split(maxsplit=1)[0]
    return bool(int(caught, 16) >> (signal.SIGUSR2 - 1) & 1)


def _spy_command(pid: int, process_state: str) -> list[str]:
    """Return the command of py-spy, first that of this environment; empty if there is none."""
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("py-spy", path=folders)
    # py-spy pauses a process to read native frames, which fails if it is stopped already.
    mode = "--nonblocking" if process_state == "T" else "--native"
    return [program, "dump", mode, "--pid", str(pid)] if program else []
