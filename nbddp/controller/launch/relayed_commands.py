"""The commands of a login node that the notebook reaches by ssh only: ``--via LOGIN``.

Runs in: the notebook's process. One ``ssh`` runs the relay on the login node, and forwards a socket
from there to the port of the notebook. Its standard input is the lifeline of all that runs there.
That of a kept pool is started again when it has ended. The relay has the same address and port
then, at which agents look for a notebook. Programs end with each relay, and kept agents do not.
"""

import itertools
import secrets
import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nbddp.controller.launch import lasting_ssh, relay_messages, ssh_words
from nbddp.controller.launch.commands import Commands, OwnCommands, Program
from nbddp.controller.launch.damaged_packages import damaged_package_step
from nbddp.controller.launch.engine import EngineOptions
from nbddp.controller.launch.engine_end import EngineEnd
from nbddp.controller.launch.engine_process import EngineProcess, ask
from nbddp.controller.launch.lasting_ssh import SSH_FAILED, LastingSsh, RunningSsh, SshKeeper
from nbddp.controller.launch.missing_packages import missing_package
from nbddp.controller.launch.relay_messages import (
    Answer,
    AskProgram,
    Beat,
    Listening,
    ProgramEnded,
    ProgramOutput,
    Request,
    RunProgram,
    StopProgram,
)
from nbddp.settings import Settings
from nbddp.system import network
from nbddp.wire.invitation import Invitation

_RELAY = "nbddp.controller.launch.relay"
_STOP_S = 8.0
_ANSWER_S = 5.0
_POLL_S = 0.02
#: Signs of life of the notebook in the patience of the relay.
_BEATS = 12


@dataclass(frozen=True)
class RelayPlace:
    """The login node, and where its relay listens."""

    login: str  #: as the user's ssh knows it
    python: str = ""  #: the interpreter there; empty: the path of this one
    address: str = ""  #: for agents; empty: that towards the nodes
    port: int = 0  #: 0: any free one
    towards: str = ""  #: one of the nodes; empty: ask Slurm

    def arguments(self, socket_path: str, patience_s: float) -> list[str]:
        """Return the words of the relay's command line."""
        towards = ["--towards", self.towards] if self.towards else ["--slurm"]
        words = ["--socket", socket_path, "--port", str(self.port), *towards]
        if self.address:
            words += ["--address", self.address]
        return [*words, "--patience", f"{patience_s:g}"]


@dataclass
class _Told:
    """The reports of the relay so far."""

    place: str = ""  #: where it listens
    relay: str = ""  #: its process and the start of that
    started: set[int] = field(default_factory=set)  #: the programs that it was asked for
    answers: dict[int, str] = field(default_factory=dict)
    ends: dict[int, str] = field(default_factory=dict)
    exit_codes: dict[int, int | None] = field(default_factory=dict)
    lines: dict[int, list[str]] = field(default_factory=dict)

    def after(self, how: str) -> "_Told":
        """Return what is known after the end of the relay, with which all programs have ended."""
        return _Told(
            ends=dict.fromkeys(self.started, how) | self.ends,
            exit_codes=self.exit_codes,
            lines=self.lines,
        )


