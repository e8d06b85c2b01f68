"""Engines that put another agent in the place of a lost one, with programs that the test plays."""

import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from nbddp.controller.hub import HubThread
from nbddp.controller.launch import (
    Engine,
    EngineOptions,
    LastingEngine,
    LostNode,
    ReplacingEngine,
    commands,
    driver_process,
    driver_report,
    engine_process,
    make_engine,
    mark_of,
    slurm_job,
)
from nbddp.controller.launch.engine_process import EngineProcess
from nbddp.controller.launch.slurm import replacement_words, task_ends
from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.node_replacement import EngineAgents, replace_nodes
from nbddp.controller.pool.record_writer import RecordWriter
from nbddp.controller.pool.startup import PoolStartup
from nbddp.controller.recovery.published import snapshot_of
from nbddp.errors import PoolBrokenError
from nbddp.system import kept_pools
from nbddp.wire.invitation import Invitation
from tests.support.machines import Pool
from tests.support.polling import poll_until

INVITATION = Invitation(
    pool_id="p",
    addresses=("tcp://10.0.0.1:5",),
    token="t",
    server_key="s",
    public_key="p",
    secret_key="k",
)


class Programs:
    """Stands for `EngineProcess`: notes what is started and ended."""

    def __init__(self) -> None:
        self.started: list[Sequence[str]] = []
        self.stopped: list[Sequence[str]] = []
        self.environs: list[Any] = []

    def __call__(self, words: Sequence[str], invitation: Invitation, env: Any = None) -> Any:
        self.started.append(words)
        self.environs.append(env)
        return SimpleNamespace(
            stop=lambda patience_s: self.stopped.append(words),
            close_input=lambda: None,
            end=lambda: "",
            lines=lambda since: ([], since),
        )


def replacing_engine(name: str, options: EngineOptions) -> ReplacingEngine:
    return cast("ReplacingEngine", make_engine(name, options))


def host_of(words: Sequence[str]) -> str:
    return words[-2]


def test_ssh_takes_a_spare_host_and_the_lost_one_is_the_next_spare(
    monkeypatch: pytest.MonkeyPatch,
):
    programs = Programs()
    monkeypatch.setattr(commands, "EngineProcess", programs)
    engine = replacing_engine("ssh", EngineOptions(2, 1, hosts=("a", "b", "c")))
    engine.start(INVITATION)
    assert [host_of(words) for words in programs.started] == ["a", "b"]
    for host in ("c", "b"):
        engine.replace(LostNode(1), INVITATION)
        assert host_of(programs.started[-1]) == host
        assert programs.started[-1][-1].startswith("NBDDP_NODE=1 exec ")
    assert [host_of(words) for words in programs.stopped] == ["b", "c"]
    assert engine.state() == "ssh to a, b"


def test_ssh_without_a_spare_host_takes_the_same_one(monkeypatch: pytest.MonkeyPatch):
    programs = Programs()
    monkeypatch.setattr(commands, "EngineProcess", programs)
    engine = replacing_engine("ssh", EngineOptions(2, 1, hosts=("a", "b")))
    engine.start(INVITATION)
    engine.replace(LostNode(0), INVITATION)
    assert [host_of(words) for words in programs.started] == ["a", "b", "a"]


def test_ssh_goes_on_with_the_hosts_of_the_last_notebook(monkeypatch: pytest.MonkeyPatch):
    programs = Programs()
    monkeypatch.setattr(commands, "EngineProcess", programs)
    options = EngineOptions(2, 1, hosts=("a", "b", "c"))
    first, second = replacing_engine("ssh", options), replacing_engine("ssh", options)
    first.start(INVITATION)
    first.replace(LostNode(1), INVITATION)
    assert isinstance(second, LastingEngine)
    second.take_back(mark_of(first), INVITATION)
    assert (second.state(), second.end(1)) == ("ssh to a, c", "")
    second.replace(LostNode(0), INVITATION)
    assert second.state() == "ssh to b, c"


def test_a_restart_names_the_hosts_that_it_waits_for(monkeypatch: pytest.MonkeyPatch):
    """Of the others no ssh need run: an attached pool has none."""
    monkeypatch.setattr(commands, "EngineProcess", Programs())
    engine = replacing_engine("ssh", EngineOptions(3, 1, hosts=("a", "b", "c")))
    agents = EngineAgents(engine, "ssh", INVITATION)
    assert isinstance(engine, LastingEngine)
    engine.take_back("a,b,c", INVITATION)
    agents.begin(LostNode(1), hub_with(1))
    assert agents.state([1]) == "ssh to b"
    assert agents.state([2, 1]) == "ssh to b, c"
    engine_of_a_package = SimpleNamespace(join_timeout_s=0.0, state=lambda: "job 5")
    other = EngineAgents(cast("Engine", engine_of_a_package), "pigeon", INVITATION)
    assert other.state([1]) == "job 5"


