"""A real sshd on hosts of `network_hosts`, and the ssh of a user who may log in there."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.support.network_hosts import HostNetwork, NetworkHost
from tests.support.polling import poll_until

_REPOSITORY = Path(__file__).parents[2]
_SSH_PORT = 22
_SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


def reason_to_skip() -> str:
    """Why there can be no sshd here; empty: there can."""
    lacking = [tool for tool in (_SSHD, "ssh", "ssh-keygen") if shutil.which(tool) is None]
    return f"{', '.join(lacking)} is not installed" if lacking else ""


@contextmanager
def python_of_hosts(folder: Path) -> Iterator[Path]:
    """The Python of hosts: this one, with this very nbddp.

    What a host without power leaves in its temporary folder is removed at the end.
    """
    with tempfile.TemporaryDirectory(prefix="nbh-") as temporary:
        variables = f"PYTHONPATH={_REPOSITORY} TMPDIR={temporary}"
        _write_command(folder / "python", f'{variables} exec {sys.executable} "$@"')
        yield folder / "python"


class SshSite:
    """Keys, configuration, and hosts with an sshd.

    Args:
        network: has the hosts.
        folder: for files.
    """

    def __init__(self, network: HostNetwork, folder: Path) -> None:
        self._network = network
        self.notebook_address = network.address
        self._folder = folder
        self._servers: list[subprocess.Popen[bytes]] = []
        for name in ("host_key", "user_key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)],
                check=True,
            )
        shutil.copy(folder / "user_key.pub", folder / "authorized")
        self._config = folder / "ssh_config"
        self._config.write_text(
            f"IdentityFile {folder}/user_key\nUserKnownHostsFile {folder}/known\n"
            "StrictHostKeyChecking accept-new\nLogLevel ERROR\n"
        )
        #: A folder for PATH, in which `ssh` is the user's, with this configuration.
        self.commands = folder / "bin"
        self.commands.mkdir()
        _write_command(self.commands / "ssh", f'exec {shutil.which("ssh")} -F {self._config} "$@"')
        self._resources = ExitStack()
        self.python = self._resources.enter_context(python_of_hosts(folder))

    def add_host(self, name: str, delay_ms: int = 0, sshd: str = "") -> NetworkHost:
        """Make a host that ssh knows under this name.

        Args:
            name: of the host.
            delay_ms: each packet takes so long.
            sshd: a line for the configuration of its sshd.
        """
        host = self._network.add_host(name, delay_ms)
        Path("/run/sshd").mkdir(exist_ok=True)
        config = self._folder / f"sshd-{name}"
        config.write_text(
            f"ListenAddress {host.address}\nHostKey {self._folder}/host_key\nUsePAM no\n"
            f"StrictModes no\nAuthorizedKeysFile {self._folder}/authorized\nPidFile none\n"
            f"SetEnv PYTHONPATH={_REPOSITORY}\n"
            f"{sshd}\n"
        )
        log = self._folder / f"sshd-{name}.log"
        words = [_SSHD, "-D", "-e", "-f", str(config)]
        with log.open("wb") as file:
            server = host.start(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        self._servers.append(server)
        with self._config.open("a") as file_of_user:
            file_of_user.write(f"Host {name}\n  HostName {host.address}\n  User root\n")
        poll_until(lambda: "Server listening" in log.read_text())
        return host

    def close(self) -> None:
        """End the servers; the network ends their hosts."""
        for server in self._servers:
            server.terminate()
            server.wait()
        self._resources.close()


def _write_command(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    os.chmod(path, 0o755)  # noqa: PTH101 - a line like its neighbours


def command(path: Path, line: str) -> Path:
    """A program that runs a line of shell with its arguments."""
    path.write_text(f'#!/bin/sh\n{line} "$@"\n')
    path.chmod(0o755)
    return path


def hosts_behind(
    site: SshSite, network: HostNetwork, folder: Path, *names: str
) -> tuple[NetworkHost, list[NetworkHost], Path]:
    """A login node, hosts that only its ssh reaches, and the Python of all.

    This machine reaches the port of sshd of the login node, and nothing else.
    """
    login = site.add_host("login")
    nodes = [site.add_host(name) for name in names]
    login.keep_apart(network.address, _SSH_PORT)
    for node in nodes:
        node.keep_apart(network.address)
    # The user's ssh on the login node knows the same hosts.
    python = command(folder / "there", f"PATH={site.commands}:$PATH exec {site.python}")
    return login, nodes, python
