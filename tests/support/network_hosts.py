"""Hosts that are namespaces of this machine: their own network, name, processes and /dev/shm.

    with HostNetwork() as network:
        host = network.add_host("n1")          # 198.18.70.2; this machine is 198.18.70.1
        host.run(["hostname"])
        host.set_cable(plugged=False)          # no packet passes, and neither end is told
        host.power_off()                       # all of its processes are gone at once

Files are shared, as on a cluster with one file system. No host has a route to anywhere else: the
range is that of benchmarks (RFC 2544). Needs root and iproute2; `reason_to_skip` says what lacks.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from tests.support import delayed_cable

#: Networks of tests that run at the same time.
_NUMBERS = range(70, 250)
_UP_S = 10.0
#: Debian's installer gives the own name this address, over which Gloo stumbles.
_DEBIAN_ADDRESS = "127.0.1.1"
_INIT = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs tmpfs /dev/shm
mount --bind {hosts} /etc/hosts
hostname {name}
ip link set lo up
echo up
exec cat > /dev/null
"""
#: Removes what is left when this process ends without a word, by a kill: then its input ends. A
#: host ends in the same way.
_REMAINS = """
trap '' INT TERM HUP
while read -r path; do set -- "$@" "$path"; done
for name in $(ip netns list | cut -d ' ' -f 1 | grep '^nbt{number}-'); do ip netns del "$name"; done
ip link del nbt{number}b
rm -rf "$@"
"""


