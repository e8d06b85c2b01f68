"""The diagnosis of a rank whose process is stopped."""

import os
import signal
import threading
import time

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.errors import CellInterruptedError
from tests.support.polling import poll_until
from tests.support.views import begin_cell


def test_a_stopped_process_is_told_as_that(pool: Pool):
    (pid,) = pool.pull("__import__('os').getpid()", ranks="1")
    cell = begin_cell(
        pool,
        "import os, signal\n"
        "if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\n"
        "dist.all_reduce(torch.ones(2))",
    )

    def is_told() -> bool:
        findings = pool.observe().report.findings
        return any(
            each.headline.endswith("for rank 1, whose process is stopped.")
            and each.ranks[1].what == "is stopped (SIGSTOP)"
            for each in findings
        )

    try:
        poll_until(is_told)
    finally:
        os.kill(pid, signal.SIGCONT)
    cell.join()


@pytest.mark.breaks_pool
def test_the_stop_button_ends_the_wait_of_a_cell_for_the_repair_of_the_pool(pool: Pool):
    pids = pool.pull("__import__('os').getpid()")
    os.kill(pids[0], signal.SIGSTOP)  # no groups are formed without it
    timer = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        os.kill(pids[1], signal.SIGKILL)
        poll_until(lambda: pool.snapshot.ranks[1].pid != pids[1])
        began = time.monotonic()
        timer.start()
        with pytest.raises(CellInterruptedError, match="was not run: it waited until all of its"):
            pool.run("1", ranks="1")
        assert time.monotonic() - began < 5.0
    finally:
        timer.join()
        os.kill(pids[0], signal.SIGCONT)
