"""The final output of a cell depends on what the ranks showed, not on when."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from nbddp.notebook.output.gatherer import Gatherer, Redraw, Rich, Show, Text
from nbddp.settings import Settings
from nbddp.wire.messages import ClearOutput, Display, Output
from tests.support.output_specs import spec_of

RANKS = 3
Event = Output | Display | ClearOutput


def make(ranks: int = RANKS, **options: Any) -> Gatherer:
    return Gatherer(replace(spec_of(ranks, Settings(**options)), can_redraw=True))


def out(rank: int, text: str) -> Output:
    return Output(run_id="r", rank=rank, stream="stdout", text=text)


def figure(rank: int, name: str, display_id: str = "", *, update: bool = False) -> Display:
    transient = {"display_id": display_id} if display_id else {}
    data = {"text/html": name}
    return Display(
        run_id="r", rank=rank, data=data, metadata={}, transient=transient, update=update
    )


class Page:
    """Shows what a front end would show."""

    def __init__(self, gatherer: Gatherer) -> None:
        self.gatherer = gatherer
        self.redraws = 0
        self.parts: list[str] = []
        self.now = 0.0

    def play(self, event: Event, after_s: float) -> None:
        until = self.now + after_s
        while (due := self.gatherer.next_deadline()) is not None and due <= until:
            self.now = max(due, self.now)
            self.note(self.gatherer.tick(self.now))
        self.now = until
        self.note(self.gatherer.add(event, self.now))

    def note(self, shows: list[Show]) -> None:
        for show in shows:
            match show:
                case Redraw():
                    self.redraws += 1
                    self.parts = []
                    self.note(list(show.blocks))
                case Text():
                    self.parts.append(show.text)
                case Rich() if not show.update:
                    self.parts.append(f"<{show.ranks} {show.data['text/html']}>\n")

    def end(self) -> str:
        self.note(self.gatherer.end(self.now))
        return "".join(self.parts)


pieces = st.sampled_from(["a\n", "b\n", "c\n", "a\nb\n", "one fig", "two fig", "clear"])


def event_of(rank: int, piece: str) -> Event:
    if piece == "clear":
        return ClearOutput(run_id="r", rank=rank, wait=False)
    return figure(rank, piece) if piece.endswith("fig") else out(rank, piece)


@settings(max_examples=300)
@given(
    st.lists(st.lists(pieces, max_size=6), min_size=RANKS, max_size=RANKS),
    st.data(),
)
def test_the_order_of_arrival_does_not_change_the_final_output(
    printed: list[list[str]], data: st.DataObject
):
    final = set()
    for _ in range(2):
        page = Page(make())
        rest = [list(pieces) for pieces in printed]
        while any(rest):
            rank = data.draw(st.sampled_from([r for r in range(RANKS) if rest[r]]))
            pause = data.draw(st.sampled_from([0.0, 0.01, 0.2, 3.0]))
            page.play(event_of(rank, rest[rank].pop(0)), pause)
        final.add(page.end())
    assert len(final) == 1


def test_a_slow_rank_changes_nothing_in_the_end():
    page = Page(make())
    for step in range(2):
        for rank in (2, 0, 1):
            page.play(out(rank, f"epoch {step}\nmine {rank}\n"), 5.0)
    assert page.end() == (
        "[0-2] epoch 0\n[0]   mine 0\n[1]   mine 1\n[2]   mine 2\n"
        "[0-2] epoch 1\n[0]   mine 0\n[1]   mine 1\n[2]   mine 2\n"
    )
    assert page.redraws == 1


def test_ranks_that_print_more_in_between_stay_side_by_side():
    page = Page(make())
    page.play(out(1, "more\n" * 3 + "all\n1\n"), 0.0)
    page.play(out(0, "all\n0\n"), 0.0)
    page.play(out(2, "all\n2\n"), 0.0)
    assert page.end() == "[1]   more\n" * 3 + "[0-2] all\n[0]   0\n[1]   1\n[2]   2\n"


def test_output_that_is_in_order_is_not_drawn_again():
    page = Page(make())
    for rank in range(RANKS):
        page.play(out(rank, f"all\nrank {rank}\n"), 0.0)
    page.end()
    assert page.redraws == 0


def test_an_updated_display_has_its_last_content():
    page = Page(make())
    page.play(figure(1, "early", "d"), 0.0)
    page.play(out(2, "two\n"), 5.0)
    page.play(figure(0, "zero"), 5.0)
    page.play(figure(1, "late", "d", update=True), 5.0)
    assert page.end() == "<0 zero>\n<1 late>\n[2]   two\n"


def test_output_stays_as_it_is_after_a_question():
    page = Page(make())
    page.play(out(1, "late\n"), 0.0)
    page.play(out(0, "first\n"), 5.0)
    page.gatherer.keep_order()
    assert page.end() == "[1]   late\n[0]   first\n"


def test_output_that_was_cut_stays_as_it_was_shown():
    page = Page(make(notebook_burst_bytes=1000, notebook_total_bytes=1000))
    page.play(out(1, "x" * 80 + "\n"), 0.0)
    page.play(out(0, ("y" * 80 + "\n") * 100), 5.0)
    page.end()
    assert page.redraws == 0
