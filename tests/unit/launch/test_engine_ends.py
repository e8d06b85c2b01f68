"""The words of engines about agents that have ended: the advice stands apart, as data."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nbddp.controller.launch import (
    Engine,
    EngineEnd,
    EngineOptions,
    RemoteAgent,
    commands,
    make_engine,
)
from nbddp.wire.invitation import Invitation
from nbddp.wire.message_types import AgentEnd

_INVITATION = Invitation(
    pool_id="p", addresses=("tcp://10.0.0.1:5",), token="t",
    server_key="s", public_key="p", secret_key="k",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "what", "advice"),
    [
        ("", "", ""),
        ("its pod was evicted", "its pod was evicted", ""),
        ("ssh ended.. Next: try `ssh b`", "ssh ended.", "try `ssh b`"),
        ("n1 is full.\n  Next: empty it", "n1 is full", "empty it"),  # it has broken its lines
        ("a. Next: b. Next: c", "a", "b. Next: c"),
    ],
)
def test_a_text_is_parted_before_its_first_advice(text: str, what: str, advice: str):
    end = EngineEnd.of(text)
    assert (end.what, end.advice) == (what, advice)
    assert bool(end) == bool(text)
    assert EngineEnd.of(end) is end


def test_the_hub_gets_the_advice_of_an_engine_of_a_package_apart():
    engine = SimpleNamespace(end=lambda node: "the bird is lost. Next: send another")
    agent = RemoteAgent(1, cast("Engine", engine))
    assert agent.has_exited()
    assert agent.end() == AgentEnd("engine", text="the bird is lost", advice="send another")


@pytest.mark.parametrize(("name", "own"), [("ssh", "try `ssh n1`"), ("slurm", "try `srun ")])
def test_an_agent_that_says_what_to_do_knows_more_than_its_engine(
    name: str, own: str, monkeypatch: pytest.MonkeyPatch
):
    said = "ended with exit code 1"

    def program(*_: Any) -> Any:
        return SimpleNamespace(
            end=lambda: said, exit_code=1, stop=lambda patience_s: None,
            close_input=lambda: None, lines=lambda since: ([], since),
        )  # fmt: skip

    monkeypatch.setattr(commands, "EngineProcess", program)
    monkeypatch.setattr("shutil.which", lambda name: name)
    engine = make_engine(name, EngineOptions(1, 1, hosts=("n1",) if name == "ssh" else ()))
    engine.start(_INVITATION)
    end = EngineEnd.of(engine.end(0))
    assert end.what.endswith(f" {said}")
    assert end.advice.startswith(own)
    said = "ended with exit code 1 and said: n1 cannot reach the notebook. Next: open the port"
    assert EngineEnd.of(engine.end(0)).advice == "open the port"
    engine.stop()


def test_an_allocation_with_too_few_nodes_says_how_many_it_has():
    engine: Any = make_engine("slurm", EngineOptions(3, 1))
    said = "ended with exit code 1 and said: srun: error: Only allocated 2 nodes asked for 3"
    engine._process = SimpleNamespace(end=lambda: said, lines=lambda since: ([], 0))
    assert engine.end(0).advice == "--nnodes 2, or a larger allocation"
