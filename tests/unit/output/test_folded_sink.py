"""Long output has a head and a tail, the rest folded; blocks by rank; quiet mode."""

import re
from collections.abc import Sequence

from nbddp.notebook.output import per_rank_blocks
from nbddp.notebook.output.cell_output import CellOutput
from nbddp.notebook.output.excerpt import HEAD, TAIL
from nbddp.notebook.output.folded_sink import FoldedSink
from nbddp.notebook.output.gatherer import Gatherer, Rich, Show
from nbddp.notebook.output.per_rank_blocks import RankBlocks
from nbddp.notebook.output.quiet import QuietOutput
from nbddp.notebook.output.rank_text import RankText
from nbddp.settings import Settings
from nbddp.wire.messages import ClearOutput, Display, Output, Result
from tests.support.output_specs import spec_of
from tests.support.sinks import PageSink


def numbered(count: int, first: int = 0) -> str:
    return "".join(f"line {number}\n" for number in range(first, first + count))


def folding() -> tuple[PageSink, FoldedSink]:
    page = PageSink()
    return page, FoldedSink(page, "id")


# --- long output ---------------------------------------------------------------------------------


def test_short_output_is_a_stream():
    page, sink = folding()
    sink.text("stdout", numbered(HEAD.lines))
    sink.close()
    assert page.outputs == [{"stream": "stdout", "text": numbered(HEAD.lines)}]


def test_a_little_more_is_shown_in_full():
    page, sink = folding()
    sink.text("stdout", numbered(HEAD.lines + TAIL.lines + 5))
    sink.close()
    assert page.plain.split("\n") == numbered(HEAD.lines + TAIL.lines + 5).splitlines()
    assert "<details>" not in page.html


def test_long_output_has_a_head_a_tail_and_all_between_them_folded():
    page, sink = folding()
    for start in range(0, 1000, 10):
        sink.text("stdout", numbered(10, start))
    sink.close()
    head, rest = page.outputs
    assert head["text"] == numbered(HEAD.lines)
    assert rest["text/plain"].split("\n") == [
        "... 900 more lines, 8.1 kB",
        *numbered(TAIL.lines, 980).splitlines(),
    ]
    hidden, shown = re.findall(r"<pre[^>]*>(.*?)</pre>", rest["text/html"], re.DOTALL)
    assert hidden.split("\n") == numbered(900, HEAD.lines).splitlines()
    assert shown.split("\n") == numbered(TAIL.lines, 980).splitlines()


def test_omitted_output_is_said_outside_of_the_fold():
    page, sink = folding()
    notice = "[0]   ... 9,000 lines (81 kB) left out here; the whole output: /tmp/rank0.log\n"
    sink.notices.add(notice.removeprefix("[0]   ").removesuffix("\n"))
    sink.text("stdout", numbered(200) + notice + numbered(200))
    sink.close()
    assert page.plain.split("\n")[-TAIL.lines - 1] == notice.strip()
    assert page.html.rpartition("</details>")[2].count("the whole output: /tmp/rank0.log") == 1


def test_one_display_of_fixed_height_changes_while_output_streams():
    page, sink = folding()
    sink.text("stdout", numbered(HEAD.lines + TAIL.lines))
    before = page.outputs[1]["text/html"]
    for start in range(0, 5000, 100):
        sink.text("stdout", numbered(100, start))
        sink.refresh(float("inf"))
        assert len(page.outputs) == 2
        assert page.outputs[1]["text/html"].count("\n") == before.count("\n")
    assert page.sent_bytes < 100_000  # each time the end only


def test_displays_stay_in_their_place():
    page, sink = folding()
    sink.text("stdout", numbered(HEAD.lines + 100))
    sink.display({"text/plain": "picture"}, {}, None, False)
    sink.text("stdout", "after\n")
    sink.close()
    assert [each.get("text/plain", "")[-7:] for each in page.outputs] == [
        "", "line 179"[-7:], "picture", "after",
    ]  # fmt: skip


