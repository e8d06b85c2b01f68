"""The record of a pool on other machines: it follows its agents, and goes with the pool."""

from pathlib import Path

import pytest

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.record_writer import RecordWriter
from nbddp.system import kept_pools
from nbddp.system.kept_pools import MachinesRecord


def machines(*pids: int) -> MachinesRecord:
    hosts = tuple(f"n{number}" for number in range(len(pids)))
    return MachinesRecord(
        notebook_host="here", address="10.0.0.1", port=5, keys={}, hosts=hosts, pids=pids
    )


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordWriter:
    monkeypatch.setenv("HOME", str(tmp_path))
    made = RecordWriter(PoolOptions(), "p", use_arena=False)
    made.machines = lambda: machines(7, 8)
    return made


def test_an_agent_that_took_the_place_of_another_is_in_the_record(
    writer: RecordWriter, tmp_path: Path
):
    writer.write(None, [], keep_s=60.0)
    folder = tmp_path / ".nbddp" / "kept" / "p"
    writer.machines = lambda: machines(7, 9)
    writer.renew()
    record = kept_pools.read(folder)
    assert record is not None
    assert record.machines is not None
    assert (record.machines.pids, record.keep_s) == ((7, 9), 60.0)
    writer.machines = lambda: machines(6, 9)
    writer.rewrite(None, [])
    record = kept_pools.read(folder)
    assert record is not None
    assert record.machines is not None
    assert (record.machines.pids, record.keep_s) == ((6, 9), 60.0)


def test_a_pool_that_is_not_kept_any_longer_leaves_no_record(writer: RecordWriter, tmp_path: Path):
    writer.write(None, [], keep_s=60.0)
    writer.write(None, [], keep_s=0.0)
    writer.renew()
    assert not (tmp_path / ".nbddp").exists()
