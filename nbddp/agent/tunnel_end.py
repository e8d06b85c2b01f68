"""The end of a tunnel on an agent's host: ``ssh -R`` with this program as its command.

    python -m nbddp.agent.tunnel_end --patience S          holds the tunnel
    python -m nbddp.agent.tunnel_end --end PID STARTED     ends another one, or a relay

After a cut, the sshd of the host may not notice for hours that the other end has gone. Until then
it holds the port, and refuses the next tunnel. So this program notices the silence of the
notebook, and names the process of sshd, so that the notebook can end it before it makes the next
tunnel.

Runs in: a process of its own on another machine, beside the agent. It ends with its standard input.
"""

import argparse
import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path

from nbddp.settings import AGENT_SAYS
from nbddp.system import process_tree

#: The process of a connection is named ``sshd`` or, from OpenSSH 9.8 on, ``sshd-session``.
_SSHD = "sshd"
_READ_BYTES = 4096
#: For a process to end after SIGTERM; a relay ends its programs first.
_END_S = 5.0


def sshd_of_this_connection() -> int:
    """Return the process of sshd that carries this connection; 0: it is another server."""
    own_session = os.getsid(0)  # sshd makes one for the command
    pid = os.getppid()
    while process_tree.session_and_start(pid)[0] == own_session:  # a shell between the two
        pid = _parent(pid)
    try:
        is_sshd = Path(f"/proc/{pid}/comm").read_text().startswith(_SSHD)
    except OSError:  # administrators may hide processes
        return 0
    return pid if is_sshd else 0


def _parent(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("PPid:")), 0)


def hold(patience_s: float) -> None:
    """Wait for the end of the standard input; after a silence, end the connection from here."""
    sshd = sshd_of_this_connection()
    started = process_tree.start_time(sshd)
    line = f"{AGENT_SAYS}{socket.gethostname()}: holds the tunnel of sshd {sshd} {started}\n"
    with suppress(OSError):  # the connection has ended
        os.write(sys.stdout.fileno(), line.encode())
    poller = select.poll()
    poller.register(sys.stdin.fileno(), select.POLLIN)
    while poller.poll(patience_s * 1000):
        if not os.read(sys.stdin.fileno(), _READ_BYTES):
            return
    end_process(sshd, started)


def end_process(pid: int, started: int) -> None:
    """End what holds the port, unless it has ended: the sshd of one connection, or a relay.

    Args:
        pid: its number.
        started: its start, so that no later process with this number is ended.
    """
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    # The descriptor stays that of one process, whatever becomes of the number.
    if process_tree.start_time(pid) == started:
        poller = select.poll()
        poller.register(process, select.POLLIN)
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(process, number)
            if poller.poll(_END_S * 1000):
                break
    os.close(process)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--patience", type=float)
    parser.add_argument("--end", nargs=2, type=int)
    options = parser.parse_args()
    if options.end:
        end_process(*options.end)
    else:
        hold(options.patience)


if __name__ == "__main__":
    main()
