"""Tunnels that are made again after a cut, with an ssh that the test plays."""

from collections.abc import Sequence

import pytest

from nbddp.controller.launch import (
    EngineOptions,
    LostNode,
    ReachingEngine,
    ReplacingEngine,
    make_engine,
    mark_of,
    ssh_tunnels,
)
from nbddp.controller.launch import commands as commands_of_engines
from nbddp.controller.launch.ssh_tunnels import Tunnel
from nbddp.wire.invitation import Invitation
from tests.support.polling import poll_until

HELD = "nbddp agent on a: holds the tunnel of sshd 77 4711"


class PlayedSsh:
    """An ssh: the test says what it writes, and when it ends."""

    def __init__(self, words: Sequence[str], invitation: Invitation | None = None) -> None:
        self.words = list(words)
        self.written: list[str] = []
        self.said: list[str] = []
        self.exit_code: int | None = None
        self.is_stopped = False
        self.invitation = invitation

    @property
    def command(self) -> str:
        return self.words[-1].partition("nbddp.agent.tunnel_end ")[2]

    @property
    def forward(self) -> str:
        return self.words[self.words.index("-R") + 1] if "-R" in self.words else ""

    def end(self) -> str:
        return "" if self.exit_code is None else f"ended with exit code {self.exit_code}"

    def lines(self, since: int) -> tuple[list[str], int]:
        return self.written, len(self.written)

    def say(self, line: str) -> None:
        self.said.append(line)

    def close_input(self) -> None:
        self.is_stopped = True

    def stop(self, patience_s: float) -> None:
        self.is_stopped = True


class Played:
    """A tunnel whose ssh are played."""

    def __init__(self) -> None:
        self.started: list[PlayedSsh] = []
        self.tunnel = Tunnel("a", 4000, "python3", self._start)

    def _start(self, words: Sequence[str]) -> PlayedSsh:
        self.started.append(PlayedSsh(words))
        return self.started[-1]

    @property
    def last(self) -> PlayedSsh:
        return self.started[-1]

    def end_last(self, exit_code: int, now: float) -> None:
        self.last.exit_code = exit_code
        self.tunnel.look(now)


@pytest.fixture
def played() -> Played:
    made = Played()
    made.tunnel.look(100.0)
    return made


def test_the_other_end_hears_a_beat_each_5_seconds(played: Played):
    assert played.last.forward == "4000:127.0.0.1:4000"
    assert played.last.command == "--patience 60"
    assert "ControlPath=none" in played.last.words
    played.last.written = [HELD]
    for now in (100.5, 101.0, 105.0, 105.5, 106.0):
        played.tunnel.look(now)
    assert played.last.said == ["", ""]
    assert (len(played.started), played.tunnel.failure()) == (1, "")


def test_the_last_sshd_is_ended_before_the_next_tunnel(played: Played):
    played.last.written = [HELD]
    played.tunnel.look(100.5)
    first = played.last
    played.end_last(255, 160.0)
    assert first.is_stopped
    played.tunnel.look(160.5)
    assert len(played.started) == 1  # it was ended just now
    played.tunnel.look(161.5)
    assert (played.last.command, played.last.forward) == ("--end 77 4711", "")
    played.end_last(255, 165.0)  # the line is still cut
    played.tunnel.look(170.0)
    assert played.last.command == "--end 77 4711"
    assert played.last.said == []
    played.end_last(0, 171.0)
    played.tunnel.look(171.0)
    assert played.last.command == "--patience 60"
    played.end_last(255, 172.0)  # it had not come up: there is nothing to end
    played.tunnel.look(180.0)
    assert played.last.command == "--patience 60"


def test_a_sshd_that_does_not_show_itself_is_not_ended(played: Played):
    played.last.written = [HELD.replace("77 4711", "0 -1")]
    played.tunnel.look(100.5)
    played.end_last(255, 160.0)
    played.tunnel.look(170.0)
    assert played.last.command == "--patience 60"


