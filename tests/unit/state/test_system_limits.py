"""Errors at limits of the system get a hint in words."""

import errno
import resource

import pytest

from nbddp.agent import exit_reports
from nbddp.controller.state.exit_text import describe_exit
from nbddp.system import os_limits
from nbddp.wire.messages import RankExited


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "fs.file-max"),
        (errno.EFBIG, "ulimit -f"),
        (errno.ENOSPC, "TMPDIR"),
        (errno.EDQUOT, "TMPDIR"),
        (errno.EROFS, "TMPDIR"),
        (errno.EAGAIN, "ulimit -u"),
        (errno.ENOMEM, "ulimit -v"),
    ],
)
def test_errors_of_the_system_say_what_to_do(number: int, word: str):
    assert word in os_limits.limit_advice(OSError(number, "no"))


def test_errors_of_other_kinds_get_no_hint():
    assert not os_limits.limit_advice(FileNotFoundError(errno.ENOENT, "no"))
    assert not os_limits.limit_advice(ValueError("no"))
    assert "ulimit -v" in os_limits.limit_advice(MemoryError())


def test_descriptors(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os_limits, "_open_descriptors", lambda: 10)
    allowed = 256

    def limit(_: int) -> tuple[int, int]:
        return allowed, allowed

    monkeypatch.setattr(resource, "getrlimit", limit)
    assert not os_limits.too_few_descriptors(8, 8)
    assert "256 files" in os_limits.too_few_descriptors(64, 64)
    allowed = 64
    assert not os_limits.too_few_descriptors(2, 2)
    assert "a pool of 1 rank needs up to 70" in (
        monkeypatch.setattr(os_limits, "_open_descriptors", lambda: 50)
        or os_limits.too_few_descriptors(1, 1)
    )
    allowed = resource.RLIM_INFINITY
    assert not os_limits.too_few_descriptors(512, 512)


def exited(code: int, *, fault: str = "", last_output: str = "") -> RankExited:
    return RankExited(
        rank=0, pid=1, exit_code=code, out_of_memory=False, last_output=last_output, fault=fault
    )


def test_a_deep_stack_is_an_overflow_and_a_short_one_is_not():
    frame = '  File "<ipython-input-1-x>", line 2 in f\n'
    head = (
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n"
    )
    assert "stack overflowed" in describe_exit(exited(-11, fault=f"{head}{frame * 100}  ...\n"))[1]
    assert "not its own" in describe_exit(exited(-11, fault=f"{head}{frame * 3}"))[1]


@pytest.mark.parametrize(
    "line",
    [
        "Assertion failed: pfd.revents & POLLIN (src/signaler.cpp:238)",
        "Bad file descriptor (src/epoll.cpp:73)",
        "[enforce fail at gloo/transport/tcp/loop.cc:174] rv != -1. epoll_ctl: Bad file descriptor",
        "  what():  [enforce fail at /gloo/transport/tcp/loop.cc:212] nfds != -1. -1 vs -1",
    ],
)
def test_descriptors_that_a_cell_has_closed(line: str):
    assert "closed descriptors" in describe_exit(exited(-6, last_output=f"a\n{line}\n"))[1]
    assert "gave up" in describe_exit(exited(-6, last_output="Assertion failed: x (mine.cpp:1)"))[1]


def test_kills_for_lack_of_memory_are_counted(monkeypatch: pytest.MonkeyPatch):
    from pathlib import Path

    files = {"/proc/vmstat": "nr_free_pages 12\noom_kill 3\n"}

    def read_text(path: Path) -> str:
        if str(path) not in files:
            raise FileNotFoundError(path)
        return files[str(path)]

    monkeypatch.setattr(Path, "read_text", read_text)
    assert exit_reports._out_of_memory_kills() == 3
    files["/proc/vmstat"] = "nr_free_pages 12\n"  # Linux before 4.13
    assert exit_reports._out_of_memory_kills() is None
    files |= {
        "/proc/self/cgroup": "0::/a\n",
        "/sys/fs/cgroup/a/memory.events": "oom 9\noom_kill 2\n",
    }
    assert exit_reports._out_of_memory_kills() == 2
