"""A driver beside the notebook: a process that uses the library of an engine.

Runs in: the notebook's process, which so stays free of that library. The driver gets the invitation
on its standard input, whose end, also by the end of the notebook, ends the job and the agents.
"""

import sys
from collections.abc import Sequence

from nbddp.controller.launch.driver_report import DriverReport
from nbddp.controller.launch.engine_process import EngineProcess
from nbddp.wire.launch_specs import Invitation


class DriverProcess:
    """The running driver.

    Args:
        module: that ``python -m`` runs.
        words: of its command line.
        invitation: for the agents.
    """

    def __init__(self, module: str, words: Sequence[str], invitation: Invitation) -> None:
        self._process = EngineProcess([sys.executable, "-P", "-m", module, *words], invitation)
        #: What the driver has told, and the end of the lines that told it. Several threads read
        #: on, and each replaces both at once: they fit together, whichever comes last.
        self._read: tuple[DriverReport, int] = (DriverReport(), 0)

    def report(self) -> DriverReport:
        """Return all that it has told."""
        report, since = self._read
        lines, end = self._process.lines(since)
        if lines:
            report = report.after(lines)
            self._read = report, end
        return report

    def end(self) -> str:
        """Return how it has ended and what it has said last; empty: it runs."""
        return self._process.end()

    def stop(self, patience_s: float) -> None:
        """End the job and the driver.

        Args:
            patience_s: seconds that the driver has for that.
        """
        self._process.stop(patience_s)