def test_output_after_a_question_has_a_head_again():
    """The answers of a debugger stand below its prompt."""
    page, sink = folding()
    for start in (0, 90, 180):
        sink.text("stdout", numbered(90, start))
        sink.begin_new_head()
    assert page.plain.split("\n") == numbered(270).splitlines()
    assert [output.get("text") for output in page.outputs[::2]] == [
        numbered(HEAD.lines, start) for start in (0, 90, 180)
    ]


def test_clearing_starts_an_empty_output():
    page, sink = folding()
    sink.text("stdout", numbered(500))
    sink.clear()
    sink.text("stdout", numbered(3))
    sink.close()
    assert page.outputs == [{"stream": "stdout", "text": numbered(3)}]


def test_colours_of_terminals_do_not_get_into_html_and_tags_are_text():
    page, sink = folding()
    sink.text("stdout", numbered(HEAD.lines) + "[2]   \x1b[31mred\x1b[0m <b>\n[0-3] all\n")
    sink.close()
    tint = r"background-color:rgba\(\d+,\d+,\d+,0\.28\);border-radius:3px"
    line = rf'<b style="{tint}">\[2\]</b>   red &lt;b&gt;\n\[0-3\] all</pre>'
    assert re.search(line, page.html)


# --- rank by rank --------------------------------------------------------------------------------


def output(rank: int, text: str) -> Output:
    return Output(run_id="r", rank=rank, stream="stdout", text=text)


def blocks(events: Sequence[Output | Display | Result | ClearOutput], world: int = 4) -> list[Show]:
    gatherer = RankBlocks(spec_of(world))
    for event in events:
        assert gatherer.add(event, 0.0) == []
    return gatherer.end(1.0)


def plain(shows: Sequence[Show]) -> list[str]:
    return [show.data["text/plain"] for show in shows if isinstance(show, Rich)]


def test_a_block_for_each_rank_in_order_equal_ranks_together():
    events = [output(rank, f"{rank % 2}\n") for rank in (3, 1, 2, 0)]
    assert plain(blocks(events)) == ["--- ranks 0,2\n0\n--- ranks 1,3\n1"]


def test_ranks_that_showed_nothing_are_named_last():
    assert plain(blocks([output(1, "x\n")])) == ["--- rank 1\nx\n--- ranks 0,2-3 nothing"]
    assert blocks([]) == []


def test_output_of_one_rank_keeps_its_order():
    picture = Display(run_id="r", rank=0, data={"image/png": "x"}, metadata={}, transient={})
    found = blocks([output(0, "a\n"), picture, output(0, "b\n")], world=1)
    assert [show.data.get("text/plain", "picture") for show in found if isinstance(show, Rich)] == [
        "--- rank 0\na", "picture", "b",
    ]  # fmt: skip


def test_clearing_takes_away_what_came_before():
    clear = ClearOutput(run_id="r", rank=0, wait=False)
    assert plain(blocks([output(0, "a\n"), clear, output(0, "b\n")], world=1)) == ["--- rank 0\nb"]


def test_many_blocks_are_closed_and_show_their_last_line():
    found = blocks([output(rank, f"first\nlast {rank}\n") for rank in range(64)], world=64)
    [html] = [show.data["text/html"] for show in found if isinstance(show, Rich)]
    assert html.count("<details>") == 64
    assert "last 17</code></summary>" in html


def test_a_long_block_has_head_and_tail():
    [text] = plain(blocks([output(0, numbered(500))], world=1))
    assert text.split("\n")[20:23] == ["line 19", "... 470 more lines", "line 490"]


def texts(*printed: str) -> dict[int, RankText]:
    found = {}
    for rank, text in enumerate(printed):
        found[rank] = RankText()
        found[rank].add(text.splitlines())
    return found


