"""A kept pool whose job of Slurm has ended gets a note; one of which that is not known stays."""

import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nbddp.controller.pool import note_ended_jobs
from nbddp.system import kept_pools
from nbddp.system.kept_pools import MachinesRecord, PoolRecord

HERE = platform.node()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "kept" / "p1"
    made.mkdir(parents=True)
    monkeypatch.setattr(kept_pools, "_folders", lambda: iter([made]))
    return made


def write(folder: Path, mark: str, **options: Any) -> None:
    machines = MachinesRecord(
        notebook_host=HERE,
        address="10.0.0.1",
        port=5,
        keys={"server_key": "k"},
        hosts=("n1", "n2"),
        pids=(7, 8),
        mark=mark,
    )
    record = PoolRecord(
        pool_id="p1",
        described="-n 2",
        options={"launcher": "slurm", "via": ""} | options,
        world_size=2,
        began_at=1.0,
        notebook=None,
        notebook_since=kept_pools.now(),
        agents=(),
        keep_s=3600.0,
        token="secret",
        machines=machines,
    )
    kept_pools.write(folder, record)


@pytest.mark.parametrize(
    ("mark", "answers", "reason"),
    [
        ("3", [("CANCELLED\n", "")], "its Slurm job 3 has ended (CANCELLED)"),
        (
            "3",
            [("", "slurm_load_jobs error: Invalid job id specified")],
            "its Slurm job 3 is not known to Slurm any more",
        ),
        ("3,1:4", [("FAILED\n", ""), ("TIMEOUT\n", "")], "its Slurm job 3 has ended (FAILED)"),
        ("3,1:4", [("CANCELLED\n", ""), ("RUNNING\n", "")], ""),
        ("3", [("COMPLETING\n", "")], ""),
        ("3", [("PENDING\n", "")], ""),
        ("3", [("", "squeue: error: Unable to contact slurm controller")], ""),
        ("3", [("", "")], ""),
        ("", [], ""),
    ],
)
def test_the_end_of_a_job(folder: Path, mark: str, answers: list[tuple[str, str]], reason: str):
    asked: list[str] = []

    def ask(words: Sequence[str]) -> tuple[str, str]:
        asked.append(words[-3])
        return answers[len(asked) - 1]

    write(folder, mark)
    note_ended_jobs(ask)
    (known,) = kept_pools.known_pools()
    assert (known.state, known.reason) == ("ended" if reason else "detached", reason)
    assert (folder / "pool.json").exists() is not bool(reason)  # it has the secret
    assert asked == [word.rpartition(":")[2] for word in mark.split(",") if word]


@pytest.mark.parametrize("options", [{"launcher": "ssh"}, {"via": "login1"}])
def test_others_are_not_asked(folder: Path, options: dict[str, str]):
    def ask(words: Sequence[str]) -> tuple[str, str]:
        raise AssertionError(words)

    write(folder, "3", **options)
    note_ended_jobs(ask)
    assert [known.state for known in kept_pools.known_pools()] == ["detached"]
