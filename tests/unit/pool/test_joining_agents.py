"""The lines of a start about agents that have not come."""

import time
from collections.abc import Callable
from typing import cast

import pytest

from nbddp.controller.launch import Engine
from nbddp.controller.pool.joining_agents import JoiningAgents
from nbddp.errors import PoolStartError


class Waits:
    """An engine that only waits."""

    join_timeout_s = 60.0

    def state(self) -> str:
        return "waits"


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time."""

    def set_time(now: float) -> None:
        monkeypatch.setattr(time, "monotonic", lambda: now)

    set_time(0.0)
    return set_time


def test_agents_that_came_late_are_not_said_to_have_come_in_time(at: Callable[[float], None]):
    joining = JoiningAgents(cast("Engine", Waits()), 2, "n0:1", is_told_late=True)
    assert joining.state(0) == "waits"
    at(24.0)
    assert joining.state(0).startswith("waits\nno agent has come in 15 s: the hosts must reach")
    assert joining.state(1).startswith("waits\n1 of 2 agents has come so far: all hosts must reach")
    assert joining.state(2) == "waits"
    joining.check(1)
    at(61.0)
    with pytest.raises(PoolStartError, match="1 of 2 agents has come in 60 s: all hosts must"):
        joining.check(1)
