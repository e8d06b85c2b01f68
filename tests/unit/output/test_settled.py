"""The final output of a cell depends on what the ranks showed, not on when."""

import re
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nbddp.notebook.output.gatherer import Gatherer, Redraw, Rich, Show, Text
from nbddp.settings import Settings
from nbddp.wire.messages import ClearOutput, Display, Output
from tests.support.output_specs import spec_of
from tests.support.random_examples import examples

RANKS = 3
Event = Output | Display | ClearOutput


def make(cell_id: str | None = None, **options: Any) -> Gatherer:
    spec = spec_of(RANKS, Settings(**options))
    return Gatherer(replace(spec, can_redraw=True, cell_id=cell_id))


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
        self.parts: list[tuple[str | None, str]] = []
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
                    self.parts.append((None, show.text))
                case Rich():
                    self.put(show)

    def put(self, rich: Rich) -> None:
        text = f"<{rich.ranks} {rich.data['text/html']}>\n"
        if not rich.ranks:  # a grid
            text = "<" + re.sub(r"<[^>]*>", " ", rich.data["text/html"]) + ">\n"
            text = re.sub(r" +", " ", text)
        part = (rich.display_id, text)
        if rich.update:
            self.parts = [part if known[0] == rich.display_id else known for known in self.parts]
        else:
            self.parts.append(part)

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.parts)

    def end(self) -> str:
        self.note(self.gatherer.end(self.now))
        return self.text


pieces = st.sampled_from(["a\n", "b\n", "c\n", "a\nb\n", "one fig", "two fig", "clear"])


def event_of(rank: int, piece: str) -> Event:
    if piece == "clear":
        return ClearOutput(run_id="r", rank=rank, wait=False)
    return figure(rank, piece) if piece.endswith("fig") else out(rank, piece)


@examples(300)
@given(
    st.sampled_from([None, "cell"]),
    st.lists(st.lists(pieces, max_size=6), min_size=RANKS, max_size=RANKS),
    st.data(),
)
def test_the_order_of_arrival_does_not_change_the_final_output(
    cell_id: str | None, printed: list[list[str]], data: st.DataObject
):
    final = set()
    for _ in range(2):
        page = Page(make(cell_id))
        rest = [list(pieces) for pieces in printed]
        while any(rest):
            rank = data.draw(st.sampled_from([r for r in range(RANKS) if rest[r]]))
            pause = data.draw(st.sampled_from([0.0, 0.01, 0.2, 3.0]))
            page.play(event_of(rank, rest[rank].pop(0)), pause)
        final.add(page.end())
    assert len(final) == 1


def test_a_figure_that_comes_last_is_not_in_an_earlier_grid_too():
    """When the cell ends it joins the grid on the page, which is then drawn again without it."""
    page = Page(make("cell"))
    for rank, piece, after_s in (
        (1, "a\n", 0.0),
        (1, "a\n", 3.0),
        (0, "a\n", 3.0),
        (1, "a\n", 0.0),
        (1, "a\n", 0.01),
        (1, "a\n", 0.0),
        (2, "one fig", 0.2),
        (0, "two fig", 0.0),
        (2, "a\n", 0.2),
        (1, "one fig", 0.0),
    ):
        page.play(event_of(rank, piece), after_s)
    assert (
        page.end()
        == "[0-1] a\n< [0] two fig [2] one fig >\n[1-2] a\n" + "[1]   a\n" * 3 + "<1 one fig>\n"
    )


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


def test_displays_of_all_ranks_come_at_once_in_one_grid():
    page = Page(make("cell"))
    for rank in (2, 0, 1):
        assert page.text == ""
        page.play(figure(rank, f"of {rank}"), 0.0)
    assert page.text == "< [0] of 0 [1] of 1 [2] of 2 >\n"
    page.end()
    assert page.redraws == 0


def test_equal_displays_are_one_and_a_lone_one_stays_what_it_is():
    page = Page(make("cell"))
    for rank in range(RANKS):
        page.play(figure(rank, "equal"), 0.0)
    page.play(figure(1, "mine"), 0.0)
    assert page.end() == "<0-2 equal>\n<1 mine>\n"


def test_a_late_display_joins_the_grid():
    page = Page(make("cell"))
    page.play(figure(2, "two"), 0.0)
    page.play(figure(1, "one"), 0.0)
    page.play(out(2, "after\n"), 10.0)
    page.play(figure(0, "zero"), 10.0)
    page.play(out(2, "later\n"), 10.0)
    assert page.text == "< [0] zero [1] one [2] two >\n[2]   after\n"
    assert page.end().endswith("[2]   after\n[2]   later\n")
    assert page.redraws == 0


def test_a_display_never_stands_above_earlier_text_of_its_rank():
    page = Page(make("cell"))
    page.play(figure(1, "one"), 0.0)
    page.play(figure(2, "two"), 0.0)
    page.play(out(0, "before\n"), 10.0)
    page.play(figure(0, "zero"), 10.0)
    shown = "< [1] one [2] two >\n[0]   before\n<0 zero>\n"
    page.play(out(1, "x\n"), 10.0)
    assert page.text.startswith(shown)
    assert page.end() == "[0]   before\n< [0] zero [1] one [2] two >\n[1]   x\n"


