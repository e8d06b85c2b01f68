"""Pictures of tensors: their content, the moment of drawing, and calls that do not fit."""

import base64
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
import torch

from nbddp.notebook.output.show_pictures import MAX_PICTURES, CellPictures
from nbddp.notebook.output.sinks import Live, TerminalSink
from nbddp.notebook.render import tensor_picture
from nbddp.notebook.render.tensor_picture import Block
from nbddp.rank.values import tensor_preview
from nbddp.wire.messages import Display, Stream
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values import preview_text
from nbddp.wire.values.tensor_preview import MIME, Part, ShowCall, Stage, TensorShown
from tests.support.png import decode

LATER = 1000.0


class PageSink:
    """The page of a reader: displays by id, in order."""

    def __init__(self) -> None:
        self.page: dict[str | None, Mapping[str, Any]] = {}
        self.count = 0

    def text(self, stream: Stream, text: str) -> None:
        self.page[f"text {len(self.page)}"] = {"text/plain": text}

    def display(
        self, data: Mapping[str, Any], metadata: object, display_id: str | None, update: bool
    ) -> None:
        assert update == (display_id in self.page)
        self.page[display_id] = data
        self.count += 1

    def clear(self) -> None:
        self.page.clear()

    def live(self, live: Live) -> None:
        pass

    @property
    def texts(self) -> list[str]:
        return [str(data["text/plain"]) for data in self.page.values()]


def call(
    rank: int,
    *tensors: torch.Tensor,
    key: str = "k",
    stage: Stage = "now",
    title: str = "",
    still_open: tuple[str, ...] = (),
) -> Display:
    told = [tensor_preview.preview(tensor, "t") for tensor in tensors]
    made = ShowCall(key=key, stage=stage, title=title, tensors=told, open=list(still_open))
    content = msgspec.to_builtins(made)
    data = {MIME: content, "text/plain": "of one rank"}
    return Display(run_id="r", rank=rank, data=data, metadata={}, transient={})


def shown(sink: PageSink, *calls: Display, ranks: int = 2) -> CellPictures:
    showing = CellPictures(RankSet.all(ranks), sink, "scope", ranks)
    give(showing, *calls)
    return showing


def give(showing: CellPictures, *calls: Display) -> None:
    for event in calls:
        marker = showing.add_call(event, 0.0)
        if marker is not None:
            showing.place(marker.data)


# --- when it is drawn -----------------------------------------------------------------------------


def test_one_picture_for_all_ranks_in_the_place_of_the_first_call():
    sink = PageSink()
    showing = shown(sink, call(0, torch.ones(2)))
    sink.text("stdout", "printed after the call of rank 0")
    give(showing, call(1, torch.zeros(2)))
    assert showing.tick(0.0) is not None, "it is drawn soon"
    assert sink.texts == ["", "printed after the call of rank 0"]
    assert showing.tick(1.0) is None
    picture, text = sink.page.values()
    assert "image/png" in picture
    assert text == {"text/plain": "printed after the call of rank 0"}
    assert picture["text/plain"].splitlines()[-2:] == ["rank 0   rank 1", "1 1      0 0"]


def test_markers_of_all_ranks_are_equal_so_that_they_fold():
    showing = CellPictures(RankSet.all(2), PageSink(), "scope", 2)
    first, second = (showing.add_call(call(rank, torch.ones(2)), 0.0) for rank in (0, 1))
    assert first is not None
    assert second is not None
    assert first.data == second.data


def test_before_and_after_become_one_picture():
    sink = PageSink()
    showing = shown(sink)
    for rank in (0, 1):
        give(showing, call(rank, torch.full((2,), float(rank))), call(rank, stage="opened"))
    for rank in (0, 1):
        give(showing, call(rank, torch.ones(2), stage="after"))
    showing.tick(LATER)
    assert len(sink.page) == 1
    lines = sink.texts[0].splitlines()
    assert lines[1:3] == ["before", "rank 0   rank 1"]
    assert lines[4] == "after | equal on all ranks"


def test_a_late_call_replaces_the_picture():
    sink = PageSink()
    showing = shown(sink, call(0, torch.ones(2)))
    showing.tick(LATER)
    assert "not shown by rank 1" in sink.texts[0]
    give(showing, call(1, torch.zeros(2)))
    showing.tick(LATER)
    assert len(sink.page) == 1
    assert "not shown" not in sink.texts[0]


