"""The output pipes of a rank: whole characters, batches, counts, logs."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from nbddp.agent.output_pipes import RankPipes
from nbddp.settings import Settings
from nbddp.wire import stream_order
from nbddp.wire.messages import Output, Stream

NOW = 50.0


class Writer:
    """Pipes and the ends that the rank would hold."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.log_path = folder / "rank3.log"
        self.pipes = RankPipes(3, self.log_path, settings)
        stdout, stderr, *_ = self.pipes.write_ends()
        self.fds: dict[Stream, int] = {
            "stdout": os.dup(stdout.take()),
            "stderr": os.dup(stderr.take()),
        }
        self.pipes.close_write_ends()

    def write(self, data: bytes, stream: Stream = "stdout") -> None:
        os.write(self.fds[stream], data)

    def end(self) -> None:
        """Closes the ends of the rank, as when its process ends."""
        for fd in self.fds.values():
            os.close(fd)
        self.fds.clear()

    def drained(
        self, *, drop: bool = False, last: bool = False, followed: bool = False
    ) -> list[Output]:
        self.pipes.drain(NOW)
        return self.pipes.take(drop=drop, last=last, followed=followed)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Writer]]:
    made: list[Writer] = []

    def make(**settings: float) -> Writer:
        made.append(Writer(tmp_path, Settings(**settings)))  # type: ignore[arg-type]  # by name
        return made[-1]

    yield make
    for writer in made:
        writer.end()
        writer.pipes.close()


def out(
    text: str, stream: Stream = "stdout", dropped: int = 0, run_id: str | None = None
) -> Output:
    return Output(run_id=run_id, rank=3, stream=stream, text=text, dropped_bytes=dropped)


def timing(pipes: RankPipes) -> tuple[float | None, int]:
    return pipes.flush_at, pipes.waiting_bytes


def test_each_stream_gives_one_message(make: Callable[..., Writer]):
    writer = make()
    writer.write(b"one\n")
    writer.write(b"error\n", "stderr")
    writer.write(b"two\n")
    assert writer.drained() == [out("one\ntwo\n"), out("error\n", "stderr")]
    assert writer.drained() == []
    assert writer.log_path.read_bytes() == b"one\ntwo\nerror\n"
    assert writer.log_path.stat().st_mode & 0o777 == 0o600


def play_loop(writer: Writer) -> None:
    """Print to both streams in turns, with marks as a rank writes them."""
    for number, (before, after, text) in enumerate(
        [("stdout", "stderr", b"warn\n"), ("stderr", "stdout", b"two\n")], start=1
    ):
        writer.write(stream_order.mark(number), before)  # type: ignore[arg-type]  # of literals
        writer.write(stream_order.mark(number) + text, after)  # type: ignore[arg-type]  # as above


IN_ORDER = [out("one\n"), out("warn\n", "stderr"), out("two\n")]


def test_both_streams_come_in_the_order_of_their_marks(make: Callable[..., Writer]):
    writer = make()
    writer.write(b"one\n")
    play_loop(writer)
    assert writer.drained() == IN_ORDER
    assert b"nbddp" not in writer.log_path.read_bytes()


@pytest.mark.parametrize("first", ["stdout", "stderr"])
def test_the_order_does_not_depend_on_which_pipe_is_read(
    make: Callable[..., Writer], first: Stream
):
    writer = make()
    writer.write(b"one\n")
    play_loop(writer)
    fds = dict(zip(("stdout", "stderr"), writer.pipes.fds(), strict=True))
    writer.pipes.read(fds[first], NOW)
    assert writer.pipes.take(drop=False) == IN_ORDER
    assert writer.drained() == []


def test_a_mark_that_is_cut_is_no_text(make: Callable[..., Writer]):
    writer = make()
    writer.write(b"one\n")
    found: list[Output] = []
    for byte in stream_order.mark(17):
        writer.write(bytes([byte]))
        found += writer.drained()
    writer.write(b"\x1b[31mred")
    found += writer.drained(last=True)
    assert "".join(output.text for output in found) == "one\n\x1b[31mred"


def test_a_mark_in_one_stream_only_holds_nothing_back(make: Callable[..., Writer]):
    writer = make()
    writer.write(b"one\n")
    writer.write(stream_order.mark(1) + b"warn\n", "stderr")
    assert writer.drained() == IN_ORDER[:2]
    writer.write(b"two\n")
    assert writer.drained() == IN_ORDER[2:]


