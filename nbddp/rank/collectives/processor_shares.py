"""Measures the processor time that the process and its threads use while no cell runs.

Runs in: the rank process; `shares` on the I/O thread, and at the beginning of a cell.
"""

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from nbddp.wire.flight_recorder import BUSY_PERCENT

#: A shorter time tells nothing.
_SHORTEST_NS = 200_000_000
#: A share is measured again in so short a time, because the work may be over.
_AGAIN_S = 0.1


@dataclass(frozen=True)
class Shares:
    """Shares of one processor, in percent."""

    process: int = 0
    threads: Mapping[int, int] = field(default_factory=dict)  #: by the thread's native id


@dataclass(frozen=True)
class _Sample:
    at_ns: int
    process_ns: int
    threads_ns: Mapping[int, int]


class ProcessorShares:
    """Compares two moments between cells."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin at this moment: a cell has ended."""
        self._before, self._shares = _sample(), Shares()

    def shares(self, *, again: bool = True) -> Shares:
        """Return the shares now.

        Args:
            again: measure high ones again, for a tenth of a second, because the work may be over.
        """
        now = _sample()
        if now.at_ns - self._before.at_ns < _SHORTEST_NS:
            return self._shares
        shares = _between(self._before, now)
        if again and shares.process >= BUSY_PERCENT:
            time.sleep(_AGAIN_S)
            self._before, now = now, _sample()
            shares = _between(self._before, now)
        self._before, self._shares = now, shares
        return shares


def _sample() -> _Sample:
    threads_ns = {}
    for thread in threading.enumerate():
        if thread.native_id is not None:
            with suppress(OSError, OverflowError):  # it has ended meanwhile, or this is no Linux
                threads_ns[thread.native_id] = time.clock_gettime_ns(_clock_of(thread.native_id))
    return _Sample(time.monotonic_ns(), time.process_time_ns(), threads_ns)


def _clock_of(native_id: int) -> int:
    """Return the processor clock of a thread of this process.

    It costs one system call, where ``/proc/PID/task`` costs the opening of a file: this runs at the
    end of each cell. A thread that has ended is an error, where `time.pthread_getcpuclockid` may
    crash. Source: ``MAKE_THREAD_CPUCLOCK`` in the kernel's ``posix-timers.h``.
    """
    return (~native_id << 3) | 6


def _between(before: _Sample, after: _Sample) -> Shares:
    elapsed_ns = after.at_ns - before.at_ns
    used_ns = {
        native: time_ns - before.threads_ns[native]
        for native, time_ns in after.threads_ns.items()
        if native in before.threads_ns
    }
    return Shares(
        100 * (after.process_ns - before.process_ns) // elapsed_ns,
        {native: min(100, 100 * each_ns // elapsed_ns) for native, each_ns in used_ns.items()},
    )


def ticks_of(stat: str) -> int:
    """Return the processor time in a line of ``/proc/PID/stat``, in clock ticks.

    >>> ticks_of("7 (a name) S 1 7 7 0 -1 0 0 0 0 0 12 3 0 0 20 0 1 0")
    15
    """
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
