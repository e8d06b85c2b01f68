"""Nodes on other machines: when they are silent, heard again, and lost."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from nbddp.controller.hub.agent_processes import Agents
from nbddp.controller.hub.remote_nodes import RemoteNodes
from nbddp.controller.launch import Engine, RemoteAgent
from nbddp.controller.state import BehindNode, Lobby, NodesSilent, NotifyUser, RankResult, RankState
from nbddp.settings import Settings
from nbddp.wire.channels import RemoteHubChannel
from nbddp.wire.message_types import AgentEnd, LostAgent, NodeFacts
from nbddp.wire.messages import (
    PROTOCOL_VERSION,
    AgentEnded,
    AgentHello,
    AgentJoined,
    GreetAgent,
    JobTimeLeft,
    RefuseAgent,
    ShutdownAgent,
)
from tests.support.machines import Pool

FACTS = NodeFacts(
    host="n1", address="10.0.0.2", python="3", torch="2", nbddp="1", cpus=1, machine_cpus=1, gpus=0
)


class Line:
    """The connection to one agent, of which was heard at a time that the test sets."""

    guests: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.last = 100.0
        self.asked: float | None = None
        self.sent: list[Any] = []

    def heard_at(self, node: int) -> float:
        return self.last

    def silence_s(self, node: int, now: float) -> float:
        return now - self.last

    def unanswered_since(self, node: int) -> float | None:
        return self.asked

    def clock(self, node: int) -> tuple[int, int]:
        return 7, 3

    def beat(self, now: float) -> bool:
        return True

    def admit(self, guest: int, node: int) -> None: ...

    def send_to_agent(self, node: int, request: Any) -> None:
        self.sent.append(request)

    def turn_away(self, guest: int) -> None:
        self.sent.append(guest)


class Scene:
    """A pool with one node, whose agent has joined."""

    def __init__(self, facts: NodeFacts = FACTS) -> None:
        self.line = Line()
        self.pool = Pool(1).start()
        channel = cast("RemoteHubChannel", self.line)
        self.nodes = RemoteNodes(channel, "t", Lobby(1, "3"), Settings())
        joined = AgentJoined(version=PROTOCOL_VERSION, token="t", pid=1, facts=facts)
        assert self.nodes.join(-1, joined, Agents(), 100.0) == ""

    def look(self, now: float) -> list[str]:
        """What is said: the texts, and the silent nodes if they change."""
        seen = self.nodes.look(now, Agents(), self.pool.machine)
        return [
            " ".join(each.text.split()[:3])
            if isinstance(each, NotifyUser)
            else f"{len(each.nodes)}"
            for each in seen
            if isinstance(each, NotifyUser | NodesSilent)
        ]

    def behind(self, now: float) -> tuple[BehindNode, ...]:
        """The nodes that answer late."""
        self.look(now)
        return self.nodes.view.behind


def test_a_node_is_silent_after_five_seconds_and_heard_again():
    scene = Scene()
    assert scene.look(104.0) == []
    assert scene.look(105.0) == ["nothing is heard", "1"]
    assert scene.look(110.0) == []
    [silent] = scene.nodes.view.silent
    assert (silent.host, silent.since) == ("n1", 100.0)
    scene.line.last = 111.0
    assert scene.look(111.5) == ["node 0 (n1)", "0"]
    assert [clock.offset_ns for clock in scene.nodes.view.clocks] == [7]


def test_a_node_that_is_heard_again_may_answer_late():
    scene = Scene()
    scene.look(105.0)
    scene.line.last = 111.0
    [notice, _] = scene.nodes.look(111.5, Agents(), scene.pool.machine)
    assert isinstance(notice, NotifyUser)
    assert notice.text == (
        "node 0 (n1) is heard again: no message was lost. Some may still come late, also those of "
        "collectives: after a cut, TCP pauses before it sends them again"
    )


def test_a_node_that_is_heard_again_is_behind_until_it_has_answered():
    scene = Scene()
    scene.line.asked = 99.9
    assert scene.behind(105.0) == ()  # it is silent, which says more
    scene.line.last = 111.0
    [behind] = scene.behind(111.2)
    assert behind.text == (
        "node 0 (n1) is heard, but does not answer yet: perhaps what was sent to it is still on "
        "its way, as TCP pauses after a cut"
    )
    scene.line.asked = 111.5
    assert scene.behind(112.0) == ()


def test_a_node_that_begins_to_be_silent_is_not_said_to_be_heard():
    scene = Scene()
    scene.line.asked = 99.9
    [behind] = scene.behind(103.0)
    assert behind.state == "does not answer: perhaps the network is cut"


def test_no_notice_is_shown_that_is_over():
    scene = Scene()
    assert scene.look(105.0) == ["nothing is heard", "1"]
    [notice] = scene.nodes.silent_notices(115.0)
    assert notice.text.endswith("its ranks are given up in 45 s")
    scene.line.last = 105.1
    assert scene.nodes.silent_notices(115.0) == []
    assert scene.look(105.2) == ["node 0 (n1)", "0"]  # at once: what is refused meanwhile is wrong


def test_a_cell_is_told_of_each_silence_once():
    scene = Scene()
    scene.look(105.0)  # between cells: the first cell is told, too
    assert len(scene.nodes.silent_notices(106.0)) == 1
    assert scene.nodes.silent_notices(107.0) == []
    scene.line.last = 108.0
    scene.look(108.5)
    assert scene.look(113.5) == ["nothing is heard", "1"]
    assert len(scene.nodes.silent_notices(114.0)) == 1  # another silence
    scene.line.last = 115.0
    scene.look(115.5)
    scene.pool.run()
    assert scene.look(120.5) == ["nothing is heard", "1"]  # seen in a cell
    assert scene.nodes.silent_notices(121.0) == []


def test_a_cell_that_has_failed_or_timed_out_waits_less_too():
    scene = Scene()
    scene.pool.run()
    run = scene.pool.machine.run
    assert run is not None
    assert scene.look(103.0) == []
    run.results[0] = RankResult(0, "error")
    assert scene.look(103.5) == ["nothing is heard", "1"]
    late = Scene()
    late.pool.run()
    run = late.pool.machine.run
    assert run is not None
    run.interrupt(timed_out=True)
    assert late.look(103.0) == ["nothing is heard", "1"]


def test_a_user_who_has_interrupted_a_cell_waits_less_and_it_stays_silent():
    scene = Scene()
    scene.pool.run()
    assert scene.look(103.0) == []
    run = scene.pool.machine.run
    assert run is not None
    run.interrupt()
    assert scene.look(103.5) == ["nothing is heard", "1"]
    scene.pool.machine.run = None
    assert scene.look(104.0) == []
    assert len(scene.nodes.view.silent) == 1


def test_the_end_of_the_job_is_told_while_the_pool_is_up():
    scene = Scene(replace(FACTS, scheduler="slurm", job="4711", job_left_s=660.0))
    [end] = scene.nodes.view.job_ends
    assert end.text(100.0) == "Slurm job 4711 ends in 11 min"
    for now, texts in ((102.0, []), (160.0, ["Slurm job 4711"]), (161.0, [])):
        scene.line.last = now
        assert scene.look(now) == texts


def test_no_end_of_a_job_is_told_that_has_lost_its_nodes():
    scene = Scene(replace(FACTS, scheduler="slurm", job="4711", job_left_s=660.0))
    assert scene.look(102.0) == []
    agents = cast("Agents", SimpleNamespace(ended=frozenset({0})))
    assert scene.nodes.look(160.0, agents, scene.pool.machine) == []


def test_an_agent_in_the_place_of_a_lost_one_has_the_time_of_a_start_before_it_is_silent():
    """It loads torch, and waits for that, before it makes its first rank."""
    scene = Scene()
    assert scene.look(101.0) == []  # it has ranks
    pool = scene.pool.machine
    ranks = pool.ranks
    pool.lost_agents[0] = LostAgent(0, AgentEnd("silent", 60, "n1"))
    ranks.move(0, RankState.EXITED, "its node was lost")
    assert scene.look(120.0) == []  # it has come, and has not said hello
    pool.handle(AgentHello(version=PROTOCOL_VERSION, token="t", node=0, pid=2, host="n1"), 121.0)
    ranks.move(0, RankState.STARTING, "starts")
    assert scene.look(122.0) == []
    assert scene.nodes.view.silent == ()
    ranks.move(0, RankState.IDLE, "is ready")
    assert scene.look(123.0) == ["nothing is heard", "1"]


def test_a_changed_end_of_a_job_is_told_once():
    scene = Scene(replace(FACTS, scheduler="slurm", job="4711", job_left_s=660.0))
    told = JobTimeLeft(node=0, left_s=7200.0)
    assert scene.nodes.receive(0, told, Agents(), 101.0) == ""
    scene.line.last = 102.0
    assert scene.look(102.0) == ["Slurm job 4711"]
    assert [end.ends_at for end in scene.nodes.view.job_ends] == [7301.0]
    assert scene.look(103.0) == []


def test_the_start_of_a_pool_says_when_its_job_ends_and_no_notice_does():
    scene = Scene(replace(FACTS, scheduler="slurm", job="4711", job_left_s=-1.0))
    told = JobTimeLeft(node=0, left_s=7200.0)
    scene.nodes.receive(0, told, Agents(), 101.0, is_up=False)
    scene.line.last = 102.0
    assert scene.look(102.0) == []
    assert [end.ends_at for end in scene.nodes.view.job_ends] == [7301.0]


@pytest.mark.parametrize(
    ("left_s", "now", "cause"),
    [(660.0, 300.0, "taken-away"), (660.0, 755.0, "time-limit"), (-1.0, 755.0, "job-over")],
)
def test_sigterm_at_the_end_of_the_job_is_its_time_limit(left_s: float, now: float, cause: str):
    scene = Scene(replace(FACTS, scheduler="slurm", job="4711", job_left_s=left_s))
    ends: list[AgentEnd] = []
    agents = cast("Agents", SimpleNamespace(note_end=lambda node, end: ends.append(end)))
    taken = AgentEnded(node=0, end=AgentEnd("taken-away", 15, "4711"))
    scene.nodes.receive(0, taken, agents, now)
    assert [end.cause for end in ends] == [cause]


def test_an_agent_whose_place_another_has_taken_is_told_so_and_the_one_that_has_it_is_not():
    scene = Scene()
    assert scene.nodes.view.pids == (1,)
    scene.line.sent.clear()
    for host, pid in (("n1", 1), ("n1", 2), ("n2", 1)):
        hello = AgentHello(version=PROTOCOL_VERSION, token="t", node=0, pid=pid, host=host)
        assert scene.nodes.receive(-2, hello, Agents(), 101.0) == ""
    refusal = RefuseAgent(reason="another one has its place")
    assert scene.line.sent == [-2, refusal, refusal]


def test_a_pool_that_is_taken_back_goes_on_with_its_nodes_and_the_newest_end_of_a_job():
    line = Line()
    nodes = RemoteNodes(cast("RemoteHubChannel", line), "t", Lobby(2, "3"), Settings())
    of_job = replace(FACTS, scheduler="slurm", job="4711", job_left_s=7200.0)
    nodes.resume({0: of_job, 1: replace(of_job, host="n2", job_left_s=60.0)}, {0: 7, 1: 8}, 100.0)
    assert (nodes.view.joined, nodes.view.pids) == (2, (7, 8))
    assert [end.ends_at for end in nodes.view.job_ends] == [7300.0]


def test_an_agent_is_greeted_or_refused_at_once():
    line = Line()
    nodes = RemoteNodes(cast("RemoteHubChannel", line), "t", Lobby(2, "3"), Settings())
    fits = AgentJoined(version=PROTOCOL_VERSION, token="t", pid=1, facts=FACTS)
    nodes.join(-1, replace(fits, token="other"), Agents(), 100.0)
    nodes.join(-2, fits, Agents(), 100.0)
    refused, greeted = line.sent
    assert refused.answer == "misfit"
    assert "does not show the token of this pool: its file is of another pool" in refused.reason
    assert "Next: use the file" in refused.reason
    assert greeted == GreetAgent(missing=1)


def test_an_agent_that_comes_for_a_silent_node_hears_of_the_silence():
    scene = Scene()
    scene.look(112.0)
    joined = AgentJoined(version=PROTOCOL_VERSION, token="t", pid=2, facts=FACTS)
    for only_asks in (False, True):
        scene.nodes.join(-2, replace(joined, only_asks=only_asks), Agents(), 113.0)
        assert "node 0 (n1) is silent for 13 s. Next: try again" in scene.line.sent[-1].reason


def test_an_agent_that_goes_before_it_knows_its_node_is_lost():
    """It sees the end of its input, and the hub has admitted it meanwhile."""
    scene = Scene()
    ends: list[tuple[int, AgentEnd]] = []
    agents = cast("Agents", SimpleNamespace(note_end=lambda node, end: ends.append((node, end))))
    gone = AgentEnded(node=-1, end=AgentEnd("starter-ended"))
    scene.nodes.receive(0, gone, agents, 101.0)
    assert ends == [(0, AgentEnd("starter-ended"))]
    scene.nodes.receive(0, replace(gone, node=3), agents, 101.0)  # of another one
    assert len(ends) == 1


def test_agents_that_wait_are_told_of_the_end_of_the_start():
    line = Line()
    nodes = RemoteNodes(cast("RemoteHubChannel", line), "t", Lobby(2, "3"), Settings())
    fits = AgentJoined(version=PROTOCOL_VERSION, token="t", pid=1, facts=FACTS)
    nodes.join(-1, fits, Agents(), 100.0)
    nodes.dismiss_guests()
    assert line.sent[-1] == ShutdownAgent(grace_s=0.0)
    scene = Scene()
    scene.line.sent.clear()
    scene.nodes.dismiss_guests()
    assert scene.line.sent == []  # that of a node gets the message to all nodes


def test_the_machine_of_an_agent_is_known_once_it_has_come():
    engine = SimpleNamespace(end=lambda node: "")
    agents = Agents(remote=[RemoteAgent(0, cast("Engine", engine))])
    nodes = RemoteNodes(cast("RemoteHubChannel", Line()), "t", Lobby(1, "3"), Settings())
    nodes.join(
        -1, AgentJoined(version=PROTOCOL_VERSION, token="t", pid=1, facts=FACTS), agents, 1.0
    )
    agents.note_end(0, AgentEnd("starter-ended"))
    [exited] = agents.reap(Pool(1).machine, 2.0)
    assert exited.host == "n1"


def test_the_view_has_the_nodes_that_have_not_come():
    nodes = RemoteNodes(cast("RemoteHubChannel", Line()), "t", Lobby(2, "3"), Settings())
    second = replace(FACTS, engine_node=1)
    joined = AgentJoined(version=PROTOCOL_VERSION, token="t", pid=1, facts=second)
    nodes.join(-1, joined, Agents(), 100.0)
    assert nodes.view.missing == (0,)