def test_a_character_that_is_cut_waits_for_its_other_half(make: Callable[..., Writer]):
    writer = make()
    text = "grün 🙂 ok"
    for byte in text.encode():
        writer.write(bytes([byte]))
        writer.pipes.drain(NOW)
        writer.pipes.take(drop=False)
    writer = make()
    found = ""
    for byte in text.encode():
        writer.write(bytes([byte]))
        found += "".join(output.text for output in writer.drained())
    assert found == text


def test_streams_do_not_share_half_characters(make: Callable[..., Writer]):
    writer = make()
    first, second = "ü".encode()[:1], "ü".encode()[1:]
    writer.write(first)
    writer.write(b"x", "stderr")
    assert writer.drained() == [out("x", "stderr")]
    writer.write(second)
    assert writer.drained() == [out("ü")]


def test_bytes_that_are_not_text_are_replaced(make: Callable[..., Writer]):
    writer = make()
    writer.write(b"a\xffb")
    assert writer.drained() == [out("a\ufffdb")]
    assert writer.log_path.read_bytes() == b"a\xffb"


def test_half_a_character_at_the_end_of_a_cell_does_not_reach_the_next(
    make: Callable[..., Writer],
):
    writer = make()
    writer.write(b"a\xc3")
    assert writer.drained() == [out("a")]
    assert writer.drained(last=True) == [out("\ufffd")]
    writer.write(b"b")
    assert writer.drained() == [out("b")]


def test_text_belongs_to_the_cell_that_runs(make: Callable[..., Writer]):
    writer = make()
    writer.write(b"before")
    assert writer.drained() == [out("before")]
    writer.pipes.begin_cell("r1")
    writer.write(b"inside")
    assert writer.drained() == [out("inside", run_id="r1")]


def test_waiting_text_is_due_after_the_first_of_it_has_waited(make: Callable[..., Writer]):
    writer = make(output_flush_s=0.25)
    assert timing(writer.pipes) == (None, 0)
    writer.write(b"abc")
    fd = writer.pipes.fds()[0]
    assert writer.pipes.read(fd, 10.0)
    assert timing(writer.pipes) == (10.25, 3)
    writer.write(b"de")
    assert writer.pipes.read(fd, 10.2)
    assert timing(writer.pipes) == (10.25, 5)
    assert writer.pipes.take(drop=False) == [out("abcde")]
    assert timing(writer.pipes) == (None, 0)


def test_text_that_is_dropped_is_counted_and_logged(make: Callable[..., Writer]):
    writer = make()
    writer.write(b"12345")
    writer.write(b"abc", "stderr")
    assert writer.drained(drop=True) == []
    writer.write(b"67")
    assert writer.drained(drop=True) == []
    writer.write(b"kept\n")
    assert writer.drained() == [out("abc", "stderr"), out("kept\n", dropped=7)]
    writer.write(b"next\n")
    assert writer.drained() == [out("next\n")]
    assert writer.drained(last=True) == []
    assert writer.log_path.read_bytes() == b"12345abc67kept\nnext\n"


def test_the_last_lines_are_sent_though_text_is_dropped(make: Callable[..., Writer]):
    writer, flood = make(), b"loss 0.5\n" * 1000
    writer.write(flood)
    assert writer.drained(drop=True) == []
    writer.write(b"loss 0.1\n")
    (output,) = writer.drained(drop=True, last=True)
    assert output.dropped_bytes + len(output.text) == len(flood) + 9
    assert output.text.startswith("loss 0.5\n")
    assert output.text.endswith("loss 0.5\nloss 0.1\n")
    assert writer.drained(drop=True, last=True) == []


def test_the_last_lines_of_what_was_left_out_come_before_a_display(make: Callable[..., Writer]):
    writer = make()
    writer.write(b"half \xc3")
    assert writer.drained(drop=True, followed=True) == [out("half ")]
    writer.write(b"\xa4\n")
    assert writer.drained() == [out("ä\n")]


def test_the_last_lines_of_what_was_left_out_are_sent_without_other_text(
    make: Callable[..., Writer],
):
    writer = make()
    writer.write(b"lost\n")
    assert writer.drained(drop=True) == []
    lacks_some = writer.pipes.has_left_out
    writer.write(b"warning\n", "stderr")
    assert writer.pipes.take(drop=True) == []
    assert writer.drained() == [out("lost\n"), out("warning\n", "stderr")]
    assert (lacks_some, writer.pipes.has_left_out) == (True, False)
    assert writer.drained() == []


