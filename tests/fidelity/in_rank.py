"""Runs one test of torch in a rank, where torch's own runner would make a process for it.

Runs in: rank processes, called by cells. Follows ``MultiProcessTestCase._run`` and
``TestDistBackend._run`` of torch, but raises in the cell what the test raises.
"""

import os
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import rpc

from tests.fidelity.suites import class_of

_ENVIRONMENT = dict(os.environ)


def run(suite: str, method: str, folder: str) -> str:
    """Run a test, and give ``passed`` or why it was skipped.

    Args:
        suite: name of a class, see `suites.class_of`.
        method: of that class.
        folder: empty and new, the same on all ranks.

    Raises:
        Exception: whatever the test raises.
    """
    from torch.testing._internal import common_distributed, common_utils

    os.environ["TEMP_DIR"] = folder
    test = class_of(suite)(method)
    test.rank = int(os.environ["RANK"])
    test.file_name = str(Path(folder) / "store")
    common_utils.set_rng_seed()
    try:
        if suite == "DistributedTest":
            _run_on_groups(test, method)
        elif isinstance(test, common_distributed.MultiProcessTestCase):
            getattr(test, method)()
        else:
            _run_alone(test)
    except unittest.SkipTest as reason:
        return f"skipped: {reason}"
    except SystemExit as ended:
        for skip in common_distributed.TEST_SKIPS.values():
            if ended.code == skip.exit_code:
                return f"skipped: {skip.message}"
        if ended.code in (0, None):
            return "passed"
        raise AssertionError(f"the test has ended its process with {ended.code}") from None
    return "passed"


def _run_on_groups(test: Any, method: str) -> None:
    from torch.testing._internal.distributed import distributed_test

    distributed_test.Barrier.barrier_id = 0
    limit_s = distributed_test.CUSTOM_PG_TIMEOUT.get(method, distributed_test.default_pg_timeout)
    dist.init_process_group(
        "gloo",
        init_method=test.init_method,
        world_size=int(test.world_size),
        rank=test.rank,
        timeout=timedelta(seconds=limit_s),
    )
    test._barrier()
    getattr(test, method)()
    test._barrier()
    dist.destroy_process_group()


def _run_alone(test: unittest.TestCase) -> None:
    result = unittest.TestResult()
    test.run(result)
    if result.skipped:
        raise unittest.SkipTest(result.skipped[0][1])
    for _, text in result.failures + result.errors:
        raise AssertionError(text)


def clean_up() -> None:
    """Removes state of a test that the next one must not find."""
    if dist.is_initialized():
        dist.destroy_process_group()
    if torch._C._distributed_rpc._is_current_rpc_agent_set():
        rpc.shutdown(graceful=False)
    os.environ.clear()
    os.environ.update(_ENVIRONMENT)
    torch._C._distributed_c10d.set_debug_level_from_env()
    torch.set_default_dtype(torch.float32)
    torch._dynamo.reset()