class RelayedCommands:
    """Runs commands on a login node, through one ssh that the first program starts."""

    def __init__(self, place: RelayPlace) -> None:
        self._place = place
        self._ssh: EngineProcess | None = None
        self._forward = ""
        self._lock = threading.Lock()  # for all that follows, and the input of ssh
        self._told = _Told()
        self._since = 0
        self._numbers = itertools.count()
        self._beat_at = 0.0
        self._patience_s = Settings.from_env().patience_s
        self._keeper: SshKeeper | None = None  #: of a kept pool
        self._exit_code = 0  #: of the last ssh of a kept pool

    def start(
        self,
        words: Sequence[str],
        invitation: Invitation,
        env: Mapping[str, str] | None = None,
        needs: str = "",
    ) -> Program:
        """Start a program there.

        Args:
            words: of its command line.
            invitation: its standard input gets it, with the address of the relay.
            env: of no use there.
            needs: the program that has to be in PATH; empty: the first word.

        Raises:
            PoolStartError: this machine has no ssh.
        """
        if invitation.keep_s:
            self.keep(invitation)
        elif self._ssh is None or self._ssh.end():
            self.stop()  # a relay that heard nothing of the notebook has ended
            self.connect(invitation)
        number = next(self._numbers)
        with self._lock:
            self._told.started.add(number)
            if self._ssh is None:
                self._told.ends[number] = "was not started: the connection is being made again"
        self._say(RunProgram(number, tuple(words), needs))
        return RelayedProgram(self, number, needs or words[0])

    def keep(self, invitation: Invitation, listens: str = "") -> None:
        """Connect, and connect again whenever that has ended.

        Args:
            invitation: of the agents.
            listens: where agents look for the relay, as of `listens`; empty: there are none yet.

        Raises:
            PoolStartError: this machine has no ssh.
        """
        self._fix(listens)
        if self._keeper is None:
            self._keeper = SshKeeper()
            self._patience_s = lasting_ssh.PATIENCE_S
        self._keeper.keep(self._place.login, _LastingRelay(self, self._python, invitation))

    def _fix(self, listens: str) -> None:
        """Have the next relay listen where this one does."""
        if listens:
            address, _, port = listens.rpartition(":")
            self._place = replace(self._place, address=address, port=int(port))

    @property
    def listens(self) -> str:
        """Where the relay listens, ``10.0.0.1:5555``; empty: that is not known yet."""
        place = self._place
        known = f"{place.address}:{place.port}" if place.address and place.port else ""
        return self._read().place or known

    def connect(self, invitation: Invitation) -> EngineProcess:
        """Start ssh and the relay. Raises `PoolStartError`: this machine has no ssh."""
        place = self._place
        port = network.split_address(invitation.addresses[0])[1]
        # A file that only the user can open; a port could be taken by another one.
        far = f"/tmp/nbddp-{secrets.token_hex(8)}.sock"  # noqa: S108 - sshd makes it, with 0600
        self._forward = f"{far}:127.0.0.1:{port}"
        words = [self._python, "-P", "-m", _RELAY, *place.arguments(far, self._patience_s)]
        # sshd leaves the socket, and so does a relay that could not start.
        command = f"{shlex.join(words)} || sh -c 'rm -f {far}; exit 1'"
        ssh = self.run(command, self._forward, invitation)
        with self._lock:
            how = f"ended with the ssh to {place.login}"
            self._told = self._told.after(how)
            self._since, self._ssh = 0, ssh
        return ssh

    def run(
        self, command: str, forward: str = "", invitation: Invitation | None = None
    ) -> EngineProcess:
        """Start ssh with a command. Raises `PoolStartError`: this machine has no ssh."""
        silence = ssh_words.SILENCE if self._keeper is None else lasting_ssh.SILENCE
        words = ssh_words.ssh_words(self._place.login, command, forward, silence=silence)
        return EngineProcess(words, invitation)

    def note_end(self, exit_code: int) -> None:
        """Note that the ssh of a kept pool has ended, and with it the programs of the relay."""
        self._fix(self._read().place)
        with self._lock:
            lost = f"ended with the ssh to {self._place.login}"
            self._told = self._told.after(lost)
            self._ssh, self._exit_code = None, exit_code

    def relay(self) -> str | None:
        """Return process and start of the relay; None: it does not listen yet."""
        reports = self._read()
        return reports.relay if reports.place else None

    def beat(self) -> None:
        """Tell the relay that the notebook is there."""
        self._say(Beat())

    @property
    def _python(self) -> str:
        return self._place.python or sys.executable

    def ask(self, words: Sequence[str]) -> str:
        """Run a command that ends soon there."""
        if not self._read().place:
            return ""
        number = next(self._numbers)
        self._say(AskProgram(number, tuple(words)))
        give_up_at = time.monotonic() + _ANSWER_S
        while time.monotonic() < give_up_at and not self.failure():
            if (answer := self._read().answers.pop(number, None)) is not None:
                return answer
            time.sleep(_POLL_S)
        return ""

    def state(self) -> str:
        """Say that ssh connects."""
        return "" if self._read().place else f"ssh to {self._place.login}"

    def failure(self) -> str:
        """Return why the relay has ended; that of a kept pool: why it never was there."""
        if self._keeper is not None:
            how = self._keeper.failure(self._place.login)
            return how and self._failure_text(self._exit_code, how)
        ssh = self._ssh
        if ssh is None:
            return ""
        if time.monotonic() >= self._beat_at:
            self._beat_at = time.monotonic() + self._patience_s / _BEATS
            self.beat()
        how = ssh.end()
        return how and self._failure_text(ssh.exit_code, how)

    def _failure_text(self, exit_code: int | None, how: str) -> EngineEnd:
        if lacks := missing_package(how, self._python, self._place.login, by_ssh=True):
            return lacks
        return EngineEnd(f"ssh to {self._place.login} {how}", self._advice(exit_code, how))

    def _advice(self, exit_code: int | None, how: str) -> str:
        login = self._place.login
        python = shlex.quote(self._python)
        if step := damaged_package_step(how, python, f"ssh {login}", "in a terminal"):
            return step
        if "forwarding failed" in how or "has made no socket" in how:
            return (
                f"the sshd of {login} forwards nothing (AllowTcpForwarding, "
                "AllowStreamLocalForwarding, DisableForwarding): ask its administrator, or run the "
                "notebook there"
            )
        if "cannot listen" in how:
            return f"--address IP and --port N are those of {login}, for the nodes"
        if exit_code == SSH_FAILED and not self._read().place:
            return f"try `ssh {login}` in a terminal"
        if not self._read().place:
            return f"--python PATH names the Python of {login}; now it is {self._python}"
        return f"the pool ends with this connection; try `ssh {login}`, then start again"

    def stop(self) -> None:
        """End the relay and all that it has started."""
        with self._lock:
            ssh, self._ssh = self._ssh, None
        if self._keeper is not None:
            self._keeper.close(_STOP_S)
        if ssh is not None:
            if self._keeper is None:
                ssh.stop(_STOP_S)
            # A connection that ssh shares (ControlMaster) would go on to forward the socket.
            ask(["ssh", "-O", "cancel", "-R", self._forward, self._place.login])

    # --- of programs -----------------------------------------------------------------------------

    def program_end(self, number: int, name: str) -> str:
        """Return how a program has ended; empty: it runs."""
        how = self._read().ends.get(number)
        if how == "":
            return (
                f"cannot be run: {self._place.login} has no {name} in PATH, neither for `ssh "
                f"{self._place.login}` nor in a login shell"
            )
        return how or ""

    def program_exit_code(self, number: int) -> int | None:
        """Return the exit code of a program that has ended; None: it is not known."""
        return self._read().exit_codes.get(number)

    def program_lines(self, number: int) -> list[str]:
        """Return what a program has written."""
        return self._read().lines.get(number, [])

    def stop_program(self, number: int) -> None:
        """Begin to end a program."""
        self._say(StopProgram(number))

    # --- messages --------------------------------------------------------------------------------

    def _say(self, request: Request) -> None:
        with self._lock:
            if self._ssh is not None:
                self._ssh.say(relay_messages.request_line(request))

    def _read(self) -> _Told:
        """Return what the relay has told so far."""
        with self._lock:
            if self._ssh is not None:
                lines, self._since = self._ssh.lines(self._since)
                for report in relay_messages.read_reports(lines):
                    match report:
                        case Listening(address=address, relay=relay):
                            self._told.place, self._told.relay = address, relay
                        case Answer(number=number, text=text):
                            self._told.answers[number] = text
                        case ProgramEnded(number=number, how=how, exit_code=exit_code):
                            self._told.ends[number] = how
                            self._told.exit_codes[number] = exit_code
                        case ProgramOutput(number=number, lines=output):
                            self._told.lines.setdefault(number, []).extend(output)
            return self._told


