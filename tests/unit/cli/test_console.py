"""The terminal on a rank: what an interrupt ends."""

import json
import os
import queue
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nbddp.cli import console
from nbddp.cli.console import Console, NotebookPool, choose_rank
from nbddp.errors import BadOptionError
from nbddp.settings import CONSOLE_REQUEST, NOTEBOOK_FILE
from nbddp.system import pool_folder


def test_pools_are_found_in_all_folders_of_pools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    fields = {"world_size": 2, "pid": os.getpid(), "cwd": "/", "connection_file": "c.json"}
    parents = [str(tmp_path / name) for name in ("first", "second")]
    for parent in parents:
        folder = Path(parent, f"nbddp-{Path(parent).name}")
        folder.mkdir(parents=True)
        (folder / NOTEBOOK_FILE).write_text(json.dumps(fields))
    monkeypatch.setattr(pool_folder, "parents", lambda: parents)
    assert [pool.name for pool in console.find_pools()] == ["nbddp-first", "nbddp-second"]


class Kernel:
    """Stands for the client: what it gets on the IOPub channel, and what it is told.

    Args:
        heard: states of our cell; ``"^C"`` is the person at the terminal, ``""`` is silence.
        answer: of the kernel's control channel, about what was typed.
    """

    def __init__(self, heard: list[str], answer: str = "", ranks: tuple[int, ...] = ()) -> None:
        self._heard: Iterator[str] = iter(heard)
        self._answer = {"ranks": list(ranks)} if ranks else {"text": answer}
        self.session = SimpleNamespace(
            msg=lambda kind, content: {"header": {"msg_id": "asked"}, "kind": kind, **content}
        )
        self.sent: list[str] = []
        self.control_channel = SimpleNamespace(send=self._send)
        self.asked: list[dict[str, Any]] = []

    def _send(self, message: dict[str, Any]) -> None:
        if message["kind"] == CONSOLE_REQUEST:
            self.asked.append(message)
        else:
            self.sent.append(message["kind"])

    def get_control_msg(self, timeout: float) -> dict[str, Any]:
        assert self.asked
        return {"parent_header": {"msg_id": "asked"}, "content": self._answer}

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
        if not state:
            raise queue.Empty
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


def test_what_a_busy_rank_answers_is_printed_and_nothing_is_run(
    capsys: pytest.CaptureFixture[str],
):
    kernel = Kernel([], answer="rank 1 is busy: runs")
    Console(kernel, 1).run("loss")  # type: ignore[arg-type]  # as above
    assert [(each["rank"], each["code"]) for each in kernel.asked] == [(1, "loss")]
    assert capsys.readouterr().out == "rank 1 is busy: runs\n"


def test_a_cell_that_waits_for_one_of_the_notebook_says_so_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(console, "_BEGIN_S", 0.0)
    Console(Kernel(["", "", "busy", "idle"]), 1).run("1")  # type: ignore[arg-type]  # as above
    assert capsys.readouterr().out.count("waits for a cell of the notebook") == 1


POOL = NotebookPool("nbddp-x", 4, 1, "/", "connection.json")


def chosen(kernel: Kernel, choice: str | None, mesh: str = "") -> int:
    return choose_rank(kernel, POOL, choice, mesh)  # type: ignore[arg-type]  # all that it needs


@pytest.mark.parametrize(
    ("choice", "mesh", "asked"),
    [
        (None, "", None),
        ("3", "", None),
        ("dp=0,tp=1", "", "dp=0,tp=1"),
        ("tp=1", "grid", "grid[tp=1]"),
        (None, "grid", "grid[]"),
    ],
)
def test_a_rank_may_be_chosen_by_mesh(choice: str | None, mesh: str, asked: str | None):
    kernel = Kernel([], ranks=(2,))
    assert chosen(kernel, choice, mesh) == (2 if asked else int(choice or 0))
    assert [each["ranks"] for each in kernel.asked] == ([asked] if asked else [])


def test_a_choice_of_several_ranks_is_refused():
    with pytest.raises(BadOptionError, match="'tp=0' chooses ranks 0,2, and a console is on one"):
        chosen(Kernel([], ranks=(0, 2)), "tp=0")
    with pytest.raises(BadOptionError, match="'all' chooses ranks 0-3"):
        chosen(Kernel([]), "all")


def test_a_wrong_name_is_told_as_the_kernel_tells_it():
    with pytest.raises(BadOptionError, match="legal: grid"):
        chosen(Kernel([], answer="no DeviceMesh has the dimension pp; legal: grid"), "pp=0")
