"""Pools on a real Slurm: a job of their own, a queue, a step in an allocation."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool import Pool, find_kept
from nbddp.errors import BadOptionError, DeadlockError, PoolStartError
from nbddp.notebook import source_check
from nbddp.notebook.render.status_table import introduction, survey
from tests.support import slurm_site
from tests.support.kept_site import Script
from tests.support.polling import poll_until
from tests.support.remote_pools import DEFAULTS, start
from tests.support.slurm_site import SlurmSite
from tests.support.views import RecordingView

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmSite]:
    """Two nodes."""
    if reason := slurm_site.reason_to_skip():
        pytest.skip(reason)
    made = SlurmSite(tmp_path, 2)
    monkeypatch.setenv("SLURM_CONF", str(made.configuration))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    yield made
    made.close()


def test_a_pool_is_a_job(site: SlurmSite):
    pool = start(PoolOptions.checked(2, nnodes=2, launcher="slurm", slurm="--time=5"))
    try:
        assert site.jobs() == [f"nbddp-{pool._processes.pool_id}"]
        pool.run("import os\nt = torch.ones(1) * rank\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [6.0] * 4
        # The job of the user is theirs; the step is the agent's.
        assert (
            pool.pull("'SLURM_JOB_ID' in os.environ, 'SLURM_PROCID' in os.environ")
            == [(True, False)] * 4
        )
        assert [facts.engine for facts in pool._processes.hub.nodes.facts] == ["slurm"] * 2
        with pytest.raises(DeadlockError):
            pool.run("if rank == 1:\n    dist.barrier()")
        pool.run("dist.barrier()")
    finally:
        pool.stop()
    poll_until(lambda: not site.jobs())


def test_the_end_of_the_job_is_known(site: SlurmSite):
    pool = start(PoolOptions.checked(1, nnodes=2, launcher="slurm", slurm="--time=4"))
    try:
        (job,) = {facts.job for facts in pool.snapshot.nodes}
        (end,) = pool.job_ends()
        assert re.fullmatch(rf"Slurm job {job} ends in [34] min", end)
        assert f"Slurm job {job} ends in " in str(survey(pool).notes)
        assert f" Slurm job {job} ends in " in introduction(pool, every_cell=False)
    finally:
        pool.stop()


def test_words_that_srun_does_not_know_are_answered_by_srun(site: SlurmSite):
    options = PoolOptions.checked(1, nnodes=1, launcher="slurm", slurm="--partition=nowhere")
    with pytest.raises(
        PoolStartError, match=r"(?s)never came: srun ended .* 1 and said: .*nvalid partition"
    ):
        start(options)
    assert site.jobs() == []


def test_the_end_of_the_job_ends_the_pool_and_says_so(site: SlurmSite):
    pool = start(PoolOptions.checked(1, nnodes=2, launcher="slurm", slurm="--time=5"))
    try:
        site.ask("scancel", "-n", site.jobs()[0])
        poll_until(lambda: pool._processes.snapshot.lost_agents == {0, 1})
    finally:
        pool.stop()
    poll_until(lambda: not site.jobs())


def test_a_kept_pool_is_a_job_of_its_own_that_outlives_the_notebook(
    site: SlurmSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    script = Script(
        """
import nbddp, time
pool = nbddp.start(1, nnodes=2, launcher="slurm", slurm="--time=5", keep="10min")
pool.run("x = rank + 10")
print("pool", pool.pool_id, flush=True)
time.sleep(1000)
""",
        tmp_path,
    )
    pool_id = script.wait_line("pool ")
    script.kill()
    with find_kept(pool_id) as kept:
        pool = Pool(
            kept.options,
            DEFAULTS,
            lambda pool, run: RecordingView(),
            source_check.check_source,
            kept=kept,
        )
    try:
        assert site.jobs() == [f"nbddp-{pool_id}"]
        assert pool.pull("x") == [10, 11]
        pool.run("dist.barrier()")
        assert len(pool.job_ends()) == 1
        pool.detach()
        assert site.jobs() == [f"nbddp-{pool_id}"]
        with find_kept(pool_id) as kept:
            pool = Pool(
                kept.options,
                DEFAULTS,
                lambda pool, run: RecordingView(),
                source_check.check_source,
                kept=kept,
            )
        assert pool.pull("x") == [10, 11]
    finally:
        pool.stop()
    poll_until(lambda: not site.jobs())
    assert not (tmp_path / ".nbddp").exists()


def test_a_kept_job_that_slurm_does_not_take_is_told(
    site: SlurmSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    for words, said in (
        ("--partition=nowhere", "(?s)sbatch ended with exit code 1 and said: .*nvalid partition"),
        ("--begin=now", "(?s)never came: Slurm job .*: FAILED, and said: .*No such file"),
    ):
        options = PoolOptions.checked(
            1, nnodes=1, launcher="slurm", slurm=words, keep="1h", python="/nowhere/python"
        )
        with pytest.raises(PoolStartError, match=said):
            start(options)
        assert not (tmp_path / ".nbddp").exists()
    poll_until(lambda: not site.jobs())


def test_a_step_of_srun_is_not_let_go():
    options = PoolOptions.checked(1, nnodes=1, launcher="slurm")
    with pytest.raises(BadOptionError, match=r"Next: .* --keep 4h, which uses sbatch"):
        options.keep_after_detach("1h")
