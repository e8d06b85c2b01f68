"""Agents on hosts that the user reaches by ssh.

Runs in: the notebook's process. The user's own ``ssh`` runs, with its configuration, keys, agents
and jump hosts. The invitation goes through its standard input; when that ends, because the notebook
has ended, the agent ends as well. With ``--via LOGIN`` it is the ssh of a login node.
"""

import shlex
import sys
from typing import TYPE_CHECKING

from nbddp.controller.launch.engine import EngineOptions
from nbddp.controller.launch.engine_process import ask
from nbddp.controller.launch.relayed_commands import make_commands
from nbddp.controller.launch.ssh_words import ssh_words
from nbddp.errors import BadOptionError
from nbddp.system import network
from nbddp.wire.launch_specs import Invitation

if TYPE_CHECKING:
    from nbddp.controller.launch.commands import Program

_JOIN_S = 60.0
_STOP_S = 1.0


class SshEngine:
    """Starts an agent on each host.

    Raises:
        BadOptionError: there are not as many hosts as nodes.
    """

    join_timeout_s: float | None = _JOIN_S

    def __init__(self, options: EngineOptions) -> None:
        if len(options.hosts) < options.nnodes:
            raise BadOptionError(
                f"--launcher ssh: a host for each node is needed, and there are "
                f"{len(options.hosts)} hosts for {options.nnodes} nodes; "
                "legal: --hosts a,b or --hostfile FILE"
            )
        self._options = options
        #: With ``--via`` it is that of the login node.
        self.owns_address = bool(options.via)
        self._commands = make_commands(options, towards=options.hosts[0])
        self._processes: dict[int, Program] = {}

    def address(self) -> str:
        """Return the address of this machine towards the first host; of a tunnel: loopback."""
        if self._options.tunnel or self._options.via:
            return "127.0.0.1"
        host = self._options.hosts[0]
        try:
            return network.address_towards(_host_name(host))
        except OSError:
            return network.own_address()  # behind a jump host, perhaps

    def start(self, invitation: Invitation) -> None:
        """Start ``ssh HOST python -m nbddp agent --connect -`` for each node.

        Raises:
            PoolStartError: there is no ssh.
        """
        for node in range(self._options.nnodes):
            host = self._options.hosts[node]
            python = shlex.quote(self._options.python or sys.executable)
            command = f"NBDDP_NODE={node} exec {python} -P -m nbddp agent --connect -"
            forward = ""
            if self._options.tunnel:
                port = network.split_address(invitation.addresses[0])[1]
                # The far end listens on its loopback only; CURVE protects it from other users.
                forward = f"{port}:127.0.0.1:{port}"
            words = ssh_words(host, command, forward, self._options.arguments)
            self._processes[node] = self._commands.start(words, invitation)

    def state(self) -> str:
        """Return the hosts."""
        return (
            self._commands.state()
            or f"ssh to {', '.join(self._options.hosts[: self._options.nnodes])}"
        )

    def end(self, node: int) -> str:
        """Return how the ssh of a node has ended, and what it has written."""
        if failure := self._commands.failure():
            return failure
        process = self._processes.get(node)
        how = process.end() if process is not None else ""
        host = self._options.hosts[node]
        where = f"on {self._options.via}" if self._options.via else "in a terminal"
        return how and (
            f"ssh {how}. Next: try `ssh {host}` {where}; --python PATH names the Python there"
        )

    def stop(self) -> None:
        """Close the standard inputs, which ends the agents, and end each ssh."""
        for process in self._processes.values():
            process.close_input()
        for process in self._processes.values():
            process.stop(_STOP_S)
        self._processes.clear()
        self._commands.stop()


def _host_name(host: str) -> str:
    """Return the address that ssh would use for a host of its configuration."""
    lines = ask(["ssh", "-G", host]).splitlines()
    names = [line.split()[1] for line in lines if line.startswith("hostname ")]
    return names[0] if names else host.rpartition("@")[2]
