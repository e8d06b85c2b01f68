"""The processes behind a pool's ranks: agents, fork servers, the store."""

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from nbddp.controller.pool.pool import Pool
from nbddp.wire.messages import Output
from tests.support.polling import poll_until

_LISTEN = "0A"  # /proc/net/tcp


class Told:
    """The messages of a pool to its user between cells, and their times.

    It replaces the listener of a notebook: ``told = Told(pool)``.
    """

    def __init__(self, pool: Pool) -> None:
        self.lines: list[tuple[float, str]] = []
        pool.listeners.background = self._hear

    def _hear(self, event: object) -> None:
        if isinstance(event, Output) and event.text.startswith("nbddp: "):
            # Where a line breaks is a matter of front ends.
            self.lines.append((time.monotonic(), " ".join(event.text.split()) + "\n"))

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(text for _, text in self.lines)

    def wait_for(self, *words: str, timeout_s: float = 10.0) -> str:
        """Waits for a line with all these words; returns it."""

        def found() -> list[str]:
            lines = [text for _, text in self.lines if all(word in text for word in words)]
            assert lines, f"told so far: {self.text!r}"
            return lines

        return poll_until(found, timeout_s)[0]


def pid_of(pool: Pool, rank: int) -> int:
    return next(info.pid for info in pool.ranks() if info.rank == rank)


def agent_of(pool: Pool, node: int = 0) -> psutil.Process:
    """The process of an agent."""
    agent = fork_server_of(pool, node).parent()
    assert agent is not None
    return agent


def fork_server_of(pool: Pool, node: int = 0) -> psutil.Process:
    """The child of the agent that is the parent of its ranks."""
    rank = node * pool.options.nproc_per_node
    server = psutil.Process(pid_of(pool, rank)).parent()
    assert server is not None
    return server


def store_of(pool: Pool) -> psutil.Process:
    """The child of the first fork server that is no rank."""
    ranks = {info.pid for info in pool.ranks()}
    (store,) = [child for child in fork_server_of(pool).children() if child.pid not in ranks]
    return store


def is_gone(process: psutil.Process) -> bool:
    """Whether a process has ended."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def stop(process: psutil.Process) -> None:
    """Send SIGSTOP and wait until the process is, or was, stopped: a pool may continue it."""
    os.kill(process.pid, signal.SIGSTOP)
    poll_until(lambda: not _is_pending(process.pid, signal.SIGSTOP), 5.0)


def _is_pending(pid: int, signum: int) -> bool:
    """Whether a process has not begun to handle a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    pending = re.findall(r"^(?:SigPnd|ShdPnd):\s*(\w+)", status, re.MULTILINE)
    return any(int(each, 16) >> (signum - 1) & 1 for each in pending)


def all_gone(processes: list[psutil.Process]) -> Callable[[], bool]:
    """A predicate for `poll_until`."""
    return lambda: all(map(is_gone, processes))


def folder_of(pool: Pool) -> Path:
    return Path(pool.ranks()[0].log_path).parent


def processes_of(pool: Pool) -> list[psutil.Process]:
    """Agents and all that descends from them, and this process."""
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def listening(processes: list[psutil.Process]) -> set[str]:
    """``address:port`` of every TCP socket on which one of the processes listens."""
    inodes = set()
    for process in processes:
        for fd in Path(f"/proc/{process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile, as that of this very listing
                target = str(fd.readlink())
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN and fields[9] in inodes:
                found.add(fields[1])
    return found