def test_the_agent_of_a_kept_job_is_replaced_by_a_job_that_is_kept_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    asked: list[list[str]] = []
    queued: list[list[str]] = []

    def queue(words: list[str], **_: Any) -> Any:
        queued.append(words)
        return SimpleNamespace(returncode=0, stdout=f"47{len(queued)}\n")

    monkeypatch.setenv("HOME", str(tmp_path))

    def ask(words: list[str]) -> str:
        asked.append(words)
        return ""

    monkeypatch.setattr(subprocess, "run", queue)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(slurm_job, "ask", ask)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    options = EngineOptions(2, 1, keep_s=60.0, arguments=("-N", "2", "--time=5"))
    first, second = replacing_engine("slurm", options), replacing_engine("slurm", options)
    first.start(INVITATION)
    first.replace(LostNode(1), INVITATION)
    assert "--nodes=1" in queued[1]
    assert "-N" not in queued[1]
    assert "env NBDDP_NODE=1" in queued[1][-1]
    assert mark_of(first) == "471,1:472"
    assert first.state() == "Slurm job 472"
    assert isinstance(first, LastingEngine)
    assert isinstance(second, LastingEngine)
    first.leave()
    second.take_back(mark_of(first), INVITATION)
    second.replace(LostNode(1), INVITATION)
    assert asked[-1] == ["scancel", "472"]
    assert mark_of(second) == "471,1:473"
    second.stop()
    assert asked[-2:] == [["scancel", "471"], ["scancel", "473"]]
    assert not list(tmp_path.rglob("*.json"))


def test_the_end_of_each_of_two_jobs_that_are_awaited_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    jobs = iter(["471", "472", "473"])
    monkeypatch.setattr(slurm_job, "_queued", lambda words: next(jobs))
    queue = {"471": "471|RUNNING|None|", "472": "472|FAILED|NonZero|", "473": "473|PENDING|None|"}

    def ask(words: list[str]) -> str:
        asked = words[words.index("-j") + 1].split(",") if words[0] == "squeue" else []
        return "".join(f"{queue[job]}\n" for job in asked)

    monkeypatch.setattr(slurm_job, "ask", ask)
    engine = replacing_engine("slurm", EngineOptions(3, 1, keep_s=60.0))
    engine.start(INVITATION)
    for node in (1, 2):
        engine.replace(LostNode(node), INVITATION)
    assert engine.state() == "Slurm job 473: PENDING (None)"
    assert [engine.end(node) for node in range(3)] == ["", "Slurm job 472: FAILED", ""]
    engine.stop()


