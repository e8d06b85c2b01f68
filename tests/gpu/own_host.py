"""Gives each rank a host of its own in the eyes of NCCL. For ``NBDDP_PRELOAD``.

NCCL refuses two ranks on one GPU of one host ("Duplicate GPU detected", ``src/init.cc``), and takes
the name of the host from ``NCCL_HOSTID`` if it is set (NCCL's documentation, "Environment
Variables").
"""

import os

os.register_at_fork(
    after_in_child=lambda: os.environ.update(NCCL_HOSTID=f"nbddp-test-{os.getpid()}")
)
