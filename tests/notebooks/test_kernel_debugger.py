"""The debugger of a front end on a rank: the messages that JupyterLab sends."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.kernel import Kernel, running_kernel

LAUNCH = ("-Xfrozen_modules=off", "-m", "nbddp.notebook.ipykernel_app", "--NbddpKernel.pool=-n 2")
CELL = """x = rank + 1
def double(number):
    twice = number * 2
    return twice
y = double(x)
dist.barrier()
print('y is', y)"""
_numbers = itertools.count(1)


class FrontEnd:
    """Speaks the Debug Adapter Protocol over the control channel."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.stops = 0  # that were waited for

    def ask(self, command: str, **arguments: Any) -> dict[str, Any]:
        client = self.kernel.client
        content = {
            "type": "request",
            "seq": next(_numbers),
            "command": command,
            "arguments": arguments,
        }
        message = client.session.msg("debug_request", content)
        client.control_channel.send(message)
        reply = client.get_control_msg(timeout=30)
        while reply["parent_header"]["msg_id"] != message["header"]["msg_id"]:
            reply = client.get_control_msg(timeout=30)
        found: dict[str, Any] = reply["content"]
        return found

    def ok(self, command: str, **arguments: Any) -> Any:
        reply = self.ask(command, **arguments)
        assert reply["success"], reply
        return reply.get("body")

    def switch_on(self) -> None:
        self.ok("initialize", clientID="test", adapterID="", pathFormat="path",
                linesStartAt1=True, columnsStartAt1=True, supportsVariableType=True)  # fmt: skip
        self.ok("attach")

    def switch_off(self) -> None:
        self.ok("disconnect", restart=False, terminateDebuggee=False)

    def break_at(self, code: str, *lines: int) -> str:
        """Gives the file that stands for the cell."""
        path: str = self.ok("dumpCell", code=code)["sourcePath"]
        found = self.ok("setBreakpoints", source={"path": path}, sourceModified=False,
                        breakpoints=[{"line": line} for line in lines])  # fmt: skip
        assert [each["line"] for each in found["breakpoints"]] == list(lines)
        self.ok("configurationDone")
        return path

    def wait_for_stop(self) -> int:
        """Gives the thread that has stopped."""
        self.kernel.wait_for(lambda: len(self._stopped()) > self.stops, "a stop")
        self.stops += 1
        return int(self._stopped()[self.stops - 1]["body"]["threadId"])

    def frames(self, thread: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ok("stackTrace", threadId=thread)["stackFrames"]
        return found

    def variables(self, frame: dict[str, Any]) -> dict[str, str]:
        scope = self.ok("scopes", frameId=frame["id"])["scopes"][0]
        found = self.ok("variables", variablesReference=scope["variablesReference"])
        return {each["name"]: each["value"] for each in found["variables"]}

    def _stopped(self) -> list[dict[str, Any]]:
        messages = [m for cell in self.kernel.cells.values() for m in cell.of("debug_event")]
        return [m.content for m in messages if m.content["event"] == "stopped"]


@pytest.fixture(scope="module")
def own() -> Iterator[Kernel]:
    with running_kernel(*LAUNCH) as kernel:
        kernel.ok("pass")
        yield kernel


@pytest.fixture
def make_front_end(own: Kernel) -> Iterator[Callable[[], FrontEnd]]:
    """Afterwards the debugger is off and the next cell works."""
    made: list[FrontEnd] = []

    def make() -> FrontEnd:
        made.append(FrontEnd(own))
        made[-1].stops = len(made[-1]._stopped())
        made[-1].switch_on()
        return made[-1]

    yield make
    for front_end in made:
        front_end.switch_off()
    assert own.ok("dist.barrier(); print('healthy')").lines == ["[0-1] healthy"]


def test_a_breakpoint_with_variables_stack_step_and_continue(
    own: Kernel, make_front_end: Callable[[], FrontEnd]
):
    before = FrontEnd(own).ok("debugInfo")
    assert not before["isStarted"]
    front_end = make_front_end()
    path = front_end.break_at(CELL, 3)
    info = front_end.ok("debugInfo")
    assert info["isStarted"]
    # Answers that a front end got before the ranks existed are still valid.
    assert info["tmpFilePrefix"] == before["tmpFilePrefix"]
    assert path.startswith(info["tmpFilePrefix"])
    cell_id = own.execute(CELL)
    thread = front_end.wait_for_stop()
    frames = front_end.frames(thread)
    assert [(f["name"], f["line"], f["source"]["path"]) for f in frames[:2]] == [
        ("double", 3, path),
        ("<module>", 5, path),
    ]
    assert front_end.variables(frames[0]) == {"number": "1"}
    assert front_end.ok("evaluate", expression="number + rank + 40", frameId=frames[0]["id"],
                        context="repl")["result"] == "41"  # fmt: skip
    # The other rank waits; that is said, and nothing is ended.
    own.wait_text(cell_id, "rank 1 waits in barrier")
    own.wait_text(cell_id, "for rank 0, at a breakpoint")
    front_end.ok("next", threadId=thread)
    front_end.wait_for_stop()
    frames = front_end.frames(thread)
    assert frames[0]["line"] == 4
    assert front_end.variables(frames[0])["twice"] == "2"
    front_end.ok("continue", threadId=thread)
    cell = own.finish(cell_id)
    assert cell.status == "ok"
    assert cell.lines == ["[0]   y is 2", "[1]   y is 4"]
    # Between cells: what the variables of the rank are.
    found = front_end.ok("inspectVariables")["variables"]
    assert {"x": "1", "y": "2"}.items() <= {v["name"]: v["value"] for v in found}.items()
    shown = front_end.ok("richInspectVariables", variableName="y")
    assert shown["data"] == {"text/plain": "2"}


def test_steps_stay_in_the_cell(own: Kernel, make_front_end: Callable[[], FrontEnd]):
    front_end = make_front_end()
    code = "a = rank\nb = a + 1\nc = b + 1\nd = c + 1\ne = d + 1\nf = e + 1"
    path = front_end.break_at(code, 2)
    cell_id = own.execute(code)
    for line in (2, 3, 4, 5, 6):
        thread = front_end.wait_for_stop()
        (frame, *_) = front_end.frames(thread)
        assert (frame["source"]["path"], frame["line"]) == (path, line)
        front_end.ok("next", threadId=thread)
    assert own.finish(cell_id).status == "ok"


def test_a_breakpoint_on_another_rank(own: Kernel, make_front_end: Callable[[], FrontEnd]):
    assert "works on rank 0" in own.ok("%ddp debugger").text
    assert "works on rank 1: switch it off and on" in own.ok("%ddp debugger -r 1").text
    front_end = make_front_end()
    front_end.break_at(CELL, 5)
    cell_id = own.execute(CELL)
    thread = front_end.wait_for_stop()
    (frame, *_) = front_end.frames(thread)
    assert front_end.ok("evaluate", expression="rank, x", frameId=frame["id"],
                        context="repl")["result"] == "(1, 2)"  # fmt: skip
    front_end.ok("continue", threadId=thread)
    assert own.finish(cell_id).lines == ["[0]   y is 2", "[1]   y is 4"]


def test_an_interrupt_at_a_breakpoint_ends_the_cell(
    own: Kernel, make_front_end: Callable[[], FrontEnd]
):
    front_end = make_front_end()
    front_end.break_at(CELL, 3)
    cell_id = own.execute(CELL)
    front_end.wait_for_stop()
    own.interrupt()
    cell = own.finish(cell_id)
    assert "CellInterruptedError" in cell.error
    assert "----> 3     twice = number * 2" in cell.error
    assert "waiter.acquire" not in cell.error


def test_errors_still_name_the_cell(own: Kernel, make_front_end: Callable[[], FrontEnd]):
    make_front_end()
    cell = own.run("\nvalue = 0\n1 / value")
    assert f"Cell In[{cell.number}], line 3" in cell.error


def test_refused_requests_are_answered(own: Kernel):
    front_end = FrontEnd(own)
    reply = front_end.ask("stackTrace", threadId=1)
    assert not reply["success"]
    assert "is off" in reply["message"]
    assert "a debugger works on one rank" in own.run("%ddp debugger -r all").error


def test_a_stock_kernel_says_where_there_is_one(kernel: Kernel):
    assert "nbddp kernel install" in kernel.run("%ddp debugger").error


@pytest.mark.full
def test_the_files_of_cells_go_with_the_kernel():
    with running_kernel(*LAUNCH) as kernel:
        kernel.ok("pass")
        front_end = FrontEnd(kernel)
        front_end.switch_on()
        path = Path(front_end.break_at(CELL, 3))
        assert path.read_text() == CELL
        assert path.parent.stat().st_mode & 0o077 == 0
        kernel.shutdown()
        assert not path.parent.exists()
