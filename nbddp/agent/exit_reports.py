"""Messages about ranks that ended, with causes that the exit code lacks, or that did not start.

Runs in: the agent's thread.
"""

import signal
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from nbddp.agent.child_process import NOT_REPORTED
from nbddp.agent.fork_server import END_SHOWS_S, ProcessMaker
from nbddp.agent.rank_process import RankProcess
from nbddp.system.os_limits import limit_advice
from nbddp.wire.flight_recorder import Operation, Site
from nbddp.wire.message_types import (
    AgentEnd,
    ErrorInfo,
    ExitCause,
    ForkServerEnd,
    KillRequest,
    LostAgent,
    UnknownStatus,
)
from nbddp.wire.messages import RankExited, StartFailed


class EndsAsWell(Protocol):
    """Says why the agent ends; None: it does not."""

    def __call__(self, *, is_of_sigterm: bool) -> AgentEnd | None:
        """Take whether SIGTERM has ended the process in question."""


class ExitReader:
    """Builds the message that reports the end of a rank.

    Args:
        node: of the agent.
        maker: makes processes.
        ends_as_well: says whether the agent ends, too.
    """

    def __init__(self, node: int, maker: ProcessMaker, ends_as_well: EndsAsWell) -> None:
        self._node = node
        self._maker = maker
        self._ends_as_well = ends_as_well
        self._oom_kills_seen = _out_of_memory_kills()

    def describe(
        self,
        process: RankProcess,
        exit_code: int | None,
        operations: Sequence[Operation] = (),
        last_line: tuple[Site, int] | None = None,
    ) -> RankExited:
        """Build the message.

        Args:
            process: the process; its pipes must have been read empty.
            exit_code: its exit code; None: it is not known.
            operations: those that it has issued, the newest last.
            last_line: a line of the user's code that it was at, and when, in ns.
        """
        if last_line is not None and operations and operations[-1].time_created_ns > last_line[1]:
            last_line = None  # the operation says more
        available, total = _memory()
        kills_before = self._oom_kills_seen
        self._oom_kills_seen = _out_of_memory_kills()
        cause: ExitCause | None = None
        if exit_code is None:
            cause = UnknownStatus()
        elif exit_code == NOT_REPORTED:
            cause = self._maker.fork_server_end(END_SHOWS_S)
        elif exit_code == -signal.SIGKILL and process.was_killed_on_request:
            cause = KillRequest()
        if agent_end := self._ends_as_well(is_of_sigterm=is_of_sigterm(exit_code, cause)):
            cause = LostAgent(self._node, agent_end)
        return RankExited(
            rank=process.rank,
            pid=process.pid,
            exit_code=NOT_REPORTED if exit_code is None else exit_code,
            cause=cause,
            out_of_memory=(
                exit_code == -signal.SIGKILL and (self._oom_kills_seen or 0) > (kills_before or 0)
            ),
            counts_memory_kills=self._oom_kills_seen is not None,
            last_output=process.pipes.last_output(),
            fault=process.pipes.crash(),
            last_operation=operations[-1] if operations else None,
            last_line=None if last_line is None else last_line[0],
            last_line_age_s=(
                0.0 if last_line is None else (time.monotonic_ns() - last_line[1]) / 1e9
            ),
            memory_available=available,
            memory_total=total,
        )


def is_of_sigterm(exit_code: int | None, cause: ExitCause | None) -> bool:
    """Return whether SIGTERM ended a process, or the fork server and the process with it."""
    code = cause.exit_code if isinstance(cause, ForkServerEnd) else exit_code
    return code == -signal.SIGTERM


def _out_of_memory_kills() -> int | None:
    """Return how often the kernel has killed a process for lack of memory; None: it does not count.

    The count is that of the whole machine since Linux 4.13, else that of our control group. Other
    processes may be killed at the same moment: a rank that SIGKILL ended just then is very likely
    one of them.
    """
    try:
        return _count_in(Path("/proc/vmstat"))
    except (OSError, KeyError):
        pass
    try:
        group = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
        return _count_in(Path("/sys/fs/cgroup", group.lstrip("/"), "memory.events"))
    except (OSError, KeyError):
        return None


def _memory() -> tuple[int, int]:
    """Return the available and the total memory of the machine in bytes; 0: not known."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        kib = {name: int(value.split()[0]) for name, _, value in (s.partition(":") for s in lines)}
        return kib["MemAvailable"] * 1024, kib["MemTotal"] * 1024
    except (OSError, KeyError, ValueError, IndexError):
        return 0, 0


def _count_in(path: Path) -> int:
    return int(dict(line.split() for line in path.read_text().splitlines())["oom_kill"])


# --- ranks and stores that could not be started --------------------------------------------------


def ends_with_agent(error: Exception, maker: ProcessMaker, ends_as_well: EndsAsWell) -> bool:
    """Return whether no process could be made since the agent ends, too, which it reports itself.

    The scheduler of a job sends SIGTERM to all processes of the job, also to a fork server that
    loads torch.
    """
    has_no_server = isinstance(error, EOFError | OSError)
    cause = maker.fork_server_end(END_SHOWS_S) if has_no_server else None
    return ends_as_well(is_of_sigterm=is_of_sigterm(None, cause)) is not None


def start_failure(node: int, rank: int | None, error: Exception) -> StartFailed:
    """Build the message that the store (``rank`` None) or a rank could not be started."""
    advice = limit_advice(error)
    return StartFailed(
        node=node,
        rank=rank,
        error=ErrorInfo(
            ename=type(error).__name__,
            evalue=f"{error}. Next: {advice}" if advice else str(error),
            traceback=traceback.format_exception(error),
        ),
    )