def test_the_output_of_a_kept_job_goes_with_its_pool(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(slurm_job, "ask", lambda words: "")
    monkeypatch.setattr(slurm_job, "_queued", lambda words: "471")
    outputs = [tmp_path / ".nbddp" / name for name in ("gone.out", "gone.1.out", "kept.out")]
    (kept_pools.folder_of_machines("kept") / "pool.json").touch()
    for path in outputs:
        path.touch()
    engine = make_engine("slurm", EngineOptions(2, 1, keep_s=60.0))
    engine.start(INVITATION)
    assert [path.exists() for path in outputs] == [False, False, True]
    engine.stop()


@pytest.mark.parametrize(
    ("answers", "is_step"),
    [
        ({"squeue": "7\n", "sinfo": "mixed\n"}, True),
        ({"squeue": "7\n", "sinfo": "down*\n"}, False),
        ({"squeue": "7\n", "sinfo": "allocated*\n"}, False),
        ({"squeue": "", "sinfo": "idle\n"}, False),  # the job goes on without this node
    ],
)
def test_slurm_takes_a_step_on_a_node_that_is_well_and_else_a_job(
    answers: dict[str, str], *, is_step: bool, monkeypatch: pytest.MonkeyPatch
):
    programs = Programs()
    monkeypatch.setattr(commands, "EngineProcess", programs)
    monkeypatch.setattr(engine_process, "ask", lambda words: answers[words[0]])
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CONF", "/c")
    engine = replacing_engine(
        "slurm", EngineOptions(2, 3, arguments=("-w", "n1,n2", "--gres=gpu:4"))
    )
    engine.start(INVITATION)
    engine.replace(LostNode(1, host="h", place="n2", job="7"), INVITATION)
    words = programs.started[-1]
    assert {"--nodes=1", "--ntasks=1", "--gres=gpu:4", "NBDDP_NODE=1"} <= set(words)
    assert "n1,n2" not in words
    assert ({"--jobid=7", "--nodelist=n2", "--overlap"} <= set(words)) == is_step
    assert ("--job-name=nbddp-p-1" in words) == (not is_step)
    # In the allocation of the notebook srun would make a step.
    assert "SLURM_JOB_ID" not in programs.environs[-1]
    assert programs.environs[-1]["SLURM_CONF"] == "/c"
    engine.withdraw(1)
    assert programs.stopped == [words]
    engine.stop()
    assert len(programs.stopped) == 2


def test_the_step_of_a_lost_agent_does_not_hold_up_the_next_one():
    words = replacement_words(
        EngineOptions(2, 1), "x", LostNode(1, place="n2", job="7"), is_step=True
    )
    assert words.index("--overlap") < words.index("env")


def test_what_srun_says_of_tasks():
    said = [
        "srun: error: n1: tasks 0-1: Exited with exit code 1",
        "srun: error: n9: task 9: Killed",
        "srun: error: Node failure on n2",
    ]
    end = "n1: tasks 0-1: Exited with exit code 1"
    assert task_ends(said, 3) == {0: end, 1: end}


def test_an_agent_of_ray_that_takes_a_place_is_told_from_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
):
    """The program answers with the end of each agent that it is asked for."""
    ends = [driver_report.end_line(number, f"end of {number}") for number in (1, 3)]
    script = f"read invitation; echo '{ends[0]}'; read line; [ \"$line\" = 'start 3' ] && read go"
    script += f"; echo '{ends[1]}'; read line"
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(
        driver_process,
        "EngineProcess",
        lambda words, invitation: EngineProcess(["sh", "-c", script], invitation),
    )
    engine = replacing_engine("ray", EngineOptions(2, 1))
    engine.start(INVITATION)
    poll_until(lambda: engine.end(1) == "end of 1")
    engine.replace(LostNode(1), INVITATION)
    assert engine.end(1) == ""
    engine.withdraw(0)
    poll_until(lambda: engine.end(1) == "end of 3")
    engine.stop()


def test_listen_shows_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    monkeypatch.setenv("HOME", str(tmp_path))
    engine = replacing_engine("listen", EngineOptions(2, 1))
    engine.start(INVITATION)
    engine.replace(LostNode(1, host="n2"), INVITATION)
    first, line = engine.state().splitlines()
    assert first == "Start one on a machine that sees the file:"
    assert line.endswith(f"-m nbddp agent --connect {tmp_path}/.nbddp/p.json")
    engine.stop()


class OldEngine:
    """An engine of a package that knows nothing of lost nodes."""

    join_timeout_s = 1.0


def hub_with(*lost: int) -> HubThread:
    """A hub that has lost the agents of these nodes."""
    snapshot = SimpleNamespace(lost_agents=frozenset(lost), nodes=())
    hub = SimpleNamespace(is_alive=True, awaited=frozenset(), snapshot=snapshot)
    return cast("HubThread", hub)


def test_an_engine_that_cannot_replace_one_node_says_what_to_do():
    agents = EngineAgents(cast("Engine", OldEngine()), "pigeon", INVITATION)
    assert not agents.can_replace
    with pytest.raises(PoolBrokenError, match=r"node 1 .* --launcher pigeon cannot .*%ddp restart"):
        replace_nodes(agents, [1], hub_with(1), lambda: False, lambda snapshot: None)


class EndedSsh:
    """An engine whose every ssh ends at once."""

    join_timeout_s = 1.0
    mark = "n1,n3"

    def replace(self, lost: LostNode, invitation: Invitation) -> None:
        """Start nothing."""

    def withdraw(self, node: int) -> None:
        """End nothing."""

    def end(self, node: int) -> str:
        return f"ssh ended with exit code 255. Next: try `ssh n1` in a terminal (node {node})"


def test_a_host_that_does_not_come_back_has_a_way_out():
    options = PoolOptions.checked(
        2, launcher="ssh", hosts=["n1", "n3"], env={"A": "b c"}, cwd="/data"
    )
    agents = EngineAgents(cast("Engine", EndedSsh()), "ssh", INVITATION, options)
    with pytest.raises(PoolBrokenError) as caught:
        replace_nodes(agents, [0], hub_with(0), lambda: False, lambda snapshot: None)
    assert str(caught.value).endswith(
        "Next: try `ssh n1` in a terminal (node 0); then %ddp restart again. If n1 cannot come "
        "back: %ddp stop, which ends all ranks with their variables, and %ddp start -n 2 "
        "--nnodes 2 --env 'A=b c' --cwd /data --launcher ssh --hosts OTHER,n3, with another host "
        "in the place of OTHER"
    )


