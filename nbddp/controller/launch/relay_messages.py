"""The messages between the notebook and the relay on a login node, as lines of JSON.

Runs in: the notebook's process and the relay, `nbddp.controller.launch.relay`. Pure.
"""

from collections.abc import Iterable

import msgspec

#: The relay's lines are between those of ssh, of a login shell and of Python.
RELAY_SAYS = "nbddp relay: "


class RunProgram(msgspec.Struct, frozen=True, tag=True):
    """Start a program that starts agents; its standard input gets the invitation."""

    number: int  #: names it from now on
    words: tuple[str, ...]
    needs: str = ""  #: the program that has to be in PATH; empty: the first word


class StopProgram(msgspec.Struct, frozen=True, tag=True):
    """End a program."""

    number: int


class AskProgram(msgspec.Struct, frozen=True, tag=True):
    """Run a command that ends soon; `Answer` has its output."""

    number: int
    words: tuple[str, ...]


class Beat(msgspec.Struct, frozen=True, tag=True):
    """The notebook is there. The relay ends after a long silence."""


Request = RunProgram | StopProgram | AskProgram | Beat


class Listening(msgspec.Struct, frozen=True, tag=True):
    """The relay listens for agents."""

    address: str  #: ``10.0.0.1:5555``
    relay: str = ""  #: its process and the start of that, for the one who ends it


class ProgramOutput(msgspec.Struct, frozen=True, tag=True):
    """A program has written lines."""

    number: int
    lines: tuple[str, ...]


class ProgramEnded(msgspec.Struct, frozen=True, tag=True):
    """A program has ended, or could not be started."""

    number: int
    how: str  #: as of `EngineProcess.end`; empty: the machine has no such program
    exit_code: int | None = None  #: None: it was not started


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The output of a command; empty: it cannot be run, or takes too long."""

    number: int
    text: str


Report = Listening | ProgramOutput | ProgramEnded | Answer


def request_line(request: Request) -> str:
    """Write a request as a line without its end."""
    return msgspec.json.encode(request).decode()


def read_request(line: str | bytes) -> Request:
    """Read a request. Raises ``msgspec.MsgspecError``: the line is none."""
    request: Request = msgspec.json.decode(line, type=Request)
    return request


def report_line(report: Report) -> str:
    """Write a report as a line without its end."""
    return RELAY_SAYS + msgspec.json.encode(report).decode()


def read_reports(lines: Iterable[str]) -> list[Report]:
    """Return the reports among lines; those of other programs are left out.

    >>> read_reports(["Welcome to login1", report_line(Listening("10.0.0.1:5555"))])
    [Listening(address='10.0.0.1:5555')]
    """
    reports: list[Report] = []
    for line in lines:
        if line.startswith(RELAY_SAYS):
            try:
                report: Report = msgspec.json.decode(line.removeprefix(RELAY_SAYS), type=Report)
            except msgspec.MsgspecError:
                continue  # a line of another program has torn it
            reports.append(report)
    return reports
