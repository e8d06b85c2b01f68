"""Shows one cell while it runs: output, live lines, cards, questions to the user.

Runs in: the thread that waits for the cell.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from nbddp.controller.cell_errors import at_end, not_kept, whole_tracebacks, without_shown
from nbddp.controller.diagnosis import Report, late_ranks
from nbddp.controller.hub import Run
from nbddp.controller.prompts import OperationRow
from nbddp.controller.state import Diagnosed, NoticeChanged, RanksHeld, RunOutcome, VerdictReached
from nbddp.controller.trace import TraceRow
from nbddp.controller.values import Difference
from nbddp.notebook.output import per_rank_blocks, rank_states, user_input
from nbddp.notebook.output.cell_output import AnyOut, CellOutput, OutputSpec, paced
from nbddp.notebook.output.folded_sink import FoldedSink, printed_html
from nbddp.notebook.output.kept_output import KeptCard, KeptEvent, KeptOutput
from nbddp.notebook.output.line_bundles import label_bundle, quiet_bundle
from nbddp.notebook.output.live_lines import LiveLines
from nbddp.notebook.output.merged import MergedOutput
from nbddp.notebook.output.no_output import NoOutput
from nbddp.notebook.output.per_rank_blocks import RankBlocks
from nbddp.notebook.output.quiet import QuietOutput
from nbddp.notebook.output.rank_grid import RankGrid
from nbddp.notebook.output.sanitizer_lines import sanitizer_lines
from nbddp.notebook.output.show_pictures import CellPictures
from nbddp.notebook.output.shows import Labels, Redraw, Rich, Show, Text
from nbddp.notebook.output.sinks import CARD_PREFIX, Live, Sink, TerminalSink
from nbddp.notebook.output.socket_log import SocketLog
from nbddp.notebook.output.widget_blocks import WidgetBlocks
from nbddp.notebook.render import (
    diagnosis_card,
    diff_report,
    rank_strip,
    static_page,
    trace_table,
)
from nbddp.notebook.render.html import details
from nbddp.notebook.widgets import WIDGET_MIME, NoClicksError, StepPanel, without_widget
from nbddp.printable import harmless
from nbddp.settings import Settings
from nbddp.wire.fault_types import ON_PURPOSE
from nbddp.wire.messages import (
    ClearOutput,
    Display,
    FaultStruck,
    ImportChanged,
    InputRequest,
    Output,
    RankAt,
    RankExited,
    Result,
    RunFinished,
    RunStarted,
)
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values.tensor_preview import MIME as SHOWN_MIME

#: Asks what all ranks do that have stopped before an operation.
_STEP_PROMPT = "(step) "
_NO_CLICKS = "this front end sends no clicks while a cell runs, so the prompt takes the commands\n"
_OUTPUTS: Mapping[AnyOut, Callable[[OutputSpec], CellOutput]] = {
    "folded": MergedOutput,
    "merged": MergedOutput,
    "ranks": RankBlocks,
    "quiet": QuietOutput,
    "nothing": NoOutput,
}


class View:
    """Shows the output of a cell; implements `nbddp.controller.pool.view_protocol.CellView`.

    Args:
        run: the run of the cell.
        sink: shows text and displays.
        world_size: number of ranks of the pool.
        settings: limits of text and of time.
        log_path_by_rank: the files with the whole output; a rank may be absent.
        can_ask: whether the front end has a stdin, and this cell may use it.
        is_background: the cell runs in the background, where it asks nothing.
        display_scope: see `OutputSpec`.
        widgets: None: the front end shows no widgets.
        panel: takes the commands for ranks that have stopped; None: the prompt does.
        out: ``--out`` of the cell.
        can_redraw: see `OutputSpec`.
        shows_html: whether displays of several ranks can stand in a grid.
        grids: grids of earlier cells, see `OutputSpec`.
        kept: gets each event, for ``%ddp output``; None: nothing is kept.
        clock: the time in seconds; None: `time.monotonic`.
        began: the time of the beginning, by ``clock``; None: now.
        began_at: the same for a reader, for the live line; empty: it names none.
        sockets: gets torch's warnings about connections; None: one of this cell.
        shows_pictures: whether the front end shows pictures, and updates of displays.
    """

    def __init__(
        self,
        run: Run,
        sink: Sink,
        *,
        world_size: int,
        settings: Settings,
        log_path_by_rank: Mapping[int, str],
        can_ask: bool,
        display_scope: str,
        widgets: WidgetBlocks | None = None,
        panel: StepPanel | None = None,
        out: AnyOut = "folded",
        can_redraw: bool = False,
        shows_html: bool = False,
        grids: dict[str, RankGrid] | None = None,
        kept: KeptOutput | None = None,
        clock: Callable[[], float] | None = None,
        began: float | None = None,
        began_at: str = "",
        sockets: SocketLog | None = None,
        shows_pictures: bool = True,
        is_background: bool = False,
    ) -> None:
        settings = paced(settings, len(run.ranks))
        self._run = run
        self._sink = sink
        self._out = out
        #: Folds long output; None: this sink does not fold.
        self._folded = sink if isinstance(sink, FoldedSink) else None
        self._settings = settings
        self._patience_s = max(settings.output_fold_s, settings.output_expect_s)
        self._labels = Labels(world_size)
        self._can_ask = can_ask
        self._no_stdin = user_input.IN_BACKGROUND if is_background else user_input.NO_STDIN
        self._can_redraw = can_redraw
        self._shows_html = shows_html
        self._widgets = widgets
        self._panel = panel
        self._is_at_deadlock = False  #: the last question was that of a deadlock
        self._output = _OUTPUTS[out](
            OutputSpec(
                run.ranks,
                world_size,
                display_scope,
                settings,
                log_path_by_rank,
                can_redraw,
                run.run_id if shows_html else None,
                {} if grids is None else grids,
                folds_numbers=out == "folded",
                notices=set() if self._folded is None else self._folded.notices,
            )
        )
        self._pictures = CellPictures(
            run.ranks,
            sink,
            f"{display_scope}-{run.run_id}",
            world_size,
            can_update=settings.fold_output and shows_pictures,
        )
        self._kept = kept
        self._sockets = sockets or SocketLog()
        self._clock = clock or time.monotonic
        self._began = self._clock() if began is None else began
        self._live = LiveLines(
            run,
            self._labels,
            progress_after_s=settings.progress_after_s,
            began=self._began,
            began_at=began_at,
        )
        self._judged: dict[str, VerdictReached] = {}  # by the id of the card
        self._judged_s: dict[str, float] = {}  # from the beginning of the cell to each
        self._shown_cards: dict[str, dict[str, str]] = {}
        self._cards_again: list[KeptCard] = []
        #: Operations with partial results, known when the ranks were freed.
        self._torn: Mapping[str, RankSet] | None = None

    def show(self, event: KeptEvent) -> None:
        """See `CellView.show`. An event that cannot be folded is shown as it came."""
        if self._kept is not None:
            self._kept.add(event)
        try:
            self._show(event)
        except Exception as error:  # noqa: BLE001 - a bug in nbddp; the cell goes on
            self._show_plainly(event, error)

    def _show(self, event: KeptEvent) -> None:
        now = self._clock()
        match event:
            case Display() if SHOWN_MIME in event.data:
                if (marker := self._pictures.add_call(event, now)) is not None:
                    self._emit(self._output.add(marker, now))
            case Display() | Result() if self._widgets is None and WIDGET_MIME in event.data:
                plain = msgspec.structs.replace(event, data=without_widget(event.data))
                self._emit(self._output.add(plain, now))
            case Output() | Display() | Result() | ClearOutput():
                self._emit(self._output.add(event, now))
            case RunFinished() | RankExited():
                self._live.finish(event)
                self._emit(self._output.finish_rank(event.rank, now))
            case NoticeChanged():
                self._live.diagnose(event.report, now)
            case VerdictReached():
                self._judge(event, now)
            case KeptCard():
                self._emit(self._output.tick(now + self._patience_s))
                self._cards_again.append(event)
                self._sink.display(dict(event.data), {}, None, False)
            case FaultStruck():
                self._emit(self._output.tick(now))
                text = f"{ON_PURPOSE}: {harmless(event.text)}"
                self._sink.display(quiet_bundle(text), {}, None, False)
            case InputRequest():
                self._live.states.ask(event.rank)  # `ask` shows the request
            case ImportChanged() | RankAt():
                self._live.note(event, now)
            case RunStarted() | RanksHeld():
                pass

    def _judge(self, event: VerdictReached, now: float) -> None:
        """Show the card of a verdict, unless the error of the cell tells the same."""
        self._live.judge(event.report)
        # The output that came before stands above the card.
        self._emit(self._output.tick(now + self._patience_s))
        # The card of a report changes when nbddp acts upon it later, or has more ranks to name.
        card_id = f"{CARD_PREFIX}{event.run_id}-{event.replaces or event.report.fingerprint}"
        is_shown = card_id in self._shown_cards
        is_told = diagnosis_card.is_told_by_error(event.report, acted=event.acted)
        if (is_shown or not is_told) and (not event.replaces or self._can_redraw):
            self._show_card(self._card(event), card_id, is_update=is_shown)
        self._judged[card_id] = event
        self._judged_s[card_id] = now - self._began

    def tick(self) -> float | None:
        """See `CellView.tick`."""
        now = self._clock()
        if self._folded is not None:
            self._folded.refresh(now)
        deadline = self._output.next_deadline()
        if deadline is not None and deadline <= now:
            self._emit(self._output.tick(now))
            deadline = self._output.next_deadline()
        deadlines = (deadline, self._pictures.tick(now))
        waits = [max(0.0, due - now) for due in deadlines if due is not None]
        live, wait_s = self._live.refresh(now, self._output.open_lines)
        if live is not None:
            self._sink.live(live)
        return min([wait_s, *waits])

    def ask(self, request: InputRequest) -> str:
        """See `CellView.ask`."""
        is_stop = request.stop is not None or request.is_stuck
        self._is_at_deadlock = request.is_stuck
        if self._out == "nothing" and (request.debugger is not None or is_stop):
            return "c"  # a cell that runs again passes its breakpoints
        now = self._clock()
        self._emit(self._output.tick(now + self._patience_s))
        self._output.keep_order()  # the front end shows the question and the answer
        self._pictures.tick(math.inf)  # of some ranks: they would be drawn after the answer
        if self._folded is not None:
            self._folded.begin_new_head()
        if not self._can_ask:
            raise EOFError(self._no_stdin)
        if not is_stop:
            self._live.states.turn(request.rank)
        # Text that stands with the live lines belongs above the question. Nothing changes them
        # before the answer.
        self._live.refresh(now, self._output.open_lines, at_once=True)
        self._sink.live(replace(self._live.shown, status=(), open_lines=(), height=0))
        if not isinstance(self._sink, TerminalSink):  # there the question would stand behind them
            self._sink.live(self._live.shown)
        if request.stop is not None and self._panel is not None:
            try:
                line = self._panel.ask()
            except NoClicksError:
                self._panel = None
                self._sink.text("stdout", _NO_CLICKS)
            else:
                self._sink.text("stdout", f"{_STEP_PROMPT}{line}\n")
                return line
        prompt = _STEP_PROMPT if request.stop is not None else harmless(request.prompt)
        if self._labels and not is_stop:
            prompt = f"{self._labels.of((request.rank,))} {prompt}"
        try:
            return user_input.ask(prompt, is_secret=request.password)
        finally:
            self._live.states.ask(request.rank)  # the line may have been for another rank

    def why_nobody_answers(self) -> str:
        """See `CellView.why_nobody_answers`."""
        is_silent = not self._can_ask or self._out == "nothing"
        return self._no_stdin if is_silent else user_input.why_nobody_answers()

    def leave_prompt(self, request: InputRequest) -> None:
        """See `CellView.leave_prompt`."""
        self._live.states.answer(request.rank)

    def tell(self, text: str) -> None:
        """See `CellView.tell`."""
        if self._out == "nothing":
            return
        self._emit(self._output.tick(self._clock() + self._patience_s))
        self._output.keep_order()
        self._sink.text("stdout", text + "\n")

    def show_steps(self, table: str, rows: Sequence[OperationRow]) -> None:
        """See `CellView.show_steps`."""
        if self._panel is None or self._out == "nothing":
            self.tell(table)
        else:
            self._panel.update(rows)

    def end_steps(self, rows: Sequence[OperationRow]) -> None:
        """See `CellView.end_steps`."""
        if self._panel is not None:
            self._panel.update(rows)
            self._panel.end()

    def show_waits(self, diagnosed: Diagnosed) -> None:
        """See `CellView.show_waits`."""
        self._show_at_prompt(
            diagnosis_card.card(
                diagnosed.report,
                views=diagnosed.views,
                means="`free`" if self._is_at_deadlock else "`quit`",
                own_timeout_s=self._settings.own_timeout_s,
            )
        )

    def show_trace(self, rows: Sequence[TraceRow]) -> None:
        """See `CellView.show_trace`."""
        self._show_at_prompt(trace_table.table(rows))

    def show_difference(self, difference: Difference) -> None:
        """See `CellView.show_difference`."""
        self._show_at_prompt(diff_report.bundle(difference))

    def _show_at_prompt(self, bundle: dict[str, str]) -> None:
        self._emit(self._output.tick(self._clock() + self._patience_s))
        self._output.keep_order()
        self._sink.display(bundle, {}, None, False)

    def end(self, outcome: RunOutcome) -> None:
        """See `CellView.end`."""
        self._emit(self._output.end(self._clock()))
        self._pictures.end()
        if self._folded is not None:
            self._folded.close()
        has_row = self._sink.live(self._live.last(rank_states.all_ends(outcome), self._clock()))
        if self._widgets is not None:
            self._widgets.end()
        if self._out != "nothing":
            for line in sanitizer_lines(outcome):
                self._sink.display(quiet_bundle(line), {}, None, False)
        torn = self._torn = not_kept(outcome, self._judged.values())
        if outcome.report is not None and outcome.report.explains_exits:
            self._show_exits(outcome.report, torn)
        for card_id, judged in self._judged.items():
            if diagnosis_card.is_told_by_error(judged.report, acted=judged.acted) and not torn:
                continue
            ended = at_end(judged, outcome, self._judged_s[card_id], self._clock() - self._began)
            # A terminal would print it again.
            is_other = self._can_redraw and (
                ended.report.findings != judged.report.findings or bool(late_ranks(judged.report))
            )
            if torn or not judged.acted or is_other:
                card = self._card(ended, outcome)
                self._show_card(card, card_id, is_update=card_id in self._shown_cards)
        chips = rank_states.ends(outcome, has_card=bool(self._judged or self._shown_cards))
        if chips and not has_row:
            self._sink.display(rank_strip.ends(chips), {}, None, False)
        if self._kept is not None:
            self._kept.close(outcome)
        self._offer_by_rank()
        if self._shows_html and (lines := "\n".join(whole_tracebacks(outcome))):
            page = details("the traceback with the frames of libraries", printed_html([lines]))
            self._sink.display({"text/plain": "", "text/html": page}, {}, None, False)

    def _show_exits(self, report: Report, torn: Mapping[str, RankSet]) -> None:
        """Show how ranks exited, in place of a card about ranks that waited for them."""
        waited = [
            card_id
            for card_id, judged in self._judged.items()
            if any(finding.kind == "dead-rank" for finding in judged.report.findings)
        ]
        card_id = waited[0] if waited else f"{CARD_PREFIX}{report.run_id}-exits"
        self._judged.pop(card_id, None)
        shown = [each.report for key, each in self._judged.items() if key in self._shown_cards]
        report = without_shown(report, shown)
        card = diagnosis_card.card(report, torn=torn, is_over=True)
        self._show_card(card, card_id, is_update=bool(waited))

    def _show_card(self, data: dict[str, str], card_id: str, *, is_update: bool) -> None:
        if self._shown_cards.get(card_id) == data:
            return  # a terminal would print it again
        self._shown_cards[card_id] = data
        if self._kept is not None:
            self._kept.add(KeptCard(card_id, data))
        if self._out == "nothing" and not is_update:
            self._sink.display(quiet_bundle("during %ddp catchup:"), {}, None, False)
        self._sink.display(data, {}, card_id, is_update)

    def _card(self, judged: VerdictReached, outcome: RunOutcome | None = None) -> dict[str, str]:
        return diagnosis_card.card(
            judged.report,
            acted=judged.acted,
            timed_out=judged.timed_out,
            views=judged.views,
            means="The stop button" if self._can_ask else "`%ddp interrupt`",
            torn=self._torn,
            is_over=outcome is not None,
            own_timeout_s=self._settings.own_timeout_s,
            timeout_s=outcome.timeout_s if outcome is not None and outcome.timed_out else None,
        )

    def _offer_by_rank(self) -> None:
        """Show the output rank by rank below a long cell, one click away."""
        if self._folded is None or not self._labels:
            return
        bundle = per_rank_blocks.details(self._output.text_by_rank())
        if bundle is not None:
            self._sink.display(bundle, {}, None, False)

    def _show_plainly(self, event: KeptEvent, error: Exception) -> None:
        self._output.keep_order()
        rank = getattr(event, "rank", None)
        label = f"[{rank}] " if self._labels and rank is not None else ""
        self._sink.text(
            "stderr", f"{label}nbddp could not fold this ({type(error).__name__}: {error}):\n"
        )
        if isinstance(event, Output):
            self._sink.text(event.stream, label + harmless(event.text))
        elif isinstance(event, Display | Result):
            self._sink.display(event.data, event.metadata, None, False)

    # --- out -----------------------------------------------------------------------------------

    def _emit(self, shows: list[Show]) -> None:
        for show in shows:
            match show:
                case Text():
                    self._sockets.print(self._sink, show.stream, show.text)
                case Rich():
                    self._emit_rich(show)
                case Redraw():
                    self._redraw(show)

    def _redraw(self, redraw: Redraw) -> None:
        self._sink.clear()
        self._sockets.clear(self._sink)
        if self._widgets is not None:
            self._widgets.clear()
        self._pictures.clear_places(self._clock())
        if not redraw.blocks:
            # The front end clears when it gets the next output.
            self._sink.text("stdout", "")
        for block in redraw.blocks:
            if isinstance(block, Text):
                self._sockets.print(self._sink, block.stream, block.text)
            else:
                self._emit_rich(block)
        for card_id, judged in self._judged.items():
            if card_id in self._shown_cards:
                self._sink.display(self._card(judged), {}, card_id, False)
        for card in self._cards_again:
            self._sink.display(dict(card.data), {}, None, False)
        self._live.shown = Live()

    def _emit_rich(self, rich: Rich) -> None:
        if SHOWN_MIME in rich.data:
            self._pictures.place(rich.data)
            return
        if self._widgets is not None and self._widgets.show(rich):
            return
        # The blocks of `RankBlocks` have headings instead of labels.
        is_labelled = self._labels and rich.ranks and not rich.update and self._out != "ranks"
        if is_labelled and not static_page.is_unseen(rich.data):
            self._sink.display(label_bundle(rich.ranks), {}, None, False)
        data = static_page.with_note(without_widget(rich.data))
        self._sink.display(data, rich.metadata, rich.display_id, rich.update)
