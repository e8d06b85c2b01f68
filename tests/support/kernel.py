"""A real notebook kernel, driven by messages as a front end drives it.

`Cell` holds the messages of one cell on the IOPub channel, in order; `Cell.page` is the output that
a reader sees in the end.
"""

import contextlib
import queue
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

from nbddp.settings import POOLS_DIR_ENV

#: Guards against hanging; nothing is measured with it. On a machine that runs ten other programs, a
#: pool needs more than 20 s to start.
LIMIT_S = 50.0
_POLL_S = 0.05
#: A blank at which nbddp has broken a line of an error, see `nbddp.errors.wrapped`.
_BREAK = re.compile(r"\n(?: {4}| {12})(?=[^\s-])")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def plain(text: str) -> str:
    """Without colours."""
    return _COLOUR.sub("", text)


@dataclass
class Message:
    """One message of the IOPub channel."""

    kind: str
    content: dict[str, Any]

    @property
    def text(self) -> str:
        """The readable part, without colours."""
        if self.kind == "stream":
            return plain(str(self.content["text"]))
        if self.kind == "error":
            return plain("\n".join(self.content["traceback"]))
        return plain(str(self.content.get("data", {}).get("text/plain", "")))

    @property
    def display_id(self) -> str | None:
        """The id of a display that can be updated."""
        found = self.content.get("transient", {}).get("display_id")
        return None if found is None else str(found)


@dataclass
class Cell:
    """The messages that came back for one cell."""

    number: int | None = None
    status: str = ""
    messages: list[Message] = field(default_factory=list)
    questions: list[str] = field(default_factory=list)
    is_idle: bool = False

    def of(self, *kinds: str) -> list[Message]:
        """Messages of these kinds."""
        return [message for message in self.messages if message.kind in kinds]

    @property
    def stdout(self) -> str:
        """All standard output."""
        return self._stream("stdout")

    @property
    def stderr(self) -> str:
        """All standard error."""
        return self._stream("stderr")

    @property
    def text(self) -> str:
        """Both, as they are left when all clearings are done."""
        return "".join(message.text for message in self._shown if message.kind == "stream")

    @property
    def lines(self) -> list[str]:
        """Both, line by line."""
        return self.text.splitlines()

    @property
    def error(self) -> str:
        """The traceback that is shown, with broken lines in one; empty if there is none."""
        return _BREAK.sub(" ", "\n".join(message.text for message in self.of("error")))

    @property
    def page(self) -> list[Message]:
        """The outputs that are left when all updates and clearings are done; blank ones not."""
        return [message for message in self._shown if message.text.strip()]

    @property
    def _shown(self) -> list[Message]:
        shown: list[Message] = []
        clear_next = False
        for message in self.messages:
            if message.kind == "clear_output":
                clear_next = bool(message.content.get("wait"))
                shown = shown if clear_next else []
                continue
            if message.kind == "update_display_data":
                for index, old in enumerate(shown):
                    if old.display_id is not None and old.display_id == message.display_id:
                        shown[index] = message
                continue
            if message.kind not in ("stream", "display_data", "execute_result", "error"):
                continue
            shown = [] if clear_next else shown
            clear_next = False
            last = shown[-1] if shown and message.kind == shown[-1].kind == "stream" else None
            if last is not None and last.content["name"] == message.content["name"]:
                # As a front end does: a text may come in two parts, which is chance.
                text = last.content["text"] + message.content["text"]
                shown[-1] = Message("stream", {**last.content, "text": text})
            else:
                shown.append(message)
        return shown

    def _stream(self, name: str) -> str:
        return "".join(
            m.text for m in self._shown if m.kind == "stream" and m.content["name"] == name
        )


