"""The diagnosis of a rank whose process is stopped."""

import os
import signal

from nbddp.controller.pool.pool import Pool
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