def test_an_update_changes_its_slot_also_from_a_later_cell():
    page = Page(make("cell"))
    for rank in range(RANKS):
        page.play(figure(rank, "first", "d"), 0.0)
    page.play(figure(1, "second", "d", update=True), 0.0)
    page.end()
    assert page.text == "< [0] first [1] second [2] first >\n"
    grids = page.gatherer._spec.grid_by_display_id
    later = Gatherer(
        replace(spec_of(RANKS), can_redraw=True, cell_id="later", grid_by_display_id=grids)
    )
    page.note(later.add(figure(2, "third", "d", update=True), 0.0))
    page.note(later.end(1.0))
    assert page.text == "< [0] first [1] second [2] third >\n"


def test_the_lines_of_a_tensor_stay_together_and_fold_as_one():
    page = Page(make())
    for rank in (1, 0, 2):
        matrix = f"tensor([[0., 1.],\n        [2., {rank}.]])\n"
        page.play(out(rank, matrix + "tensor([[0.],\n        [1.]])\n"), 5.0)
    assert page.end() == (
        "[0]   tensor([[0., 1.],\n[0]           [2., 0.]])\n"
        "[1]   tensor([[0., 1.],\n[1]           [2., 1.]])\n"
        "[2]   tensor([[0., 1.],\n[2]           [2., 2.]])\n"
        "[0-2] tensor([[0.],\n[0-2]         [1.]])\n"
    )


def test_the_steps_of_ranks_stay_side_by_side():
    page = Page(make())
    for rank in range(RANKS):
        page.play(out(rank, f"step 0: {rank}\nstep 1: {rank}\n"), 0.0)
    page.end()
    assert page.text == "".join(
        f"[{rank}]   step {step}: {rank}\n" for step in range(2) for rank in range(RANKS)
    )


def test_a_shared_line_folds_although_the_indented_line_below_it_differs():
    page = Page(make())
    for rank in (2, 0, 1):
        page.play(out(rank, f"epoch 0, of each rank:\n    {rank}\nconfig:\n  lr 0.1\n"), 5.0)
    assert page.end() == (
        "[0-2] epoch 0, of each rank:\n[0]       0\n[1]       1\n[2]       2\n"
        "[0-2] config:\n[0-2]   lr 0.1\n"
    )


def test_an_indented_line_stays_with_the_line_above_it_where_no_rank_shares_that():
    page = Page(make())
    for rank in (2, 0, 1):
        page.play(out(rank, f"rank {rank} says:\n    hello\n"), 5.0)
    assert page.end() == "".join(
        f"[{rank}]   rank {rank} says:\n[{rank}]       hello\n" for rank in range(RANKS)
    )


def ended_bar(rate: float) -> str:
    return f"100%|{'█' * 10}| 5/5 [00:00<00:00, {rate:5.2f}it/s]"


def test_each_rank_has_the_row_of_its_progress_bar_in_rank_order():
    page = Page(make())
    for rank, rate in ((2, 19.85), (0, 19.85), (1, 19.7)):
        page.play(out(rank, f"\r{ended_bar(1.0)}\r{ended_bar(rate)}\nepoch 0\n"), 0.0)
    rows = "".join(
        f"[{rank}]   {ended_bar(rate)}\n" for rank, rate in enumerate((19.85, 19.7, 19.85))
    )
    assert page.text == page.end() == f"{rows}[0-2] epoch 0\n"


def test_of_the_bars_of_many_ranks_three_stay():
    gatherer = Gatherer(replace(spec_of(16), can_redraw=True, folds_numbers=True))
    page = Page(gatherer)
    for rank in range(16):
        page.play(out(rank, f"{ended_bar(10 + rank % 7 + rank / 100)}\n"), 0.0)
    assert page.end().splitlines() == [
        f"[0]    slowest {ended_bar(10)}",
        f"[9]    median  {ended_bar(12.09)}",
        f"[13]   fastest {ended_bar(16.13)}",
    ]


def test_an_ended_bar_stays_beside_those_that_still_run():
    gatherer = make()
    gatherer.add(out(1, f"{ended_bar(10)}\nnext\n"), 0.0)
    gatherer.add(out(0, "\r 20%|██        | 1/5 [00:00<00:00, 10it/s]"), 0.0)
    assert [(str(ranks), text[:4]) for ranks, text in gatherer.open_lines()] == [
        ("1", "100%"),
        ("0", " 20%"),
    ]


def test_figures_behind_a_large_library_stand_in_the_order_of_ranks():
    """Plotly sends 5 MB of JavaScript before the first figure of each rank."""
    page = Page(make())
    library = "<script>" + "x" * 5_000_000 + "</script>"
    for rank in (2, 0, 1):
        page.play(figure(rank, library), 0.6)
        data = {"application/vnd.plotly.v1+json": {}, "text/html": f"<script>{rank}</script>"}
        page.play(Display(run_id="r", rank=rank, data=data, metadata={}, transient={}), 0.0)
    assert page.end().startswith("<0-2 <script>xxx")
    assert [text for _, text in page.parts][1:] == [
        f"<{rank} <script>{rank}</script>>\n" for rank in range(3)
    ]
