"""Pools in batch jobs through PSI/J: a real Slurm, processes of this machine, pretend schedulers.

PBS, LSF and Flux themselves are not here. `tests.support.psij_site` has commands, and Python
bindings, that look like theirs to PSI/J and run the job on this machine.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from nbddp.controller.launch import psij_engine
from nbddp.controller.options import PoolOptions
from nbddp.errors import DeadlockError, PoolStartError, RankExitedError
from nbddp.settings import Settings
from nbddp.wire.invitation import Invitation
from tests.support import psij_site, slurm_site
from tests.support.polling import poll_until
from tests.support.psij_site import PretendSite, allow_root
from tests.support.remote_pools import start, waiting_start
from tests.support.slurm_site import SlurmSite

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]
#: Nothing is left of a pool this long after its notebook was killed.
_GONE_S = 30.0
_NOTEBOOK = """
import nbddp
pool = nbddp.start(1, nnodes=2, launcher="psij", job={"executor": "slurm", "duration": "5min"})
pids = pool.pull("(__import__('os').getpid(), __import__('os').getppid())")
print(*[pid for pair in pids for pid in pair], flush=True)
input()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder, which has the files of jobs."""
    if reason := psij_site.reason_to_skip():
        pytest.skip(reason)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return tmp_path


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmSite]:
    """A real Slurm with two nodes."""
    if reason := slurm_site.reason_to_skip():
        pytest.skip(reason)
    made = SlurmSite(tmp_path, 2)
    monkeypatch.setenv("SLURM_CONF", str(made.configuration))
    yield made
    made.close()


@pytest.fixture
def pretend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PretendSite:
    """The commands of pretend schedulers."""
    return PretendSite(tmp_path / "pretend", monkeypatch)


def check_credentials(home: Path, script: str) -> None:
    """Check that the credentials are in a file that its owner reads, and nowhere else."""
    (path,) = (home / ".nbddp").glob("*.json")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert str(path) in script
    invitation = Invitation.parse(path.read_bytes())
    words = [script]
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words += [*process.cmdline(), *process.environ().values()]
    for secret in (invitation.secret_key, invitation.token):
        assert not any(secret in word for word in words)


def test_a_pool_is_a_job_of_a_real_slurm(slurm: SlurmSite, home: Path):
    job = {"executor": "slurm", "duration": "5min"}
    pool = start(PoolOptions.checked(2, nnodes=2, launcher="psij", job=job))
    try:
        assert slurm.jobs() == [f"nbddp-{pool._processes.pool_id}"]
        check_credentials(home, slurm.ask("scontrol", "write", "batch_script", slurm.id(), "-"))
        pool.run("import os\nt = torch.ones(1) * rank\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [6.0] * 4
        assert (
            pool.pull("'SLURM_JOB_ID' in os.environ, 'SLURM_PROCID' in os.environ")
            == [(True, False)] * 4
        )
        (end,) = pool.job_ends()
        assert re.fullmatch(r"Slurm job \d+ ends in [45] min", end)
        with pytest.raises(DeadlockError):
            pool.run("if rank == 1:\n    dist.barrier()")
        with pytest.raises(RankExitedError, match="rank 3 exited with code 3"):
            pool.run("if rank == 3:\n    os._exit(3)\ndist.barrier()")
        pool.run("dist.barrier()")
    finally:
        pool.stop()
    poll_until(lambda: not slurm.jobs())
    assert not (home / ".nbddp").exists()


def test_mpirun_starts_the_agents_in_a_job_of_a_real_slurm(
    slurm: SlurmSite, monkeypatch: pytest.MonkeyPatch
):
    if shutil.which("mpirun") is None:
        pytest.skip("Open MPI is not installed")
    allow_root(monkeypatch)
    job = {"executor": "slurm", "start_by": "mpirun"}
    pool = start(PoolOptions.checked(1, nnodes=2, launcher="psij", job=job))
    try:
        assert [facts.engine for facts in pool._processes.hub.nodes.facts] == ["mpirun"] * 2
        pool.run("t = torch.ones(1)\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [2.0, 2.0]
    finally:
        pool.stop()
    poll_until(lambda: not slurm.jobs())


def test_a_job_that_waits_is_told_and_is_cancelled_by_the_stop_button(slurm: SlurmSite, home: Path):
    slurm.ask("sbatch", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 600")
    other = poll_until(slurm.jobs)
    options = PoolOptions.checked(1, nnodes=2, launcher="psij", job={"executor": "slurm"})
    with waiting_start(options) as states:
        poll_until(lambda: any(re.fullmatch(r"Slurm job \d+: QUEUED", state) for state in states))
        assert len(slurm.jobs()) == 2
    poll_until(lambda: slurm.jobs() == other)
    assert not (home / ".nbddp").exists()


def test_an_option_that_the_scheduler_does_not_know_is_answered_by_it(slurm: SlurmSite, home: Path):
    for job, said in (
        ({"queue": "nowhere"}, "nvalid partition"),
        ({"no-such-option": "1"}, "unrecognized option '--no-such-option=1'"),
    ):
        options = PoolOptions.checked(1, launcher="psij", job={"executor": "slurm", **job})
        with pytest.raises(PoolStartError, match=rf"(?s)never came: psij: sbatch: .*{said}"):
            start(options)
    assert slurm.jobs() == []
    assert not (home / ".nbddp").exists()


def test_the_agents_of_a_job_that_somebody_ends_are_lost(slurm: SlurmSite):
    pool = start(PoolOptions.checked(1, nnodes=2, launcher="psij", job={"executor": "slurm"}))
    try:
        slurm.ask("scancel", "-n", slurm.jobs()[0])
        poll_until(lambda: pool._processes.snapshot.lost_agents == {0, 1})
        poll_until(lambda: not slurm.jobs())
        pool.restart()
        pool.run("dist.barrier()")
        assert slurm.jobs()
    finally:
        pool.stop()


def test_a_notebook_that_is_killed_leaves_no_job(slurm: SlurmSite, home: Path):
    notebook = subprocess.Popen(
        [sys.executable, "-c", _NOTEBOOK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert notebook.stdout is not None
    assert notebook.stdin is not None
    pids = [int(word) for word in notebook.stdout.readline().split()]
    assert len(pids) == 4
    pids += [process.pid for process in psutil.Process(notebook.pid).children(recursive=True)]
    notebook.kill()
    notebook.wait()
    notebook.stdin.close()
    notebook.stdout.close()
    poll_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), _GONE_S)
    poll_until(lambda: not slurm.jobs())
    assert not (home / ".nbddp").exists()


def test_the_local_executor_runs_agents_here(home: Path):
    options = PoolOptions.checked(1, nnodes=2, launcher="psij", job={"executor": "local"})
    pool = start(options)
    try:
        pool.run("t = torch.ones(1)\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [2.0, 2.0]
    finally:
        pool.stop()
    assert not (home / ".nbddp").exists()


def test_a_lost_agent_is_replaced_by_a_job_of_one_node(home: Path):
    options = PoolOptions.checked(1, nnodes=2, launcher="psij", job={"executor": "local"})
    pool = start(options)
    try:
        pool.run("import os\nx = rank + 10")
        (agent,) = {pool._processes.hub.nodes.pids[1]}
        os.kill(agent, signal.SIGTERM)
        poll_until(lambda: pool.snapshot.lost_agents == {1})
        pool.restart(1)
        pool.run("dist.barrier()")
        assert pool.pull("'x' in globals()") == [True, False]
        os.kill(pool._processes.hub.nodes.pids[1], signal.SIGTERM)
        poll_until(lambda: pool.snapshot.lost_agents == {1})
        pool.restart(1)
        pool.run("dist.barrier()")
        pids = pool._processes.hub.nodes.pids
    finally:
        pool.stop()
    poll_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), _GONE_S)
    assert not (home / ".nbddp").exists()


def test_a_lost_agent_of_a_job_of_slurm_is_replaced_by_another_job(slurm: SlurmSite):
    options = PoolOptions.checked(1, nnodes=2, launcher="psij", job={"executor": "slurm"})
    pool = start(options, Settings(silent_after_s=3.0, node_timeout_s=10.0))
    try:
        pool.run("x = rank + 10")
        os.kill(pool._processes.hub.nodes.pids[1], signal.SIGKILL)
        poll_until(lambda: pool.snapshot.lost_agents == {1}, 60.0)  # the job goes on
        pool.restart(1)
        assert len(slurm.jobs()) == 2
        pool.run("dist.barrier()")
        assert pool.pull("'x' in globals()") == [True, False]
    finally:
        pool.stop()
    poll_until(lambda: not slurm.jobs())


def test_the_words_of_a_job_that_fails_are_told(home: Path):
    options = PoolOptions.checked(
        1, launcher="psij", job={"executor": "local"}, python="/no/such/python"
    )
    with pytest.raises(
        PoolStartError,
        match=r"(?s)local job \d+ ended: FAILED with exit code 127 and said: .*/no/such",
    ):
        start(options)


@pytest.mark.parametrize(
    ("launcher", "job", "end"),
    [
        ("pbs", {"duration": "5min"}, "PBS job 1.head ends in 5 min"),
        ("lsf", {"duration": "1:05"}, "LSF job 1 ends in 1 h 5 min"),
        ("flux", {}, "Flux job f4711 ends in 5 min"),
    ],
)
def test_a_pool_in_a_job_of_a_pretend_scheduler(
    launcher: str, job: dict[str, str], end: str, pretend: PretendSite, home: Path
):
    if launcher == "pbs" and shutil.which("mpirun") is None:
        pytest.skip("Open MPI is not installed")
    pool = start(PoolOptions.checked(1, nnodes=2, launcher=launcher, job=job))
    try:
        pool.run("import os\nt = torch.ones(1) * rank\ndist.all_reduce(t)")
        assert pool.pull("(rank, t.item())") == [(0, 1.0), (1, 1.0)]
        step = ("OMPI_", "PMIX_", "JSM_", "FLUX_TASK_", "PBS_NODENUM")
        assert pool.pull(f"[n for n in os.environ if n.startswith({step})]") == [[], []]
        assert pool.job_ends() == [end]
    finally:
        pool.stop()
    assert [each for each in pretend.jobs() if each.is_running()] == []
    assert not (home / ".nbddp").exists()


@pytest.mark.parametrize(
    ("launcher", "state"),
    [
        ("pbs", "PBS job 1.head: QUEUED (Not Running: Insufficient amount of resource: ncpus)"),
        ("lsf", "LSF job 1: QUEUED"),
    ],
)
def test_a_job_in_the_queue_of_a_pretend_scheduler(
    launcher: str, state: str, pretend: PretendSite, home: Path
):
    pretend.hold()
    options = PoolOptions.checked(1, launcher=launcher, job={"duration": "1h"})
    with waiting_start(options) as states:
        poll_until(lambda: state in states)
    assert [each.exit_code() for each in pretend.jobs()] == [271]
    assert not (home / ".nbddp").exists()


def test_a_driver_that_is_ended_while_it_cancels_its_job_goes_on_with_that(
    pretend: PretendSite, home: Path
):
    pretend.hold()
    with waiting_start(PoolOptions.checked(1, launcher="pbs")) as states:
        poll_until(lambda: any("QUEUED" in state for state in states))
        (driver,) = [
            child for child in psutil.Process().children() if psij_engine._DRIVER in child.cmdline()
        ]
        gate = pretend.delay_deletion()
        driver.terminate()
        with gate.open("w"):  # `qdel` runs now
            driver.terminate()
        poll_until(lambda: not (home / ".nbddp").exists())
    assert [each.exit_code() for each in pretend.jobs()] == [271]


def test_a_scheduler_that_gives_no_answer_ends_nothing(pretend: PretendSite):
    pretend.hold()
    options = PoolOptions.checked(1, launcher="pbs")
    with waiting_start(options) as states:
        poll_until(lambda: any("Not Running" in state for state in states))
        pretend.go_away()
        # PSI/J by itself takes the job for failed then.
        poll_until(lambda: pretend.unanswered() > 3, 60.0)
        assert "cannot connect to server head" in states[-1]
        assert states[-1].startswith("PBS job 1.head: QUEUED (status command 'qstat' exited")
    assert [each.exit_code() for each in pretend.jobs()] == [271]


@pytest.mark.parametrize(
    ("launcher", "how"),
    [
        ("pbs", r"PBS job 1.head ended: FAILED, and said nothing. Next: try `qstat -xf 1.head`"),
        ("lsf", r"LSF job 1 ended: FAILED \(TERM_OWNER: job killed by owner\), and said nothing"),
    ],
)
def test_a_job_that_is_deleted_from_the_queue_ends_the_wait(
    launcher: str, how: str, pretend: PretendSite
):
    pretend.hold()

    def delete() -> None:
        poll_until(pretend.jobs)[0].delete()

    deleting = threading.Thread(target=delete)
    deleting.start()
    with pytest.raises(PoolStartError, match=f"(?s)never came: {how}"):
        start(PoolOptions.checked(1, launcher=launcher, job={"duration": "1h"}))
    deleting.join()


def test_what_qsub_says_is_told(pretend: PretendSite):
    with pytest.raises(PoolStartError, match="never came: pbs: qsub: Unknown queue"):
        start(PoolOptions.checked(1, launcher="pbs", job={"queue": "nowhere"}))


def test_the_script_of_a_job_has_the_options_under_the_names_of_its_scheduler(pretend: PretendSite):
    pretend.hold()
    job = {"queue": "gpu", "account": "lab", "c": "n", "select": "ngpus=4", "duration": "90min"}
    with waiting_start(PoolOptions.checked(4, nnodes=2, launcher="pbs", job=job)):
        script = poll_until(pretend.jobs)[0].script
    lines = [line for line in script.splitlines() if line.startswith("#PBS")]
    assert {
        "#PBS -l select=2:ngpus=4:ncpus=4:mpiprocs=4",
        "#PBS -l place=scatter:shared",
        "#PBS -l walltime=1:30:0",
        "#PBS -q gpu",
        "#PBS -A lab",
        '#PBS -c "n"',
    } <= set(lines)
    assert any(line.startswith('#PBS -N "nbddp-') for line in lines)


def test_a_machine_without_the_commands_of_the_scheduler(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(PoolStartError, match=r"never came: pbs: .*No such file.*qsub"):
        start(PoolOptions.checked(1, launcher="pbs"))
    with pytest.raises(PoolStartError, match="flux: Unable to load executor flux: No module named"):
        start(PoolOptions.checked(1, launcher="flux"))
