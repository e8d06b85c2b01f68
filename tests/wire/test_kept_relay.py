"""The relay of a kept pool comes back at its place, and queues jobs, with programs of the test."""

import os
import sys
from pathlib import Path

import pytest

from nbddp.controller.launch import EngineOptions, LostNode, ReachingEngine
from nbddp.controller.launch.relayed_commands import RelayedCommands, relay_place
from nbddp.controller.launch.relayed_job import RelayedJobEngine
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
    keep_s=60.0,
)
OPTIONS = EngineOptions(2, 1, via="login", python=sys.executable, address="127.0.0.1", keep_s=60.0)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs, first in PATH; it is the home folder, too."""
    write_command(tmp_path / "ssh", PRETEND_SSH)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.full
def test_the_relay_comes_back_at_its_place():
    commands = RelayedCommands(relay_place(OPTIONS))
    one = commands.start(["sh", "-c", "read line; echo up; exec cat"], INVITATION)
    poll_until(lambda: one.lines(0) == (["up"], 1))
    place = commands.listens
    commands.ask(["sh", "-c", "kill -9 $PPID"])
    poll_until(lambda: commands.ask(["echo", "yes"]) == "yes\n")
    assert commands.listens == place
    assert commands.failure() == ""  # it was there
    assert one.end() == "ended with the ssh to login"
    two = commands.start(["sh", "-c", "exit 4"], INVITATION)
    assert poll_until(two.end) == "ended with exit code 4, and said nothing"
    commands.stop()

    next_one = RelayedCommands(relay_place(OPTIONS))
    next_one.keep(INVITATION, place)
    assert next_one.listens == place
    poll_until(lambda: next_one.ask(["echo", "yes"]) == "yes\n")
    assert next_one.listens == place
    next_one.stop()


def test_a_relay_that_cannot_have_its_place_says_so():
    first = RelayedCommands(relay_place(OPTIONS))
    first.keep(INVITATION)
    place = poll_until(lambda: first.listens)
    second = RelayedCommands(relay_place(OPTIONS))
    second.keep(INVITATION, place)
    assert "Address already in use. Next: --address IP" in poll_until(second.failure)
    first.stop()
    poll_until(lambda: second.ask(["echo", "yes"]) == "yes\n")
    assert second.failure() == ""
    second.stop()


def test_a_job_is_queued_on_the_login_node_and_found_again(folder: Path):
    write_command(folder / "sbatch", f'echo "$@" >> {folder}/queued; echo Welcome; echo 4711')
    write_command(folder / "squeue", 'echo "4711|PENDING|Priority|N/A"')
    write_command(folder / "scancel", f'echo "$@" >> {folder}/cancelled')
    engine: ReachingEngine = RelayedJobEngine(OPTIONS)
    assert (engine.address(), engine.owns_address) == ("127.0.0.1", True)
    engine.start(INVITATION)
    poll_until(lambda: engine.state() == "Slurm job 4711: PENDING (Priority)")
    assert engine.end(0) == ""
    file = folder / ".nbddp" / "p.json"
    assert file.stat().st_mode & 0o777 == 0o600
    mark = engine.mark  # type: ignore[attr-defined]
    job, _, place = mark.partition(";")
    assert job == "4711"
    assert Invitation.parse(file.read_bytes()).addresses == (f"tcp://{place}",)
    queued = (folder / "queued").read_text()
    assert f"--output={folder}/.nbddp/p.out" in queued
    assert f"--connect {folder}/.nbddp/p.json" in queued
    assert "secret" not in queued
    engine.leave()
    assert not file.parent.exists()

    second = RelayedJobEngine(OPTIONS)
    second.reach(mark, INVITATION)
    poll_until(lambda: second.mark == mark)
    second.take_back(mark, INVITATION)
    poll_until(file.exists)
    second.replace(LostNode(1), INVITATION)
    poll_until(lambda: second.mark == f"4711,1:4711;{place}")
    assert "--job-name=nbddp-p-1" in (folder / "queued").read_text()
    second.stop()
    assert (folder / "cancelled").read_text() == "4711\n4711\n"
    assert not file.parent.exists()


def test_a_job_that_is_not_queued_is_told(folder: Path):
    write_command(folder / "sbatch", "echo no such partition >&2; exit 3")
    engine = RelayedJobEngine(OPTIONS)
    engine.start(INVITATION)
    assert poll_until(lambda: engine.end(0)) == (
        "sbatch ended with exit code 3 and said: no such partition. Next: try `sbatch` on login"
    )
    engine.stop()
