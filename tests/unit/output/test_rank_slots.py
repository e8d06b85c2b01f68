"""Ranks that clear their output: each has a slot, whose content is replaced in place."""

from dataclasses import replace
from typing import Any

from nbddp.notebook.output.merged import MergedOutput
from nbddp.notebook.output.shows import Redraw, Rich, Show, Text
from nbddp.settings import Settings
from nbddp.wire.messages import ClearOutput, Display, Output, Result
from tests.support.output_specs import spec_of

LATER = 100.0


def make(ranks: int = 2) -> MergedOutput:
    return MergedOutput(replace(spec_of(ranks, Settings()), cell_id="run1"))


def out(rank: int, text: str) -> Output:
    return Output(run_id="r", rank=rank, stream="stdout", text=text)


def clear(rank: int, *, wait: bool = True) -> ClearOutput:
    return ClearOutput(run_id="r", rank=rank, wait=wait)


def figure(rank: int, html: str, **data: Any) -> Display:
    return Display(
        run_id="r", rank=rank, data=data or {"text/html": html}, metadata={}, transient={}
    )


class Page:
    """Shows what a front end would show, and counts how often it is cleared."""

    def __init__(self, output: MergedOutput) -> None:
        self.output = output
        self.now = 0.0
        self.clears = 0
        self.blocks: list[Text | Rich] = []

    def play(self, *events: Output | Display | Result | ClearOutput, after_s: float = 0.0) -> None:
        self.wait(after_s)
        for event in events:
            self.note(self.output.add(event, self.now))

    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.output.next_deadline()) is not None and due <= until:
            self.now = max(due, self.now)
            self.note(self.output.tick(self.now))
        self.now = until

    def end(self) -> str:
        self.note(self.output.end(self.now))
        return self.text

    def note(self, shows: list[Show]) -> None:
        for show in shows:
            match show:
                case Redraw():
                    self.clears += 1
                    self.blocks = list(show.blocks)
                case Rich() if show.update:
                    self.blocks = [
                        show if isinstance(b, Rich) and b.display_id == show.display_id else b
                        for b in self.blocks
                    ]
                case _:
                    self.blocks.append(show)

    @property
    def text(self) -> str:
        return "\n".join(
            block.text if isinstance(block, Text) else block.data["text/plain"]
            for block in self.blocks
        )

    @property
    def html(self) -> str:
        return "".join(b.data["text/html"] for b in self.blocks if isinstance(b, Rich))


def test_frames_of_ranks_are_replaced_in_their_slots_and_the_page_is_cleared_once():
    page = Page(make())
    for frame in range(3):
        for rank in (1, 0):
            page.play(clear(rank), out(rank, f"frame {frame}\n"), figure(rank, f"<i>{frame}</i>"))
            page.wait(1.0)
            assert page.html.count("<i>") == (1 if (frame, rank) == (0, 1) else 2)
            if frame:
                assert page.html.index("[0]") < page.html.index("[1]")
    assert page.clears == 1
    assert page.end() == "[0-1] frame 2"
    assert page.html.count("<i>2</i>") == 1


def test_what_a_rank_has_cleared_stays_until_its_next_output():
    page = Page(make())
    page.play(out(0, "a\n"), out(1, "b\n"), clear(0))
    page.wait(LATER)
    assert page.text == "[0]   a\n[1]   b"
    page.play(out(0, "c\n"))
    page.wait(1.0)
    assert page.text == "[0]   c\n[1]   b"


def test_without_wait_the_output_goes_a_moment_later_unless_there_is_new_one():
    page = Page(make())
    page.play(out(0, "a\n"), out(1, "b\n"), clear(0, wait=False), clear(1, wait=False))
    page.play(out(1, "c\n"), after_s=0.1)
    page.wait(0.1)
    assert page.text == "[0]   a\n[1]   c"
    page.wait(1.0)
    assert page.text == "[1]   c"


def test_a_slot_keeps_its_room_while_it_is_empty():
    page = Page(make())
    for rank in (0, 1):
        page.play(clear(rank, wait=False), figure(rank, f"<i>{rank}</i>"))
    page.play(clear(0, wait=False))
    page.wait(1.0)
    hidden = '<div style="visibility:hidden"><div><i>0</i></div></div>'
    assert hidden in page.html
    page.note(page.output.finish_rank(0, page.now))
    page.wait(1.0)
    assert hidden in page.html
    page.play(figure(0, "<i>2</i>"), after_s=1.0)
    assert "hidden" not in page.html
    page.play(clear(0, wait=False))
    page.wait(1.0)
    page.end()
    assert page.html.count("<i>") == 1


def test_a_last_clear_without_wait_leaves_nothing():
    page = Page(make())
    page.play(out(0, "a\n"), out(1, "b\n"), clear(0, wait=False), clear(1, wait=False))
    assert page.end() == ""


def test_equal_slots_are_one_when_the_cell_ends():
    page = Page(make(4))
    for rank in range(4):
        page.play(out(rank, "old\n"), clear(rank), out(rank, "new\n"))
    page.wait(1.0)
    assert page.text == "".join(f"[{rank}]   new\n" for rank in range(4)).rstrip()
    assert page.end() == "[0-3] new"


def test_a_widget_is_shown_below_the_slots_and_goes_with_its_rank():
    page = Page(make())
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "bar"}
    page.play(out(0, "a\n"), clear(0), out(0, "b\n"))
    page.play(figure(1, "", **widget))
    page.wait(1.0)
    assert page.text == "[0]   b\nbar"
    page.play(clear(1), out(1, "c\n"))
    page.wait(1.0)
    assert page.text == "[0]   b\n[1]   c"


def test_a_widget_that_is_shown_before_keeps_the_old_way():
    page = Page(make())
    widget = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "bar"}
    page.play(figure(1, "", **widget))
    page.wait(1.0)
    page.play(out(0, "a\n"), clear(0), out(0, "b\n"))
    page.wait(1.0)
    assert page.end() == "bar\n[0]   b\n"