def test_the_pauses_grow_while_a_host_is_not_reached(played: Played):
    pauses, now = [], 100.0
    for _ in range(60):
        played.end_last(255, now)
        count, ended_at = len(played.started), now
        while len(played.started) == count:
            now += 0.5
            played.tunnel.look(now)
        pauses.append(now - ended_at)
    assert pauses[0] == 1.0
    assert pauses == sorted(pauses)
    assert pauses[-1] == 30.0
    played.end_last(255, now)
    played.tunnel.hurry()
    played.tunnel.look(now)
    assert len(played.started) == 62


def test_a_failure_is_told_until_the_tunnel_is_there(played: Played):
    assert played.tunnel.never_was_up
    played.end_last(255, 101.0)
    assert played.tunnel.failure() == "ended with exit code 255"
    played.tunnel.look(102.5)
    assert played.tunnel.failure() == "ended with exit code 255"
    played.last.written = [HELD]
    played.tunnel.look(103.0)
    assert (played.tunnel.failure(), played.tunnel.never_was_up) == ("", False)


def test_an_engine_has_a_tunnel_to_each_host_that_it_uses(monkeypatch: pytest.MonkeyPatch):
    agents: list[PlayedSsh] = []
    tunnels: list[PlayedSsh] = []

    def start(words: Sequence[str], invitation: Invitation | None = None) -> PlayedSsh:
        tunnels.append(PlayedSsh(words, invitation))
        return tunnels[-1]

    def start_agent(words: Sequence[str], invitation: Invitation, env: object) -> PlayedSsh:
        agents.append(PlayedSsh(words, invitation))
        return agents[-1]

    def hosts() -> list[str]:
        return [ssh.words[-2] for ssh in tunnels]

    monkeypatch.setattr(ssh_tunnels, "EngineProcess", start)
    monkeypatch.setattr(commands_of_engines, "EngineProcess", start_agent)
    options = EngineOptions(2, 1, hosts=("a", "b", "c"), tunnel=True)
    invitation = Invitation(
        pool_id="p",
        addresses=("tcp://127.0.0.1:4000",),
        token="t",
        server_key="s",
        public_key="p",
        secret_key="k",
        is_tunnelled=True,
    )
    unkept = make_engine("ssh", options)
    unkept.start(invitation)
    assert [ssh.forward for ssh in agents] == ["4000:127.0.0.1:4000"] * 2
    assert tunnels == []
    unkept.stop()

    agents.clear()
    kept = Invitation.parse(invitation.text().replace('"keep_s":0.0', '"keep_s":60.0'))
    engine = make_engine("ssh", options)
    assert isinstance(engine, ReachingEngine)
    engine.start(kept)
    assert [ssh.forward for ssh in agents] == ["", ""]
    assert hosts() == ["a", "b"]
    assert all(ssh.invitation is None for ssh in tunnels)  # it is a secret of the agents
    lost = LostNode(1)
    _replace(engine, lost, kept)
    assert hosts() == ["a", "b", "c"]
    tunnels[2].exit_code = 255
    poll_until(lambda: engine.end(1))
    assert engine.end(1) == "ssh ended with exit code 255. Next: try `ssh c` in a terminal"
    agents[0].exit_code = 127  # there is no such Python
    assert engine.end(0).endswith("try `ssh a` in a terminal; --python PATH names the Python there")
    engine.leave()
    assert all(ssh.is_stopped for ssh in tunnels[:2])

    tunnels.clear()
    second = make_engine("ssh", options)
    assert isinstance(second, ReachingEngine)
    second.reach(mark_of(engine), kept)
    assert hosts() == ["a", "c"]
    assert second.obstacle() == ""
    tunnels[1].exit_code = 255
    assert poll_until(second.obstacle) == "ssh to c ended with exit code 255"
    second.take_back(mark_of(engine), kept)
    assert second.state() == "ssh to a, c"
    second.stop()


def _replace(engine: ReachingEngine, lost: LostNode, invitation: Invitation) -> None:
    replacing: ReplacingEngine = engine  # type: ignore[assignment]
    replacing.replace(lost, invitation)