def test_the_end_of_the_cell_draws_what_is_there():
    sink = PageSink()
    give(showing := shown(sink), call(0, torch.ones(2)), call(0, stage="opened"))
    showing.end()
    assert "after | not reached by ranks 0-1" in sink.texts[0]
    showing.end()
    assert sink.count == 2  # room for it, and the picture: once


def test_a_call_of_one_rank_among_many_is_not_drawn_with_the_others_missing():
    sink = PageSink()
    shown(sink, call(3, torch.ones(2)), ranks=8).end()
    assert "rank 3" in sink.texts[0]
    assert "missing" not in sink.texts[0]
    assert "not shown" not in sink.texts[0]


@pytest.mark.parametrize("cell", [RankSet((1, 2)), RankSet.all(5)], ids=["chosen", "came"])
def test_equal_on_some_ranks_of_the_pool_is_not_equal_on_all(cell: RankSet):
    sink = PageSink()
    showing = CellPictures(cell, sink, "scope", 5)
    give(showing, *(call(rank, torch.ones(2)) for rank in (1, 2)))
    showing.end()
    assert "equal on ranks 1-2" in sink.texts[0]


def test_calls_with_other_keys_are_other_pictures():
    sink = PageSink()
    showing = shown(sink)
    for key in ("a", "b"):
        give(showing, *(call(rank, torch.ones(1), key=key) for rank in (0, 1)))
    showing.end()
    assert len(sink.page) == 2


def test_a_picture_is_placed_again_after_a_clearing():
    sink = PageSink()
    showing = shown(sink, call(0, torch.ones(2)), call(1, torch.ones(2)))
    showing.tick(LATER)
    sink.clear()
    showing.clear_places(LATER)
    marker = {MIME: {"key": "k"}}
    showing.place(marker)
    showing.tick(LATER + 1)
    assert "equal on all ranks" in sink.texts[0]


def test_a_cell_with_very_many_shows_the_later_ones_as_text():
    sink = PageSink()
    showing = shown(sink, ranks=1)
    for number in range(MAX_PICTURES + 3):
        give(showing, call(0, torch.ones(1), key=str(number)))
    showing.end()
    kinds = ["image/png" in data for data in sink.page.values()]
    assert kinds == [True] * MAX_PICTURES + [False] * 3


def test_a_terminal_gets_text_once(capsys: pytest.CaptureFixture[str]):
    showing = CellPictures(RankSet.all(2), TerminalSink(), "scope", 2)
    give(showing, call(0, torch.ones(2)))
    showing.tick(LATER)
    assert capsys.readouterr().out == ""
    give(showing, call(1, torch.ones(2)))
    showing.tick(LATER)
    showing.end()
    assert capsys.readouterr().out.count("equal on all ranks") == 1


def test_a_page_that_cannot_change_gets_each_text_once_and_complete():
    sink = PageSink()
    showing = CellPictures(RankSet.all(2), sink, "scope", 2, can_update=False)
    for rank in (0, 1):
        give(showing, call(rank, torch.ones(2), key="now"))
        give(showing, call(rank, torch.ones(2)), call(rank, stage="opened"))
    showing.tick(LATER)
    assert [text.count("before") for text in sink.texts] == [0]
    for rank in (0, 1):
        give(showing, call(rank, torch.ones(2), stage="after"))
    showing.end()
    assert [text.count("before") for text in sink.texts] == [0, 1]
    assert not any("image/png" in data for data in sink.page.values())
    assert sink.count == len(sink.page), "no updates"


def test_a_call_that_all_ranks_have_made_is_shown_without_an_update():
    sink = PageSink()
    showing = CellPictures(RankSet.all(2), sink, "scope", 2)
    events = [showing.add_call(call(rank, torch.ones(2)), 0.0) for rank in (0, 1)]
    assert events[0] is not None
    showing.place(events[0].data)  # equal markers are one
    showing.end()
    assert ["image/png" in data for data in sink.page.values()] == [True]
    assert sink.count == len(sink.page), "no updates"


def test_a_display_that_is_no_call_is_shown_as_it_came():
    showing = CellPictures(RankSet.all(2), PageSink(), "scope", 2)
    data = {MIME: {"made": "by the user"}, "text/plain": "of the user"}
    event = Display(run_id="r", rank=0, data=data, metadata={}, transient={})
    given = showing.add_call(event, 0.0)
    assert given is not None
    assert given.data == {"text/plain": "of the user"}


def test_ranks_that_show_different_numbers_of_tensors():
    sink = PageSink()
    showing = shown(sink, call(0, torch.ones(1), torch.ones(2)), call(1, torch.ones(1)))
    showing.end()
    assert "not shown by rank 1" in sink.texts[0]


