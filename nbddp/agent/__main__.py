"""``python -m nbddp.agent CONNECTION_FILE``: the agent process of one node.

The fork server starts before anything else is imported: it needs a second to load torch, and the
agent needs a tenth of that to load ZeroMQ.

Runs in: the agent process, its main thread.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from multiprocessing import resource_tracker
from pathlib import Path

from nbddp.agent.fork_server import ProcessMaker
from nbddp.agent.parent_watch import ParentWatch
from nbddp.settings import AGENT_PID_ENV
from nbddp.system import pool_folder, process_tree
from nbddp.wire.launch_specs import AgentLaunch

_TRACKER_S = 1.0


def main(connection_file: Path) -> None:
    """Serve until the hub ends this agent or the notebook's process has ended."""
    launch = AgentLaunch.read(connection_file)
    pool_folder.hold(Path(launch.folder))  # until this process ends
    connection_file.unlink()
    # The files that multiprocessing puts into temporary folders are removed with the pool's folder.
    tempfile.tempdir = launch.folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process_tree.adopt_orphans()
    os.environ[AGENT_PID_ENV] = str(os.getpid())
    maker = ProcessMaker(launch.settings.start_method)
    parent_watch = ParentWatch(launch.node, launch.controller_pid, maker)
    if parent_watch.has_lost_notebook:
        shutil.rmtree(launch.folder, ignore_errors=True)
        return
    parent_watch.start()
    maker.warm()

    from nbddp.agent.agent import Agent  # noqa: PLC0415 - the fork server must start first

    agent = Agent(launch, maker, parent_watch)
    signal.signal(signal.SIGTERM, lambda *_: agent.shut_down(launch.settings.stop_grace_s))
    exit_code = 0
    try:
        agent.serve()
    except BaseException:  # noqa: BLE001 - it goes to the agent's log, which the notebook shows
        traceback.print_exc()
        exit_code = 1
    finally:
        _end_helpers()
        if agent.is_orphan:
            shutil.rmtree(launch.folder, ignore_errors=True)
        sys.stdout.flush()
        sys.stderr.flush()
        # sys.exit would let multiprocessing wait for processes that it believes to be its own.
        os._exit(exit_code)


def _end_helpers() -> None:
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


if __name__ == "__main__":
    main(Path(sys.argv[1]))
