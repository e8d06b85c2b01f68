"""The lines of a start about agents that have not come."""

import time
from collections.abc import Callable
from typing import cast

import pytest

from nbddp.controller.launch import Engine, EngineState
from nbddp.controller.launch.slurm import job_state
from nbddp.controller.pool.joining_agents import JoiningAgents
from nbddp.controller.state import Phase
from nbddp.errors import PoolStartError


class Waits:
    """An engine that only waits."""

    join_timeout_s = 60.0

    def __init__(self, words: str = "waits") -> None:
        self._words = words

    def state(self) -> str:
        return self._words


class Listens(Waits):
    """One whose agents the user starts."""

    def __init__(self, words: str, check: str) -> None:
        super().__init__(words)
        self._check = check

    def check_words(self) -> str:
        return self._check


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time."""

    def set_time(now: float) -> None:
        monkeypatch.setattr(time, "monotonic", lambda: now)

    set_time(0.0)
    return set_time


def test_agents_that_came_late_are_not_said_to_have_come_in_time(at: Callable[[float], None]):
    joining = JoiningAgents(cast("Engine", Listens("waits", "check")), 2, "n0:1")
    assert joining.state(0) == "waits"
    at(24.0)
    assert joining.state(0).startswith("waits\nno agent has come in 15 s: the hosts must reach")
    assert joining.state(1).startswith("waits\n1 of 2 agents has come so far: all hosts must reach")
    assert joining.state(2) == "waits"
    joining.check(1)
    at(61.0)
    with pytest.raises(PoolStartError, match="1 of 2 agents has come in 60 s: all hosts must"):
        joining.check(1)


def waiting_for(state: str, *, check: str = "") -> JoiningAgents:
    """A wait whose engine says this."""
    engine = Listens(state, check) if check else Waits(state)
    joining = JoiningAgents(cast("Engine", engine), 2, "n0:1")
    joining.state(0)
    return joining


def test_the_stop_button_keeps_what_the_start_waited_for():
    queued = "Slurm job 6: PENDING (Priority)"
    said = f"It waited for {queued}. Next: run the cell again"
    assert waiting_for(queued).interrupted_text(Phase.AGENTS) == said
    never = job_state("6|PENDING|PartitionNodeLimit|N/A")
    said = f"It waited for {never}. Next: run the cell again with other options"
    assert waiting_for(never).interrupted_text(Phase.AGENTS) == said
    # The fact decides, and no word of another engine's text.
    never = EngineState("it waits", may_never_start=True)
    assert waiting_for(never).interrupted_text(Phase.AGENTS).endswith(" with other options")
    queued_never = f"{queued} of 'never starts'"
    assert waiting_for(queued_never).interrupted_text(Phase.AGENTS).endswith("run the cell again")
    all_came = waiting_for(never)
    all_came.state(2)
    assert all_came.interrupted_text(Phase.AGENTS) == "Next: run the cell again"
    # The agents come between two looks at them, and the ranks import torch.
    assert waiting_for(queued).interrupted_text(Phase.RANKS) == "Next: run the cell again"
    assert waiting_for("").interrupted_text(Phase.AGENTS) == "Next: run the cell again"


def test_the_stop_button_says_that_the_file_of_the_agents_is_gone():
    joining = waiting_for("Start one agent\n  on each node", check="python --check")
    said = joining.interrupted_text(Phase.AGENTS)
    assert said.startswith("The file that its lines name is gone. Next: run the cell again, and")
    assert joining.interrupted_text(Phase.RANKS) == said


def test_late_agents_are_checked_with_the_command_of_the_lines(at: Callable[[float], None]):
    joining = waiting_for("waits", check="/venv/python -m nbddp agent --connect /f.json --check")
    at(24.0)
    assert "`/venv/python -m nbddp agent --connect /f.json --check` on a host" in joining.state(0)


class OfHosts(Waits):
    """One that knows its hosts."""

    def state_of(self, nodes: tuple[int, ...]) -> str:
        return f"ssh to {nodes}"

    def late_text(self, nodes: tuple[int, ...]) -> str:
        return f", and none from {nodes}"


def test_an_engine_that_knows_the_late_hosts_names_them(at: Callable[[float], None]):
    joining = JoiningAgents(cast("Engine", OfHosts()), 2, "n0:1")
    assert joining.state(0) == "waits"
    assert joining.state(1, (1,)) == "ssh to (1,)"
    at(61.0)
    with pytest.raises(PoolStartError) as caught:
        joining.check(1, (1,))
    said = "the pool did not start: 1 of 2 agents has come in 60 s, and none from (1,)"
    assert str(caught.value) == said
    with pytest.raises(PoolStartError, match="1 of 2 agents has come in 60 s: all hosts must"):
        joining.check(1)  # which one is not known
