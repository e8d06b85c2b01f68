"""A killed process counts as ending as soon as the kernel knows it."""

import os
import signal
import subprocess
import sys

import pytest

from nbddp.system.process_tree import IS_LINUX, is_ending


@pytest.mark.skipif(not IS_LINUX, reason="there is no /proc")
def test_a_process_that_was_killed_counts_as_ending_at_once_and_forever():
    code = "import sys; print('in', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"in\n"
        assert not is_ending(child.pid)
        os.kill(child.pid, signal.SIGKILL)
        assert is_ending(child.pid)
    assert is_ending(child.pid)
    assert not is_ending(os.getpid())
