"""Agents on hosts that the user reaches by ssh.

Runs in: the notebook's process. The user's own ``ssh`` runs, with its configuration, keys, agents
and jump hosts. The invitation goes through its standard input; when that ends, because the notebook
has ended, the agent ends as well.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import IO

from nbddp.controller.launch.engine import EngineOptions
from nbddp.errors import BadOptionError, PoolStartError
from nbddp.system import network
from nbddp.wire.launch_specs import Invitation

_JOIN_S = 60.0
_LOG_BYTES = 2000
_STOP_S = 1.0
_TIMEOUT_S = 10


@dataclass
class _Connection:
    """One ssh, its output, and the agent at its other end."""

    host: str
    process: "subprocess.Popen[bytes]"
    log: IO[bytes]

    def last_output(self) -> str:
        """Return the end of what ssh and the agent have written."""
        self.log.seek(0, os.SEEK_END)
        self.log.seek(max(0, self.log.tell() - _LOG_BYTES))
        return self.log.read().decode("utf-8", "replace").strip()


class SshEngine:
    """Starts an agent on each host.

    Raises:
        BadOptionError: there are not as many hosts as nodes.
    """

    join_timeout_s: float | None = _JOIN_S

    def __init__(self, options: EngineOptions) -> None:
        if len(options.hosts) < options.nnodes:
            raise BadOptionError(
                f"--launcher ssh: {options.nnodes} nodes need as many hosts, and there "
                f"{'is' if len(options.hosts) == 1 else 'are'} {len(options.hosts)}; "
                "legal: --hosts a,b or --hostfile FILE"
            )
        self._options = options
        self._connections: dict[int, _Connection] = {}

    def address(self) -> str:
        """Return the address of this machine towards the first host; of the tunnel: loopback.

        Raises:
            PoolStartError: ssh does not know the host, or no route leads there.
        """
        if self._options.tunnel:
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
            argv = ["ssh", "-T", "-o", f"ConnectTimeout={_TIMEOUT_S}", "-o", "BatchMode=yes"]
            if self._options.tunnel:
                port = network.split_address(invitation.addresses[0])[1]
                # The far end listens on its loopback only; CURVE protects it from other users.
                argv += ["-o", "ExitOnForwardFailure=yes", "-R", f"{port}:127.0.0.1:{port}"]
            log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the connection
            try:
                process = subprocess.Popen(
                    [*argv, *self._options.arguments, host, command],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                log.close()
                raise PoolStartError(
                    f"the pool did not start: ssh cannot be run ({error.strerror}). Next: install "
                    "an ssh client"
                ) from None
            self._connections[node] = _Connection(host, process, log)
            assert process.stdin is not None
            try:
                process.stdin.write(invitation.text().encode() + b"\n")
                process.stdin.flush()
            except OSError:
                pass  # it has ended; `end` says why

    def state(self) -> str:
        """Return the hosts whose ssh has no agent yet."""
        return f"ssh to {', '.join(each.host for each in self._connections.values())}"

    def end(self, node: int) -> str:
        """Return how the ssh of a node has ended, and what it has written."""
        connection = self._connections.get(node)
        if connection is None or connection.process.poll() is None:
            return ""
        code = connection.process.returncode
        text = connection.last_output()
        return f"ssh {connection.host} ended with exit code {code}{text and ': '}{text}"

    def stop(self) -> None:
        """Close the standard inputs, which ends the agents, and end each ssh."""
        for connection in self._connections.values():
            if connection.process.stdin is not None:
                try:
                    connection.process.stdin.close()
                except OSError:
                    pass
        for connection in self._connections.values():
            try:
                connection.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                connection.process.kill()
                connection.process.wait()
            connection.log.close()
        self._connections.clear()


def _host_name(host: str) -> str:
    """Return the address that ssh would use for a host of its configuration."""
    try:
        answer = subprocess.run(
            ["ssh", "-G", host], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return host.rpartition("@")[2]
    names = [line.split()[1] for line in answer.splitlines() if line.startswith("hostname ")]
    return names[0] if names else host.rpartition("@")[2]
