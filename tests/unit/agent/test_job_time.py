"""The time that the batch job around an agent has left."""

import os
import time
from pathlib import Path

import pytest

from nbddp.agent.engine_variables import batch_job
from nbddp.agent.job_time import (
    JobWatch,
    job_left_s,
    read_lsf_time_left,
    read_pbs_time_left,
    read_time_left,
)
from nbddp.agent.node_facts import node_facts
from tests.support.polling import poll_until


def left_s(environ: dict[str, str]) -> float:
    return job_left_s(batch_job(environ), environ)


@pytest.mark.parametrize(
    ("text", "left_s"),
    [
        ("0:07\n", 7.0),
        ("59:59", 3599.0),
        ("1:00:00", 3600.0),
        ("2-00:00:01", 172801.0),
        ("UNLIMITED", -1.0),
        ("NOT_SET", -1.0),
        ("", -1.0),
    ],
)
def test_what_squeue_says(text: str, left_s: float):
    assert read_time_left(text) == left_s


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A job in which `squeue` says that 10 minutes are left."""
    squeue = tmp_path / "squeue"
    squeue.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\necho 10:00\n')
    squeue.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_NODEID": "0"}


def test_the_first_node_asks(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", environ["PATH"])
    assert left_s(environ) == 600.0
    assert (tmp_path / "asked").read_text() == "-h -j 7 -o %L\n"
    assert left_s(environ | {"SLURM_NODEID": "1"}) == -1.0
    assert left_s({}) == -1.0
    assert (tmp_path / "asked").read_text().count("\n") == 1


def test_an_agent_in_the_place_of_a_lost_one_asks_about_a_job_of_its_own(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    for name, value in {**environ, "NBDDP_NODE": "1"}.items():
        monkeypatch.setenv(name, value)
    facts = node_facts("10.0.0.1")
    assert (facts.engine_node, facts.job, facts.job_left_s) == (1, "7", 600.0)


def test_a_newer_slurm_says_it_in_a_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_500_000_000)
    assert left_s({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1060"}) == 59.5
    assert left_s({"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": "1000"}) == 0.0


def test_the_job_of_a_node_is_that_of_the_scheduler(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    """And not the run of torchrun in it."""
    for name, value in {**environ, "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}.items():
        monkeypatch.setenv(name, value)
    facts = node_facts("10.0.0.1")
    assert (facts.engine, facts.scheduler, facts.job) == ("torchrun", "slurm", "7")
    assert facts.job_left_s == 600.0


def test_squeue_that_is_not_there_is_no_answer(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert left_s(environ | {"PATH": str(tmp_path / "nothing")}) == -1.0


@pytest.mark.parametrize(
    ("scheduler", "answer", "question"),
    [
        ({"PBS_JOBID": "7.head"}, "  Resource_List.walltime = 00:10:00", "qstat -f 7.head"),
        ({"LSB_JOBID": "7"}, "0:10 L", "bjobs -noheader -o time_left 7"),
        ({"FLUX_JOB_ID": "f7", "SLURM_JOB_ID": "1"}, "600", "flux job timeleft f7"),
    ],
)
def test_each_scheduler_is_asked_in_its_words(
    scheduler: dict[str, str],
    answer: str,
    question: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    command = tmp_path / question.partition(" ")[0]
    command.write_text(f'#!/bin/sh\necho "$0 $*" > {tmp_path}/asked\necho "{answer}"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    environ = {**scheduler, "PATH": os.environ["PATH"]}
    assert left_s(environ) == 600.0
    assert (tmp_path / "asked").read_text().strip() == f"{tmp_path}/{question}"
    assert left_s(environ | {"OMPI_COMM_WORLD_RANK": "1"}) == -1.0


def test_pbs_has_begun_the_job_before_the_agent_came(monkeypatch: pytest.MonkeyPatch):
    began = "Thu Nov 26 10:00:00 2026"
    now = time.mktime(time.strptime(began, "%a %b %d %H:%M:%S %Y")) + 60
    monkeypatch.setattr(time, "time_ns", lambda: int(now) * 10**9)
    limit = "Job Id: 7\n    Resource_List.walltime = 01:00:00\n"
    assert read_pbs_time_left(f"{limit}    stime = {began}\n") == 3540.0
    assert read_pbs_time_left(f"{limit}    stime = Do Nov 26\n") == 3600.0
    assert read_pbs_time_left("    job_state = R\n") == -1.0


@pytest.mark.parametrize(("text", "left_s"), [("12:00 E", 43200.0), ("0:01", 60.0), ("", -1.0)])
def test_what_bjobs_says(text: str, left_s: float):
    assert read_lsf_time_left(text) == left_s


def test_the_time_is_asked_for_again_without_a_wait(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", environ["PATH"])
    watch = JobWatch(batch_job(environ), 3600.0, every_s=300.0, now=0.0)
    assert watch.advance(299.0) == -1.0
    assert not (tmp_path / "asked").exists()
    assert watch.advance(300.0) == -1.0
    poll_until(lambda: watch.advance(301.0) == 600.0)
    assert (tmp_path / "asked").read_text() == "-h -j 7 -o %L\n"
    assert watch.advance(500.0) == -1.0
    # 20 s before the warning of 5 minutes.
    assert watch.advance(301.0 + 280.0) == -1.0
    poll_until(lambda: watch.advance(582.0) == 600.0)
    other = JobWatch(batch_job(environ | {"SLURM_NODEID": "1"}), 3600.0, 300.0, now=0.0)
    assert other.advance(1e6) == -1.0
    assert other._process is None


def test_squeue_that_does_not_answer_or_is_not_there_changes_nothing(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", environ["PATH"])
    (tmp_path / "squeue").write_text("#!/bin/sh\nexec sleep 600\n")
    watch = JobWatch(batch_job(environ), 3600.0, every_s=300.0, now=0.0)
    watch.advance(300.0)
    assert watch._process is not None
    poll_until(lambda: watch.advance(310.0) == -1.0 and watch._process is None)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    missing = JobWatch(batch_job(environ), 3600.0, every_s=300.0, now=0.0)
    assert missing.advance(300.0) == -1.0
    assert missing._process is None
