"""The lines that a driver writes for its engine, and those that it reads.

Runs in: the drivers. The standard output is the engine's, and the standard input ends with it.
"""

import os
import select
import sys

from nbddp.controller.launch import driver_report

_BLOCK = 4096


class DriverOutput:
    """Writes lines for `DriverReport`."""

    def __init__(self) -> None:
        self._state = ""

    def tell_state(self, text: str) -> None:
        """Tell what the job waits for, if it is new: it may wait for hours."""
        if text != self._state:
            self._state = text
            _write(driver_report.state_line(text))

    def tell_failure(self, text: str) -> None:
        """Tell why there can be no pool."""
        _write(driver_report.failure_line(text))

    def tell_end(self, number: int, text: str) -> None:
        """Tell why an agent has ended."""
        _write(driver_report.end_line(number, text))


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def read_input(wait_s: float) -> bytes | None:
    """Return what comes on the standard input in this time; None: nothing; empty: it has ended."""
    ready, _, _ = select.select([sys.stdin], [], [], wait_s)
    return os.read(sys.stdin.fileno(), _BLOCK) if ready else None
