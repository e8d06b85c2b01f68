"""The commands of engines, and what engines say, as data."""

import pytest

from nbddp.agent.engine_variables import EnginePlace, engine_place, step_variables
from nbddp.controller.launch import EngineOptions, make_engine
from nbddp.controller.launch.slurm import job_state, srun_words
from nbddp.errors import BadOptionError


def test_an_unknown_launcher_is_refused_with_the_legal_ones():
    with pytest.raises(BadOptionError, match="legal: local, listen, ssh, slurm"):
        make_engine("pigeon", EngineOptions(1, 1))


def test_srun_starts_one_task_on_each_node_with_a_processor_for_each_rank():
    words = srun_words(EngineOptions(2, 4, python="/py"), "nbddp-x", {})
    assert words[0] == "srun"
    assert {"--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4", "--input=all"} <= set(words)
    assert "--overlap" not in words
    assert words[-7:] == ["/py", "-P", "-m", "nbddp", "agent", "--connect", "-"]


def test_in_an_allocation_the_step_shares_the_processors_of_the_notebook():
    assert "--overlap" in srun_words(EngineOptions(2, 4), "nbddp-x", {"SLURM_JOB_ID": "1"})


@pytest.mark.parametrize("own", ["-c8", "--cpus-per-task=8", "--exclusive"])
def test_processors_that_the_user_asks_for_are_the_ones(own: str):
    words = srun_words(EngineOptions(2, 4, arguments=(own,)), "nbddp-x", {})
    assert own in words
    assert "--cpus-per-task=4" not in words


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ("", ""),
        ("17|PENDING|Resources|N/A\n", "Slurm job 17: PENDING (Resources)"),
        ("17|COMPLETING|None|2026-11-25T14:20:00\n", "Slurm job 17: COMPLETING"),
    ],
)
def test_what_the_queue_says(answer: str, state: str):
    assert job_state(answer) == state


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, EnginePlace()),
        ({"SLURM_NODEID": "1", "SLURM_JOB_ID": "7"}, EnginePlace("slurm", 1, "7")),
        # mpirun inside a job of Slurm: the inner one counts the agents.
        ({"SLURM_NODEID": "0", "OMPI_COMM_WORLD_RANK": "3"}, EnginePlace("mpirun", 3)),
        ({"GROUP_RANK": "1", "RANK": "1"}, EnginePlace("torchrun", 1)),
        ({"JOB_COMPLETION_INDEX": "2"}, EnginePlace("kubernetes", 2)),
        ({"SLURM_NODEID": "x"}, EnginePlace()),
    ],
)
def test_the_place_of_an_agent(environ: dict[str, str], place: EnginePlace):
    assert engine_place(environ) == place


def test_ranks_do_not_see_the_step_of_their_agent():
    environ = {"SLURM_PROCID": "0", "PMIX_RANK": "1", "MASTER_ADDR": "h", "SLURM_JOB_ID": "7"}
    assert step_variables(environ) == ["SLURM_PROCID", "PMIX_RANK", "MASTER_ADDR"]
