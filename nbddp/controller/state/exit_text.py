"""Words for how processes and cells end: exits, crashes, errors and their lines.

Runs in: the notebook's process. Pure.
"""

import re
import signal
from collections.abc import Mapping

from nbddp.controller.state.actions import TellUser
from nbddp.wire.flight_recorder.schema import Site, cell_name
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import RankExited, StoreExited
from nbddp.wire.rank_set import RankSet

_MAX_LINE = 300
_MAX_FRAMES = 6
#: `faulthandler` leaves out what is below a hundred frames.
_DEEP = re.compile(r"^  \.\.\.$", re.MULTILINE)
#: libzmq and Gloo end the process when their own descriptors are gone.
_CLOSED_UNDER_US = re.compile(
    r"^Assertion failed: .*\(src/(signaler|epoll|poller)"
    r"|\[enforce fail at .*/?gloo/transport/tcp/loop\.cc:"
    r"|Bad file descriptor",
    re.MULTILINE,
)
_FAULT_FRAME = re.compile(r'^  File "(.+)", line (\d+) in (.+)$', re.MULTILINE)
_CELL_FILE = re.compile(r"<ipython-input-(\d+)-\w+>")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
#: As IPython writes it: a frame in a cell, and the line at which its arrow points.
_CELL_FRAME = re.compile(
    r"^Cell In\[(\d+)\], line (\d+)(?:, in (\w+))?[^\n]*"
    r"(?:\n(?!-+>)[^\n]+)*(?:\n-+> ?\d+ ([^\n]*))?",
    re.MULTILINE,
)


def describe_exit(exited: RankExited) -> tuple[str, str]:
    """``(how the process ended, what probably happened)``; signals by name."""
    if exited.reason:
        return exited.reason, ""
    name = describe_code(exited.exit_code)
    if exited.exit_code >= 0:
        return name, "the cell, or a library, called os._exit() or C's exit()"
    how = f"{name} (signal {-exited.exit_code})"
    if exited.out_of_memory:
        return how, "the system ran out of memory and the kernel ended this process"
    if name in ("SIGSEGV", "SIGBUS") and _DEEP.search(exited.fault):
        return how, (
            "the stack overflowed: a function calls itself too often for the stack of the process "
            "(`ulimit -s`); sys.setrecursionlimit() cannot make that larger"
        )
    if name == "SIGABRT" and _CLOSED_UNDER_US.search(exited.last_output):
        return how, "the cell closed descriptors of files that it had not opened (os.closerange?)"
    likely = {
        "SIGKILL": "the system ran out of memory, or someone ran `kill -9`",
        "SIGSEGV": "native code touched memory that is not its own",
        "SIGBUS": "native code touched memory that is not there; is /dev/shm full?",
        "SIGABRT": "native code gave up (an assertion, or an uncaught C++ exception)",
        "SIGFPE": "native code divided an integer by zero",
        "SIGILL": "native code is not made for this processor",
        "SIGTERM": "someone asked the process to end",
    }
    return how, likely.get(name, "")


def describe_code(exit_code: int) -> str:
    """``exit code 3``, or ``SIGKILL``."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def store_end(exited: StoreExited) -> str:
    """``the process of the store ended (SIGKILL)``."""
    return f"the process of the store ended ({exited.reason or describe_code(exited.exit_code)})"


def idle_exit_text(rank: int, how: str, kept: RankSet, failure: str) -> str:
    """What is told of a rank that exited between cells; ``kept`` are those that did not."""
    if failure:
        return f"rank {rank} exited ({how}) and could not be replaced: {failure}"
    others = f", those of {kept.describe()} are kept" if kept else ""
    return (
        f"rank {rank} exited ({how}) and was replaced by a fresh process: its variables are gone"
        f"{others}"
    )


def idle_exits(how_by_rank: Mapping[int, str], kept: RankSet, failure: str) -> list[TellUser]:
    """What users are told of the ranks that exited between cells."""
    return [
        TellUser(rank, idle_exit_text(rank, how, kept, failure))
        for rank, how in sorted(how_by_rank.items())
    ]


def one_line(error: ErrorInfo) -> str:
    """``ValueError: bad``."""
    first = error.evalue.strip().partition("\n")[0][:_MAX_LINE]
    return f"{error.ename}: {first}" if first else error.ename


def site_of(error: ErrorInfo) -> Site | None:
    """The innermost line of a cell in a traceback, if there is one."""
    frames = _CELL_FRAME.findall(_ANSI.sub("", "\n".join(error.traceback)))
    if not frames:
        return None
    cell, line, function, source = frames[-1]
    return Site(
        line=int(line), function=function or "<module>", source=source.strip(), cell=int(cell)
    )


def crash_site_lines(fault: str) -> list[str]:
    """Where in the user's code a fatal signal came, from what `faulthandler` wrote."""
    frames = []
    for file, line, function in _FAULT_FRAME.findall(fault):
        if "/IPython/" in file:
            break  # below are IPython and nbddp, above are the cell and what it called
        cell = _CELL_FILE.fullmatch(file)
        where = cell_name(int(cell[1])) if cell else file
        frames.append(f"{where}, line {line}, in {function}")
    return [
        f"  {'at' if number == 0 else 'called by':<9} {frame}"
        for number, frame in enumerate(frames[:_MAX_FRAMES])
    ]
