"""The driver of an engine: a process of nbddp beside the notebook, which tells what it sees.

Runs in: the notebook's process. The invitation goes through the driver's standard input, whose end
ends the driver and what it has started.
"""

import sys
from collections.abc import Sequence

from nbddp.controller.launch import driver_report
from nbddp.controller.launch.driver_report import DriverReport
from nbddp.controller.launch.engine_process import EngineProcess
from nbddp.wire.invitation import Invitation


class DriverProcess:
    """The running driver.

    Args:
        module: runs in it.
        options: words of its command line.
        invitation: for the agents.
        nnodes: number of them.
    """

    def __init__(
        self, module: str, options: Sequence[str], invitation: Invitation, nnodes: int
    ) -> None:
        self._nnodes = nnodes
        #: Numbers of the agents by node: those that came later are told from the first ones.
        self._numbers = list(range(nnodes))
        self._process = EngineProcess([sys.executable, "-P", "-m", module, *options], invitation)
        #: The report of the driver, and the end of the lines that are in it. Several threads read
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

    def replace(self, node: int) -> None:
        """Ask for another agent in the place of a lost one."""
        self._numbers[node] += self._nnodes
        self._process.say(driver_report.start_request(self._numbers[node]))

    def withdraw(self, node: int) -> None:
        """Ask it to end the agent of a node."""
        self._process.say(driver_report.end_request(node))

    def end(self, node: int, ended_text: str) -> str:
        """Return why the agent of a node, or all of them, have ended.

        Args:
            node: its number.
            ended_text: for a driver that has ended and told nothing, with ``{how}``.
        """
        report, number = self.report(), self._numbers[node]
        if number in report.ends or report.failure:
            return report.ends.get(number) or report.failure
        how = self._process.end()
        return how and ended_text.format(how=how)

    def stop(self, patience_s: float) -> None:
        """End it: by the end of its input, then by signals, with ``patience_s`` before each."""
        self._process.stop(patience_s)
