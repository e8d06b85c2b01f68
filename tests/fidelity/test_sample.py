"""A small part of `tests.fidelity`; the whole takes about an hour."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.full
@pytest.mark.timeout(300)
def test_torchs_own_tests_give_the_same_on_both_kinds_of_groups():
    command = [sys.executable, "-m", "tests.fidelity", "--ranks", "3", "--limit", "60"]
    for name in (
        "DistributedTest.test_all_reduce_coalesced_full_group_min",
        "DistributedTest.test_all_gather_object_subgroup",
        "DistributedTest.test_DistributedDataParallelCPU_grad_is_view",
        "DistributedTest.test_send_recv_any_source",
        "DistributedTest.test_monitored_barrier_gloo",
        "DistributedTest.test_reduce_full_group_product",
    ):
        command += ["--only", name]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 pools with traced groups had to be replaced" in done.stdout
    assert " 0 different" in done.stdout
    assert "skipped" not in done.stdout, "a test that is skipped shows nothing"
