"""Long output of ranks that differ: every rank is seen, in its own order."""

import re
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from nbddp.notebook.output import fair_excerpt, per_rank_blocks
from nbddp.notebook.output.excerpt import HEAD, TAIL, Limit
from nbddp.notebook.output.folded_sink import FoldedSink
from nbddp.notebook.output.gatherer import Gatherer, Text
from nbddp.notebook.output.rank_text import RankText
from nbddp.settings import Settings
from nbddp.wire.messages import Output
from tests.support.output_specs import spec_of
from tests.support.sinks import PageSink


def printed(label: str, count: int, first: int = 0) -> list[str]:
    return [f"[{label}] line {number}" for number in range(first, first + count)]


def shown(lines: Sequence[str], *, is_labelled: bool = True) -> PageSink:
    page = PageSink()
    sink = FoldedSink(page, "id", is_labelled=is_labelled)
    sink.text("stdout", "".join(f"{line}\n" for line in lines))
    sink.close()
    return page


def test_head_and_tail_are_of_every_rank():
    page = shown([line for rank in range(4) for line in printed(str(rank), 300)])
    head, rest = page.outputs
    each = HEAD.lines // 4
    assert head["text"].splitlines() == [
        line for rank in range(4) for line in printed(str(rank), each)
    ]
    note, *tail = rest["text/plain"].split("\n")
    assert note.startswith("... 1,100 more lines, ")
    assert note.endswith(" (275 of each of ranks 0-3)")
    last = TAIL.lines // 4
    assert tail == [line for rank in range(4) for line in printed(str(rank), last, 300 - last)]


def test_a_rank_with_little_to_say_leaves_its_place_to_others():
    page = shown([*printed("0", 300), *printed("1", 3), *printed("2", 300)])
    head = page.outputs[0]["text"]
    assert [head.count(f"[{rank}]") for rank in range(3)] == [38, 3, 38]
    assert "(252 of each of ranks 0,2)" in page.plain


def test_64_ranks_have_a_line_each_at_both_ends():
    page = shown([line for rank in range(64) for line in printed(str(rank), 50)])
    head, rest = page.outputs
    everybody = [f"[{rank}]" for rank in range(64)]
    assert re.findall(r"^\[\d+\]", head["text"], re.MULTILINE) == everybody
    assert re.findall(r"^\[\d+\]", rest["text/plain"], re.MULTILINE) == everybody


def test_equal_output_of_all_ranks_has_the_places_of_one():
    page = shown([*printed("0-3", 300), *printed("1", 1), *printed("0-3", 299, 300)])
    head, rest = page.outputs
    assert head["text"].splitlines() == printed("0-3", HEAD.lines)
    assert rest["text/plain"].split("\n")[1:] == printed("0-3", TAIL.lines, 599 - TAIL.lines)


def test_output_of_a_pool_of_one_rank_has_no_labels():
    page = shown([*printed("0", 300), *printed("1", 300)], is_labelled=False)
    assert page.outputs[0]["text"].splitlines() == printed("0", HEAD.lines)
    assert page.plain.split("\n")[-TAIL.lines :] == printed("1", TAIL.lines, 300 - TAIL.lines)


def test_all_ranks_are_seen_at_one_height_while_output_streams():
    page = PageSink()
    sink = FoldedSink(page, "id", is_labelled=True)
    sink.text("stdout", "".join(f"{line}\n" for line in printed("0-2", HEAD.lines + TAIL.lines)))
    heights = []
    for start in range(0, 500, 100):
        for rank in range(3):
            lines = printed(str(rank), 100, start)
            sink.text("stdout", "".join(f"{line}\n" for line in lines))
        sink.refresh(float("inf"))
        found = page.outputs[1]["text/plain"]
        assert [found.count(f"[{rank}]") for rank in range(3)] == [6, 6, 6]
        heights.append(len(re.findall("\n|&#10;", page.outputs[1]["text/html"])))
    assert set(heights) == {TAIL.lines}  # the first line end of a <pre> does not count


LABELS = st.sampled_from(["[0]  ", "[1]  ", "[2]  ", "[0-1]", "[0,2]", "[0-2]", ""])


@given(st.lists(LABELS, max_size=60), st.integers(1, 20))
def test_no_rank_is_shown_out_of_its_order(labels: list[str], limit: int):
    lines = [f"{label} {number}" for number, label in enumerate(labels)]
    first, others = fair_excerpt.head(lines, Limit(limit), is_labelled=True)
    hidden, last = fair_excerpt.tail(lines, limit, is_labelled=True)
    assert len(first) == min(len(lines), len(first)) <= max(limit, 0)
    for page in (first + others, hidden + last):
        assert sorted(page) == sorted(lines)
        for rank in "012-":
            mine = [line for line in lines if _is_of(line, rank)]
            assert [line for line in page if _is_of(line, rank)] == mine


def _is_of(line: str, rank: str) -> bool:
    label = line.partition("]")[0] if line.startswith("[") else ""
    if rank == "-":
        return not label
    return rank in label.replace("0-2", "012").replace("0-1", "01")


def test_amounts_are_short():
    assert fair_excerpt.amounts_by_rank({0: 7, 1: 5, 2: 7}) == "7 of each of ranks 0,2, 5 of rank 1"
    assert fair_excerpt.amounts_by_rank({0: 1000, 1: 990}) == "990 to 1,000 of each of ranks 0-1"
    many = {rank: 10 * rank for rank in range(1, 9)}
    assert fair_excerpt.amounts_by_rank(many) == "80 of rank 8, 10 to 70 of each of ranks 1-7"


def test_the_end_of_a_long_cell_says_how_much_each_rank_printed():
    texts = {rank: RankText() for rank in range(3)}
    for rank, text in texts.items():
        text.add(printed(str(rank), 1000 if rank == 1 else 10))
    bundle = per_rank_blocks.details(texts)
    assert bundle is not None
    told = "rank by rank: 0; 1; 2 (lines: 1,000 of rank 1, 10 of each of ranks 0,2)</summary>"
    assert told in bundle["text/html"]


def test_the_budget_of_a_cell_is_shared_out_evenly():
    settings = Settings(notebook_burst_bytes=40_000)
    gatherer = Gatherer(spec_of(4, settings))
    shows = []
    for rank in range(4):
        text = "".join(f"rank {rank} line {number}\n" for number in range(9000))
        shows += gatherer.add(Output(run_id="r", rank=rank, stream="stdout", text=text), 0.0)
    shows += gatherer.tick(1.0)
    text = "".join(show.text for show in shows if isinstance(show, Text))
    counts = [text.count(f"[{rank}]") for rank in range(4)]
    assert min(counts) > 0.9 * max(counts) > 300
