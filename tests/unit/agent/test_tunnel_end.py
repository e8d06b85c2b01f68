"""The end of a tunnel on a host ends the sshd of one connection, and no other process."""

import subprocess
import sys

import pytest

from nbddp.agent import tunnel_end
from nbddp.system import process_tree


def test_a_process_is_ended_only_if_it_is_the_one_that_was_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tunnel_end, "_END_S", 1000.0)  # it waits for no process that it leaves
    process = subprocess.Popen(["sleep", "1000"])
    try:
        started = process_tree.start_time(process.pid)
        tunnel_end.end_process(process.pid, started + 1)
        assert process.poll() is None
        tunnel_end.end_process(process.pid, started)
        assert process.wait() < 0
    finally:
        process.kill()
        process.wait()
    tunnel_end.end_process(process.pid, started)  # it has ended
    tunnel_end.end_process(0, -1)  # as it is named where none was found


def start(patience_s: float) -> "subprocess.Popen[str]":
    """Start it in a session of its own: it must not find the sshd of a developer."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", tunnel_end.__name__, "--patience", str(patience_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_without_sshd_the_end_of_the_input_is_waited_for():
    with start(60.0) as process:
        text, _ = process.communicate("\n")
    assert process.returncode == 0
    assert text.endswith(": holds the tunnel of sshd 0 -1\n")


def test_without_sshd_a_silence_ends_it():
    with start(0.1) as process:
        assert process.wait() == 0
