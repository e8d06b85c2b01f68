"""Every limit of nbddp and every ``NBDDP_*`` environment variable, in one place.

Runs in: every process. The notebook reads the environment once, when a pool starts; agents and
ranks get the values that matter to them in messages, so that all processes agree.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, get_args

from nbddp.errors import BadOptionError

#: How rank processes are made. ``fork`` needs Linux; ``spawn`` works everywhere.
StartMethod = Literal["auto", "fork", "spawn"]

#: Environment variables are named ``NBDDP_`` + the field's name in capitals.
ENV_PREFIX = "NBDDP_"
#: Marks a process as part of a pool: the pool's id. Set in agents, ranks and the store.
POOL_ID_ENV = "NBDDP_POOL_ID"
#: Names the rank to which a process belongs, for the processes that a rank starts.
RANK_MARK_ENV = "NBDDP_RANK_MARK"
#: In a pool's folder: which kernel has it, for ``nbddp console``.
NOTEBOOK_WORD = "notebook.json"
#: How the names of displays begin that are empty in the end, such as the progress line.
LIVE_PREFIX = "nbddp-live-"
#: More modules for the fork server, with commas: ``torch._dynamo`` saves each rank what the first
#: DistributedDataParallel or optimizer loads. They must start no thread and not touch CUDA.
PRELOAD_ENV = "NBDDP_PRELOAD"
#: Marks a process as a descendant of one agent: the pool's id and the node.
AGENT_ENV = "NBDDP_AGENT"
#: Tells the fork server whose end is its own. Not set in ranks.
AGENT_PID_ENV = "NBDDP_AGENT_PID"
#: The user's PYTHONPATH while an agent finds nbddp through ours; ranks get the user's back.
USER_PYTHONPATH_ENV = "NBDDP_USER_PYTHONPATH"


@dataclass(frozen=True)
class Settings:
    """Limits a user may change through the environment before ``%ddp start``."""

    start_method: StartMethod = "auto"
    start_timeout_s: float = 60.0  #: from ``%ddp start`` to the last rank being ready
    stop_grace_s: float = 0.4  #: between asking a rank to end, SIGTERM and SIGKILL
    death_grace_s: float = 0.6  #: from a rank's death to the end of the cell on the others
    interrupt_grace_s: float = 2.0  #: for a rank that was interrupted or freed to leave its cell
    interrupt_wait_s: float = 5.0  #: for which ``%ddp interrupt`` waits for the end of the cell
    cleanup_grace_s: float = 10.0  #: for a rank that was freed and still runs code of the user
    quiet_after_s: float = 0.2  #: from the last move of open operations to looking at the ranks
    look_timeout_s: float = 0.4  #: a rank that does not tell in time what it does is silent
    own_timeout_s: float = 60.0  #: operations with a shorter time-out of their own are left to it
    rebuild_timeout_s: float = 20.0  #: for fresh ranks to start and for groups to be re-formed
    output_flush_s: float = 0.03  #: longest time an agent holds back text of a rank
    output_fold_s: float = 0.06  #: longest time the notebook waits for equal lines of other ranks
    output_expect_s: float = 1.0  #: the same, while one that was never waited for in vain is silent
    output_batch_bytes: int = 256 * 1024  #: text sent at once
    output_backlog_bytes: int = 16 * 1024 * 1024  #: unsent or unread text kept in memory per pool
    notebook_burst_bytes: int = 64 * 1024  #: text a cell may show at once
    notebook_bytes_per_s: int = 32 * 1024  #: text a cell may show steadily; the server drops 1 MB/s
    notebook_total_bytes: int = 1024 * 1024  #: text a cell may show in all
    fold_output: bool = True  #: off for `jupyter console`, which shows no updates of displays
    log_limit_bytes: int = 256 * 1024 * 1024  #: of one rank; together half of the free disk
    log_dir: str = ""  #: where the logs of ranks are kept; default: the pool's own folder
    arena: bool = True  #: large values through shared memory; else in chunks over the socket
    progress_after_s: float = 1.0  #: a cell that runs longer shows a progress line

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Read the settings from ``NBDDP_*`` variables.

        Raises:
            BadOptionError: a variable holds a value of the wrong type.
        """
        environ = os.environ if environ is None else environ
        found: dict[str, object] = {}
        for field in fields(cls):
            name = ENV_PREFIX + field.name.upper()
            if name in environ:
                found[field.name] = _parse(name, environ[name], field.default)
        if isinstance(folder := found.get("log_dir"), str):
            found["log_dir"] = os.path.expanduser(folder)  # noqa: PTH111 - "" stays ""
        return cls(**found)  # type: ignore[arg-type]  # each value was parsed to its field's type


def _parse(name: str, text: str, default: object) -> object:
    """``text`` as a value of the type of ``default``."""
    if isinstance(default, bool):
        values = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}
        if text.lower() not in values:
            raise BadOptionError(f"{name}={text!r} is not a switch; use 1 or 0")
        return values[text.lower()]
    if isinstance(default, int | float):
        try:
            number = type(default)(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise BadOptionError(f"{name}={text!r} is not a number")
        if number < 0:
            raise BadOptionError(f"{name}={text!r} is negative")
        return number
    if name == ENV_PREFIX + "START_METHOD" and text not in get_args(StartMethod):
        raise BadOptionError(f"{name}={text!r}; legal: {', '.join(get_args(StartMethod))}")
    return text
