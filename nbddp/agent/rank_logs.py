"""Reads the end of a log for the notebook.

Runs in: the agent's thread.
"""

from nbddp.agent.rank_process import log_path_of
from nbddp.system.log_tail import read_tail
from nbddp.wire.launch_specs import AgentLaunch
from nbddp.wire.messages import LogRead, ReadLog

#: The end of a log that is sent at once: the agent does nothing else meanwhile.
_MAX_LOG_BYTES = 4 * 1024 * 1024


def read_log(launch: AgentLaunch, request: ReadLog) -> LogRead:
    """Read the end of the log of a rank of this node."""
    text, size, problem = "", 0, ""
    try:
        path = log_path_of(launch, request.rank)
        text, size = read_tail(path, min(request.max_bytes, _MAX_LOG_BYTES))
    except OSError as error:
        problem = error.strerror or str(error)
    return LogRead(number=request.number, rank=request.rank, text=text, size=size, problem=problem)
