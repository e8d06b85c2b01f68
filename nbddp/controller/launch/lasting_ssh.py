"""An ssh that is started again whenever it has ended, for pools that outlive their connections.

    SshKeeper: its thread, nbddp-tunnels --look--> LastingSsh --> ssh HOST, or ssh HOST, which ends
                                                                 what the last one has left there

Runs in: the notebook's process. After a cut, the process at the other end does not know that its
connection is dead, and still listens on the port that the next one needs. So it is ended by its
process id before that, unless it has noticed the silence of the notebook by itself.
"""

import shlex
import threading
import time
from contextlib import suppress
from typing import Protocol

from nbddp.controller.launch.commands import Program
from nbddp.errors import PoolStartError

#: The other end takes the notebook for gone. A beat can wait behind 2 MB of values on a slow line.
PATIENCE_S = 60.0
#: Seconds for which the other end may keep the port after a crash of the notebook's machine.
REACH_S = 70.0
#: ssh takes a line for cut after 3 times 5 s: the hub gives a silent node up after 60 s.
SILENCE = (5, 3)
_BEAT_S = 5.0
_LOOK_S = 0.5
#: ssh is started again after this time, and after longer ones while a host is not reached.
_PAUSE_S = (1.0, 30.0)
#: The pause grows by this part of the time for which there was no connection.
_GROWTH = 0.1
#: The exit code of ssh itself.
SSH_FAILED = 255
#: The program at the other end of a tunnel.
TUNNEL_END = "nbddp.agent.tunnel_end"


class RunningSsh(Program, Protocol):
    """A running ssh, such as `EngineProcess`."""

    @property
    def exit_code(self) -> int | None:
        """Its exit code, once `end` has told how it ended."""

    def say(self, line: str) -> None:
        """Write a line to its standard input."""


class LastingSsh:
    """The connection to one host; a subclass says what it starts there. It reads no clock.

    Args:
        python: the interpreter there.
    """

    def __init__(self, python: str) -> None:
        self._python = python
        self._ssh: RunningSsh | None = None
        self._is_ending = False  #: this ssh ends what the last one has left
        self._holder = ""  #: process and start of what may hold the port there
        self._is_up = False
        self._was_up = False
        self._down_since = 0.0
        self._start_at = 0.0
        self._beat_at = 0.0
        self._how = ""  #: the last ssh has ended

    # --- of subclasses ---------------------------------------------------------------------------

    def connect(self) -> RunningSsh:
        """Start ssh. Raises `PoolStartError`: there is none."""
        raise NotImplementedError

    def run(self, command: str) -> RunningSsh:
        """Start ssh with another command. Raises `PoolStartError`: there is none."""
        raise NotImplementedError

    def holder(self, ssh: RunningSsh) -> str | None:
        """Return process and start of what holds the port there; None: it is not up yet."""
        raise NotImplementedError

    def beat(self, ssh: RunningSsh) -> None:
        """Say that the notebook is there."""
        ssh.say("")

    def note_end(self, ssh: RunningSsh) -> None:
        """Note that the ssh of `connect` has ended."""

    # --- of the keeper ---------------------------------------------------------------------------

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
                self._start(now)
        elif how := self._ssh.end():
            self._note_end(self._ssh, how, now)
        elif not self._is_ending:
            self._read(self._ssh)
            if now >= self._beat_at:
                self._beat_at = now + _BEAT_S
                self.beat(self._ssh)

    def _start(self, now: float) -> None:
        self._down_since = self._down_since or now
        self._is_ending = bool(self._holder)
        if self._is_ending:
            words = [self._python, "-P", "-m", TUNNEL_END, "--end", *self._holder.split()]
            self._ssh = self.run(f"exec {shlex.join(words)}")
        else:
            self._ssh = self.connect()

    def _read(self, ssh: RunningSsh) -> None:
        if not self._is_up and (holder := self.holder(ssh)) is not None:
            self._holder = holder
            self._is_up = self._was_up = True
            self._down_since, self._how = 0.0, ""

    def _note_end(self, ssh: RunningSsh, how: str, now: float) -> None:
        if not self._is_ending:
            self._read(ssh)
            self.note_end(ssh)
        ssh.stop(0.0)
        self._ssh, self._is_up = None, False
        least, most = _PAUSE_S
        self._down_since = self._down_since or now
        pause_s = min(most, least + _GROWTH * (now - self._down_since))
        if not self._is_ending:
            self._how = how
        elif ssh.exit_code != SSH_FAILED:
            self._holder, pause_s = "", 0.0
        self._start_at = now + pause_s

    def failure(self) -> str:
        """Return how the last ssh has ended; empty: it is there, or was not tried yet."""
        return self._how

    @property
    def never_was_up(self) -> bool:
        """Whether no ssh of it has ever succeeded."""
        return not self._was_up

    def close_input(self) -> None:
        """Begin to end it."""
        if self._ssh is not None:
            self._ssh.close_input()

    def stop(self, patience_s: float) -> None:
        """End it."""
        ssh, self._ssh = self._ssh, None
        if ssh is not None:
            ssh.stop(patience_s)


class SshKeeper:
    """Keeps connections, in a thread of its own, which the first one starts."""

    def __init__(self) -> None:
        self._kept: dict[str, LastingSsh] = {}
        self._lock = threading.Lock()  # for the connections
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, host: str, ssh: LastingSsh) -> None:
        """Keep a connection, or hurry that to this host which is kept already.

        Raises:
            PoolStartError: there is no ssh.
        """
        with self._lock:
            kept = self._kept.setdefault(host, ssh)
            kept.hurry()
            kept.look(time.monotonic())
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="nbddp-tunnels", daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            with self._lock:
                for ssh in self._kept.values():
                    with suppress(PoolStartError):  # this machine has no memory; later, perhaps
                        ssh.look(time.monotonic())

    def failure(self, host: str) -> str:
        """Return how the ssh to a host has ended that never succeeded; empty: it may still."""
        with self._lock:
            ssh = self._kept.get(host)
            return ssh.failure() if ssh is not None and ssh.never_was_up else ""

    def close(self, patience_s: float) -> None:
        """End the connections."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        for ssh in self._kept.values():
            ssh.close_input()
        give_up_at = time.monotonic() + patience_s
        for ssh in self._kept.values():
            ssh.stop(max(0.0, give_up_at - time.monotonic()))
        self._kept.clear()