def reason_to_skip() -> str:
    """Why there can be no hosts here; empty: there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    lacking = [tool for tool in ("ip", "unshare", "nsenter") if shutil.which(tool) is None]
    if lacking:
        return f"{', '.join(lacking)} is not installed"
    with TemporaryDirectory() as folder:
        try:
            with HostNetwork(Path(folder)) as network:
                network.add_host("probe")
        except (OSError, subprocess.CalledProcessError, AssertionError) as error:
            return f"this machine allows no namespaces: {error}"
    return ""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class NetworkHost:
    """One host."""

    def __init__(
        self, name: str, number: int, network: int, folder: Path, delay_ms: int = 0
    ) -> None:
        self.name = name
        self.address = f"198.18.{network}.{number + 1}"
        self._namespace = f"nbt{network}-{name}"
        self._link = f"nbt{network}v{number}"
        hosts = folder / f"hosts-{name}"
        hosts.write_text(f"127.0.0.1 localhost\n{_DEBIAN_ADDRESS} {name}\n")
        _ip("netns", "add", self._namespace)
        self._cable = self._connect(delay_ms)
        _ip("link", "set", self._link, "master", f"nbt{network}b", "up")
        _ip("-n", self._namespace, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _ip("-n", self._namespace, "link", "set", "eth0", "up")
        self._init = subprocess.Popen(
            [
                *("ip", "netns", "exec", self._namespace),
                *("unshare", "--uts", "--pid", "--mount", "--ipc", "--fork", "--kill-child"),
                *("sh", "-c", _INIT.format(hosts=hosts, name=name)),
            ],
            stdin=subprocess.PIPE,  # its end ends the host
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        assert self._init.stdout is not None
        assert self._init.stdout.readline() == "up\n"
        children = Path(f"/proc/{self._init.pid}/task/{self._init.pid}/children").read_text()
        self._pid = int(children.split()[0])

    def _connect(self, delay_ms: int) -> "subprocess.Popen[str] | None":
        """Make the two ends of the cable; the process carries the frames of a slow one."""
        if not delay_ms:
            _ip(
                *("link", "add", self._link, "type", "veth"),
                *("peer", "name", "eth0", "netns", self._namespace),
            )
            return None
        far_end = f"{self._link}e"
        cable = subprocess.Popen(
            [sys.executable, "-m", delayed_cable.__name__, self._link, far_end, str(delay_ms)],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        assert cable.stdout is not None
        assert cable.stdout.readline() == "up\n"
        _ip("link", "set", far_end, "netns", self._namespace, "name", "eth0")
        return cable

    def words(self, command: Sequence[str]) -> list[str]:
        """The command that runs another one on this host."""
        return ["nsenter", "-t", str(self._pid), "-n", "-u", "-p", "-m", "-i", "--", *command]

    def run(self, command: Sequence[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        """Run a command, and wait for its end."""
        return subprocess.run(
            self.words(command), text=True, capture_output=True, check=False, **options
        )

    def start(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        """Start a command."""
        return subprocess.Popen(self.words(command), start_new_session=True, **options)

    def processes(self, mark: str) -> list[str]:
        """The command lines that hold a mark, of the processes of this host."""
        script = 'for file in /proc/[0-9]*/cmdline; do tr "\\0" " " < $file; echo; done 2>/dev/null'
        listing = self.run(["sh", "-c", script]).stdout
        return [line for line in listing.splitlines() if mark in line]

    def set_cable(self, *, plugged: bool) -> None:
        """Plug the network cable in, or pull it out."""
        _ip("link", "set", self._link, "up" if plugged else "down")

    def make_line_bad(self, loss_percent: int) -> None:
        """Lose packets in both directions at random."""
        tables = ["add table inet nbb"]
        for hook in ("input", "output"):
            tables += [
                f"add chain inet nbb {hook} {{ type filter hook {hook} priority 0 ; }}",
                f"add rule inet nbb {hook} numgen random mod 100 < {loss_percent} drop",
            ]
        self._filter(tables)

    def drop_packets_to(self, address: str) -> None:
        """Make a firewall that drops what this host sends to an address, without a word."""
        self._filter(
            [
                "add table inet nbt",
                "add chain inet nbt out { type filter hook output priority 0 ; }",
                f"add rule inet nbt out ip daddr {address} drop",
            ]
        )

    def keep_apart(self, address: str, open_port: int = 0) -> None:
        """Drop all packets from and to an address, but those of connections to a port of here."""
        self._filter(
            [
                "add table inet nba",
                "add chain inet nba in { type filter hook input priority 0 ; }",
                "add chain inet nba out { type filter hook output priority 0 ; }",
                f"add rule inet nba in ip saddr {address} tcp dport != {open_port} drop",
                f"add rule inet nba in ip saddr {address} meta l4proto != tcp drop",
                f"add rule inet nba out ip daddr {address} tcp sport != {open_port} drop",
                f"add rule inet nba out ip daddr {address} meta l4proto != tcp drop",
            ]
        )

    def _filter(self, rules: Sequence[str]) -> None:
        for rule in rules:
            answer = self.run(["nft", rule])
            assert answer.returncode == 0, f"nft {rule}: {answer.stderr}"

    def power_off(self) -> None:
        """End the host; the cable goes first, so that nothing says goodbye."""
        self.set_cable(plugged=False)
        self.close()

    def kill(self) -> None:
        """Begin to end all processes, which takes seconds."""
        subprocess.run(["ip", "link", "del", self._link], capture_output=True, check=False)
        if self._init.poll() is None:
            with suppress(ProcessLookupError):  # it is ending already
                os.kill(self._pid, signal.SIGKILL)

    def close(self) -> None:
        """End all processes and remove the host."""
        self.kill()
        self._init.wait(_UP_S)
        if self._cable is not None:
            self._cable.communicate()
        for end in (self._init.stdin, self._init.stdout):
            if end is not None:
                end.close()
        subprocess.run(["ip", "netns", "del", self._namespace], capture_output=True, check=False)


class HostNetwork:
    """A bridge with this machine and hosts at it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hosts: list[NetworkHost] = []
        self._number = 0
        self._remover: subprocess.Popen[str] | None = None
        self.address = ""  #: of this machine

    def __enter__(self) -> Self:
        for self._number in _NUMBERS:
            bridge = f"nbt{self._number}b"
            try:
                # Else a bridge has the lowest address of its hosts: when that host is off, the
                # others look for this machine at an address that is gone, for up to a minute.
                address = f"02:00:00:00:00:{self._number:02x}"
                kind = ("type", "bridge", "forward_delay", "0")
                _ip("link", "add", bridge, "address", address, *kind)
                break
            except subprocess.CalledProcessError:  # another test has it, or there are no rights
                if self._number == _NUMBERS[-1]:
                    raise
        self.address = f"198.18.{self._number}.1"
        self._remover = subprocess.Popen(
            ["sh", "-c", _REMAINS.format(number=self._number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )
        _ip("addr", "add", f"{self.address}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        return self

    def remove_at_end(self, path: Path) -> None:
        """Remove a file or folder, too, if this process ends without a word."""
        assert self._remover is not None
        assert self._remover.stdin is not None
        self._remover.stdin.write(f"{path}\n")
        self._remover.stdin.flush()

    def add_host(self, name: str, delay_ms: int = 0) -> NetworkHost:
        """Make a host; each packet to it and from it takes `delay_ms`."""
        host = NetworkHost(name, len(self._hosts) + 1, self._number, self._folder, delay_ms)
        self._hosts.append(host)
        return host

    def __exit__(self, *exc: object) -> None:
        if self._remover is not None:  # it would remove what another process has by then
            self._remover.kill()
            self._remover.communicate()
        for host in self._hosts:
            host.kill()
        for host in self._hosts:
            host.close()
        _ip("link", "del", f"nbt{self._number}b")
