"""Serves messages until the agent has ended its ranks, and then ends its process.

Runs in: the agent process, its main thread.
"""

import os
import signal
import sys
import time
import traceback
from multiprocessing import resource_tracker
from pathlib import Path
from typing import NoReturn

from nbddp.agent.agent import Agent
from nbddp.system import kept_pools, process_tree

_TRACKER_S = 1.0


def serve_and_exit(agent: Agent, folder: Path) -> NoReturn:
    """Serve until this agent is to end, and end the process.

    Args:
        agent: has its sockets.
        folder: of the pool, which is removed if no other process will do that.
    """
    exit_code = 0
    try:
        agent.serve()
    except BaseException:  # noqa: BLE001 - it goes to the agent's log, which the notebook shows
        traceback.print_exc()
        exit_code = 1
    finally:
        end_helpers()
        if agent.owns_folder:
            kept_pools.end(folder, agent.end.cause)
        sys.stdout.flush()
        sys.stderr.flush()
        # sys.exit would let multiprocessing wait for processes that it believes to be its own.
        os._exit(exit_code)


def end_helpers() -> None:
    """End the fork server, then the resource tracker.

    The tracker ends by itself when no process holds its pipe any more. It first removes the shared
    memory that cells have left in /dev/shm.
    """
    tracker_pid = getattr(resource_tracker._resource_tracker, "_pid", None)
    tracker_fd = resource_tracker.getfd() if tracker_pid is not None else None
    for pid in process_tree.descendants_of(os.getpid()) - {tracker_pid}:
        process_tree.kill_quietly(pid, signal.SIGKILL)
    if tracker_pid is None or tracker_fd is None:
        return
    os.close(tracker_fd)
    give_up_at = time.monotonic() + _TRACKER_S
    while os.waitpid(tracker_pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > give_up_at:
            process_tree.kill_quietly(tracker_pid, signal.SIGKILL)
        time.sleep(0.002)