class _LastingRelay(LastingSsh):
    """The ssh of a kept pool.

    Args:
        commands: that run through it.
        python: the interpreter of the login node.
        invitation: of the agents.
    """

    def __init__(self, commands: RelayedCommands, python: str, invitation: Invitation) -> None:
        super().__init__(python)
        self._commands = commands
        self._invitation = invitation

    def connect(self) -> RunningSsh:
        """Start ssh and the relay."""
        return self._commands.connect(self._invitation)

    def run(self, command: str) -> RunningSsh:
        """Start ssh with another command."""
        return self._commands.run(command)

    def holder(self, ssh: RunningSsh) -> str | None:
        """Return process and start of the relay."""
        return self._commands.relay()

    def beat(self, ssh: RunningSsh) -> None:
        """Tell the relay that the notebook is there."""
        self._commands.beat()

    def note_end(self, ssh: RunningSsh) -> None:
        """Forget the relay."""
        self._commands.note_end(ssh.exit_code or 0)


def relay_place(options: EngineOptions, towards: str = "") -> RelayPlace:
    """Return the login node of ``--via``."""
    return RelayPlace(options.via, options.python, options.address, options.port, towards)


def make_commands(options: EngineOptions, towards: str = "") -> Commands:
    """Return the commands that start agents: those of ``--via``, or of this machine.

    Args:
        options: of the user.
        towards: a host that the agents run on; empty: ask Slurm.
    """
    if not options.via:
        return OwnCommands()
    return RelayedCommands(relay_place(options, towards))


class RelayedProgram:
    """A program on the login node.

    Args:
        commands: of that machine.
        number: of the program.
        name: the first word of its command line.
    """

    def __init__(self, commands: RelayedCommands, number: int, name: str) -> None:
        self._commands = commands
        self._number = number
        self._name = name

    def end(self) -> str:
        """Return how it has ended; empty: it runs."""
        return self._commands.program_end(self._number, self._name)

    @property
    def exit_code(self) -> int | None:
        """Its exit code, once `end` has told how it ended; None: it is not known."""
        return self._commands.program_exit_code(self._number)

    def lines(self, since: int) -> tuple[list[str], int]:
        """Return its lines from the number ``since`` on, and how many there are."""
        lines = self._commands.program_lines(self._number)[since:]
        return lines, since + len(lines)  # another thread may read more meanwhile

    def close_input(self) -> None:
        """Begin to end it."""
        self._commands.stop_program(self._number)

    def stop(self, patience_s: float) -> None:
        """Begin to end it; the relay waits, with a patience of its own."""
        self._commands.stop_program(self._number)