def test_the_ranks_of_a_long_cell_are_one_click_away():
    long, other = numbered(30), numbered(30, 1)
    bundle = per_rank_blocks.details(texts(long, long, other))
    assert bundle is not None
    assert "<summary" in bundle["text/html"]
    assert "rank by rank: 0-1; 2 (30 lines of each)</summary>" in bundle["text/html"]
    assert per_rank_blocks.details(texts(long, long)) is None
    assert per_rank_blocks.details(texts("a\n", "b\n")) is None


def flooded(
    out: type[Gatherer | RankBlocks], events: Sequence[Output], world: int
) -> tuple[CellOutput, list[Show]]:
    """A sink with room for a part of the output."""
    settings = Settings(notebook_burst_bytes=4000, notebook_total_bytes=8000)
    gatherer = out(spec_of(world, settings))
    shows = [show for event in events for show in gatherer.add(event, 0.0)]
    return gatherer, shows + gatherer.end(1.0)


def in_chunks(rank: int, text: str, chunk: int) -> list[Output]:
    return [output(rank, text[start : start + chunk]) for start in range(0, len(text), chunk)]


def long_outputs() -> list[Output]:
    """Three equal ranks whose text is cut at different places, and one that differs."""
    same = numbered(900)
    other = same.replace("line 450\n", "LINE 450\n")
    return [
        *in_chunks(0, same, 8000),
        *in_chunks(1, same, 100),
        *in_chunks(2, other, 1000),
        *in_chunks(3, same, 3333),
    ]


def test_the_place_of_a_cut_makes_no_difference_between_ranks():
    gatherer, _ = flooded(Gatherer, long_outputs(), 4)
    bundle = per_rank_blocks.details(gatherer.text_by_rank())
    assert bundle is not None
    assert "rank by rank: 0-1,3; 2 (900 lines of each)</summary>" in bundle["text/html"]
    alike = [each for each in long_outputs() if each.rank != 2]
    gatherer, _ = flooded(Gatherer, alike, 4)
    texts = {rank: text for rank, text in gatherer.text_by_rank().items() if rank != 2}
    assert per_rank_blocks.details(texts) is None


def test_lost_output_cannot_be_compared():
    lost = Output(run_id="r", rank=1, stream="stdout", text="", dropped_bytes=99)
    gatherer, _ = flooded(Gatherer, [*long_outputs(), lost], 4)
    bundle = per_rank_blocks.details(gatherer.text_by_rank())
    assert bundle is not None
    told = "rank by rank: 0,3; 2; 1 not compared, since output of it was left out</summary>"
    assert told in bundle["text/html"]


def test_blocks_of_ranks_are_one_wherever_they_were_cut():
    _, shows = flooded(RankBlocks, long_outputs(), 4)
    [text] = plain(shows)
    assert re.findall("--- .*", text) == ["--- ranks 0-1,3", "--- rank 2"]


def test_folded_output_is_bounded():
    bundle = per_rank_blocks.details(texts(*(numbered(5000, rank) for rank in range(64))))
    assert bundle is not None
    assert len(bundle["text/html"]) < 80_000
    assert "line 5062" in bundle["text/html"]  # the last one of the last rank


# --- quiet ---------------------------------------------------------------------------------------


def test_quiet_shows_values_and_names_hidden_output():
    gatherer = QuietOutput(spec_of(2))
    picture = Display(run_id="r", rank=0, data={"image/png": "x"}, metadata={}, transient={})
    value = Result(run_id="r", rank=1, data={"text/plain": "3"}, metadata={})
    shows = [
        show
        for event in (output(0, "12345\n"), picture, value)
        for show in gatherer.add(event, 0.0)
    ]
    shows += gatherer.end(1.0)
    assert [getattr(show, "text", "") for show in shows] == ["[1]   Out: 3\n", ""]
    [note] = [show for show in shows if isinstance(show, Rich)]
    assert note.data["text/plain"] == (
        "not shown (--out quiet): 6 B of text, which is in /logs/rank0.log to rank1.log; 1 display"
    )


def test_quiet_says_nothing_where_nothing_was_shown():
    gatherer = QuietOutput(spec_of(2))
    assert gatherer.end(0.0) == []
