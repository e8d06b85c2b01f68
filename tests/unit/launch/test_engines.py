"""The commands of engines, and what engines say, as data."""

import importlib.util
import os
import platform
import sys
from pathlib import Path
from typing import cast

import pytest

from nbddp.agent.engine_variables import EnginePlace, engine_place, step_variables
from nbddp.controller.hub.agent_processes import Agents
from nbddp.controller.launch import (
    Engine,
    EngineOptions,
    RemoteAgent,
    driver_process,
    driver_report,
    make_engine,
    notebook_address,
    ray_resources,
)
from nbddp.controller.launch.driver_report import DriverReport
from nbddp.controller.launch.engine_process import EngineProcess
from nbddp.controller.launch.ray_engine import head_host
from nbddp.controller.launch.slurm import job_state, srun_words
from nbddp.controller.state import PoolMachine, describe_agent_exit
from nbddp.errors import BadOptionError, PoolStartError
from nbddp.system import network, process_tree
from nbddp.wire.invitation import Invitation
from tests.support.machines import SETTINGS, make_spec
from tests.support.polling import poll_until


def test_an_unknown_launcher_is_refused_with_the_legal_ones():
    with pytest.raises(
        BadOptionError, match="legal: local, ssh, slurm, ray, k8s, pbs, lsf, flux, psij, listen"
    ):
        make_engine("pigeon", EngineOptions(1, 1))


def test_srun_starts_one_task_on_each_node_with_a_processor_for_each_rank():
    words = srun_words(EngineOptions(2, 4, python="/py"), "nbddp-x", {})
    assert words[0] == "srun"
    assert {"--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=4", "--input=all"} <= set(words)
    assert "--overlap" not in words
    assert words[-7:] == ["/py", "-P", "-m", "nbddp", "agent", "--connect", "-"]


def test_in_an_allocation_the_step_shares_the_processors_of_the_notebook():
    assert "--overlap" in srun_words(EngineOptions(2, 4), "nbddp-x", {"SLURM_JOB_ID": "1"})


def _invitation(pool_id: str, host: str, pid: int, started: int) -> Invitation:
    return Invitation(
        pool_id=pool_id,
        addresses=("tcp://10.0.0.1:5",),
        token="t",
        server_key="s",
        public_key="p",
        secret_key="k",
        host=host,
        pid=pid,
        started=started,
    )


def test_files_of_notebooks_that_were_killed_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".nbddp"
    folder.mkdir()
    here, pid, started = platform.node(), os.getpid(), process_tree.start_time(os.getpid())
    for invitation in (
        _invitation("lives", here, pid, started),
        _invitation("elsewhere", f"{here}-2", pid, started + 1),
        _invitation("pid-used-again", here, pid, started + 1),
        _invitation("ended", here, 2**22 + 1, started),
    ):
        invitation.write(folder / f"{invitation.pool_id}.json")
    (folder / "other.json").write_text("{}")
    engine = make_engine("listen", EngineOptions(1, 1))
    engine.start(_invitation("new", here, pid, started))
    names = {path.stem for path in folder.iterdir()}
    assert names == {"lives", "elsewhere", "other", "new"}
    engine.stop()
    assert not (folder / "new.json").exists()


def test_the_last_words_of_an_engine_are_its_own_and_few():
    script = (
        "for n in 1 2 3 4 5 6 7 8 9; do echo line $n; done; echo nbddp agent on n1: hello; exit 7"
    )
    process = EngineProcess(["sh", "-c", script], _invitation("p", "h", 1, 1))
    end = poll_until(process.end)
    process.stop(1.0)
    lines = "\n".join(f"line {number}" for number in range(2, 10))
    assert end == f"ended with exit code 7 and said: {lines}"
    polite = EngineProcess(["echo", "Permission denied (publickey)."], _invitation("p", "h", 1, 1))
    assert poll_until(polite.end).endswith(" and said: Permission denied (publickey)")
    polite.stop(1.0)
    warning = "[W1127 00:12:33.123456789 socket.cpp:207] [c10d] The hostname cannot be retrieved"
    closed = EngineProcess(["echo", f"{warning}\nConnection to n1 closed"], None)
    assert poll_until(closed.end).endswith(" 0 and said: Connection to n1 closed")
    closed.stop(1.0)
    warned = EngineProcess(["echo", warning], None)
    assert poll_until(warned.end).endswith(f" and said: {warning}")
    warned.stop(1.0)
    silent = EngineProcess(["false"], _invitation("p", "h", 1, 1))
    assert poll_until(silent.end) == "ended with exit code 1, and said nothing"
    silent.stop(1.0)


class _DeadEngine:
    """An engine whose program has ended."""

    join_timeout_s = None

    def address(self) -> str:
        return "10.0.0.9"

    def __init__(self) -> None:
        self.reason = "ssh ended with exit code 255 and said: Permission denied (publickey)."

    def end(self, node: int) -> str:
        return self.reason


