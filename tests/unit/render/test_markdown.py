"""HTML of nbddp in Markdown, where a blank line ends a block: printed text stays unchanged.

GitHub, and the pages that nbconvert makes as Markdown, read our outputs so.
"""

import html
import re
from collections.abc import Callable

import mistune
import pytest

from nbddp.controller.diagnosis.rank_view import RankView
from nbddp.notebook.output import folded_sink, per_rank_blocks
from nbddp.notebook.output.gatherer import Rich
from nbddp.notebook.output.per_rank_blocks import RankBlocks
from nbddp.notebook.output.rank_text import RankText
from nbddp.notebook.render.html import preformatted
from nbddp.notebook.render.stacks import stacks
from nbddp.notebook.widgets import static_text
from nbddp.notebook.widgets.static_text import Row
from nbddp.wire.flight_recorder.schema import RankLook, Site, ThreadLook
from nbddp.wire.messages import Display, Output
from tests.support.output_specs import spec_of

#: Text that Markdown would interpret.
PRINTED = """
# a heading

* an item

    code

<b>bold</b> and `code`
 \t
1. first


| a | b |
|---|---|

***
the end
"""


def _mistune(text: str) -> str:
    return str(mistune.create_markdown(escape=False, plugins=["table"])(text))


def _markdown_it(text: str) -> str:
    made = pytest.importorskip("markdown_it").MarkdownIt("commonmark", {"html": True})
    return str(made.enable("table").render(text))


@pytest.fixture(params=[_mistune, _markdown_it])
def render(request: pytest.FixtureRequest) -> Callable[[str], str]:
    found: Callable[[str], str] = request.param
    return found


def unchanged(render: Callable[[str], str], shown: str) -> list[str]:
    """The text of the blocks of a page that Markdown has left alone."""
    page = render(f"Before.\n\n{shown}\n\nAfter.\n")
    before, after = "<p>Before.</p>\n", "<p>After.</p>\n"
    assert page.startswith(before)
    assert page.endswith(after)
    assert page[len(before) : -len(after)].strip("\n") == shown.strip("\n")
    found: list[str] = re.findall(r"<pre[^>]*>(.*?)</pre>", shown, re.DOTALL)
    return ["".join(html.unescape(re.sub(r"<[^>]*>", "", each)).split()) for each in found]


def output(rank: int, text: str) -> Output:
    return Output(run_id="r", rank=rank, stream="stdout", text=text)


def blocks(*events: Output | Display) -> list[Rich]:
    gatherer = RankBlocks(spec_of(2))
    for event in events:
        gatherer.add(event, 0.0)
    return [show for show in gatherer.end(0.0) if isinstance(show, Rich)]


WORDS = "".join(PRINTED.replace("\t", " ").split())


def test_blocks_of_ranks(render: Callable[[str], str]):
    [shown] = blocks(output(0, PRINTED), output(1, f"{PRINTED}# more\n"))
    assert unchanged(render, shown.data["text/html"]) == [WORDS, f"{WORDS}#more"]


def test_a_long_block_below_a_picture(render: Callable[[str], str]):
    picture = Display(run_id="r", rank=0, data={"image/png": "AAAA"}, metadata={}, transient={})
    shown = blocks(picture, output(0, PRINTED * 5))[-1]
    assert "".join(unchanged(render, shown.data["text/html"])) == WORDS * 5


def test_blocks_below_a_cell(render: Callable[[str], str]):
    text_by_rank = {0: RankText(), 1: RankText()}
    for rank, text in text_by_rank.items():
        text.add([*PRINTED.split("\n"), f"rank {rank}"])
    bundle = per_rank_blocks.details(text_by_rank)
    assert bundle is not None
    told = unchanged(render, bundle["text/html"])
    assert told == [f"{WORDS}rank0", f"{WORDS}rank1"]


def test_a_folded_output(render: Callable[[str], str]):
    lines = PRINTED.split("\n") * 5
    assert "".join(unchanged(render, folded_sink.folded(lines)["text/html"])) == WORDS * 5
    assert unchanged(render, folded_sink.window(PRINTED.split("\n"))["text/html"]) == [WORDS]


def test_the_text_that_is_left_of_widgets(render: Callable[[str], str]):
    picture = ("data:image/png;base64,AAAA",)
    bundle = static_text.bundle_of([Row("[0]", PRINTED, picture), Row("[1]", PRINTED)])
    assert unchanged(render, bundle["text/html"]) == [f"[0]{WORDS}", f"[1]{WORDS}"]


def test_stacks(render: Callable[[str], str]):
    site = Site(file="c", line=5, function="<module>", source="x = '''\n\n# a heading", cell=4)
    thread = ThreadLook(name="MainThread", is_main=True, wait=None, stack=(site, site))
    look = RankLook(
        rank=0, pid=1, activity="running", version=1, time_ns=1, threads=(thread, thread)
    )
    bundle = stacks({0: RankView(0, "running", look=look)})
    assert unchanged(render, bundle["text/html"])


@pytest.mark.parametrize("text", ["", "a", "a\nb", "\n", "\na", "\n\na\n\n\nb\n \n\t\n", " \n"])
def test_a_page_shows_the_same_as_without_entities(text: str):
    found = preformatted(text, "margin:0")
    assert not re.search(r"\n\s*\n", found)
    inner = html.unescape(found.removeprefix('<pre style="margin:0">').removesuffix("</pre>"))
    # A reader of HTML drops the first line end, also one that is an entity.
    assert inner.removeprefix("\n") == text