class Kernel:
    """One kernel process and the client that talks to it."""

    def __init__(self, manager: KernelManager, client: BlockingKernelClient) -> None:
        self.manager = manager
        self.client = client
        self.cells: dict[str, Cell] = {}
        self.process = psutil.Process(manager.provisioner.pid)  # type: ignore[union-attr]  # it runs

    def execute(self, code: str, *, stdin: bool = False) -> str:
        """Send a cell; gives the id under which its messages are collected.

        After an error, ipykernel discards the requests in its queue, until an event that it puts at
        the end of the queue. A client that sends the next cell at once may meet that moment, so it
        asks for nothing to be discarded.
        """
        msg_id: str = self.client.execute(code, allow_stdin=stdin, stop_on_error=False)
        self.cells[msg_id] = Cell()
        return msg_id

    def wait_for(
        self, predicate: Callable[[], object], what: str = "it", limit_s: float = LIMIT_S
    ) -> None:
        """Collect messages until ``predicate`` holds; shows all of them if it never does."""
        until = time.monotonic() + limit_s
        while not predicate():
            if time.monotonic() > until:
                raise AssertionError(f"waited {limit_s:g} s for {what}\n{self._all_messages()}")
            self.pump()

    def wait_text(self, msg_id: str, text: str, limit_s: float = LIMIT_S) -> None:
        """Waits until a cell has shown ``text``, in a stream or a display."""
        cell = self.cells[msg_id]
        self.wait_for(lambda: any(text in m.text for m in cell.messages), repr(text), limit_s)

    def finish(self, msg_id: str, answers: tuple[str, ...] = (), limit_s: float = LIMIT_S) -> Cell:
        """Waits until a cell has ended; ``answers`` go to its questions, in order."""
        cell = self.cells[msg_id]
        waiting = list(answers)

        def has_ended() -> bool:
            while (question := self.question(msg_id)) is not None:
                cell.questions.append(question)
                assert waiting, f"an unexpected question: {question!r}"
                self.client.input(waiting.pop(0))
            return cell.is_idle

        self.wait_for(has_ended, "the end of the cell", limit_s)
        reply = self.client.get_shell_msg(timeout=LIMIT_S)
        while reply["parent_header"]["msg_id"] != msg_id:
            reply = self.client.get_shell_msg(timeout=LIMIT_S)
        cell.status = reply["content"]["status"]
        return cell

    def run(self, code: str, *answers: str, stdin: bool = False, limit_s: float = LIMIT_S) -> Cell:
        """Run a cell to its end."""
        return self.finish(self.execute(code, stdin=stdin or bool(answers)), answers, limit_s)

    def ok(self, code: str) -> Cell:
        """Run a cell that must not fail."""
        cell = self.run(code)
        assert cell.status == "ok", cell.error
        return cell

    def value(self, expression: str) -> str:
        """The text of an expression's value in the kernel."""
        cell = self.ok(expression)
        return cell.of("execute_result")[0].text

    def question(self, msg_id: str) -> str | None:
        """The prompt of a question that a cell asks, and that waits for an answer.

        Questions of other cells were interrupted, and no rank waits for their answers.
        """
        with contextlib.suppress(queue.Empty):
            while True:
                raw = self.client.get_stdin_msg(timeout=0)
                if raw["parent_header"].get("msg_id") == msg_id:
                    return str(raw["content"]["prompt"])
        return None

    def interrupt(self) -> None:
        """The stop button."""
        self.manager.interrupt_kernel()

    def pump(self) -> None:
        """Collect one message, if one comes soon."""
        try:
            raw = self.client.get_iopub_msg(timeout=_POLL_S)
        except queue.Empty:
            assert self.manager.is_alive(), "the kernel has died"
            return
        cell = self.cells.setdefault(raw["parent_header"].get("msg_id", ""), Cell())
        content: dict[str, Any] = raw["content"]
        match raw["msg_type"]:
            case "execute_input":
                cell.number = content["execution_count"]
            case "status":
                cell.is_idle = cell.is_idle or content["execution_state"] == "idle"
            case kind:
                message = Message(kind, content)
                self._place(message, cell).messages.append(message)

    def _place(self, message: Message, cell: Cell) -> Cell:
        """The cell that shows a message: an update belongs to the cell that made the display."""
        if message.kind != "update_display_data":
            return cell
        made = (each for each in self.cells.values() for old in each.of("display_data")
                if old.display_id == message.display_id)  # fmt: skip
        return next(made, cell)

    def shutdown(self) -> None:
        """Ends the kernel as closing a notebook does: ask, wait, then kill."""
        self.client.stop_channels()
        self.manager.shutdown_kernel()

    def _all_messages(self) -> str:
        return "\n".join(
            f"{msg_id[-4:]} {message.kind}: {message.text!r}"
            for msg_id, cell in self.cells.items()
            for message in cell.messages
        )


@contextlib.contextmanager
def running_kernel(*launch: str, **env: str) -> Iterator[Kernel]:
    """A kernel with this interpreter, ended at the end.

    Its sockets are files: a TCP port that is free now may be taken by another program before the
    kernel binds it. The tests in a browser use TCP.

    Args:
        launch: arguments of the interpreter; default: a stock ipykernel.
        env: more variables.
    """
    with tempfile.TemporaryDirectory(prefix="nbk-") as folder:
        yield from _kernel_in(folder, launch, env)


def _kernel_in(folder: str, launch: Sequence[str], env: Mapping[str, str]) -> Iterator[Kernel]:
    # A kernel with a temporary folder of its own knows the pools in it, and no other program's.
    own_pools = {POOLS_DIR_ENV: env["TMPDIR"]} if "TMPDIR" in env else {}
    manager = KernelManager(kernel_name="python3", transport="ipc", ip=f"{folder}/socket")
    manager._kernel_spec = KernelSpec(
        argv=[
            sys.executable,
            *(launch or ("-m", "ipykernel_launcher")),
            "-f",
            "{connection_file}",
        ],
        # Equal lines are told as equal, also where a rank of a busy machine is a little late.
        env={"PYTHONFAULTHANDLER": "1", "NBDDP_OUTPUT_FOLD_S": "0.2", **own_pools, **env},
    )
    manager.start_kernel()
    client = manager.client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=LIMIT_S)
        kernel = Kernel(manager, client)
        yield kernel
    finally:
        client.stop_channels()
        if manager.has_kernel:
            manager.shutdown_kernel(now=not manager.is_alive())
