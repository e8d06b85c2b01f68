"""Machines for notebook 09, made out of this one: `n1`, `n2` and `n3`.

    machines = pretend_hosts.start()     # what they are is printed
    machines.unplug("n2")
    machines.plug_in("n2")
    machines.power_off("n2")
    machines.stop()

On Linux, with the rights of root (in a container, for example), each is a network namespace with a
name, processes and an sshd of its own. Elsewhere a stand-in for `ssh` starts what it is asked for
on this machine: the same cells run, but all machines have the same name. `ssh` finds them until
`stop`, or until the notebook ends; the hosts end then, too, also if the notebook is killed.

Runs in: the notebook's process.
"""

import os
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

_REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.append(str(_REPOSITORY))

from tests.support import network_hosts, ssh_hosts  # noqa: E402 - of this checkout

NAMES = ("n1", "n2", "n3")

#: It notes its process, which becomes that of the agent, and runs the command, its last argument.
_STAND_IN = """#!/bin/sh
for command; do host=$before; before=$command; done
echo $$ > "{folder}/$host.pid"
exec sh -c "$command"
"""


class Machines(Protocol):
    """Machines that the notebook can disturb."""

    def unplug(self, name: str) -> None:
        """Pull the network cable of a machine out."""
        ...

    def plug_in(self, name: str) -> None:
        """Plug it in again."""
        ...

    def power_off(self, name: str) -> None:
        """Cut the power of a machine: all of its processes are gone at once."""
        ...

    def stop(self) -> None:
        """Remove all machines."""
        ...


def start(*, stand_in: bool = False) -> Machines:
    """Make the machines, and say what they are.

    Args:
        stand_in: make no hosts of their own, also where they can be made.
    """
    reason = "as you asked" if stand_in else ""
    reason = reason or network_hosts.reason_to_skip() or ssh_hosts.reason_to_skip()
    if not reason:
        print("n1, n2 and n3 are network namespaces of this machine, each with an sshd")
        return _Namespaces()
    print(f"n1, n2 and n3 are all this machine, and ssh is a stand-in ({reason})")
    return _StandIns()


class _Path:
    """The search path of this process, with a folder in front for a while."""

    def __init__(self, folder: Path) -> None:
        self._before = os.environ["PATH"]
        os.environ["PATH"] = f"{folder}{os.pathsep}{self._before}"

    def close(self) -> None:
        os.environ["PATH"] = self._before


class _Namespaces:
    def __init__(self) -> None:
        self._resources = ExitStack()
        folder = Path(self._resources.enter_context(tempfile.TemporaryDirectory()))
        network = self._resources.enter_context(network_hosts.HostNetwork(folder))
        network.remove_at_end(folder)
        self._site = ssh_hosts.SshSite(network, folder)
        self._resources.callback(self._site.close)
        self._hosts = {name: self._site.add_host(name) for name in NAMES}
        self._resources.callback(_Path(self._site.commands).close)

    def unplug(self, name: str) -> None:
        self._hosts[name].set_cable(plugged=False)

    def plug_in(self, name: str) -> None:
        self._hosts[name].set_cable(plugged=True)

    def power_off(self, name: str) -> None:
        self._hosts[name].power_off()

    def stop(self) -> None:
        self._resources.close()


class _StandIns:
    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp())
        command = self._folder / "ssh"
        command.write_text(_STAND_IN.format(folder=self._folder))
        command.chmod(0o755)
        self._path = _Path(self._folder)

    def _signal(self, name: str, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(int((self._folder / f"{name}.pid").read_text()), number)

    def unplug(self, name: str) -> None:
        self._signal(name, signal.SIGSTOP)

    def plug_in(self, name: str) -> None:
        self._signal(name, signal.SIGCONT)

    def power_off(self, name: str) -> None:
        self._signal(name, signal.SIGKILL)  # the ranks end with their agent

    def stop(self) -> None:
        self._path.close()
        shutil.rmtree(self._folder)
