"""The report of the driver of an engine, and the requests to it, as lines of text.

Runs in: the driver and the notebook's process. Pure.

Agents have numbers: the first one of node 1 of 2 is number 1, the one that takes its place 3.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field

_MARK = "nbddp-driver "
_STATE, _FAILURE = "state", "failure"
_START, _END = "start", "end"


@dataclass(frozen=True)
class DriverReport:
    """All that the driver has told.

    >>> lines = [state_line("Ray: connects"), end_line(1, "its node has ended"), "another line"]
    >>> DriverReport().after(lines)
    DriverReport(state='Ray: connects', failure='', ends={1: 'its node has ended'})
    """

    state: str = ""  #: what the job waits for
    failure: str = ""  #: why there can be no pool
    ends: dict[int, str] = field(default_factory=dict)  #: reasons by number of the agent

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


def end_line(number: int, text: str) -> str:
    """Write why an agent has ended."""
    return _line(number, text)


def start_request(number: int) -> str:
    """Write that an agent is wanted."""
    return f"{_START} {number}"


def end_request(node: int) -> str:
    """Write that the agent of a node is not wanted any longer."""
    return f"{_END} {node}"


def read_requests(text: str) -> list[tuple[bool, int]]:
    """Return the requests: whether an agent is wanted, and its number, or that of its node.

    >>> read_requests(start_request(3) + chr(10) + end_request(1))
    [(True, 3), (False, 1)]
    """
    requests = []
    for line in text.splitlines():
        kind, _, number = line.partition(" ")
        if kind in (_START, _END) and number.isdecimal():
            requests.append((kind == _START, int(number)))
    return requests


def _line(key: str | int, text: str) -> str:
    return _MARK + json.dumps([key, text])
