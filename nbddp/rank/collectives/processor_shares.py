"""Measures the processor time that the process and its threads use while no cell runs.

Runs in: the rank process; `shares` on the I/O thread, and at the beginning of a cell.
"""

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from nbddp.wire.flight_recorder import BUSY_PERCENT

#: The clock of threads has steps of 10 ms.
_TICK_NS = 10_000_000
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
    ticks: Mapping[int, int]


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
    ticks = {}
    for thread in threading.enumerate():
        if thread.native_id is not None:
            with suppress(OSError):  # it has ended meanwhile, or this is no Linux
                stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text()
                ticks[thread.native_id] = ticks_of(stat)
    return _Sample(time.monotonic_ns(), time.process_time_ns(), ticks)


def _between(before: _Sample, after: _Sample) -> Shares:
    elapsed_ns = after.at_ns - before.at_ns
    used = {
        native: ticks - before.ticks[native]
        for native, ticks in after.ticks.items()
        if native in before.ticks
    }
    return Shares(
        100 * (after.process_ns - before.process_ns) // elapsed_ns,
        {native: min(100, 100 * n * _TICK_NS // elapsed_ns) for native, n in used.items()},
    )


def ticks_of(stat: str) -> int:
    """Return the processor time in a line of ``/proc/PID/stat``, in clock ticks.

    >>> ticks_of("7 (a name) S 1 7 7 0 -1 0 0 0 0 0 12 3 0 0 20 0 1 0")
    15
    """
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
