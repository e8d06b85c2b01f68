"""Agents on hosts that the user reaches by ssh.

Runs in: the notebook's process. The user's own ``ssh`` runs, with its configuration, keys, agents
and jump hosts. The invitation goes through its standard input; when that ends, because the notebook
has ended, the agent ends as well. With ``--via LOGIN`` it is the ssh of a login node.
"""

import shlex
import socket
import sys
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from nbddp.controller.launch.damaged_packages import damaged_package_step
from nbddp.controller.launch.engine import EngineOptions, LostNode
from nbddp.controller.launch.engine_end import EngineEnd
from nbddp.controller.launch.engine_process import ask, last_words
from nbddp.controller.launch.lasting_ssh import REACH_S, SSH_FAILED
from nbddp.controller.launch.missing_packages import missing_package
from nbddp.controller.launch.relayed_commands import RelayedCommands, make_commands
from nbddp.controller.launch.ssh_tunnels import SshTunnels
from nbddp.controller.launch.ssh_words import ssh_words
from nbddp.controller.options import check_hosts
from nbddp.errors import BadOptionError
from nbddp.settings import NODE_ENV
from nbddp.system import network
from nbddp.wire.invitation import Invitation

if TYPE_CHECKING:
    from nbddp.controller.launch.commands import Program

_JOIN_S = 60.0
_STOP_S = 1.0
#: More hosts whose agents have not come are counted.
_MAX_LATE = 4


