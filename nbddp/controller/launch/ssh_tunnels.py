"""Tunnels through which the agents of a kept pool reach the notebook, made again after a cut.

    notebook <-- ssh -R --- sshd of a host, listens on its loopback <-- agent
        '-- nbddp-tunnels: a beat each 5 s, another ssh when one has ended

Runs in: the notebook's process. The ssh of a tunnel starts no agent: `nbddp.agent.tunnel_end` at
its other end holds the tunnel while the notebook lives. After a cut the old sshd may still listen
there, so it is ended by its process id before the next ssh asks for the port.
"""

import shlex
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from nbddp.controller.launch.commands import Program
from nbddp.controller.launch.engine_process import EngineProcess
from nbddp.controller.launch.ssh_words import ssh_words
from nbddp.errors import PoolStartError

_END = "nbddp.agent.tunnel_end"
#: Follows the words of that program about its own end of the connection.
_HELD = ": holds the tunnel of sshd "
#: A connection of its own: one that the user shares must not end with the tunnel.
_ALONE = ("-o", "ControlMaster=no", "-o", "ControlPath=none")
#: ssh takes a line for cut after 3 times 5 s: the hub gives a silent node up after 60 s.
_SILENCE = (5, 3)
_BEAT_S = 5.0
#: The other end takes the notebook for gone. A beat can wait behind 2 MB of values on a slow line.
_PATIENCE_S = 60.0
_LOOK_S = 0.5
_STOP_S = 1.0
#: ssh is started again after this time, and after longer ones while a host is not reached.
_PAUSE_S = (1.0, 30.0)
#: The pause grows by this part of the time for which there was no tunnel.
_GROWTH = 0.1
_SSH_FAILED = 255


class TunnelProcess(Program, Protocol):
    """A running ssh, such as `EngineProcess`."""

    @property
    def exit_code(self) -> int | None:
        """Its exit code, once `end` has told how it ended."""

    def say(self, line: str) -> None:
        """Write a line to its standard input."""


#: Starts a program with such a command line.
StartSsh = Callable[[Sequence[str]], TunnelProcess]


class Tunnel:
    """The tunnel to one host. Pure but for the programs that it starts.

    Args:
        host: as the user's ssh knows it.
        port: of the notebook, and of the host.
        python: the interpreter there.
        start: starts ssh.
    """

    def __init__(self, host: str, port: int, python: str, start: StartSsh) -> None:
        self._host = host
        self._port = port
        self._python = python
        self._start = start
        self._ssh: TunnelProcess | None = None
        self._is_ending = False  #: this ssh ends the sshd of the last one
        self._sshd = ""  #: process and start of the one that may hold the port
        self._is_up = False
        self._was_up = False
        self._down_since = 0.0
        self._start_at = 0.0
        self._beat_at = 0.0
        self._how = ""  #: the last ssh has ended

    def hurry(self) -> None:
        """Start ssh at once if none runs."""
        self._start_at = 0.0

    def look(self, now: float) -> None:
        """Do what is to be done.

        Raises:
            PoolStartError: there is no ssh.
        """
        if self._ssh is None:
            if now >= self._start_at:
                self._connect(now)
        elif how := self._ssh.end():
            self._note_end(self._ssh, how, now)
        elif not self._is_ending:
            self._read(self._ssh)
            if now >= self._beat_at:
                self._beat_at = now + _BEAT_S
                self._ssh.say("")

    def _connect(self, now: float) -> None:
        self._down_since = self._down_since or now
        self._is_ending = bool(self._sshd)
        words = [self._python, "-P", "-m", _END]
        # The far end listens on its loopback only; CURVE protects it from other users.
        forward = "" if self._is_ending else f"{self._port}:127.0.0.1:{self._port}"
        words += (
            ["--end", *self._sshd.split()] if self._is_ending else ["--patience", f"{_PATIENCE_S}"]
        )
        command = f"exec {shlex.join(words)}"
        self._ssh = self._start(ssh_words(self._host, command, forward, _ALONE, _SILENCE))

    def _read(self, ssh: TunnelProcess) -> None:
        for line in [] if self._is_up else ssh.lines(0)[0]:
            _, said, sshd = line.partition(_HELD)
            if said:
                self._sshd = "" if sshd.startswith("0 ") else sshd
                self._is_up = self._was_up = True
                self._down_since, self._how = 0.0, ""

    def _note_end(self, ssh: TunnelProcess, how: str, now: float) -> None:
        if not self._is_ending:
            self._read(ssh)
        ssh.stop(0.0)
        self._ssh, self._is_up = None, False
        least, most = _PAUSE_S
        self._down_since = self._down_since or now
        pause_s = min(most, least + _GROWTH * (now - self._down_since))
        if not self._is_ending:
            self._how = how
        elif ssh.exit_code != _SSH_FAILED:
            self._sshd, pause_s = "", 0.0
        self._start_at = now + pause_s

    def failure(self) -> str:
        """Return how the last ssh has ended; empty: the tunnel is there, or was not tried yet."""
        return self._how

    @property
    def never_was_up(self) -> bool:
        """Whether no ssh of it has ever succeeded."""
        return not self._was_up

    def close_input(self) -> None:
        """Begin to end the tunnel."""
        if self._ssh is not None:
            self._ssh.close_input()

    def stop(self, patience_s: float) -> None:
        """End the tunnel."""
        ssh, self._ssh = self._ssh, None
        if ssh is not None:
            ssh.stop(patience_s)


class SshTunnels:
    """The tunnels of a pool, one to each host.

    Args:
        python: the interpreter on the hosts.
    """

    def __init__(self, python: str) -> None:
        self._python = python
        self._tunnels: dict[str, Tunnel] = {}
        self._lock = threading.Lock()  # for the tunnels
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self, host: str, port: int) -> None:
        """Make a tunnel, and make it again whenever it has ended; it may be there already.

        Raises:
            PoolStartError: there is no ssh.
        """
        with self._lock:
            new = Tunnel(host, port, self._python, EngineProcess)
            tunnel = self._tunnels.setdefault(host, new)
            tunnel.hurry()
            tunnel.look(time.monotonic())
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="nbddp-tunnels", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            with self._lock:
                for tunnel in self._tunnels.values():
                    with suppress(PoolStartError):  # this machine has no memory; later, perhaps
                        tunnel.look(time.monotonic())

    def failure(self, host: str) -> str:
        """Return how the ssh to a host has ended that never succeeded; empty: it may still."""
        with self._lock:
            tunnel = self._tunnels.get(host)
            return tunnel.failure() if tunnel is not None and tunnel.never_was_up else ""

    def close(self) -> None:
        """End the tunnels."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        for tunnel in self._tunnels.values():
            tunnel.close_input()
        give_up_at = time.monotonic() + _STOP_S
        for tunnel in self._tunnels.values():
            tunnel.stop(max(0.0, give_up_at - time.monotonic()))
        self._tunnels.clear()
