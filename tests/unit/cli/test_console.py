"""The terminal on a rank: what an interrupt ends."""

import queue
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from nbddp.cli.console import Console


class Kernel:
    """Stands for the client: what it gets on the IOPub channel, and what it is told.

    Args:
        heard: states of our cell; ``"^C"`` is the person at the terminal.
    """

    def __init__(self, heard: list[str]) -> None:
        self._heard: Iterator[str] = iter(heard)
        self.session = SimpleNamespace(msg=lambda kind, _: kind)
        self.sent: list[str] = []
        self.control_channel = SimpleNamespace(send=self.sent.append)

    def execute(self, code: str, **_: Any) -> str:
        return "ours"

    def is_alive(self) -> bool:
        return True

    def get_stdin_msg(self, timeout: float) -> Any:
        raise queue.Empty

    def get_iopub_msg(self, timeout: float) -> dict[str, Any]:
        state = next(self._heard)
        if state == "^C":
            raise KeyboardInterrupt
        self.sent.append(state)
        content = {"execution_state": state}
        return {"parent_header": {"msg_id": "ours"}, "msg_type": "status", "content": content}


@pytest.mark.parametrize(
    ("heard", "sent"),
    [
        (["busy", "^C", "idle"], ["busy", "interrupt_request", "idle"]),
        (["^C", "^C", "busy", "idle"], ["busy", "interrupt_request", "idle"]),
        (["busy", "idle"], ["busy", "idle"]),
    ],
)
def test_an_interrupt_ends_the_cell_of_the_terminal_and_none_of_the_notebook(
    heard: list[str], sent: list[str], capsys: pytest.CaptureFixture[str]
):
    kernel = Kernel(heard)
    Console(kernel, 1).run("while True: pass")  # type: ignore[arg-type]  # all that it needs
    assert kernel.sent == sent
    assert ("waits for a cell of the notebook" in capsys.readouterr().out) == (heard[0] == "^C")
