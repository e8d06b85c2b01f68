"""What the driver of an engine tells the engine: lines of its output.

Runs in: the driver, which writes them, and the notebook's process, which reads them. Pure.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

_MARK = "nbddp-driver "
_STATE, _FAILURE = "state", "failure"


@dataclass(frozen=True)
class DriverReport:
    """All that the driver has told.

    >>> lines = [state_line("Ray: connects"), end_line(1, "its node has ended"), "another line"]
    >>> DriverReport().after(lines)
    DriverReport(state='Ray: connects', failure='', ends={1: 'its node has ended'})
    """

    state: str = ""  #: what the job waits for
    failure: str = ""  #: why there can be no pool
    ends: dict[int, str] = field(default_factory=dict)  #: reasons by node

    def after(self, lines: Iterable[str]) -> "DriverReport":
        """Return the report after more lines; those of libraries, and torn ones, are left out."""
        texts = {_STATE: self.state, _FAILURE: self.failure}
        ends = dict(self.ends)
        for line in lines:
            if not line.startswith(_MARK):
                continue
            try:
                key, text = json.loads(line.removeprefix(_MARK))
            except ValueError:
                continue  # a line of a library has torn it
            if isinstance(key, int):
                ends.setdefault(key, text)
            else:
                texts[key] = text
        return DriverReport(texts[_STATE], texts[_FAILURE], ends)


def state_line(text: str) -> str:
    """Write what the job waits for."""
    return _line(_STATE, text)


def failure_line(text: str) -> str:
    """Write why there can be no pool."""
    return _line(_FAILURE, text)


def end_line(node: int, text: str) -> str:
    """Write why the agent of a node has ended."""
    return _line(node, text)


def _line(key: str | int, text: str) -> str:
    return _MARK + json.dumps([key, text])
