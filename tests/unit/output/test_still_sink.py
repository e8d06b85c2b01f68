"""Text that is printed while live lines are shown stands above them, and becomes a stream."""

import io
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from nbddp.notebook.output import Live, StillSink


class Page:
    """The outputs of a cell, as a front end shows them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.outputs: list[tuple[str, str]] = []  # display id or name of a stream; text
        for name in ("stdout", "stderr"):
            stream = io.StringIO()
            patch.setattr(stream, "write", lambda text, name=name: self._write(name, text))
            patch.setattr(sys, name, stream)
        shell: Any = SimpleNamespace(display_pub=self)
        self.shell = shell
        self.sink = StillSink(shell, "live")

    def _write(self, name: str, text: str) -> None:
        if self.outputs and self.outputs[-1][0] == name:
            text = self.outputs.pop()[1] + text
        self.outputs.append((name, text))

    def publish(
        self, data: dict[str, str], metadata: object, transient: dict[str, str], *, update: bool
    ) -> None:
        output = transient.get("display_id", ""), data["text/plain"]
        if update:
            place = [name for name, _ in self.outputs].index(output[0])
            self.outputs[place] = output
        else:
            self.outputs.append(output)

    def clear_output(self, *, wait: bool) -> None:
        self.outputs.clear()


LIVE = Live(("0/2 ranks done",))


def test_text_is_printed_at_once_without_live_lines(monkeypatch: pytest.MonkeyPatch):
    page = Page(monkeypatch)
    page.sink.text("stdout", "a\n")
    page.sink.live(Live())
    assert page.outputs == [("stdout", "a\n")]


def test_text_stands_above_the_live_lines_and_becomes_a_stream(monkeypatch: pytest.MonkeyPatch):
    page = Page(monkeypatch)
    page.sink.text("stdout", "a\n")
    page.sink.live(LIVE)
    page.sink.text("stdout", "b\n")
    page.sink.text("stderr", "\x1b[31mc\x1b[0m\n")
    assert page.outputs == [("stdout", "a\n"), ("live", "b\nc\n0/2 ranks done")]
    page.sink.live(Live(("1/2 ranks done",)))
    assert page.outputs[1:] == [("live", "b\nc\n1/2 ranks done")]
    page.sink.live(Live())
    assert page.outputs == [
        ("stdout", "a\n"), ("live", ""), ("stdout", "b\n"), ("stderr", "\x1b[31mc\x1b[0m\n"),
    ]  # fmt: skip


def test_a_display_stands_above_the_live_lines(monkeypatch: pytest.MonkeyPatch):
    page = Page(monkeypatch)
    page.sink.live(LIVE)
    page.sink.text("stdout", "b\n")
    page.sink.display({"text/plain": "figure"}, {}, "x", False)
    assert page.outputs == [
        ("live", ""), ("stdout", "b\n"), ("x", "figure"), ("live-1", "0/2 ranks done"),
    ]  # fmt: skip
    page.sink.display({"text/plain": "other"}, {}, "x", True)
    page.sink.text("stdout", "c\n")
    page.sink.live(Live())
    assert page.outputs[2:] == [("x", "other"), ("live-1", ""), ("stdout", "c\n")]


def test_cleared_text_does_not_come_back(monkeypatch: pytest.MonkeyPatch):
    page = Page(monkeypatch)
    page.sink.live(LIVE)
    page.sink.text("stdout", "b\n")
    page.sink.clear()
    page.sink.text("stdout", "c\n")
    page.sink.live(LIVE)
    page.sink.live(Live())
    assert [text for _, text in page.outputs] == ["c\n", ""]


BLANK = "<b>&nbsp;</b>"


def page_with_row(monkeypatch: pytest.MonkeyPatch, *, is_alone: bool = False) -> Page:
    """The page of a cell whose live lines have a row of ranks."""
    found = Page(monkeypatch)
    found.sink = StillSink(found.shell, "live", place=BLANK, is_alone=is_alone)
    return found


ROW = Live(("0/2 ranks done",), strip="<b>0</b>")
END = Live(strip="<b>0</b>", end="ended after 3 s")
WELL = Live(strip=BLANK, end="ended after 3 s", is_well=True)


def test_output_comes_at_once_below_the_blank_place_of_the_row(monkeypatch: pytest.MonkeyPatch):
    page = page_with_row(monkeypatch)
    page.sink.text("stdout", "a\n")
    page.sink.display({"text/plain": "figure"}, {}, "x", False)
    assert page.outputs == [("live-strip", ""), ("stdout", "a\n"), ("x", "figure")]


def saved(patch: pytest.MonkeyPatch, *lives: Live, end: Live) -> list[tuple[str, str]]:
    page = page_with_row(patch)
    for live in lives[:1]:
        page.sink.live(live)
    page.sink.text("stdout", "a\n")
    for live in lives:
        page.sink.live(live)
    assert page.sink.live(end)
    return page.outputs


@pytest.mark.parametrize("end", [WELL, END])
def test_what_is_saved_does_not_depend_on_the_time_of_the_cell(
    monkeypatch: pytest.MonkeyPatch, end: Live
):
    quick, slow = saved(monkeypatch, end=end), saved(monkeypatch, ROW, end=end)
    assert quick == slow
    assert quick == [("live-strip", "" if end is WELL else "ended after 3 s"), ("stdout", "a\n")]


@pytest.mark.parametrize("lives", [[], [ROW]])
def test_a_cell_without_output_leaves_nothing(monkeypatch: pytest.MonkeyPatch, lives: list[Live]):
    page = page_with_row(monkeypatch, is_alone=True)
    for live in lives:
        page.sink.live(live)
    assert not page.sink.live(WELL)
    assert page.outputs == []


def test_the_row_of_ranks_stands_above_all_output_and_stays(monkeypatch: pytest.MonkeyPatch):
    page = page_with_row(monkeypatch)
    page.sink.text("stdout", "a\n")
    page.sink.live(Live(strip="<b>0</b>"))
    page.sink.text("stdout", "b\n")
    page.sink.live(replace(ROW, open_lines=("50 %",)))
    assert page.outputs == [
        ("live-strip", "0/2 ranks done"), ("stdout", "a\nb\n"), ("live", "50 %"),
    ]  # fmt: skip
    assert page.sink.live(END)
    assert page.outputs == [("live-strip", "ended after 3 s"), ("stdout", "a\nb\n"), ("live", "")]


def test_the_row_goes_without_other_outputs_of_the_cell(monkeypatch: pytest.MonkeyPatch):
    page = page_with_row(monkeypatch)
    page.sink.live(ROW)
    assert not page.sink.live(replace(END, is_well=True))
    assert page.outputs == [("live-strip", "")]


def test_the_row_of_a_cell_that_failed_stays_without_other_output(monkeypatch: pytest.MonkeyPatch):
    page = page_with_row(monkeypatch)
    assert page.sink.live(END)
    page.sink.display({"text/plain": "the whole traceback"}, {}, None, False)
    assert page.outputs == [("live-strip", "ended after 3 s"), ("", "the whole traceback")]


@pytest.mark.parametrize("is_early", [True, False])
def test_the_row_of_ranks_stays_above_when_the_cell_clears_its_output(
    monkeypatch: pytest.MonkeyPatch, is_early: bool
):
    page = page_with_row(monkeypatch)
    if not is_early:
        page.sink.live(ROW)
    page.sink.text("stdout", "a\n")
    page.sink.clear()
    page.sink.text("stdout", "b\n")
    page.sink.live(ROW)
    assert page.outputs == [("live-strip", "0/2 ranks done"), ("stdout", "b\n")]
