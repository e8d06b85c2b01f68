"""The process that hosts the TCPStore.

Runs in: the store process, on node 0. It is not one of the ranks, so that the death of rank 0 does
not end the rendezvous; all ranks are its clients, as under torchrun's agent.
"""

import os
import signal
import threading

import torch.distributed as dist

from nbddp.rank import preload
from nbddp.system import process_tree
from nbddp.wire.launch_specs import StoreLaunch


def main(launch: StoreLaunch) -> None:
    """Serve until the process is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process_tree.die_with_parent(preload.FORK_SERVER_PID if launch.forked else launch.agent_pid)
    os.setsid()
    answer_fd = launch.answer.take()
    listener_fd = launch.listener.take()
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]  # missing in torch's own types
            launch.host,
            launch.port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener_fd,
        )
    except Exception as error:
        os.write(answer_fd, f"{type(error).__name__}: {error}".encode())
        raise
    os.write(answer_fd, b"ready")
    os.close(answer_fd)
    threading.Event().wait()
    del store
