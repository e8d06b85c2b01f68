"""The time that the batch job around an agent has left."""

import os
import time
from pathlib import Path
from typing import cast

import pytest

from nbddp.agent.engine_variables import batch_job
from nbddp.agent.fork_server import ProcessMaker
from nbddp.agent.job_time import (
    JobWatch,
    read_lsf_time_left,
    read_pbs_time_left,
    read_time_left,
    told_left_s,
)
from nbddp.agent.lifeline_thread import LifelineThread
from nbddp.agent.node_facts import node_facts
from nbddp.wire.messages import JobTimeLeft
from tests.support.polling import poll_until


def watching(environ: dict[str, str], left_s: float = -1.0) -> JobWatch:
    return JobWatch(batch_job(environ), left_s, every_s=300.0, now=0.0)


def answered_s(environ: dict[str, str]) -> float:
    """The time that is left by the first answer; -1: nothing is asked."""
    watch = watching(environ)
    watch.advance(0.0)
    if watch._process is not None:
        poll_until(lambda: watch.advance(0.0))
    return watch.left_s(0.0)


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
    assert answered_s(environ) == 600.0
    assert (tmp_path / "asked").read_text() == "-h -j 7 -o %L\n"
    assert answered_s(environ | {"SLURM_NODEID": "1"}) == -1.0
    assert answered_s({}) == -1.0
    assert (tmp_path / "asked").read_text().count("\n") == 1


def test_an_agent_in_the_place_of_a_lost_one_asks_about_a_job_of_its_own(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    for name, value in {**environ, "NBDDP_NODE": "1"}.items():
        monkeypatch.setenv(name, value)
    facts = node_facts("10.0.0.1")
    assert (facts.engine_node, facts.job, facts.job_left_s) == (1, "7", -1.0)
    assert answered_s(dict(os.environ)) == 600.0


def test_a_newer_slurm_says_it_in_a_variable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_500_000_000)
    for end, left_s in (("1060", 59.5), ("1000", 0.0)):
        environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": end}
        assert told_left_s(batch_job(environ), environ) == left_s
    assert told_left_s(batch_job({"SLURM_JOB_ID": "7"}), {"SLURM_JOB_ID": "7"}) == -1.0


def test_the_job_of_a_node_is_that_of_the_scheduler(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    """And not the run of torchrun in it."""
    for name, value in {**environ, "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}.items():
        monkeypatch.setenv(name, value)
    facts = node_facts("10.0.0.1")
    assert (facts.engine, facts.scheduler, facts.job) == ("torchrun", "slurm", "7")


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
    assert answered_s(environ) == 600.0
    assert (tmp_path / "asked").read_text().strip() == f"{tmp_path}/{question}"
    assert answered_s(environ | {"OMPI_COMM_WORLD_RANK": "1"}) == -1.0


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
    watch = watching(environ, left_s=3600.0)
    assert not watch.advance(299.0)
    assert not (tmp_path / "asked").exists()
    assert not watch.advance(300.0)
    poll_until(lambda: watch.advance(301.0))
    assert watch.left_s(301.0) == 599.5  # Slurm has counted between 300.0 and 301.0
    assert (tmp_path / "asked").read_text() == "-h -j 7 -o %L\n"
    assert not watch.advance(500.0)
    assert watch._process is None
    watch.advance(301.0 + 279.5)  # 20 s before the warning of 5 minutes
    poll_until(lambda: watch.advance(581.5))
    watch.ask_every(1.0, 590.0)
    watch.advance(591.0)
    poll_until(lambda: watch.advance(591.5))
    other = watching(environ | {"SLURM_NODEID": "1"}, left_s=3600.0)
    other.ask_every(1.0, 590.0)
    assert not other.advance(1e6)
    assert other._process is None


def test_a_slow_squeue_is_waited_for_by_nobody_and_its_answer_counts(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", environ["PATH"])
    go_on = tmp_path / "go on"
    os.mkfifo(go_on)
    (tmp_path / "squeue").write_text(f'#!/bin/sh\nread line < "{go_on}"\necho 10:00\n')
    watch = watching(environ)
    assert not watch.advance(0.0)
    for now in (4.0, 29.0):
        assert not watch.advance(now)
    go_on.write_text("\n")
    poll_until(lambda: watch.advance(29.0))
    assert watch.is_news
    assert watch.left_s(29.0) == 585.5
    assert watch.left_s(129.0) == 485.5


def test_squeue_that_does_not_answer_or_is_not_there_changes_nothing(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", environ["PATH"])
    (tmp_path / "squeue").write_text("#!/bin/sh\nexec sleep 600\n")
    watch = watching(environ, left_s=3600.0)
    watch.advance(300.0)
    assert watch._process is not None
    poll_until(lambda: not watch.advance(331.0) and watch._process is None)
    assert watch.left_s(331.0) == 3269.0
    unknown = watching(environ)
    unknown.advance(0.0)
    poll_until(lambda: not unknown.advance(31.0) and unknown._process is None)
    asks = []
    for now in (60.0, 61.0):  # nothing is known yet: it does not wait for 5 minutes
        unknown.advance(now)
        asks.append(unknown._process is not None)
    assert asks == [False, True]
    poll_until(lambda: not unknown.advance(92.0) and unknown._process is None)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    missing = watching(environ)
    assert not missing.advance(300.0)
    assert missing._process is None
    assert missing.left_s(300.0) == -1.0


def test_an_answer_that_the_agent_could_not_send_at_once_is_told_as_of_now(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    """The agent's thread waits for the fork server, which loads torch."""
    monkeypatch.setenv("PATH", environ["PATH"])
    watch = watching(environ)
    lifeline_thread = LifelineThread(0, 0, cast("ProcessMaker", None))
    watch.advance(0.0)
    poll_until(lambda: watch.advance(0.0))
    lifeline_thread.follow_job(watch)
    monkeypatch.setattr(time, "monotonic", lambda: 40.0)
    assert lifeline_thread.news() == [JobTimeLeft(node=0, left_s=560.0)]
    assert lifeline_thread.news() == []
