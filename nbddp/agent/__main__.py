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
from pathlib import Path

from nbddp.agent.fork_server import ProcessMaker
from nbddp.agent.lifeline_thread import LifelineThread
from nbddp.settings import AGENT_PID_ENV
from nbddp.system import pool_folder, process_tree
from nbddp.wire.launch_specs import AgentLaunch


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
    lifeline_thread = LifelineThread(launch.node, launch.controller_pid, maker)
    if lifeline_thread.has_lost_notebook:
        shutil.rmtree(launch.folder, ignore_errors=True)
        return
    lifeline_thread.start()
    maker.warm()

    from nbddp.agent.agent import Agent  # noqa: PLC0415 - the fork server must start first
    from nbddp.agent.agent_end import serve_and_exit  # noqa: PLC0415 - as above

    agent = Agent(launch, maker, lifeline_thread)
    signal.signal(signal.SIGTERM, lambda *_: agent.shut_down(launch.settings.stop_grace_s))
    serve_and_exit(agent, Path(launch.folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
