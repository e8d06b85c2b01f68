"""A view survives output that it cannot show as intended."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

import pytest

from nbddp.controller.diagnosis import Report
from nbddp.controller.diagnosis.phrases import Predicate, RankVerb
from nbddp.controller.diagnosis.report import PerRank
from nbddp.controller.hub.run import Run
from nbddp.controller.state import RankResult, RunOutcome
from nbddp.controller.state.actions import NoticeChanged, VerdictReached
from nbddp.notebook.output import gatherer
from nbddp.notebook.output.cell_output import AnyOut
from nbddp.notebook.output.cell_view import View
from nbddp.notebook.output.items import Bundle
from nbddp.notebook.output.shows import Rich
from nbddp.notebook.output.sinks import Live, Sink
from nbddp.notebook.output.socket_log import SocketLog
from nbddp.settings import Settings
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import Display, FaultStruck, ImportChanged, Output, RunFinished, Stream
from nbddp.wire.rank_set import RankSet
from tests.support.recovering import finding, verdict
from tests.support.sinks import PageSink

MIXED = {"application/json": {1: [2], "a": {None: 3}}}


class ListSink:
    """Keeps the output that it shows."""

    def __init__(self) -> None:
        self.shown: list[object] = []

    def text(self, stream: Stream, text: str) -> None:
        self.shown.append(f"{stream} {text}")

    def display(
        self, data: Mapping[str, Any], metadata: object, display_id: object, update: bool
    ) -> None:
        self.shown.append(data)

    def clear(self) -> None:
        pass

    def live(self, live: Live) -> None:
        pass


def make_view(
    sink: Sink,
    ranks: int = 2,
    *,
    can_redraw: bool = False,
    clock: Callable[[], float] | None = None,
    began: float | None = None,
    out: AnyOut = "folded",
    **settings: Any,
) -> View:
    return View(
        Run("r", RankSet.all(ranks), 1000),
        sink,
        world_size=ranks,
        settings=Settings(**settings),
        log_path_by_rank={},
        can_ask=False,
        display_scope="p",
        can_redraw=can_redraw,
        clock=clock,
        began=began,
        out=out,
    )


def show_of(rank: int, data: dict[str, Any] = MIXED) -> Display:
    return Display(run_id="r", rank=rank, data=data, metadata={}, transient={})


def key_of(data: dict[str, Any]) -> object:
    return Bundle(Rich(RankSet.of([0]), "display", data, {}), 0.0).key


def test_keys_of_several_types_fold():
    assert key_of({"x": {1: 2, "a": 3}}) == key_of({"x": {"a": 3, 1: 2}})
    different = [{1: 2, "a": 3}, {"1": 2, "a": 3}, {True: 2, "a": 3}, {1: "2", "a": 3}]
    assert len({key_of({"x": value}) for value in different}) == len(different)
    hash(key_of(MIXED))


def test_a_display_with_keys_of_several_types_is_shown():
    sink = ListSink()
    view = make_view(sink)
    view.show(show_of(0))
    view.show(show_of(1))
    assert {**MIXED, "text/plain": "output: needs JavaScript"} in sink.shown


@pytest.mark.parametrize(("page", "labels"), [("<script>1</script>", 0), ("<hr>", 1)])
def test_a_label_stands_above_what_is_seen_only(page: str, labels: int):
    sink = ListSink()
    view = make_view(sink)
    for rank in (0, 1):
        view.show(show_of(rank, {"text/html": page}))
    assert sink.shown[labels:] == [{"text/html": page}]
    assert len(sink.shown) == labels + 1


@pytest.mark.parametrize(
    ("is_background", "why"),
    [
        (True, "a cell in the background asks no questions. Next: run it without --async"),
        (False, "this front end cannot ask the user"),
    ],
)
def test_a_question_that_nobody_answers(is_background: bool, why: str):
    view = View(
        Run("r", RankSet.all(2), 1000),
        ListSink(),
        world_size=2,
        settings=Settings(),
        log_path_by_rank={},
        can_ask=False,
        is_background=is_background,
        display_scope="p",
    )
    assert why in view.why_nobody_answers()


def test_output_that_cannot_be_folded_is_shown_as_it_came(monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise TypeError("a bug")

    sink = ListSink()
    view = make_view(sink)
    monkeypatch.setattr(gatherer.Gatherer, "add", fail)
    view.show(Output(run_id="r", rank=1, stream="stdout", text="hi\n"))
    view.show(show_of(0))
    assert sink.shown == [
        "stderr [1] nbddp could not fold this (TypeError: a bug):\n",
        "stdout [1] hi\n",
        "stderr [0] nbddp could not fold this (TypeError: a bug):\n",
        MIXED,
    ]


def test_the_progress_line_tells_the_first_error_and_what_the_stop_button_does(
    monkeypatch: pytest.MonkeyPatch,
):
    live: list[Live] = []
    sink = ListSink()
    monkeypatch.setattr(sink, "live", live.append)
    run = Run("r", RankSet.all(2), 1000)
    view = View(
        run,
        sink,
        world_size=2,
        settings=Settings(progress_after_s=0.0),
        log_path_by_rank={},
        can_ask=False,
        display_scope="p",
    )
    error = ErrorInfo(ename="ValueError", evalue="bad batch\nmore", traceback=[])
    view.show(RunFinished(run_id="r", rank=1, elapsed_s=0.1, error=error))
    run.was_interrupted = True
    view.tick()
    assert list(live[-1].status) == [
        "1/2 ranks done | 0 s | waiting for rank 0 | rank 1 raised ValueError: bad batch"
        " | interrupted; stop again to get the prompt back"
    ]


def test_the_time_of_a_cell_that_was_left_counts_from_its_begin(monkeypatch: pytest.MonkeyPatch):
    live: list[Live] = []
    sink = ListSink()
    monkeypatch.setattr(sink, "live", live.append)
    make_view(sink, clock=lambda: 1000.0, began=960.0).tick()
    assert live[-1].status == ("0/2 ranks done | 40 s",)


def test_all_ranks_that_raised_are_in_the_line(monkeypatch: pytest.MonkeyPatch):
    live: list[Live] = []
    sink = ListSink()
    monkeypatch.setattr(sink, "live", live.append)
    view = make_view(sink, 64, progress_after_s=0.0)
    for rank in (0, 2, 4, *[rank for rank in range(6, 64) if rank % 7 in (0, 3)]):
        name = "KeyError" if rank < 6 else "ValueError"
        info = ErrorInfo(ename=name, evalue=f"bad {rank // 8}", traceback=[])
        view.show(RunFinished(run_id="r", rank=rank, elapsed_s=0.1, error=info))
    view.tick()
    assert live[-1].status[0] == (
        "20/64 ranks done | 0 s | waiting for 44 ranks | 17 ranks raised ValueError"
        " | ranks 0,2,4 raised KeyError: bad 0"
    )


def test_a_colon_in_the_name_of_an_error_is_part_of_its_name(monkeypatch: pytest.MonkeyPatch):
    live: list[Live] = []
    sink = ListSink()
    monkeypatch.setattr(sink, "live", live.append)
    view = make_view(sink, 4, progress_after_s=0.0)
    for rank, name in enumerate(["Bad: A", "Bad: A", "Bad: B"]):  # `type(name, (Exception,), {})`
        info = ErrorInfo(ename=name, evalue=f"at {rank}", traceback=[])
        view.show(RunFinished(run_id="r", rank=rank, elapsed_s=0.1, error=info))
    view.tick()
    assert "ranks 0-1 raised Bad: A | rank 2 raised Bad: B: at 2" in live[-1].status[0]


def test_an_import_is_named_and_a_long_one_has_a_hint_in_its_line(monkeypatch: pytest.MonkeyPatch):
    now = [1000.0]
    monkeypatch.setattr("nbddp.notebook.output.cell_view.time.monotonic", lambda: now[0])
    live: list[Live] = []
    sink = ListSink()
    monkeypatch.setattr(sink, "live", live.append)
    view = make_view(sink, 3, progress_after_s=0.0)

    def line(at_s: float, **modules: str) -> str:
        now[0] = 1000.0 + at_s
        for rank, module in modules.items():
            view.show(ImportChanged(run_id="r", rank=int(rank[1:]), module=module))
        view.tick()
        return live[-1].status[0]

    dynamo = "torch._dynamo"
    begun = "0/3 ranks done | 1 s | ranks 0-1 import torch._dynamo (first use)…"
    assert line(1.0, r0=dynamo, r1=dynamo) == begun
    assert line(2.0, r2=dynamo).endswith("| the ranks import torch._dynamo (first use)…")
    assert line(2.9).endswith("| the ranks import torch._dynamo (first use)…")
    hint = "quicker next time: %env NBDDP_PRELOAD=torch._dynamo before %ddp start"
    assert line(3.1).endswith(f"3 s | the ranks import torch._dynamo (first use)… | {hint}")
    assert line(31.0, r1="", r2="pandas").endswith(
        "31 s | rank 0 imports torch._dynamo (first use)… | rank 2 imports pandas (first use)…"
    )
    view.show(RunFinished(run_id="r", rank=0, elapsed_s=0.1, error=None))
    assert line(32.0, r2="").endswith("32 s | waiting for ranks 1-2")
    assert sink.shown == []


def test_ranks_that_wait_are_named_after_two_seconds_of_waiting(monkeypatch: pytest.MonkeyPatch):
    now = [1000.0]
    monkeypatch.setattr("nbddp.notebook.output.cell_view.time.monotonic", lambda: now[0])
    live: list[Live] = []
    sink = ListSink()
    monkeypatch.setattr(sink, "live", live.append)
    view = make_view(sink, 2, progress_after_s=0.0)
    report = Report(run_id="r", findings=(finding("straggler", proven=False, since_s=0.5),))
    for at_s, lines in ((0.0, 1), (1.4, 1), (1.6, 2)):
        now[0] = 1000.0 + at_s
        view.show(NoticeChanged("r", report if at_s == 0.0 else replace_wait(report, 0.5 + at_s)))
        view.tick()
        assert (len(live[-1].status), live[-1].height) == (lines, 2)
    assert live[-1].status[1].startswith("rank 0 waits for rank 1 (2.1 s)")
    now[0] += 0.2
    view.show(NoticeChanged("r", None))
    view.tick()
    assert (len(live[-1].status), live[-1].height) == (1, 2)


def replace_wait(report: Report, since_s: float) -> Report:
    return replace(report, findings=(replace(report.findings[0], since_s=since_s),))


@pytest.mark.parametrize(("ranks", "folds"), [(2, False), (64, True)])
def test_many_ranks_have_longer_to_come_to_a_line(
    monkeypatch: pytest.MonkeyPatch, ranks: int, folds: bool
):
    now = [1000.0]
    monkeypatch.setattr("nbddp.notebook.output.cell_view.time.monotonic", lambda: now[0])
    sink = ListSink()
    view = make_view(sink, ranks, output_expect_s=0.0)
    for rank in range(ranks):
        if rank == ranks - 1:  # the last one comes late
            now[0] += 3 * Settings().output_fold_s
            view.tick()
        view.show(Output(run_id="r", rank=rank, stream="stdout", text="hi\n"))
        view.show(RunFinished(run_id="r", rank=rank, elapsed_s=0.1, error=None))
    assert (sink.shown == [f"stdout [0-{ranks - 1}] hi\n"]) is folds


def test_the_labels_of_progress_bars_are_aligned(monkeypatch: pytest.MonkeyPatch):
    now = [1000.0]
    monkeypatch.setattr("nbddp.notebook.output.cell_view.time.monotonic", lambda: now[0])
    live: list[Live] = []
    sink = ListSink()
    monkeypatch.setattr(sink, "live", live.append)
    view = make_view(sink, 12)
    for rank in range(12):
        bar = f"\r {rank + 20}%|██        | {rank + 20}/100 [00:01<00:02, 2.50it/s]"
        view.show(Output(run_id="r", rank=rank, stream="stderr", text=bar))
    for _ in range(2):
        view.tick()
        now[0] += 5.0
    view.tick()
    assert live[-1].open_lines == (
        "[0]    slowest  20%|██        | 20/100 [00:01<00:02, 2.50it/s]",
        "[5]    median   25%|██        | 25/100 [00:01<00:02, 2.50it/s]",
        "[11]   fastest  31%|██        | 31/100 [00:01<00:02, 2.50it/s]",
    )


def test_a_row_stays_where_ranks_ended_differently():
    def shown(*statuses: Literal["ok", "unfinished"]) -> list[object]:
        sink = ListSink()
        results = {rank: RankResult(rank, status) for rank, status in enumerate(statuses)}
        make_view(sink, len(results)).end(RunOutcome("r", results, 0.1))
        return [each["text/plain"] for each in sink.shown if isinstance(each, Mapping)]

    assert shown("ok", "ok", "ok", "ok", "ok") == []
    assert shown("ok", "ok", "ok", "ok", "unfinished") == ["ranks  0-3 ✓ done  4 … given up"]


@pytest.mark.parametrize("ranks", [4, 64])
def test_warnings_about_connections_are_no_red_text(ranks: int):
    sink, later, sockets = PageSink(), PageSink(), SocketLog()
    for page in (sink, later):
        view = make_view(page, ranks)
        view._sockets = sockets
        for rank in range(ranks):
            warning = f"[rank{rank}]:[W1125 03:15:00.1 socket.cpp:207] [c10d] no name of 4{rank}\n"
            text = f"{warning}said\n"
            view.show(Output(run_id="r", rank=rank, stream="stderr", text=text))
            view.show(RunFinished(run_id="r", rank=rank, elapsed_s=0.1, error=None))
        results = {rank: RankResult(rank, "ok") for rank in range(ranks)}
        view.end(RunOutcome("r", results, 0.1))
    first = "torch's log has 1 line about the connections of the ranks"
    assert sink.plain.count(first) == 1
    assert f"[0-{ranks - 1}] said" in sink.plain
    assert f"[0-{ranks - 1}] said" in later.plain
    assert "socket.cpp" not in sink.plain
    assert "socket.cpp" not in later.plain + later.html
    assert sink.html.startswith("<details")
    assert "socket.cpp:207] [c10d] no name of 40,41,42" in sink.html


def test_a_fault_on_purpose_is_a_quiet_line_after_the_output_before_it():
    sink = ListSink()
    view = make_view(sink)
    view.show(Output(run_id="r", rank=0, stream="stdout", text="a\n"))
    view.show(FaultStruck(run_id="r", rank=1, number=0, text="rank 1 was <killed>"))
    view.end(RunOutcome("r", {rank: RankResult(rank, "ok") for rank in range(2)}, 1.0))
    shown = [each for each in sink.shown if isinstance(each, Mapping)]
    assert shown[0]["text/plain"] == "fault on purpose: rank 1 was <killed>"
    assert "rank 1 was &lt;killed&gt;" in shown[0]["text/html"]


def test_a_verdict_with_more_ranks_takes_the_place_of_its_card():
    page = PageSink()
    view = make_view(page, ranks=3, can_redraw=True)
    first = verdict()
    view.show(VerdictReached("r", first, acted=True))
    more = replace(first.findings[0], culprits=RankSet.of([1, 2]), headline="ranks 1-2 are missing")
    whole = replace(first, findings=(more,))
    view.show(VerdictReached("r", whole, acted=True, replaces=first.fingerprint))
    assert page.plain.count("Deadlock") == 1
    assert "ranks 1-2 are missing" in page.plain


@pytest.mark.parametrize(("out", "count"), [("nothing", 1), ("folded", 0)])
def test_a_card_of_a_cell_that_runs_again_says_so(out: AnyOut, count: int):
    page = PageSink()
    view = make_view(page, ranks=3, can_redraw=True, out=out)
    first = verdict()
    view.show(VerdictReached("r", first, acted=True))
    whole = replace(first, findings=(replace(first.findings[0], headline="ranks 1-2 are out"),))
    view.show(VerdictReached("r", whole, acted=True, replaces=first.fingerprint))
    assert page.plain.count("during %ddp catchup:") == count


def test_a_card_that_nobody_acted_upon_has_the_time_since_its_own_verdict():
    page, now = PageSink(), [0.0]
    view = make_view(page, can_redraw=True, clock=lambda: now[0])
    waits = PerRank(0, "running", Predicate(RankVerb.WAITS, " in barrier #1"), since_s=1.0)
    for at, op in ((0.0, "barrier"), (20.0, "all_reduce")):
        now[0] = at
        found = finding(headline=f"rank 0 waits in {op}", op=op, ranks={0: waits})
        report = replace(verdict(), findings=(found,))
        view.show(VerdictReached("r", report, acted=False))
    now[0] = 30.0
    view.end(RunOutcome("r", {rank: RankResult(rank, "ok", 30.0) for rank in range(2)}, 30.0))
    first, second = page.plain.split("rank 0 waits in all_reduce")
    assert "for 31.0 s" in first
    assert "for 11.0 s" in second


def test_a_card_beside_that_of_a_dead_rank_stands_there_once():
    page = PageSink()
    view = make_view(page, ranks=3)
    mismatch = verdict(kind="mismatched-collective")
    view.show(VerdictReached("r", mismatch, acted=True))
    dead = finding("dead-rank", headline="rank 2 exited", now="its variables are gone")
    report = replace(mismatch, findings=(dead, *mismatch.findings))
    results = {rank: RankResult(rank, "ok") for rank in range(3)}
    view.end(RunOutcome("r", results, 1.0, report=report))
    assert page.plain.count("rank 0 waits for rank 1") == 1
    assert page.plain.count("rank 2 exited") == 1
