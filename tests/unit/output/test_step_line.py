"""The line that shows what a verb does now."""

from nbddp.notebook.output import StepLine
from nbddp.notebook.output.sinks import Live
from tests.support.sinks import PageSink


class LiveSink(PageSink):
    """Notes the live lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, ...]] = []

    def live(self, live: Live) -> None:
        self.lines.append((*live.status, *live.open_lines))


def test_a_step_takes_the_place_of_the_last_one_and_goes_at_the_end():
    page = LiveSink()
    line = StepLine("%ddp catchup", page, has_live=True)
    line.say("runs cell [4] again on rank 2")
    line.say("copies x from rank 0 to rank 2")
    line.say("copies x from rank 0 to rank 2")
    line.end()
    assert page.lines == [
        ("%ddp catchup runs cell [4] again on rank 2",),
        ("%ddp catchup copies x from rank 0 to rank 2",),
        (),
    ]
    assert page.outputs == []


def test_the_live_lines_of_a_cell_stand_with_the_step():
    page = LiveSink()
    line = StepLine("%ddp catchup", page, has_live=True)
    line.say("runs cell [4] again on rank 2")
    line.live(Live(("0/1 ranks done | 1 s", "rank 2 waits"), strip="<b>", height=2))
    line.live(Live(end="ended after 2 s"))
    assert page.lines[1:] == [
        ("%ddp catchup runs cell [4] again on rank 2 | 0/1 ranks done | 1 s", "rank 2 waits"),
        ("%ddp catchup runs cell [4] again on rank 2",),
    ]


def test_without_a_live_line_nothing_is_shown():
    page = LiveSink()
    line = StepLine("%ddp catchup", page, has_live=False)
    line.say("runs cell [4] again on rank 2")
    line.end()
    assert (page.lines, page.outputs) == ([], [])
