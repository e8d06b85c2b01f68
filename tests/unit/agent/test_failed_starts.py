"""A process that cannot be made, because the whole agent ends or for a reason of its own."""

import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nbddp.agent.store_process import StoreKeeper, StoreProcess
from nbddp.wire.message_types import AgentEnd, ForkServerEnd


@pytest.mark.parametrize(
    ("error", "exit_code", "said"),
    [
        (EOFError("unexpected EOF"), -signal.SIGTERM, []),  # the agent says why it ends
        (EOFError("unexpected EOF"), -signal.SIGKILL, ["unexpected EOF"]),
        (RuntimeError("no memory"), -signal.SIGTERM, ["no memory"]),
    ],
)
def test_a_store_that_is_not_made_since_the_job_ends_is_told_by_the_end_of_the_agent(
    error: Exception, exit_code: int, said: list[str], monkeypatch: pytest.MonkeyPatch
):
    sent: list[Any] = []

    def fail(*_: object) -> None:
        raise error

    def ends_as_well(*, is_of_sigterm: bool) -> AgentEnd | None:
        return AgentEnd("taken-away", 15, "7") if is_of_sigterm else None

    monkeypatch.setattr(StoreProcess, "start", fail)
    maker = SimpleNamespace(fork_server_end=lambda _: ForkServerEnd(exit_code=exit_code))
    keeper = StoreKeeper(
        0, cast("Any", maker), cast("Any", None), sent.append, cast("Any", ends_as_well)
    )
    keeper.start(cast("Any", SimpleNamespace(host="127.0.0.1", port=0)))
    assert [each.error.evalue for each in sent] == said
