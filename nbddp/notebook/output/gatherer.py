"""The merged output of all ranks of a cell: equal lines once, and not more than fits.

Runs in: the notebook's main thread. Pure: no clock, no I/O; ``now`` comes in (monotonic seconds).

    Output -> LineAssembler -> Line --+
    Display, Result --------> Bundle -+--> LineFolder --> Budget --> Screen --> Text, Rich, Redraw
    ClearOutput -----------------------------------------------------^
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from nbddp.notebook.output.budget import Budget
from nbddp.notebook.output.cell_output import OutputSpec
from nbddp.notebook.output.excerpt import LINE_CHARS
from nbddp.notebook.output.items import Bundle, Gap, Line, Notice, rows_of
from nbddp.notebook.output.line_folder import Item, LineFolder
from nbddp.notebook.output.number_ranges import MIN_RANKS
from nbddp.notebook.output.rank_text import RankText
from nbddp.notebook.output.screen import Screen
from nbddp.notebook.output.settled import ItemRecord
from nbddp.notebook.output.shows import Redraw, Rich, Show, Text
from nbddp.notebook.output.terminal_lines import LineAssembler
from nbddp.notebook.render.embedded import is_embeddable
from nbddp.notebook.widgets import display_id_of
from nbddp.printable import harmless
from nbddp.wire.messages import ClearOutput, Display, Output, Result, Stream
from nbddp.wire.rank_set import RankSet, ranks_by

__all__ = ["Gatherer", "Redraw", "Rich", "Show", "Text"]

#: Rows above the cursor become lines after this time without a cursor-up code.
_SETTLE_S = 1.0
#: Items that wait for others are shown unfolded when they take more memory than this.
_PENDING_MEMORY_BYTES = 32 * 1024 * 1024


class _RankState:
    """The state of one rank's output."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.places = 0  #: number of displays that fit in a grid
        self.last_line: str | None = None
        self.text = RankText()
        self.gap: Gap | None = None  # open: the last item of the rank's queue
        self.is_finished = False
        self.clears_with_next = False
        self.settle_at: float | None = None
        self.assembler_by_stream: dict[Stream, LineAssembler] = {}
        self.reset()

    def remember(self, lines: Sequence[str]) -> None:
        self.last_line = lines[-1][-LINE_CHARS:]
        self.text.add(lines)

    def reset(self) -> None:
        self.assembler_by_stream = {"stdout": LineAssembler(), "stderr": LineAssembler()}


