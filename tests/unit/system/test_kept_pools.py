"""The record of a pool and the note of its end: what an agent removes, and what a list removes."""

import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from nbddp.system import kept_pools, pool_folder
from nbddp.system.kept_pools import ProcessId


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "nbddp-kept"
    monkeypatch.setattr(kept_pools, "_folders", lambda: iter([made]))
    made.mkdir()
    (made / "rank0.log").write_text("why")
    os.close(pool_folder.hold(made))
    return made


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another agent."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with process:
        yield process
        process.kill()


def write(folder: Path, *agents: ProcessId, keep_s: float = 60.0) -> None:
    record = kept_pools.PoolRecord(
        pool_id="p1",
        described="-n 2",
        options={},
        world_size=2,
        began_at=1.0,
        notebook=None,
        notebook_since=1.0,
        agents=agents,
        keep_s=keep_s,
        token="secret",
    )
    kept_pools.write(folder, record)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def dead() -> ProcessId:
    own = ProcessId.of(os.getpid())
    return ProcessId(own.pid, own.started - 1)


def test_the_last_agent_leaves_a_note_and_a_later_one_keeps_it(folder: Path):
    write(folder, dead(), ProcessId.of(os.getpid()))
    kept_pools.end(folder, "not-attached")
    assert names(folder) == ["ended.json", "in-use.lock"]
    kept_pools.end(folder, "asked")
    (known,) = kept_pools.known_pools()
    assert (known.state, known.reason) == ("ended", kept_pools.end_text("not-attached"))


def test_an_agent_leaves_the_files_to_another_one_that_lives(
    folder: Path, other: "subprocess.Popen[bytes]"
):
    write(folder, ProcessId.of(os.getpid()), ProcessId.of(other.pid))
    kept_pools.end(folder, "not-attached")
    assert (folder / "rank0.log").exists()
    assert (folder / "pool.json").exists()
    assert kept_pools.known_pools()[0].state == "detached"
    other.kill()
    other.wait()
    kept_pools.end(folder, "not-attached")
    assert names(folder) == ["ended.json", "in-use.lock"]


def test_of_two_agents_that_end_at_once_one_leaves_the_note(
    folder: Path, other: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
):
    own = os.getpid()
    write(folder, ProcessId.of(own), ProcessId.of(other.pid))
    kept_pools.end(folder, "not-attached")
    with monkeypatch.context() as there:
        there.setattr(os, "getpid", lambda: other.pid)
        kept_pools.end(folder, "not-attached")  # the first one still lives
    assert names(folder) == ["ended.json", "in-use.lock"]


def test_the_folder_of_a_pool_that_is_not_kept_is_removed(folder: Path):
    write(folder, ProcessId.of(os.getpid()), keep_s=0.0)
    kept_pools.end(folder, "asked")
    assert not folder.exists()


def test_a_list_removes_nothing_that_a_process_uses(folder: Path):
    """The numbers of processes mean nothing to another container that shares the folder."""
    write(folder, dead())
    fd = pool_folder.hold(folder)
    assert kept_pools.known_pools() == []
    assert names(folder) == ["in-use.lock", "pool.json", "rank0.log"]
    os.close(fd)
    (known,) = kept_pools.known_pools()
    assert known.state == "ended"
    assert names(folder) == ["ended.json", "in-use.lock"]


def test_a_list_takes_a_record_that_is_removed_meanwhile(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    here, keys = platform.node(), {"server_key": "k"}
    machines = kept_pools.MachinesRecord(
        notebook_host=here, address="10.0.0.1", port=5, keys=keys, hosts=("n1",), pids=(7,)
    )
    write(folder)
    record = kept_pools.read(folder)
    assert record is not None
    own = ProcessId.of(os.getpid())
    record = msgspec.structs.replace(record, notebook=own, machines=machines)
    (folder / "pool.json").unlink()
    monkeypatch.setattr(kept_pools, "read", lambda folder: record)
    (known,) = kept_pools.known_pools()
    assert (known.state, known.hosts) == ("attached", ("n1",))


def test_a_process_is_opened_only_while_it_lives(other: "subprocess.Popen[bytes]"):
    process = ProcessId.of(other.pid)
    fd = process.open()
    assert fd >= 0
    os.close(fd)
    assert ProcessId(process.pid, process.started + 1).open() == -1
    other.kill()
    other.wait()
    assert process.open() == -1


def test_a_notebook_with_a_folder_for_pools_knows_only_those_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    other.mkdir()
    monkeypatch.setenv("TMPDIR", str(other))
    monkeypatch.setattr(tempfile, "tempdir", str(other))
    for parent in (own, other):
        folder = parent / "nbddp-kept"
        folder.mkdir()
        write(folder, ProcessId.of(os.getpid()))
    monkeypatch.setenv("NBDDP_POOLS_DIR", str(own))
    assert [known.folder.parent for known in kept_pools.known_pools()] == [own]
    machines = kept_pools.folder_of_machines("p2")
    assert machines == own / "kept" / "p2"
    write(machines, ProcessId.of(os.getpid()))
    assert kept_pools.has_record_of_machines("p2")
    assert len(kept_pools.known_pools()) == 2
    kept_pools.remove_folder_of_machines(machines)
    assert [path.name for path in own.iterdir()] == ["nbddp-kept"]