class SshEngine:
    """Starts an agent on each host.

    Raises:
        BadOptionError: there are not as many hosts as nodes.
    """

    join_timeout_s: float | None = _JOIN_S

    def __init__(self, options: EngineOptions) -> None:
        check_hosts(options.hosts, options.nnodes)
        self._options = options
        #: With ``--via`` it is that of the login node.
        self.owns_address = bool(options.via)
        self._commands = make_commands(options, towards=options.hosts[0])
        self._hosts = list(options.hosts[: options.nnodes])  #: by node
        self._spare_hosts = list(options.hosts[options.nnodes :])
        self._processes: dict[int, Program] = {}
        self._tunnels = SshTunnels(self._python)

    @property
    def _python(self) -> str:
        return self._options.python or sys.executable

    def address(self) -> str:
        """Return the address of this machine towards the first host; of a tunnel: loopback."""
        if self._options.tunnel or self._options.via:
            return "127.0.0.1"
        host = self._options.hosts[0]
        try:
            return network.address_towards(_host_name(host, _configuration(host)))
        except OSError:
            return network.own_address()  # behind a jump host, perhaps

    def check_address(self, address: str) -> None:
        """Check that hosts do not look for the notebook on their own loopback.

        With ``--port``, a tunnel of the user may lead from there to the notebook.

        Raises:
            BadOptionError: they would.
        """
        options = self._options
        if options.tunnel or options.via or options.port or not network.is_loopback(address):
            return
        others = [host for host in self._hosts if _is_elsewhere(host)]
        if not others:
            return
        name, one = others[0], len(others) == 1
        has = ", ".join(own for _, own in network.interfaces() if not network.is_loopback(own))
        raise BadOptionError(
            f"address is {address!r}, which on {', '.join(others)} "
            f"{'is that machine itself' if one else 'is each of these machines itself'}: its agent "
            "would not reach the notebook. Legal: an address of this machine that the hosts reach"
            f"{f' (it has {has})' if has else ''}. Next: leave out --address, "
            f"which takes the address towards {name}; or --tunnel in its place, if ssh is to carry "
            "the connections"
        )

    def start(self, invitation: Invitation) -> None:
        """Start ``ssh HOST python -m nbddp agent --connect -`` for each node.

        Raises:
            PoolStartError: there is no ssh.
        """
        for node in range(self._options.nnodes):
            self._start_agent(node, invitation)

    def _start_agent(self, node: int, invitation: Invitation) -> None:
        python = shlex.quote(self._python)
        command = f"{NODE_ENV}={node} exec {python} -P -m nbddp agent --connect -"
        forward = ""
        if self._options.tunnel and invitation.keep_s:
            self._open_tunnel(node, invitation)  # it can end, and come again, without the agent
        elif self._options.tunnel:
            port = _port(invitation)
            # The far end listens on its loopback only; CURVE protects it from other users.
            forward = f"{port}:127.0.0.1:{port}"
        words = ssh_words(self._hosts[node], command, forward, self._options.arguments)
        self._processes[node] = self._commands.start(words, invitation)

    def _open_tunnel(self, node: int, invitation: Invitation) -> None:
        self._tunnels.open(self._hosts[node], _port(invitation))

    def state(self) -> str:
        """Return the hosts."""
        return self.state_of(range(len(self._hosts)))

    def state_of(self, nodes: Collection[int]) -> str:
        """Return the hosts of some nodes: the agents of the others have come, perhaps long ago."""
        hosts = [self._hosts[node] for node in sorted(nodes)]
        return self._commands.state() or f"ssh to {', '.join(hosts)}"

    def late_text(self, nodes: Collection[int]) -> str:
        """Say what is known of hosts whose agents have not come in time, and what to do.

        An ssh that has ended is told at once, by `end`: those of these hosts still run.

        Args:
            nodes: of these hosts; empty: all.
        """
        late = sorted(nodes) or range(len(self._hosts))
        said = [
            f"{self._hosts[node]}, whose ssh runs{last_words(self._output(node))}"
            for node in late[:_MAX_LATE]
        ]
        more = f"; and {len(late) - _MAX_LATE} more" if len(late) > _MAX_LATE else ""
        where = f"on {self._options.via}" if self._options.via else "in a terminal"
        python = shlex.quote(self._python)
        return (
            f", and none from {'; '.join(said)}{more}. Perhaps the shell there or its Python "
            "hangs, or its nbddp is another one than that of the notebook. Next: "
            f"`ssh {self._hosts[late[0]]} {python} -P -m nbddp --help` {where}, which should show "
            "the help at once; and install the same nbddp on all machines"
        )

    def _output(self, node: int) -> bytes:
        process = self._processes.get(node)
        return b"" if process is None else "\n".join(process.lines(0)[0]).encode()

    def end(self, node: int) -> str:
        """Return how the ssh of a node has ended, and what it has written."""
        if failure := self._commands.failure():
            return failure
        process = self._processes.get(node)
        host = self._hosts[node]
        agent_end = process.end() if process is not None else ""
        how = agent_end or self._tunnels.failure(host)
        by_ssh = not self._options.via
        if lacks := missing_package(how, self._python, host, by_ssh=by_ssh):
            return lacks
        where = "in a terminal" if by_ssh else f"on {self._options.via}"
        # An end of ssh itself says nothing of the Python there: it does not know or reach the host,
        # or is refused.
        is_of_ssh = not agent_end or (process is not None and process.exit_code == SSH_FAILED)
        python = "" if is_of_ssh else "; --python PATH names the Python there"
        step = damaged_package_step(how, shlex.quote(self._python), f"ssh {host}", where)
        return how and EngineEnd.of(f"ssh {how}", step or f"try `ssh {host}` {where}{python}")

    def replace(self, lost: LostNode, invitation: Invitation) -> None:
        """Start an agent on a spare host, or, if there is none, on the same one.

        Raises:
            PoolStartError: there is no ssh.
        """
        self.withdraw(lost.node)
        if self._spare_hosts:  # the lost one may be well again when the next one is needed
            self._spare_hosts.append(self._hosts[lost.node])
            self._hosts[lost.node] = self._spare_hosts.pop(0)
        self._start_agent(lost.node, invitation)

    def withdraw(self, node: int) -> None:
        """End the ssh of a node, and the agent, if it is reached."""
        process = self._processes.pop(node, None)
        if process is not None:
            process.stop(_STOP_S)

    def stop(self) -> None:
        """Close the standard inputs, which ends the agents, and end each ssh."""
        self._end_processes(_STOP_S)
        self._tunnels.close()
        self._commands.stop()

    @property
    def mark(self) -> str:
        """The hosts of the nodes, then the spare ones in order; then the place of the relay."""
        hosts = ",".join([*self._hosts, *self._spare_hosts])
        return hosts if self._relay is None else f"{hosts};{self._relay.listens}"

    @property
    def _relay(self) -> RelayedCommands | None:
        return self._commands if isinstance(self._commands, RelayedCommands) else None

    def leave(self) -> None:
        """End each ssh; the agents have been let go."""
        self._end_processes(0.0)
        self._tunnels.close()
        self._commands.stop()

    @property
    def reach_s(self) -> float:
        """After a crash of the notebook's machine, the last ssh may still have the port."""
        return REACH_S if self._options.tunnel or self._options.via else 0.0

    def reach(self, mark: str, invitation: Invitation) -> None:
        """Make the tunnels, or start the relay; without both, agents come by themselves.

        Raises:
            PoolStartError: there is no ssh.
        """
        self._read(mark)
        if self._relay is not None:
            self._relay.keep(invitation, listens=mark.partition(";")[2])
        for node in range(self._options.nnodes) if self._options.tunnel else ():
            self._open_tunnel(node, invitation)

    def obstacle(self) -> str:
        """Return how the ssh of tunnels have ended, or that to the login node."""
        if failure := self._commands.failure():
            return failure
        ends = {host: self._tunnels.failure(host) for host in self._hosts}
        return "; ".join(f"ssh to {host} {how}" for host, how in ends.items() if how)

    def take_back(self, mark: str, invitation: Invitation) -> None:
        """Go on with agents that another notebook has started: no ssh of theirs is needed."""
        self._read(mark)

    def _read(self, mark: str) -> None:
        hosts = mark.partition(";")[0].split(",")
        if sorted(hosts) == sorted(self._options.hosts):
            self._hosts = hosts[: self._options.nnodes]
            self._spare_hosts = hosts[self._options.nnodes :]

    def _end_processes(self, patience_s: float) -> None:
        for process in self._processes.values():
            process.close_input()
        for process in self._processes.values():
            process.stop(patience_s)
        self._processes.clear()


def _port(invitation: Invitation) -> int:
    return network.split_address(invitation.addresses[0])[1]


def _is_elsewhere(host: str) -> bool:
    """Return whether a host is surely another machine, whose loopback leads nowhere else."""
    configuration = _configuration(host)
    if any(line.startswith("remoteforward ") for line in configuration):
        return False
    name = _host_name(host, configuration)
    if network.is_loopback(name):
        return False
    try:
        address = socket.gethostbyname(name)
        own = network.address_towards(address)
    except OSError:
        return False  # a name that only a jump host knows
    return own != address and not network.is_loopback(own)


def _configuration(host: str) -> list[str]:
    """Return what ssh would use for a host, an option on each line."""
    return ask(["ssh", "-G", host]).splitlines()


def _host_name(host: str, configuration: Iterable[str]) -> str:
    """Return the address that ssh would use for a host of its configuration."""
    names = [line.split()[1] for line in configuration if line.startswith("hostname ")]
    return names[0] if names else host.rpartition("@")[2]