def test_an_agent_that_never_came_is_told_from_one_that_has_ended():
    engine = cast("Engine", _DeadEngine())
    never, came = RemoteAgent(0, engine, "a"), RemoteAgent(1, engine, "b")
    came.revive()
    unnamed = RemoteAgent(2, engine)
    pool = PoolMachine(make_spec(1, 3), SETTINGS, 0.0, host="", port=0)
    ends = Agents(remote=[never, came, unnamed]).reap(pool, 0.0)
    texts = [describe_agent_exit(end) for end in ends]
    said = "ssh ended with exit code 255 and said: Permission denied (publickey)."
    assert texts == [
        f"the agent on a never came: {said}",
        f"node 1 was lost ({said.rstrip('.')})",
        f"the agent on node 2 never came: {said}",
    ]


def test_an_address_is_that_of_the_notebook_or_of_the_engine():
    older = cast("Engine", _DeadEngine())  # its package knows nothing of `owns_address`
    assert notebook_address(older, "10.0.0.1") == "10.0.0.1"
    assert notebook_address(older, "") == "10.0.0.9"
    slurm = make_engine("slurm", EngineOptions(1, 1))
    assert notebook_address(slurm, "10.0.0.1") == "10.0.0.1"
    ray = make_engine("ray", EngineOptions(1, 1, address="127.0.0.1:6379"))
    assert notebook_address(ray, "127.0.0.1:6379") == "127.0.0.1"


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has 10.0.0.9, and the others are reached from there."""
    own = ("127.0.0.1", "10.0.0.9")
    monkeypatch.setattr(network, "interfaces", lambda: [("eth0", "10.0.0.9"), ("lo", "127.0.0.1")])
    monkeypatch.setattr(
        network, "address_towards", lambda host: host if host in own else "10.0.0.9"
    )


@pytest.mark.usefixtures("routes")
def test_loopback_is_no_address_for_other_hosts():
    engine = make_engine("ssh", EngineOptions(2, 1, hosts=("localhost", "me@10.0.0.5")))
    with pytest.raises(BadOptionError) as refused:
        notebook_address(engine, "127.0.0.1")
    assert str(refused.value) == (
        "address is '127.0.0.1', which on me@10.0.0.5 is that machine itself: its agent would not "
        "reach the notebook. Legal: an address of this machine that the hosts reach (it has "
        "10.0.0.9). Next: leave out --address, which takes the address towards me@10.0.0.5; or "
        "--tunnel in its place, if ssh is to carry the connections"
    )
    assert notebook_address(engine, "10.0.0.9") == "10.0.0.9"


@pytest.mark.usefixtures("routes")
def test_ssh_is_asked_once_for_what_it_would_do(monkeypatch: pytest.MonkeyPatch):
    asked: list[list[str]] = []

    def ask(words: list[str]) -> str:
        asked.append(words)
        return "hostname 10.0.0.9\n"

    monkeypatch.setattr("nbddp.controller.launch.ssh.ask", ask)
    engine = make_engine("ssh", EngineOptions(2, 1, hosts=("a", "b")))
    assert notebook_address(engine, "127.0.0.1") == "127.0.0.1"
    assert asked == [["ssh", "-G", "a"], ["ssh", "-G", "b"]]


@pytest.mark.usefixtures("routes")
@pytest.mark.parametrize(
    "options",
    [
        EngineOptions(2, 1, hosts=("localhost", "127.0.0.1")),
        EngineOptions(2, 1, hosts=("localhost", "10.0.0.9")),  # this machine, by another name
        EngineOptions(1, 1, hosts=("localhost", "10.0.0.5")),  # a spare host
        EngineOptions(1, 1, hosts=("10.0.0.5",), port=5555),  # a tunnel of the user, perhaps
        EngineOptions(1, 1, hosts=("nowhere.invalid",)),  # a name of a jump host, perhaps
    ],
)
def test_loopback_is_an_address_for_this_machine_and_for_tunnels(options: EngineOptions):
    assert notebook_address(make_engine("ssh", options), "127.0.0.1") == "127.0.0.1"


def test_ray_that_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    engine = make_engine("ray", EngineOptions(1, 1))
    with pytest.raises(PoolStartError, match=r"Next: pip install 'nbddp\[ray\]'"):
        engine.start(_invitation("p", "h", 1, 1))


def test_the_library_of_kubernetes_that_is_not_installed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BadOptionError, match=r"Next: pip install 'nbddp\[k8s\]'"):
        make_engine("k8s", EngineOptions(1, 1, image="i"))


@pytest.mark.parametrize(
    ("address", "variable", "host"),
    [
        ("10.0.0.1:6379", "10.0.0.2:6379", "10.0.0.1"),
        ("ray://head:10001", "", "head"),
        ("", "10.0.0.2:6379", "10.0.0.2"),
        ("auto", "auto", "10.0.0.3"),
    ],
)
def test_the_host_of_the_head_of_a_ray_cluster(
    address: str,
    variable: str,
    host: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.3:6379\n")
    monkeypatch.setenv("RAY_ADDRESS", variable)
    assert head_host(address) == host


@pytest.mark.parametrize(
    ("device", "nodes", "wanted"),
    [
        ("auto", [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0, "GPU": 4.0}], {"CPU": 2, "GPU": 2}),
        ("auto", [{"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 4.0}], {"CPU": 2}),
        ("cpu", [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 8.0, "GPU": 4.0}], {"CPU": 2}),
        ("cuda", [{"CPU": 8.0}], {"CPU": 2, "GPU": 2}),
    ],
)
def test_ray_is_asked_for_a_gpu_for_each_rank_where_there_are_enough(
    device: str, nodes: list[dict[str, float]], wanted: dict[str, int]
):
    assert ray_resources.bundle(2, 2, device, nodes) == wanted


def test_a_ray_cluster_that_is_too_small_is_described_in_numbers():
    nodes = [{"CPU": 8.0, "GPU": 1.0}]
    assert ray_resources.too_small_text({"CPU": 2, "GPU": 1}, 1, nodes) == ""
    text = ray_resources.too_small_text({"CPU": 2, "GPU": 2}, 1, nodes)
    assert text.startswith(
        "the Ray cluster is too small: 1 node with CPU 2, GPU 2 is needed, 0 of its 1 node have "
        "that (CPU 8, GPU 1). Next: a smaller -n or --nnodes, or more nodes in the cluster"
    )


def test_what_a_driver_tells():
    end, state = driver_report.end_line(0, "a\nb"), driver_report.state_line("waits")
    lines = ["(raylet) a warning", end, state, state[:-3], driver_report.end_line(0, "later")]
    report = DriverReport().after(lines)
    assert report == DriverReport("waits", "", {0: "a\nb"})
    later = report.after([driver_report.failure_line("no"), driver_report.end_line(1, "c")])
    assert later == DriverReport("waits", "no", {0: "a\nb", 1: "c"})
    assert report.ends == {0: "a\nb"}


def test_the_output_of_an_engine_is_read_while_it_writes():
    process = EngineProcess(
        [
            "sh",
            "-c",
            "echo one; read line; echo two; printf torn; read line; read line; echo three",
        ],
        _invitation("p", "h", 1, 1),
    )
    poll_until(lambda: process.lines(0) == (["one", "two"], 8))
    assert process.lines(4) == (["two"], 8)
    process.close_input()
    poll_until(lambda: process.lines(8) == (["tornthree"], 18))
    assert process.lines(18) == ([], 18)
    process.stop(1.0)


def test_the_output_of_a_child_stays_whole_while_the_end_of_the_program_is_asked_for():
    child = "for number in range(50_000): print(number, flush=True)"
    process = EngineProcess(
        ["sh", "-c", f"{sys.executable} -c '{child}' & exit 3"], _invitation("p", "h", 1, 1)
    )
    poll_until(process.end)
    lines, end = process.lines(0)
    while process.end() and lines[-1:] != ["49999"]:
        more, end = process.lines(end)
        lines += more
    assert lines == [str(number) for number in range(50_000)]
    process.stop(1.0)


def test_the_report_of_a_ray_job_behind_many_lines(monkeypatch: pytest.MonkeyPatch):
    """Each line is read once, also behind more than 1 MiB of them; half a line is not."""
    end = driver_report.end_line(1, "its node has ended")
    script = (
        f"yes '{driver_report.state_line('waits')}' | head -c 2097152; echo; "
        f"echo '{driver_report.failure_line('no')}'; printf '%s' '{end[:20]}'; read line; read line"
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(
        driver_process,
        "EngineProcess",
        lambda words, invitation: EngineProcess(["sh", "-c", script], invitation),
    )
    engine = make_engine("ray", EngineOptions(2, 1))
    engine.start(_invitation("p", "h", 1, 1))
    poll_until(lambda: engine.end(0) == "no")
    assert engine.state() == "waits"
    assert engine.end(1) == "no"
    monkeypatch.delattr(DriverReport, "after")  # there is no new line to read
    assert engine.state() == "waits"
    engine.stop()


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
        (
            "6|PENDING|PartitionNodeLimit|N/A\n",
            "Slurm job 6: PENDING (PartitionNodeLimit): perhaps it never starts: it asks for more "
            "nodes than its partition gives, or nodes that it needs are down",
        ),
        (
            "6|PENDING|PartitionConfig|2026-11-25T14:20:00\n",
            "Slurm job 6: PENDING (PartitionConfig), starts about 2026-11-25 14:20",
        ),
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
        ({"FLUX_TASK_RANK": "1", "FLUX_JOB_ID": "f7"}, EnginePlace("flux", 1, "f7")),
        ({"PBS_NODENUM": "0", "PBS_JOBID": "7.h"}, EnginePlace("pbs", 0, "7.h")),
        ({"PBS_NODENUM": "0", "PMI_RANK": "1"}, EnginePlace("pmi", 1)),
    ],
)
def test_the_place_of_an_agent(environ: dict[str, str], place: EnginePlace):
    assert engine_place(environ) == place


def test_ranks_do_not_see_the_step_of_their_agent():
    environ = {"SLURM_PROCID": "0", "PMIX_RANK": "1", "MASTER_ADDR": "h", "SLURM_JOB_ID": "7"}
    assert step_variables(environ) == ["SLURM_PROCID", "PMIX_RANK", "MASTER_ADDR"]