def test_a_bug_in_drawing_does_not_end_the_cell(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(tensor_picture, "draw", fail)
    sink = PageSink()
    shown(sink, call(0, torch.ones(1)), call(1, torch.ones(1))).end()
    assert sink.texts == ["nbddp could not draw this (ZeroDivisionError: a bug)"]


# --- what is in it --------------------------------------------------------------------------------


def numbers(tensor: torch.Tensor) -> list[str]:
    return preview_text.lines(tensor_preview.preview(tensor))


@pytest.mark.parametrize(
    ("tensor", "lines"),
    [
        (torch.tensor(3.0), ["3"]),
        (torch.tensor(0.25), ["0.25"]),
        (torch.tensor([1, -2]), ["1 -2"]),
        (torch.tensor([1.0, -2.0]), ["1 -2"]),
        (torch.tensor([0.5, 10.0]), ["0.5 10"]),
        (torch.tensor([1.0, 1e-6, 0.5]), ["1 1e-6 0.5"]),
        (torch.tensor([0.12345, -20.0]), ["0.1 -20"]),
        (torch.tensor([-0.0, 0.5]), ["-0 0.5"]),
        (torch.tensor([1e-9, 0.5e-9]), ["1e-9 5e-10"]),
        (torch.tensor([torch.nan, torch.inf, -torch.inf, 1]), ["nan inf -inf 1"]),
        (torch.tensor([True, False]), ["T F"]),
        (torch.tensor([1 + 2j, 1 - 0.5j]), ["1+2j 1-0.5j"]),
        (torch.tensor([123456789]), ["1.23e8"]),
        (torch.ones(2, 2, dtype=torch.bfloat16), ["1 1", "1 1"]),
        (torch.ones(2).to(torch.float8_e4m3fn), ["1 1"]),
        (torch.zeros(2, dtype=torch.uint8), ["0 0"]),
        (torch.eye(2).to_sparse(), ["1 0", "0 1"]),
        (torch.empty(0, 3), ["(no elements)"]),
        (torch.ones(2, 1, 1), ["[0]", "1", "[1]", "1"]),
        (torch.empty(2, device="meta"), ["(no numbers)"]),
        (torch.ones(2, requires_grad=True), ["1 1"]),
    ],
    ids=repr,
)
def test_numbers(tensor: torch.Tensor, lines: list[str]):
    assert numbers(tensor) == lines


def test_a_large_tensor_shows_its_corners():
    told = tensor_preview.preview(torch.arange(10_000).view(100, 100))
    assert preview_text.lines(told) == [
        "   0    1    2 …   98   99",
        " 100  101  102 …  198  199",
        " 200  201  202 …  298  299",
        "…",
        "9800 9801 9802 … 9898 9899",
        "9900 9901 9902 … 9998 9999",
    ]
    assert preview_text.heading([told]) == "int64 (100, 100)"


def test_many_slices_show_the_first_few():
    lines = numbers(torch.zeros(4, 5, 1, 1))
    assert lines == ["[0, 0]", "0", "[0, 1]", "0", "[0, 2] and 17 more", "0"]


def test_the_message_stays_small():
    told = tensor_preview.preview(torch.randn(1000, 1000), "weight")
    assert len(msgspec.json.encode(told)) < 3000


def tensors(*values: torch.Tensor) -> dict[int, TensorShown]:
    return {rank: tensor_preview.preview(value, "t") for rank, value in enumerate(values)}


def colours_of(block: Block) -> set[tuple[int, int, int, int]]:
    return {pixel for line in decode(tensor_picture.draw("", [block]).png()) for pixel in line}


def test_one_scale_for_all_ranks_and_both_moments():
    """The same number has the same colour on a rank whose own numbers are larger."""
    alone = Block(RankSet.all(2), [("", tensors(torch.ones(1), torch.ones(1)))])
    beside = Block(RankSet.all(2), [("", tensors(torch.ones(1), torch.full((1,), 9.0)))])
    later = Block(
        RankSet.all(1),
        [("before", tensors(torch.ones(1))), ("after", tensors(torch.tensor([9.0])))],
    )
    full = (*tensor_picture._colour(1.0, 0.0, 1.0), 255)
    faint = (*tensor_picture._colour(1.0, 0.0, 9.0), 255)
    assert full in colours_of(alone)
    assert faint not in colours_of(alone)
    for block in (beside, later):
        assert {full, faint} <= colours_of(block)


def test_zero_is_neutral_and_both_signs_are_told_apart():
    low, zero, high = (tensor_picture._colour(value, -2.0, 2.0) for value in (-2.0, 0.0, 2.0))
    assert max(zero) - min(zero) < 5
    assert low[0] > low[2], "orange below zero"
    assert high[2] > high[0], "blue above"


def test_numbers_can_be_read_on_every_colour():
    def luminance(colour: tuple[int, ...]) -> float:
        linear = [(value / 255) ** 2.2 for value in colour[:3]]
        return float(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])

    for step in range(-20, 21):
        colour = tensor_picture._colour(step / 20, -1.0, 1.0)
        ink = tensor_picture.ink_on(colour)
        light, dark = sorted((luminance(colour), luminance(ink)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) > 4, f"{colour} with {ink}"


def test_more_ranks_than_fit_are_put_together_where_they_are_equal():
    by_rank = {rank: tensor_preview.preview(torch.tensor([float(rank == 5)])) for rank in range(64)}
    block = Block(RankSet.all(64), [("", by_rank)])
    columns, more = block.columns()
    assert [str(ranks) for ranks in columns] == ["0-4,6-63", "5"]
    assert more == 0
    different = {rank: tensor_preview.preview(torch.tensor([rank])) for rank in range(64)}
    columns, more = Block(RankSet.all(64), [("", different)]).columns()
    assert (len(columns), more) == (16, 48)


@pytest.mark.parametrize(
    ("count", "most", "per_row"),
    [
        (1, 5, 1),
        (2, 5, 2),
        (8, 5, 4),
        (8, 8, 8),
        (16, 7, 4),
        (6, 4, 3),
        (7, 4, 4),
        (5, 3, 3),
        (3, 1, 1),
    ],
)
def test_tiles_stand_in_even_rows(count: int, most: int, per_row: int):
    assert tensor_picture._even_rows(count, most) == per_row


def test_tensors_of_different_shapes_and_devices():
    told = tensors(torch.ones(2), torch.ones(3))
    told[1] = msgspec.structs.replace(told[1], device="cuda:1")
    told[0] = msgspec.structs.replace(told[0], device="cuda:0")
    block = Block(RankSet.all(2), [("", told)])
    assert tensor_picture.text("", [block]).splitlines() == [
        "t  float32 of different shapes  on cuda",
        "rank 0: (2,)   rank 1: (3,)",
        "1 1            1 1 1",
    ]
    assert tensor_picture.draw("", [block]).height > 60


def test_a_shard_is_drawn_in_its_place():
    whole = torch.arange(8.0).view(4, 2)

    def shard(rank: int) -> TensorShown:
        part = Part(placements="Shard(0)", mesh="dp=2", shape=[2, 2], offset=[2 * rank, 0])
        told = tensor_preview.preview(whole[2 * rank : 2 * rank + 2], "w")
        return msgspec.structs.replace(told, shape=[4, 2], part=part)

    by_rank = {rank: shard(rank) for rank in range(2)}
    block = Block(RankSet.all(2), [("", by_rank)])
    text = tensor_picture.text("", [block])
    assert text.splitlines()[:2] == [
        "w  float32 (4, 2)  Shard(0) on mesh dp=2",
        "rank 0: rows 0-1   rank 1: rows 2-3",
    ]
    drawn = tensor_picture.draw("", [block])
    plain = tensor_picture.draw("", [Block(RankSet.all(2), [("", tensors(whole[:2], whole[2:]))])])
    assert drawn.height == plain.height + 2 * 20, "room for the whole tensor"


def test_the_picture_of_eight_ranks_is_small_and_fits_the_page():
    by_rank = {rank: tensor_preview.preview(torch.randn(4, 4), "grad") for rank in range(8)}
    drawn = tensor_picture.draw("title", [Block(RankSet.all(8), [("", by_rank)])])
    assert drawn.width < 900
    assert len(base64.b64encode(drawn.png())) < 120_000


def test_a_picture_that_may_be_early_says_so():
    sink = PageSink()
    x = torch.ones(2)
    early = ("all_reduce", "all_reduce")
    shown(
        sink,
        *(call(rank, x, stage="now") for rank in (0, 1)),
        *(call(rank, stage="opened") for rank in (0, 1)),
        call(0, x, stage="after", still_open=early),
        call(1, x + 1, stage="after"),
    ).tick(LATER)
    (text,) = sink.texts
    assert text.splitlines()[-3] == "after | may be early: all_reduce was not over on rank 0"
