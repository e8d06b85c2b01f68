"""The limits that the environment can change, and all ``NBDDP_*`` variables.

A limit that nobody has a reason to change is a constant of the module that keeps it.

Runs in: every process. The notebook reads the environment once, when a pool starts; agents and
ranks get the values that they need in messages, so that all processes agree.
"""

import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, get_args

from nbddp.errors import BadOptionError

#: The start method of rank processes. ``fork`` needs Linux; ``spawn`` works everywhere.
StartMethod = Literal["auto", "fork", "spawn"]

#: Environment variables are named ``NBDDP_`` + the field's name in capitals.
ENV_PREFIX = "NBDDP_"
#: Marks a process as part of a pool: the pool's id. Set in agents, ranks and the store.
POOL_ID_ENV = "NBDDP_POOL_ID"
#: Names the rank that started a process; set in the descendants of a rank.
RANK_MARK_ENV = "NBDDP_RANK_MARK"
#: The file in a pool's folder that describes its kernel, for ``nbddp console``.
NOTEBOOK_FILE = "notebook.json"
#: Messages of ``nbddp console`` on the control channel, and their answers.
CONSOLE_REQUEST = "nbddp_console_request"
CONSOLE_REPLY = "nbddp_console_reply"
#: The prefix of the ids of displays that are empty in the end, such as the progress line.
LIVE_PREFIX = "nbddp-live-"
#: More modules for the fork server, with commas: ``torch._dynamo`` spares each rank the import by
#: its first DistributedDataParallel or optimizer. They must start no thread and not touch CUDA.
PRELOAD_ENV = "NBDDP_PRELOAD"
#: The folder of the user's configuration of nbddp, in the place of ~/.config/nbddp.
CONFIG_DIR_ENV = "NBDDP_CONFIG_DIR"
#: The folder of this user's pools and their records, in the place of the temporary folders and of
#: ~/.nbddp/kept: a notebook knows only the pools in it.
POOLS_DIR_ENV = "NBDDP_POOLS_DIR"
#: Marks a process as a descendant of one agent: the pool's id and the node.
AGENT_ENV = "NBDDP_AGENT"
#: The pid of the agent with which the fork server ends. Not set in ranks.
AGENT_PID_ENV = "NBDDP_AGENT_PID"
#: Lines of an agent on another machine about its start begin with this.
AGENT_SAYS = "nbddp agent on "
#: The variable that tells an agent the number of its node.
NODE_ENV = "NBDDP_NODE"
#: The user's PYTHONPATH, while an agent has another one to find nbddp; ranks get the user's back.
USER_PYTHONPATH_ENV = "NBDDP_USER_PYTHONPATH"


#: The names that each rank has before its first cell.
PREDEFINED_NAMES = (
    "rank",
    "world_size",
    "local_rank",
    "local_world_size",
    "device",
    "torch",
    "dist",
    "nbddp",
)


def is_rank() -> bool:
    """Return whether this process is a rank, or was forked from one: only ranks load that module.

    >>> is_rank()
    False
    """
    return "nbddp.rank.main" in sys.modules


@dataclass(frozen=True)
class Settings:
    """Limits that a user can change through the environment before ``%ddp start``."""

    start_method: StartMethod = "auto"
    start_timeout_s: float = 60.0  #: from ``%ddp start`` until the last rank is ready
    stop_grace_s: float = 0.4  #: between the request to end, SIGTERM and SIGKILL
    death_grace_s: float = 0.6  #: from a rank's death to the end of the cell on the others
    interrupt_grace_s: float = 2.0  #: for a rank that was interrupted or freed to leave its cell
    interrupt_wait_s: float = 5.0  #: ``%ddp interrupt`` waits this long for the end of the cell
    cleanup_grace_s: float = 10.0  #: for a rank that was freed and still runs the user's code
    quiet_after_s: float = 0.2  #: from the last move of open operations to a probe of the ranks
    look_timeout_s: float = 0.4  #: a rank that does not answer a probe in this time is silent
    compare_timeout_s: float = 5.0  #: for a rank to send its records after a cell that ended well
    own_timeout_s: float = 60.0  #: operations with a shorter timeout of their own are left to it
    rebuild_timeout_s: float = 20.0  #: for the start of fresh ranks and the rebuild of groups
    silent_after_s: float = 5.0  #: a node on another machine is silent after this time
    node_timeout_s: float = 60.0  #: and lost after this time
    job_ask_s: float = 300.0  #: an agent asks Slurm so often when its job ends; limits change
    patience_s: float = 120.0  #: an agent on another machine ends after this silence of the hub
    output_flush_s: float = 0.03  #: an agent holds back the text of a rank for at most this time
    output_fold_s: float = 0.06  #: the notebook waits this long for equal lines of other ranks
    output_expect_s: float = 1.0  #: the same, for a silent rank whose equal lines always came
    output_batch_bytes: int = 256 * 1024  #: text in one message
    output_backlog_bytes: int = 16 * 1024 * 1024  #: unsent or unread text in memory, for each pool
    notebook_burst_bytes: int = 64 * 1024  #: text that a cell may show at once
    notebook_bytes_per_s: int = 32 * 1024  #: steady text of a cell; the server drops 1 MB/s
    notebook_total_bytes: int = 1024 * 1024  #: text that a cell may show in all
    fold_output: bool = True  #: off for `jupyter console`, which shows no updates of displays
    log_limit_bytes: int = 256 * 1024 * 1024  #: of one rank; together half of the free disk
    log_dir: str = ""  #: the folder of the ranks' logs; default: the pool's own folder
    arena: bool = True  #: send large values through shared memory; else in chunks over the socket
    progress_after_s: float = 1.0  #: a cell that runs longer shows a progress line

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Read the settings from ``NBDDP_*`` variables.

        Args:
            environ: the variables; None: those of this process.

        Raises:
            BadOptionError: a value has the wrong type, is negative, or is not legal.
        """
        environ = os.environ if environ is None else environ
        values: dict[str, object] = {}
        for field in fields(cls):
            name = ENV_PREFIX + field.name.upper()
            if name in environ:
                values[field.name] = _parse(name, environ[name], field.default)
        if isinstance(folder := values.get("log_dir"), str):
            values["log_dir"] = os.path.expanduser(folder)  # noqa: PTH111 - "" stays ""
        return cls(**values)  # type: ignore[arg-type]  # each value was parsed to its field's type


def _parse(name: str, text: str, default: object) -> object:
    """Convert ``text`` to the type of ``default``."""
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
