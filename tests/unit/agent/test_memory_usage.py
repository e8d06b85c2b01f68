"""The memory of processes, counted for a real parent and its fork."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nbddp.agent import memory_usage
from nbddp.agent.memory_usage import MemoryReader

MB = 1_000_000

#: Two processes share 64 MB. The fork takes more with each line that it is told.
PROGRAM = """
import os, sys
shared = bytearray(b"x") * 64_000_000
pid = os.fork()
if pid == 0:
    print(os.getpid(), flush=True)
    more = []
    for _ in sys.stdin:
        more.append(bytearray(b"x") * 32_000_000)
        print("taken", flush=True)
    os._exit(0)
sys.stdin.close()
os.waitpid(pid, 0)
"""


@pytest.fixture
def parent() -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.communicate()


@pytest.fixture
def fork(parent: "subprocess.Popen[str]") -> int:
    return int(tell(parent))


def tell(parent: "subprocess.Popen[str]") -> str:
    assert parent.stdout is not None
    return parent.stdout.readline()


def take_more(parent: "subprocess.Popen[str]") -> None:
    assert parent.stdin is not None
    parent.stdin.write("more\n")
    parent.stdin.flush()
    assert tell(parent) == "taken\n"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes whose pages were counted."""
    made: list[int] = []
    count = memory_usage._count_pages

    def recorded(pid: int, *arguments: Any) -> Any:
        made.append(pid)
        return count(pid, *arguments)

    monkeypatch.setattr(memory_usage, "_count_pages", recorded)
    return made


def test_shared_pages_count_in_part(fork: int):
    found = MemoryReader().read(0, fork, now=0.0)
    assert found.is_pss
    assert 32 * MB < found.size_bytes < 50 * MB
    assert memory_usage._resident_bytes(fork) > 64 * MB


def test_descendants_count_with_it(parent: "subprocess.Popen[str]", fork: int):
    reader = MemoryReader()
    both = reader.read(0, parent.pid, now=0.0)
    assert both.is_pss
    assert 64 * MB < both.size_bytes < 100 * MB
    assert both.size_bytes > reader.read(1, fork, now=0.0).size_bytes + 30 * MB


def test_memory_taken_between_two_counts_is_added(
    parent: "subprocess.Popen[str]", fork: int, counted: list[int]
):
    reader = MemoryReader()
    before = reader.read(0, fork, now=0.0)
    take_more(parent)
    after = reader.read(0, fork, now=0.5)
    assert counted == [fork]
    assert 30 * MB < after.size_bytes - before.size_bytes < 36 * MB
    reader.read(0, fork, now=1e6)
    assert counted == [fork, fork]


def test_many_large_ranks_are_counted_less_often(fork: int, counted: list[int]):
    reader = MemoryReader()
    for rank in range(40):
        reader.read(rank, fork, now=0.0)
    dear = {
        rank: {fork: memory_usage._PageCount(MB, MB, made_at=0.0, cost_s=0.1)}
        for rank in reader._page_counts
    }
    reader._page_counts = dear
    counted.clear()
    reader.read(0, fork, now=199.0)  # 40 counts of 0.1 s are 2 % of 200 s
    assert counted == []
    reader.read(0, fork, now=201.0)
    assert counted == [fork]


def test_a_fresh_process_is_counted_at_once(fork: int, counted: list[int]):
    reader = MemoryReader()
    reader.read(0, fork, now=0.0)
    reader.forget(0)
    reader.read(0, fork, now=0.1)
    assert counted == [fork, fork]


def test_resident_memory_stands_in_where_pages_cannot_be_counted(
    fork: int, monkeypatch: pytest.MonkeyPatch
):
    read_text = Path.read_text

    def refused(path: Path, *arguments: Any, **named: Any) -> str:
        if path.name == "smaps_rollup":
            raise PermissionError
        return read_text(path, *arguments, **named)

    monkeypatch.setattr(Path, "read_text", refused)
    found = MemoryReader().read(0, fork, now=0.0)
    assert not found.is_pss
    assert found.size_bytes > 64 * MB


def test_the_memory_of_an_ended_process_is_unknown(parent: "subprocess.Popen[str]", fork: int):
    parent.communicate()
    assert MemoryReader().read(0, fork, now=0.0).size_bytes == 0
