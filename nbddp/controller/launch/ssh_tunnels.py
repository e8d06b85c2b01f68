"""Tunnels through which the agents of a kept pool reach the notebook, made again after a cut.

    notebook <-- ssh -R --- sshd of a host, listens on its loopback <-- agent

Runs in: the notebook's process. The ssh of a tunnel starts no agent: `nbddp.agent.tunnel_end` at
its other end holds the tunnel while the notebook lives, and names the process of sshd.
"""

import shlex
from collections.abc import Callable, Sequence

from nbddp.controller.launch import lasting_ssh
from nbddp.controller.launch.engine_process import EngineProcess
from nbddp.controller.launch.lasting_ssh import (
    SILENCE,
    TUNNEL_END,
    LastingSsh,
    RunningSsh,
    SshKeeper,
)
from nbddp.controller.launch.ssh_words import ssh_words

#: Follows the words of that program about its own end of the connection.
_HELD = ": holds the tunnel of sshd "
#: A connection of its own: one that the user shares must not end with the tunnel.
_ALONE = ("-o", "ControlMaster=no", "-o", "ControlPath=none")
_STOP_S = 1.0


class Tunnel(LastingSsh):
    """The tunnel to one host.

    Args:
        host: as the user's ssh knows it.
        port: of the notebook, and of the host.
        python: the interpreter there.
        start: starts ssh with such a command line.
    """

    def __init__(
        self, host: str, port: int, python: str, start: Callable[[Sequence[str]], RunningSsh]
    ) -> None:
        super().__init__(python)
        self._host = host
        # The far end listens on its loopback only; CURVE protects it from other users.
        self._forward = f"{port}:127.0.0.1:{port}"
        self._start_ssh = start

    def connect(self) -> RunningSsh:
        """Start the tunnel."""
        words = [self._python, "-P", "-m", TUNNEL_END, "--patience", f"{lasting_ssh.PATIENCE_S:g}"]
        return self.run(f"exec {shlex.join(words)}", self._forward)

    def run(self, command: str, forward: str = "") -> RunningSsh:
        """Start ssh."""
        return self._start_ssh(ssh_words(self._host, command, forward, _ALONE, SILENCE))

    def holder(self, ssh: RunningSsh) -> str | None:
        """Return process and start of the sshd there."""
        for line in ssh.lines(0)[0]:
            _, said, sshd = line.partition(_HELD)
            if said:
                return "" if sshd.startswith("0 ") else sshd
        return None


class SshTunnels:
    """The tunnels of a pool, one to each host.

    Args:
        python: the interpreter on the hosts.
    """

    def __init__(self, python: str) -> None:
        self._python = python
        self._keeper = SshKeeper()

    def open(self, host: str, port: int) -> None:
        """Make a tunnel, and make it again whenever it has ended; it may be there already.

        Raises:
            PoolStartError: there is no ssh.
        """
        self._keeper.keep(host, Tunnel(host, port, self._python, EngineProcess))

    def failure(self, host: str) -> str:
        """Return how the ssh to a host has ended that never succeeded; empty: it may still."""
        return self._keeper.failure(host)

    def close(self) -> None:
        """End the tunnels."""
        self._keeper.close(_STOP_S)
