"""Output of ranks between cells is shown by its own thread, and no error ends that thread."""

import sys
import threading

import pytest

from nbddp.notebook.output.background import BackgroundOutput
from nbddp.wire.messages import Output
from tests.support.polling import poll_until


def out(text: str) -> Output:
    return Output(run_id=None, rank=0, stream="stdout", text=text)


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "nbddp-background"]


def test_a_stream_that_cannot_be_written_costs_only_what_it_was_to_show(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    background = BackgroundOutput(1)
    written = sys.stdout
    closed = open("/dev/null", "w")  # noqa: PTH123, SIM115 - closed in the next line
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    background.put(out("lost\n"))
    poll_until(lambda: isinstance(background.failure, ValueError))
    monkeypatch.setattr(sys, "stdout", written)
    background.put(out("shown\n"))
    poll_until(lambda: "shown" in capsys.readouterr().out)
    background.put(None)
    poll_until(lambda: not threads())


def test_a_blocked_stream_does_not_block_the_hub(monkeypatch: pytest.MonkeyPatch):
    go_on = threading.Event()

    class Blocked:
        def write(self, text: str) -> None:
            assert go_on.wait(20)

        def flush(self) -> None:
            pass

    background = BackgroundOutput(1)
    monkeypatch.setattr(sys, "stdout", Blocked())
    for _ in range(1000):
        background.put(out("x\n"))
    assert background._waiting.qsize() <= 256
    background.put(None)
    go_on.set()
    poll_until(lambda: not threads())


def test_ends_of_lines_alone_are_not_shown(capsys: pytest.CaptureFixture[str]):
    background = BackgroundOutput(2)
    for text in ("\n", "said\n"):
        background.put(out(text))
    background.put(None)
    poll_until(lambda: not threads())
    assert capsys.readouterr().out == "[0]   said\n"


def test_a_hub_that_ends_without_background_output_starts_no_thread():
    BackgroundOutput(1).put(None)
    assert not threads()


def test_lines_of_torchs_log_are_one_line_for_all_ranks(capsys: pytest.CaptureFixture[str]):
    background = BackgroundOutput(4)

    def put(rank: int, text: str) -> None:
        background.put(Output(run_id=None, rank=rank, stream="stdout", text=text))

    head = "W1125 03:15:00.{} socket.cpp:207] [c10d]"
    for rank in (2, 0, 3):
        put(rank, f"[rank{rank}]:[{head.format(rank)} no name of port 4{rank}\n")
    put(1, "said\n")
    put(1, f"[{head.format(1)} alone\n")
    put(1, f"[{head.format(2)} alone\n")
    background.put(None)
    poll_until(lambda: not threads())
    assert capsys.readouterr().out.splitlines() == [
        f"[0,2-3] [{head.format(0)} no name of port 40,42,43",
        "[1]   said",
        f"[1]   [{head.format(1)} alone",
        f"[1]   [{head.format(2)} alone",
    ]


def test_warnings_about_connections_that_nbddp_makes_between_cells_are_not_shown(
    capsys: pytest.CaptureFixture[str],
):
    background = BackgroundOutput(4)

    def put(rank: int, text: str) -> None:
        background.put(Output(run_id=None, rank=rank, stream="stderr", text=text))

    for rank in range(4):
        put(
            rank, f"[rank{rank}]:[W1125 03:15:00.{rank} socket.cpp:207] [c10d] no name of 4{rank}\n"
        )
    put(1, "said\n")
    put(1, "[rank1]:[W1125 03:15:01.1 socket.cpp:755] [c10d] again\n")
    put(2, "[rank2]:[E1125 03:15:01.1 socket.cpp:755] [c10d] the connection is lost\n")
    background.put(None)
    poll_until(lambda: not threads())
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        "[1]   said",
        "[2]   [rank2]:[E1125 03:15:01.1 socket.cpp:755] [c10d] the connection is lost",
    ]
