"""An agent that another process has started is watched and ended by its descriptor."""

import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbddp.controller.launch import AdoptedAgent
from nbddp.system.kept_pools import ProcessId


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    made = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with made:
        yield made
        made.kill()


def test_a_descriptor_may_have_a_high_number(
    process: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    try:
        agent = AdoptedAgent(0, ProcessId.of(process.pid), "p1", tmp_path)
        low = agent.exit_fd
        agent.exit_fd = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1024)
        os.close(low)
        assert not agent.has_exited()
        agent.kill()
        assert agent.has_exited()
        agent.close()
        assert agent.exit_fd == -1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_later_process_with_the_same_number_is_left_alone(
    process: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    there = ProcessId.of(process.pid)
    agent = AdoptedAgent(0, ProcessId(there.pid, there.started - 1), "p1", tmp_path)
    assert agent.has_exited()
    agent.wake()
    agent.kill()
    assert process.poll() is None
    assert agent.process.started == there.started - 1