def test_the_end_of_a_pipe(make: Callable[..., Writer]):
    writer = make()
    stdout, stderr = writer.pipes.fds()
    writer.write(b"last words")
    writer.end()
    assert writer.pipes.read(stdout, NOW)
    assert not writer.pipes.read(stdout, NOW)
    assert writer.pipes.fds() == [stderr]
    assert not writer.pipes.read(stderr, NOW)
    assert writer.pipes.fds() == []
    assert writer.drained() == [out("last words")]


def test_an_empty_pipe_is_still_open(make: Callable[..., Writer]):
    writer = make()
    assert writer.pipes.read(writer.pipes.fds()[0], NOW)


def test_a_drain_reads_what_was_there_and_no_more(
    make: Callable[..., Writer], monkeypatch: pytest.MonkeyPatch
):
    """A rank that prints without end must not keep the agent in one drain."""
    writer = make()
    writer.write(b"x" * 1000)
    real_read = os.read

    def read_and_write_again(fd: int, limit: int) -> bytes:
        chunk = real_read(fd, limit)
        writer.write(b"y" * 1000)
        return chunk

    monkeypatch.setattr(os, "read", read_and_write_again)
    writer.pipes.drain(NOW)
    monkeypatch.undo()
    assert writer.pipes.take(drop=False) == [out("x" * 1000)]
    assert writer.drained() == [out("y" * 1000)]


def test_the_log_has_a_limit_and_the_notebook_still_gets_all(make: Callable[..., Writer]):
    writer = make(log_limit_bytes=10)
    writer.write(b"1234567")
    assert writer.drained() == [out("1234567")]
    writer.write(b"89abcdef")
    writer.write(b"ghi", "stderr")
    assert writer.drained() == [out("89abcdef"), out("ghi", "stderr")]
    assert writer.log_path.read_bytes() == (
        b"123456789a\n[nbddp: the log is full; the rest is not kept]\n"
    )


def test_a_log_that_cannot_be_written_is_reported_once(
    make: Callable[..., Writer], monkeypatch: pytest.MonkeyPatch
):
    writer = make()
    writer.write(b"before\n")
    assert writer.drained() == [out("before\n")]
    log_fd = writer.pipes._log_fd
    real_write = os.write

    def write(fd: int, data: bytes) -> int:
        if fd == log_fd:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real_write(fd, data)

    monkeypatch.setattr(os, "write", write)
    writer.write(b"one\n")
    notice = "[nbddp: the log cannot be written: No space left on device; the rest is not kept]\n"
    assert writer.drained() == [out("one\n"), out(notice, "stderr")]
    monkeypatch.undo()
    writer.write(b"two\n")
    assert writer.drained() == [out("two\n")]
    assert writer.log_path.read_bytes() == b"before\n"


def test_the_logs_of_all_ranks_take_half_of_the_free_disk_at_most(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=40))
    pipes = RankPipes(0, tmp_path / "rank0.log", Settings(), sharers=4)
    pipes.close_write_ends()
    room = pipes._log_room
    pipes.close()
    assert room == 40 // 2 // 4


def test_last_output_is_that_of_the_cell(make: Callable[..., Writer]):
    writer = make()
    writer.write(b"old\n")
    writer.drained()
    writer.pipes.begin_cell("r1")
    assert writer.pipes.last_output() == ""
    writer.write(b"one\ntwo\n")
    writer.write(b"err\n", "stderr")
    writer.drained(drop=True)
    assert writer.pipes.last_output() == "one\ntwo\nerr\n"


def test_last_output_is_short_and_begins_with_a_whole_line(make: Callable[..., Writer]):
    writer = make()
    writer.write(b"".join(b"line %04d\n" % number for number in range(2000)))
    writer.drained()
    last = writer.pipes.last_output()
    assert len(last) <= 4096
    assert last.startswith("line ")
    assert last.endswith("line 1999\n")


def test_last_output_of_one_endless_line(make: Callable[..., Writer]):
    writer = make()
    writer.write(b"z" * 10_000)
    writer.drained()
    assert writer.pipes.last_output() == "z" * 4096
