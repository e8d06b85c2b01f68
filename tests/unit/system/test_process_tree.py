"""A killed process counts as ending at once; one that ends meanwhile has no children."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from nbddp.system.process_tree import IS_LINUX, children_of, has_got_sigkill, is_ending, start_time


@pytest.mark.skipif(not IS_LINUX, reason="there is no /proc")
def test_a_process_that_was_killed_counts_as_ending_at_once_and_forever():
    code = "import sys; print('in', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"in\n"
        assert not is_ending(child.pid)
        assert not has_got_sigkill(child.pid)
        os.kill(child.pid, signal.SIGKILL)
        assert is_ending(child.pid)
        assert has_got_sigkill(child.pid)
    assert is_ending(child.pid)
    assert has_got_sigkill(child.pid)
    assert not is_ending(os.getpid())  # it runs


@pytest.mark.skipif(not IS_LINUX, reason="there is no /proc")
def test_a_process_that_is_collected_while_its_children_are_read_has_none():
    # Path.glob raised in 27 to 133 of 400 such rounds.
    for _ in range(200):
        pid = os.posix_spawn("/bin/true", ["true"], {})
        collector = threading.Thread(target=os.waitpid, args=(pid, 0))
        collector.start()
        while start_time(pid) != -1:
            assert children_of(pid) == set()
        collector.join()
