"""How a rank ended: its status, and what the status alone does not tell.

Runs in: the agent's thread.
"""

import signal
from pathlib import Path

from nbddp.agent.forkserver import ProcessMaker
from nbddp.agent.processes import RankProcess
from nbddp.wire.messages import RankExited

#: What `multiprocessing` gives where the fork server has not told the status.
_NOT_TOLD = 255
#: The end of the fork server may show a moment later than that of its pipes.
_SERVER_S = 0.1


class ExitReader:
    """Makes the message that tells the end of a rank."""

    def __init__(self, maker: ProcessMaker) -> None:
        self._maker = maker
        self._oom_kills_seen = _out_of_memory_kills()

    def describe(self, process: RankProcess, exit_code: int | None) -> RankExited:
        """The message; the pipes of ``process`` have been read empty."""
        kills_before = self._oom_kills_seen
        self._oom_kills_seen = _out_of_memory_kills()
        reason = ""
        if exit_code is None:
            reason = "its exit status is not known"
        elif exit_code == _NOT_TOLD:
            reason = self._maker.fork_server_end(_SERVER_S)
        elif exit_code == -signal.SIGKILL:
            reason = process.ended_by
        return RankExited(
            rank=process.rank,
            pid=process.pid,
            exit_code=_NOT_TOLD if exit_code is None else exit_code,
            reason=reason,
            out_of_memory=exit_code == -signal.SIGKILL and self._oom_kills_seen > kills_before,
            last_output=process.pipes.last_output(),
            fault=process.pipes.fault(),
        )


def _out_of_memory_kills() -> int:
    """How often the kernel has killed a process of our control group for lack of memory."""
    try:
        group = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
        events = Path("/sys/fs/cgroup", group.lstrip("/"), "memory.events").read_text()
    except OSError:
        return 0
    counts = dict(line.split() for line in events.splitlines())
    return int(counts.get("oom_kill", 0))
