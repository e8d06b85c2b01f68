"""Pools on a real Slurm: a job of their own, a queue, a step in an allocation."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool import find_kept, note_ended_jobs
from nbddp.errors import BadOptionError, DeadlockError, PoolAttachError, PoolStartError
from nbddp.notebook.magics.keep_verbs import kept_text
from nbddp.notebook.render.status_table import introduction, survey
from nbddp.settings import Settings
from tests.support import slurm_site
from tests.support.kept_machines import known_pool, known_state, take_back
from tests.support.kept_site import Script
from tests.support.polling import poll_until
from tests.support.pool_processes import Told, agent_of
from tests.support.remote_pools import DEFAULTS, start
from tests.support.slurm_site import SlurmSite
from tests.support.views import begin_cell

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


def test_words_that_srun_does_not_know_are_answered_by_srun(site: SlurmSite):
    options = PoolOptions.checked(1, nnodes=1, launcher="slurm", slurm="--partition=nowhere")
    with pytest.raises(
        PoolStartError, match=r"(?s)never came: srun ended .* 1 and said: .*nvalid partition"
    ):
        start(options)
    assert site.jobs() == []


def test_the_end_of_the_job_is_known_and_ends_the_pool_and_says_so(site: SlurmSite):
    pool = start(PoolOptions.checked(1, nnodes=2, launcher="slurm", slurm="--time=4"))
    try:
        (job,) = {facts.job for facts in pool.snapshot.nodes}
        (end,) = pool.job_ends()
        assert re.fullmatch(rf"Slurm job {job} ends in [34] min", end)
        assert f"Slurm job {job} ends in " in str(survey(pool).notes)
        assert f" Slurm job {job} ends in " in introduction(pool, every_cell=False)

        site.ask("scancel", "-n", site.jobs()[0])
        poll_until(lambda: pool._processes.snapshot.lost_agents == {0, 1})
        assert "Slurm takes the node away, since job" in survey(pool).bundle()["text/plain"]
    finally:
        pool.stop()
    poll_until(lambda: not site.jobs())


def test_a_cell_that_its_job_ends_says_so_and_advises_what_works(site: SlurmSite):
    pool = start(PoolOptions.checked(1, nnodes=2, launcher="slurm", slurm="--time=4", keep="1h"))
    told = Told(pool)
    try:
        cell = begin_cell(pool, "import time\nprint('in')\ntime.sleep(100)")
        poll_until(lambda: set(cell.view.texts()) == {0, 1}, 30.0)
        site.ask("scancel", "-n", site.jobs()[0])
        error = str(cell.join().error)
        poll_until(lambda: pool.snapshot.lost_agents == {0, 1})
        assert "cancelled (scancel)" in error
        assert "likely" not in error
        assert "%ddp log" not in error
        assert "the process of the store ended" not in told.text
        assert "can still be used" not in told.text
        with pytest.raises(PoolAttachError, match=r"agents have ended\. Next: %ddp restart"):
            pool.detach()
    finally:
        pool.stop()
    poll_until(lambda: not site.jobs())


def test_another_agent_takes_the_place_of_a_lost_one_in_the_same_job(site: SlurmSite):
    pool = start(PoolOptions.checked(1, nnodes=2, launcher="slurm", slurm="--time=5 -N 2"))
    try:
        pool.run("import os\nx = rank")
        job = pool.pull("os.environ['SLURM_JOB_ID']", ranks=1)
        agent_of(pool, 1).kill()
        poll_until(lambda: pool.snapshot.lost_agents == {1})
        pool.restart(1)
        pool.run("import os\nt = torch.ones(1)\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [2.0] * 2
        assert pool.pull("x", ranks=0) == 0
        assert pool.pull("os.environ['SLURM_JOB_ID']") == [job] * 2
        assert len(site.jobs()) == 1
        assert [facts.engine_host for facts in pool.snapshot.nodes] == ["n1", "n2"]
    finally:
        pool.stop()
    poll_until(lambda: not site.jobs())


@pytest.mark.slow
def test_a_job_of_its_own_takes_the_place_of_a_node_that_is_down(site: SlurmSite):
    pool = start(PoolOptions.checked(1, nnodes=2, launcher="slurm", slurm="--time=5"))
    try:
        pool.run("import os\nx = rank")
        job = pool.pull("os.environ['SLURM_JOB_ID']", ranks=0)
        site.end_node("n2")
        agent_of(pool, 1).kill()
        poll_until(lambda: pool.snapshot.lost_agents == {1})
        assert pool.pull("x", ranks=0) == 0  # srun has not ended the others
        pool.restart(1)
        pool.run("import os\nt = torch.ones(1)\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [2.0] * 2
        jobs = pool.pull("os.environ['SLURM_JOB_ID']")
        assert jobs[0] == job
        assert jobs[1] != job
        assert len(site.jobs()) == 2
        assert [end.split(" ends in ")[0] for end in pool.job_ends()] == [
            f"Slurm job {job}" for job in jobs
        ]
    finally:
        pool.stop()
    poll_until(lambda: not site.jobs())


def test_a_time_limit_that_is_changed_is_told(site: SlurmSite):
    pool = start(
        PoolOptions.checked(1, nnodes=1, launcher="slurm", slurm="--time=4"),
        Settings(job_ask_s=1.0),
    )
    told = Told(pool)
    try:
        (job,) = {facts.job for facts in pool.snapshot.nodes}
        site.ask("scontrol", "update", f"JobId={job}", "TimeLimit=50")
        told.wait_for(f"Slurm job {job} ends in ", "min: its time limit was changed")
        (end,) = pool.job_ends()
        assert re.fullmatch(rf"Slurm job {job} ends in (49|50) min", end)
    finally:
        pool.stop()


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
    pool = take_back(pool_id, DEFAULTS)
    try:
        assert site.jobs() == [f"nbddp-{pool_id}"]
        assert pool.pull("x") == [10, 11]
        pool.run("dist.barrier()")
        assert len(pool.job_ends()) == 1
        assert re.search(r"goes on .* until .*, when Slurm job \d+ ends: ", kept_text(pool))
        pool.detach()
        known = known_pool(pool_id)
        assert known is not None
        assert known.until is not None
        assert re.fullmatch(r"Slurm job \d+", known.job)
        assert known.until - 360.0 < known.job_ends_at < known.until - 240.0
        assert site.jobs() == [f"nbddp-{pool_id}"]
        pool = take_back(pool_id, DEFAULTS)
        assert pool.pull("x") == [10, 11]
    finally:
        pool.stop()
    poll_until(lambda: not site.jobs())
    assert not (tmp_path / ".nbddp").exists()


def test_a_kept_pool_whose_job_was_cancelled_has_ended(
    site: SlurmSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    options = PoolOptions.checked(1, nnodes=2, launcher="slurm", slurm="--time=5", keep=600.0)
    with start(options) as pool:
        pool.detach()
        note_ended_jobs()
        assert known_state(pool.pool_id) == "detached"
        subprocess.run(["scancel", f"--name=nbddp-{pool.pool_id}"], check=True)

        def reason() -> str:
            note_ended_jobs()
            known = known_pool(pool.pool_id)
            return "" if known is None else known.reason

        poll_until(lambda: re.fullmatch(r"its Slurm job \d+ has ended \(CANCELLED\)", reason()))
    with pytest.raises(BadOptionError, match=r"has ended: its Slurm job .*Next: %ddp start"):
        find_kept(pool.pool_id).__enter__()


@pytest.mark.slow
def test_a_kept_job_takes_the_place_of_a_lost_agent_and_is_found_again(
    site: SlurmSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    soon = Settings(silent_after_s=2.0, node_timeout_s=8.0)
    pool = start(
        PoolOptions.checked(1, nnodes=2, launcher="slurm", slurm="--time=5 -N 2", keep="10min"),
        soon,
    )
    try:
        pool.run("x = rank + 10")
        agent_of(pool, 1).kill()
        poll_until(lambda: pool.snapshot.lost_agents == {1}, 60.0)
        assert "rank 1 is a fresh process" in pool.restart(1)
        pool.run("dist.barrier()")
        pool.detach()
        pool = take_back(pool.pool_id, soon)
        assert pool.pull("x", ranks=0) == 10
        pool.run("dist.barrier()")
        assert sorted(site.jobs()) == [f"nbddp-{pool.pool_id}", f"nbddp-{pool.pool_id}-1"]
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