class Gatherer:
    """The `CellOutput` of most cells: folds, labels and limits the output of the ranks.

    Promises:
        - The output of a rank keeps its order; only equal lines fold, or in a cell of many ranks,
          if ``OutputSpec.folds_numbers``, lines that differ in numbers only.
        - Items that all running ranks have shown appear at once. No item within the budget waits
          longer than ``output_fold_s``, or ``output_expect_s`` for a silent rank that has let no
          item wait that long: it may be slower.
        - Text beyond the budget is counted and its end kept; a notice says how much was left out
          and names the log, before later output of that rank is shown. After
          ``notebook_total_bytes`` that notice comes when the rank has ended.
        - Memory is bounded for any input.
    """

    def __init__(self, spec: OutputSpec) -> None:
        self._spec = spec
        self._state_by_rank = {rank: _RankState(rank) for rank in spec.ranks}
        settings = spec.settings
        self._folder = LineFolder(spec.ranks, settings.output_fold_s, settings.output_expect_s)
        self._budget = Budget(settings, len(spec.ranks))
        self._screen = Screen(spec)
        self._has_grids = spec.cell_id is not None and spec.world_size > 1
        self._folds_numbers = spec.folds_numbers and len(spec.ranks) >= MIN_RANKS
        self.has_left_out = False  #: a notice has said that text was left out
        self._has_ranges = False  # a line that is shown stands for lines with other numbers
        self._record = ItemRecord(spec.ranks)
        if not spec.can_redraw or len(spec.ranks) < 2:
            self._record.close()

    # Input

    def add(self, event: Output | Display | Result | ClearOutput, now: float) -> list[Show]:
        """See `CellOutput.add`."""
        state = self._state(event.rank)
        match event:
            case Output():
                if event.text or event.dropped_bytes:
                    self._clear_if_asked(state, now)
                    self._add_output(state, event, now)
            case Display():
                self._add_display(state, event, now)
            case Result():
                self._clear_if_asked(state, now)
                display_id = display_id_of(event.data, self._display_scope(state))
                rich = Rich(
                    RankSet((state.rank,)), "result", event.data, event.metadata, display_id
                )
                self._add_bundle(state, rich, now)
            case ClearOutput():
                state.clears_with_next = event.wait
                if not event.wait:
                    self._clear(state, now, redraw_by=now)
            case _:
                assert_never(event)
        return self._collect(now)

    def finish_rank(self, rank: int, now: float) -> list[Show]:
        """See `CellOutput.finish_rank`."""
        self._finish(self._state(rank), now)
        return self._collect(now)

    def tick(self, now: float) -> list[Show]:
        """See `CellOutput.tick`."""
        gaps = sum(state.gap is not None for state in self._state_by_rank.values())
        for state in self._state_by_rank.values():
            if state.gap and self._budget.may_resume(state.gap, gaps, now):
                self._close_gap(state, now)
            if state.settle_at is not None and state.settle_at <= now:
                state.settle_at = None
                for stream, assembler in state.assembler_by_stream.items():
                    self._add_lines(state, stream, assembler.settle(), now)
        return self._collect(now)

    def end(self, now: float) -> list[Show]:
        """See `CellOutput.end`."""
        for state in self._state_by_rank.values():
            self._finish(state, now)
        shows = self._collect(now, is_end=True)
        redraw = self._screen.settle(self._record)
        if redraw is None:
            return shows
        # They may belong to displays of earlier cells. Those of this cell are in the redraw, too.
        return [*(show for show in shows if isinstance(show, Rich) and show.update), redraw]

    def take_over(self, now: float) -> dict[int, list[Text | Rich]] | None:
        """Return the output of each rank so far, which is then no longer shown here.

        None: some of it cannot be shown anywhere else, such as a widget, or was left out.
        """
        if self._has_ranges or any(state.gap for state in self._state_by_rank.values()):
            return None
        shown = self._screen.shown_by_rank()
        if shown is None:
            return None
        for state in self._state_by_rank.values():
            self._commit_open(state, now)
        for ranks, items in self._folder.release(now, everything=True):
            if isinstance(items[0], Line):
                for of_ranks, text in rows_of(ranks, items):
                    self._screen.put_text(of_ranks, items[0].stream, text)
            elif isinstance(items[0], Bundle):
                self._screen.put_bundles(ranks, items)
        return self._screen.shown_by_rank()

    def keep_order(self) -> None:
        """See `CellOutput.keep_order`."""
        self._record.close()

    def next_deadline(self) -> float | None:
        """See `CellOutput.next_deadline`."""
        times = [self._folder.deadline(), self._screen.deadline()]
        for state in self._state_by_rank.values():
            times.append(state.settle_at)
            if state.gap:
                times.append(self._budget.resume_at(state.gap))
        return min((time for time in times if time is not None), default=None)

    # Queries

    def open_lines(self) -> list[tuple[RankSet, str]]:
        """See `CellOutput.open_lines`."""
        waiting = (
            ((item.stream, -1, item.text), rank)
            for rank in sorted(self._state_by_rank)
            for item in self._folder.items(rank)
            if isinstance(item, Line) and item.is_bar  # it stays beside those of other ranks
        )
        unfinished = (
            ((stream, index, harmless(row)), rank)
            for rank, state in sorted(self._state_by_rank.items())
            for stream, assembler in state.assembler_by_stream.items()
            for index, row in enumerate(assembler.open_rows())
        )
        ranks_by_row = ranks_by([*waiting, *unfinished])
        return [(ranks, row) for (_, _, row), ranks in ranks_by_row.items()]

    def last_line(self, rank: int) -> str | None:
        """Return the last line of ``rank``, shown or not, complete or not; None: there is none."""
        state = self._state(rank)
        assemblers = state.assembler_by_stream.values()
        rows = [row for assembler in assemblers for row in assembler.open_rows()]
        return harmless(rows[-1]) if rows else state.last_line

    def text_by_rank(self) -> dict[int, RankText]:
        """See `CellOutput.text_by_rank`."""
        return {rank: state.text for rank, state in sorted(self._state_by_rank.items())}

    # From events to items

    def _display_scope(self, state: _RankState) -> str:
        return f"nbddp-{self._spec.display_scope}-{state.rank}"

    def _state(self, rank: int) -> _RankState:
        state = self._state_by_rank.get(rank)
        if state is None:
            state = self._state_by_rank[rank] = _RankState(rank)
            self._folder.add_rank(rank)
        return state

    def _add_output(self, state: _RankState, event: Output, now: float) -> None:
        stream, text = event.stream, event.text
        state.text.note_printed(stream, text, event.dropped_bytes)
        if event.dropped_bytes:
            self._commit_open(state, now)
            gap = state.gap or self._open_gap(state, now)
            gap.dropped_bytes += event.dropped_bytes
            if not self._budget.is_spent:
                self._close_gap(state, now)
        if not state.gap and "\r" not in text and "\x1b[" not in text:
            room = self._budget.room(now) - self._folder.text_bytes_by_rank[state.rank]
            cost = len(text) + 8 * text.count("\n")
            if cost > max(0, room):  # text that does not fit is not processed
                cut = text.rfind("\n", 0, max(0, len(text) * room // cost)) + 1
                self._feed(state, stream, text[:cut], now)
                text = text[cut:]
                if "\n" in text:
                    self._open_gap(state, now)
        if state.gap:
            lines, chars = state.gap.skip(text)
            if chars:
                state.assembler_by_stream[stream] = LineAssembler()
                state.text.skip(lines, chars)
                text = text[chars:]
        self._feed(state, stream, text, now)

    def _feed(self, state: _RankState, stream: Stream, text: str, now: float) -> None:
        assembler = state.assembler_by_stream[stream]
        self._add_lines(state, stream, assembler.feed(text), now)
        if assembler.is_screen:
            state.settle_at = now + _SETTLE_S

    def _commit_open(self, state: _RankState, now: float) -> None:
        for stream, assembler in state.assembler_by_stream.items():
            self._add_lines(state, stream, assembler.commit(), now)

    def _add_lines(
        self, state: _RankState, stream: Stream, lines: Sequence[str], now: float
    ) -> None:
        if not lines:
            return
        state.remember(lines := [harmless(line) for line in lines])
        if state.gap:
            state.gap.add(stream, lines)
            return
        for text in lines:
            line = Line(stream, text, now)
            if self._folds_numbers:
                line.fold_numbers()
            self._append(state.rank, line)

    def _append(self, rank: int, item: Line | Bundle) -> None:
        self._record.add(rank, item)
        self._folder.append(rank, item)

    def _add_display(self, state: _RankState, event: Display, now: float) -> None:
        given = event.transient.get("display_id")
        scope = self._display_scope(state)
        display_id = display_id_of(event.data, scope) if given is None else f"{scope}-{given}"
        rich = Rich(RankSet((state.rank,)), "display", event.data, event.metadata, display_id)
        if event.update and display_id is not None:
            self._update(state, replace(rich, update=True))
        else:
            self._clear_if_asked(state, now)
            self._add_bundle(state, rich, now)

    def _add_bundle(self, state: _RankState, rich: Rich, now: float) -> None:
        self._commit_open(state, now)
        text = rich.data.get("text/plain")
        if rich.display_id is None and isinstance(text, str) and len(rich.data) == 1:
            self._add_plain(state, text, rich.kind == "result", now)
            return
        state.text.add_word(f"({rich.kind}: {next(reversed(rich.data), 'empty')})")
        place = None
        if self._has_grids and is_embeddable(rich.data, rich.metadata):
            state.places += 1
            place = state.places
        bundle = Bundle(rich, now, place)
        if state.gap and self._budget.is_spent:  # its notice comes once, at the end
            self._folder.insert_before_last(state.rank, bundle)
            return
        self._close_gap(state, now)
        self._append(state.rank, bundle)

    def _add_plain(self, state: _RankState, text: str, is_result: bool, now: float) -> None:
        """Add a bundle that is only text, as lines that stay together."""
        if is_result:
            text = f"Out:\n{text}" if "\n" in text else f"Out: {text}"
        text = harmless(text)
        lines = text.split("\n")
        state.text.note_printed("result", text)
        if state.gap:
            self._add_lines(state, "stdout", lines, now)
        else:
            state.remember(lines)
            self._append(state.rank, Line("stdout", text, now))

    def _update(self, state: _RankState, rich: Rich) -> None:
        """Replace the content of a display, at once, since its place is known."""
        self._record.update(rich)
        is_pending = False
        for item in self._folder.items(state.rank):
            if isinstance(item, Bundle) and item.rich.display_id == rich.display_id:
                item.rich = replace(item.rich, data=rich.data, metadata=rich.metadata)
                is_pending = True
        if not is_pending:
            self._screen.send_update(rich)

    def _finish(self, state: _RankState, now: float) -> None:
        self._commit_open(state, now)
        state.settle_at = None
        state.is_finished = True
        self._close_gap(state, now)
        self._folder.stop_awaiting(state.rank)

    # Gaps

    def _open_gap(self, state: _RankState, now: float) -> Gap:
        self._record.close()
        state.gap = Gap(now, self._budget.tail_bytes)
        self._folder.append(state.rank, state.gap)
        return state.gap

    def _close_gap(self, state: _RankState, now: float) -> None:
        if state.gap:
            state.gap.is_held = False
            state.gap.arrived = now
            state.gap = None
            self._folder.wake(state.rank)

    def _leave_out(self, rank: int, line: Line, now: float) -> None:
        """Open a gap for ``line``, for which there is no room, and for the text after it."""
        self._record.close()
        state = self._state(rank)
        gap = Gap(now, self._budget.tail_bytes)
        rest = deque([line, *self._folder.drop(rank)])
        while rest and not isinstance(rest[0], Bundle):
            item = rest.popleft()
            if isinstance(item, Gap):
                gap.merge(item)
            elif isinstance(item, Line):
                gap.add(item.stream, item.text.split("\n"))
        gap.is_held = not rest and not state.is_finished
        if not rest:
            state.gap = gap if gap.is_held else None
        for queued in (gap, *rest):
            self._folder.append(rank, queued)

    def _spread(self, state: _RankState, gap: Gap, now: float) -> None:
        """Show the notice and the last lines of a closed gap, also beyond the budget."""
        self.has_left_out |= gap.left_out_bytes > 0
        items: list[Item] = [Notice(gap, now)] if gap.left_out_bytes else []
        items += [Line(stream, text, now, is_free=True) for stream, text in gap.tail]
        self._folder.prepend(state.rank, items)

    # Clearing

    def _clear_if_asked(self, state: _RankState, now: float) -> None:
        if state.clears_with_next:
            self._clear(state, now, redraw_by=now + self._spec.settings.output_fold_s)

    def _clear(self, state: _RankState, now: float, *, redraw_by: float) -> None:
        state.clears_with_next = False
        state.text = RankText()
        self._record.clear(state.rank)
        state.places = 0
        self._folder.drop(state.rank)
        state.gap = None
        state.reset()
        self._budget.give_back(self._screen.clear(state.rank, redraw_by))

    # From items to shows

    def _collect(self, now: float, *, is_end: bool = False) -> list[Show]:
        everything = is_end or self._folder.memory_bytes > _PENDING_MEMORY_BYTES
        self._budget.share_out(self._folder.text_bytes_by_rank, now)
        for ranks, items in self._folder.release(now, everything=everything):
            item = items[0]
            if isinstance(item, Line):
                self._show_lines(ranks, items, now)
            elif isinstance(item, Bundle):
                self._screen.put_bundles(ranks, items)
            elif isinstance(item, Notice):
                notice = item.text(self._spec.log_paths(ranks))
                self._spec.notices.add(notice)
                self._budget.spend(len(notice))
                self._screen.put_text(ranks, "stdout", notice)
            elif isinstance(item, Gap):
                self._spread(self._state(ranks[0]), item, now)
        return self._screen.take(now, is_settled=not self._folder.is_waiting(), is_end=is_end)

    def _show_lines(self, ranks: tuple[int, ...], items: Sequence[Item], now: float) -> None:
        """Show lines of several ranks with one key, as one line."""
        lines = [item for item in items if isinstance(item, Line)]
        first, rows = lines[0], rows_of(ranks, lines)
        self._has_ranges |= [text for _, text in rows] != [line.text for line in lines[: len(rows)]]
        size = sum(
            (len(self._screen.label(of_ranks)) + 2) * (1 + text.count("\n")) + len(text)
            for of_ranks, text in rows
        )
        if first.is_free:
            self._budget.spend(size)
        elif not self._budget.grant(size, now, ranks):
            for rank, line in zip(ranks, lines, strict=True):
                self._leave_out(rank, line, now)
            return
        for of_ranks, text in rows:
            self._screen.put_text(of_ranks, first.stream, text)