@pytest.mark.parametrize(
    ("how", "last"),
    [
        ("job 5 has ended", "job 5 has ended. Next: %ddp restart -r 1 tries again"),
        (
            "job 5 has ended. Next: look at its log",
            "job 5 has ended. Next: look at its log, then %ddp restart -r 1 again",
        ),
        ("", "in 0 s (job 5). Next: look at the machines, then %ddp restart -r 1 again"),
    ],
)
def test_an_agent_that_does_not_come_leaves_the_command_that_tries_again(how: str, last: str):
    engine = SimpleNamespace(
        join_timeout_s=0.0,
        replace=lambda lost, invitation: None,
        withdraw=lambda node: None,
        state=lambda: "job 5",
        end=lambda node: how,
    )
    agents = EngineAgents(cast("Engine", engine), "pigeon", INVITATION)
    with pytest.raises(PoolBrokenError) as caught:
        replace_nodes(
            agents,
            [1],
            hub_with(1),
            lambda: False,
            lambda snapshot: None,
            command="%ddp restart -r 1",
        )
    assert str(caught.value).endswith(last)


class DeadHosts(EndedSsh):
    """An ssh engine whose hosts are dead, but for some; see `SshEngine.replace`."""

    def __init__(self, hub: HubThread, well: str = "") -> None:
        self.hosts, self.spare = ["n1", "n2"], ["n3"]
        self._hub, self._well = hub, well

    @property
    def mark(self) -> str:  # type: ignore[override]
        return ",".join([*self.hosts, *self.spare])

    def replace(self, lost: LostNode, invitation: Invitation) -> None:
        self.spare.append(self.hosts[lost.node])
        self.hosts[lost.node] = self.spare.pop(0)

    def end(self, node: int) -> str:
        if self.hosts[node] != self._well:
            return f"ssh ended. Next: try `ssh {self.hosts[node]}` in a terminal"
        self._hub.snapshot = structs.replace(self._hub.snapshot, lost_agents=frozenset())
        return ""

    def state(self) -> str:
        return "ssh"


def replace_node_1(engine: DeadHosts, hub: HubThread) -> None:
    options = PoolOptions.checked(1, nnodes=2, launcher="ssh", hosts=["n1", "n2", "n3"])
    agents = EngineAgents(cast("Engine", engine), "ssh", INVITATION, options)
    known = snapshot_of(Pool(1, 2).start().machine, None, None)
    hub.snapshot = structs.replace(known, lost_agents=frozenset({1}))
    command = "%ddp restart -r 1"
    replace_nodes(agents, [1], hub, lambda: False, lambda snapshot: None, command=command)


def test_a_lost_host_that_is_well_again_is_taken_if_the_spare_one_is_dead():
    hub = hub_with(1)
    engine = DeadHosts(hub, well="n2")
    replace_node_1(engine, hub)
    assert engine.hosts == ["n1", "n2"]


def test_all_hosts_are_tried_before_the_error():
    hub = hub_with(1)
    engine = DeadHosts(hub)
    with pytest.raises(PoolBrokenError) as caught:
        replace_node_1(engine, hub)
    assert str(caught.value).startswith(
        "no agent has come in the place of node 1: on n3, ssh ended; ssh ended. Next: try `ssh n2` "
        "in a terminal; then %ddp restart -r 1 again, which goes to n3 and n2 in turn. If n3 and "
        "n2 cannot come back: %ddp stop"
    )
    assert engine.hosts == ["n1", "n2"]


def test_the_stop_button_ends_the_wait_for_the_loss_of_a_node():
    """Another agent may have come by itself, so that the node is not lost any longer."""
    hub = hub_with()
    agents = EngineAgents(cast("Engine", OldEngine()), "pigeon", INVITATION)
    with pytest.raises(KeyboardInterrupt):
        replace_nodes(agents, [1], hub, lambda: True, lambda snapshot: None)
    assert hub.awaited == frozenset()


def test_the_agents_that_have_come_are_in_the_record_also_if_another_one_has_not():
    startup = object.__new__(PoolStartup)
    written: list[object] = []
    startup._hub, startup._folder, startup._local = hub_with(1), None, []
    startup._engine_agents = EngineAgents(cast("Engine", OldEngine()), "pigeon", INVITATION)
    startup._record = cast(
        "RecordWriter", SimpleNamespace(rewrite=lambda folder, agents: written.append(agents))
    )
    with pytest.raises(PoolBrokenError):
        startup.replace([1], lambda: False, lambda snapshot: None)
    assert written == [startup._local]
