"""The relay of a login node: it copies bytes, runs programs, and ends with its input."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nbddp.controller.launch import EngineOptions, relay
from nbddp.controller.launch.relay_messages import (
    Answer,
    AskProgram,
    Beat,
    Listening,
    ProgramEnded,
    ProgramOutput,
    Report,
    Request,
    RunProgram,
    StopProgram,
    read_reports,
    read_request,
    report_line,
    request_line,
)
from nbddp.controller.launch.relayed_commands import make_commands
from nbddp.wire.invitation import Invitation
from tests.support.polling import poll_until
from tests.support.pretend_ssh import PRETEND_SSH, write_command

INVITATION = Invitation(
    pool_id="p",
    addresses=("tcp://127.0.0.1:1",),
    token="t",
    server_key="s",
    public_key="k",
    secret_key="x",
)


class Relay:
    """A relay, and the notebook's port at the other end of its socket."""

    def __init__(self, folder: Path, *more: str, env: dict[str, str] | None = None) -> None:
        self.path = folder / "s"
        self.notebook = socket.socket(socket.AF_UNIX)
        self.notebook.bind(str(self.path))
        self.notebook.listen()
        self.output = folder / "output"
        words = [sys.executable, "-P", "-m", relay.__name__, "--socket", str(self.path)]
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [*words, "--address", "127.0.0.1", "--patience", "60", *more],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                text=True,
                env={**os.environ, **(env or {})},
            )
        self._say(INVITATION.text())
        [listening] = poll_until(self.reports)
        assert isinstance(listening, Listening)
        host, _, port = listening.address.partition(":")
        self.place = host, int(port)

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, request: Request) -> None:
        """Send a request."""
        self._say(request_line(request))

    def reports(self) -> list[Report]:
        """All reports so far."""
        return read_reports(self.output.read_text().splitlines())

    def end(self, number: int) -> str:
        """How a program ended; fails while it runs."""
        ends = [r.how for r in self.reports() if isinstance(r, ProgramEnded) and r.number == number]
        assert ends
        return ends[0]

    def close(self) -> None:
        """End it by the end of its input."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.notebook.close()


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Relay]:
    """A relay."""
    with closing(Relay(tmp_path)) as made:
        yield made


def test_messages_are_read_as_they_were_written():
    requests: list[Request] = [
        RunProgram(1, ("a", "b c")),
        StopProgram(1),
        AskProgram(2, ()),
        Beat(),
    ]
    assert [read_request(request_line(request)) for request in requests] == requests
    reports: list[Report] = [
        Listening("10.0.0.1:5"),
        ProgramOutput(1, ("one", "tw\xf6")),
        ProgramEnded(1, "ended\nsoon", 255),
        Answer(2, ""),
    ]
    lines = [report_line(report) for report in reports]
    assert read_reports(["Welcome", *lines, "nbddp relay: torn {"]) == reports


def test_bytes_of_agents_come_out_at_the_notebook_and_back(running: Relay):
    with socket.create_connection(running.place) as agent:
        notebook, _ = running.notebook.accept()
        with notebook:
            block = os.urandom(1 << 20)
            agent.sendall(block[: 1 << 16])
            assert notebook.recv(1 << 16, socket.MSG_WAITALL) == block[: 1 << 16]
            notebook.sendall(b"back")
            assert agent.recv(4, socket.MSG_WAITALL) == b"back"
        assert agent.recv(1) == b""  # the end comes through, too


def test_a_program_gets_the_invitation_with_the_address_of_the_relay(running: Relay):
    running.ask(RunProgram(1, ("sh", "-c", 'read line; echo "$line"; cat; exit 3')))
    [output] = poll_until(lambda: [r for r in running.reports() if isinstance(r, ProgramOutput)])
    invitation = Invitation.parse(output.lines[0])
    assert invitation.addresses == ("tcp://{}:{}".format(*running.place),)
    assert invitation.secret_key == "x"
    running.ask(StopProgram(1))  # ends its input
    running.ask(AskProgram(7, ("echo", "yes")))
    poll_until(lambda: Answer(7, "yes\n") in running.reports())


def test_the_end_of_a_program_and_a_program_that_is_not_there_are_told(running: Relay):
    running.ask(RunProgram(1, ("sh", "-c", "echo no such partition >&2; exit 3")))
    running.ask(RunProgram(2, ("nbddp-no-such-program",)))
    end = poll_until(lambda: running.end(1))
    assert end == "ended with exit code 3 and said: no such partition"
    poll_until(lambda: running.end(2) == "")


def test_the_end_of_the_input_ends_programs_and_removes_the_socket(running: Relay):
    running.ask(RunProgram(1, ("sh", "-c", "read line; echo up $$; exec sleep 600")))
    [output] = poll_until(lambda: [r for r in running.reports() if isinstance(r, ProgramOutput)])
    pid = int(output.lines[0].split()[1])
    running.close()
    assert running.process.returncode == 0
    assert not Path(f"/proc/{pid}").exists()
    assert not running.path.exists()


def test_a_notebook_that_is_silent_for_long_ends_the_relay(tmp_path: Path):
    with closing(Relay(tmp_path, "--patience", "0.2")) as running:
        assert running.process.wait(30) == 0


def test_a_login_shell_knows_programs_that_ssh_does_not_find(tmp_path: Path):
    folder = tmp_path / "site"
    folder.mkdir()
    for path, line in (
        (folder / "nbddp-site-program", "echo found"),
        (tmp_path / "shell", f'echo Welcome; PATH={folder}:$PATH; shift; eval "$@"'),
    ):
        path.write_text(f"#!/bin/sh\n{line}\n")
        path.chmod(0o755)
    with closing(Relay(tmp_path, env={"SHELL": str(tmp_path / "shell")})) as running:
        running.ask(RunProgram(1, ("nbddp-site-program",)))
        assert poll_until(lambda: running.end(1)) == "ended with exit code 0 and said: found"


def test_a_socket_that_ssh_has_not_made_is_an_error(tmp_path: Path):
    words = [sys.executable, "-P", "-m", relay.__name__, "--socket", str(tmp_path / "none")]
    ended = subprocess.run(
        [*words, "--patience", "1"], input="", text=True, capture_output=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("nbddp: sshd of this machine has made no socket")


def test_commands_of_a_login_node_run_there_also_after_its_relay_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    write_command(tmp_path / "ssh", PRETEND_SSH)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    options = EngineOptions(1, 1, via="login", python=sys.executable, address="127.0.0.1")
    commands = make_commands(options)
    assert commands.ask(["echo", "too early"]) == ""
    one = commands.start(["sh", "-c", "read line; echo up; exec cat"], INVITATION)
    assert commands.state() in ("ssh to login", "")
    poll_until(lambda: one.lines(0) == (["up"], 1))
    assert one.lines(1) == ([], 1)
    assert commands.state() == one.end() == commands.failure() == ""
    assert commands.ask(["echo", "yes"]) == "yes\n"
    commands.ask(["sh", "-c", "kill $PPID"])
    assert poll_until(commands.failure).startswith("ssh to login ended with exit code 0")
    two = commands.start(["sh", "-c", "exit 4"], INVITATION)
    assert commands.failure() == ""
    assert poll_until(two.end) == "ended with exit code 4, and said nothing"
    assert one.end() == "ended with the ssh to login"
    commands.stop()
