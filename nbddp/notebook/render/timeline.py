"""The operations of a cell along time, a row for each rank: ``%ddp timeline``.

Runs in: the notebook's process. Pure.

    TraceRow --layout--> Chart --+--> text/plain   letters, waits as slashes
                                 +--> text/html    a picture, a tip for each bar, sentences

A bar begins when the rank issued the operation. It is hatched until the last rank has come, when
the data can begin to move, and filled from then on. If the cell still runs, incomplete operations
extend to now.
"""

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from nbddp.controller.state import NodeClock
from nbddp.controller.trace import RankPart, TraceRow
from nbddp.line_breaks import wrapped
from nbddp.notebook.render.canvas import (
    INK,
    SMALL,
    TINY,
    WHITE,
    Colour,
    Picture,
    text_height,
    text_width,
)
from nbddp.notebook.render.colours import RANK_COLOURS, colour_of, tint
from nbddp.notebook.render.html import WIDTH, clean, duration, escape, shorten, size
from nbddp.notebook.render.timeline_text import clocks_text, open_operations, straggler
from nbddp.wire.flight_recorder import Ending
from nbddp.wire.rank_set import RankSet, ranks_by_value

#: Width of the picture as shown: areas with tips must not be scaled, and paper is not wider.
_WIDTH_PX = 560
_ROW_PX, _SMALL_ROW_PX = 20, 11  # with the gap below
_AXIS_PX = 14
_STRIPE_PX = 3
#: Ranks in the picture, and lines of the text.
_MAX_RANKS = 64
_MAX_TEXT_ROWS = 16
#: Rows are low where there are more ranks than this.
_MANY_RANKS = 16
#: Overlapping operations of one rank are drawn below each other, in up to this many lanes.
_MAX_LANES = 3
#: Bars that show a tip on hover; the longest ones have it.
_MAX_AREAS = 96
_MIN_AREA_PX = 3
#: Kinds of operations that have a letter and a colour; the others share one.
_MAX_OPS = 7
_OTHER = "…"
#: An operation with members of which nothing is known: data moves, or they are waited for.
_PERHAPS = "?"
_WAIT_CHAR, _IDLE_CHAR, _FAILED_CHAR = "/", "·", "!"
_FAILED: tuple[Ending, ...] = ("interrupted", "freed", "stopped", "failed")


@dataclass(frozen=True)
class Bar:
    """One operation on one rank; times count from the beginning of the chart."""

    row: TraceRow
    part: RankPart
    begin_ns: int
    moves_ns: int  #: when the last rank had come
    end_ns: int
    lane: int = 0  #: the number of bars above it
    lanes: int = 1  #: lanes of the bars that overlap, this one included

    @property
    def has_failed(self) -> bool:
        """Whether the operation was interrupted, was freed or failed."""
        return self.part.ending in _FAILED

    @property
    def goes_on(self) -> bool:
        """Whether the operation is incomplete and its cell still runs."""
        return self.part.open_at_ns is not None

    @property
    def tip(self) -> str:
        """``all_reduce #7 on rank 0: 350 kB, waited 31 ms for others, then 0.5 ms``."""
        details = [size(self.part.nbytes)] if self.part.nbytes else []
        ending, lasts = self.part.ending, duration(self.end_ns - self.begin_ns)
        if self.row.missing:
            has = self.row.missing.verb("has", "have")
            never = f"{has} not come yet" if self.row.open_at_ns else "never came"
            details.append(f"{self.row.missing.describe()} {never}")
        elif not self.has_failed and self.moves_ns > self.begin_ns:
            details.append(f"waited {duration(self.moves_ns - self.begin_ns)} for others")
        if self.goes_on:
            is_waiting = self.moves_ns == self.end_ns
            details.append(f"{'waits' if is_waiting else 'not complete'}, {lasts} so far")
        elif self.has_failed:
            details.append(f"{ending} after {lasts}")
        elif ending == "open":
            details.append("not complete")
        elif self.end_ns > self.moves_ns:
            then = "then " if self.moves_ns > self.begin_ns else ""
            then = "then waited or moved data, " if self.row.unknown else then
            details.append(then + duration(self.end_ns - self.moves_ns))
        if self.row.unknown:
            details.append(f"nothing is known of {self.row.unknown.describe()}")
        if self.part.async_op:
            details.append("async")
        place = f"; {self.part.site}" if self.part.site.line else ""
        label = self.row.label.replace(self.row.op, self.part.op)  # ranks may call another one
        return f"{label} on rank {self.part.rank}: {', '.join(details)}{place}"


@dataclass(frozen=True)
class Chart:
    """The bars of all ranks, and the axis."""

    ranks: RankSet
    bars: Mapping[int, Sequence[Bar]]  #: by rank, in the order of time
    span_ns: int
    letters: Mapping[str, str]  #: by the name of the operation
    goes_on: bool  #: an operation is open: the chart ends now

    @property
    def end(self) -> str:
        """The label at the end of the axis."""
        return f"{duration(self.span_ns)}{', now' if self.goes_on else ''}"

    def letter(self, bar: Bar) -> str:
        """The letter of the operation's kind; another one where its rank perhaps waits."""
        if bar.row.unknown:
            return _PERHAPS
        return self.letters.get(bar.row.op, _OTHER)

    def colour(self, bar: Bar) -> Colour:
        """The colour of the operation's kind."""
        letter = self.letters.get(bar.row.op)
        return INK if letter is None else _rgb(_op_colour(letter))


def layout(rows: Sequence[TraceRow], ranks: RankSet | None = None) -> Chart:
    """Lay rows out along time.

    Args:
        rows: at least one.
        ranks: the ranks whose bars the chart has; None: all ranks of ``rows``.
    """
    charted = ranks or RankSet.of(rank for row in rows for rank in (*row.parts, *row.missing))
    start_ns = min(row.first_ns for row in rows)
    parts = [part for row in rows for part in row.parts.values()]
    ends = [part.completed_ns or part.open_at_ns for part in parts]
    last_ns = max(end or part.created_ns for end, part in zip(ends, parts, strict=True))
    span_ns = max(1, last_ns - start_ns)
    span_ns += span_ns // 20 if None in ends else 0  # so that operations left open can be seen
    bars: dict[int, list[Bar]] = {rank: [] for rank in charted}
    for row in sorted(rows, key=lambda row: row.first_ns):
        for part in sorted(row.parts.values(), key=lambda part: part.created_ns):
            if part.rank in bars:
                begin_ns = part.created_ns - start_ns
                known_ns = part.completed_ns or part.open_at_ns
                end_ns = known_ns - start_ns if known_ns else span_ns
                has_moved = not row.missing and part.state != "failed"
                moves_ns = min(row.last_ns - start_ns, end_ns) if has_moved else end_ns
                bars[part.rank].append(
                    Bar(
                        row=row,
                        part=part,
                        begin_ns=begin_ns,
                        moves_ns=max(begin_ns, moves_ns),
                        end_ns=end_ns,
                    )
                )
    counts = Counter(row.op for row in rows)
    ops = [op for op, _ in counts.most_common(_MAX_OPS)]
    letters = {op: chr(ord("A") + index) for index, op in enumerate(ops)}
    in_lanes = {rank: _in_lanes(rank_bars) for rank, rank_bars in bars.items()}
    goes_on = any(part.open_at_ns for part in parts)
    return Chart(ranks=charted, bars=in_lanes, span_ns=span_ns, letters=letters, goes_on=goes_on)


def _in_lanes(bars: Sequence[Bar]) -> list[Bar]:
    """Bars that overlap, directly or through others, share the height of the row."""
    placed: list[Bar] = []
    together: list[tuple[Bar, int]] = []
    ends: list[int] = []  # by lane
    for bar in sorted(bars, key=lambda bar: (bar.begin_ns, bar.end_ns)):
        if bar.begin_ns >= max(ends, default=0):
            placed += [replace(member, lane=lane, lanes=len(ends)) for member, lane in together]
            together, ends = [], []
        together.append((bar, _lane(ends, bar.begin_ns, bar.end_ns)))
    return placed + [replace(member, lane=lane, lanes=len(ends)) for member, lane in together]


def _lane(ends: list[int], begin_ns: int, end_ns: int) -> int:
    """Take the first free lane; the last one may hold bars on top of each other."""
    for lane, end in enumerate(ends):
        if end <= begin_ns:
            ends[lane] = end_ns
            return lane
    if len(ends) < _MAX_LANES:
        ends.append(end_ns)
    else:
        ends[-1] = max(ends[-1], end_ns)
    return len(ends) - 1


# --- chart and sentences -------------------------------------------------------------------------


def timeline(
    rows: Sequence[TraceRow],
    headline: str,
    ranks: RankSet | None = None,
    clocks: Sequence[NodeClock] = (),
    lack: str = "",
) -> dict[str, str]:
    """The chart of some rows as a MIME bundle.

    Args:
        rows: at least one.
        headline: from `headline_of`.
        ranks: the ranks that have a row; None: all ranks of ``rows``.
        clocks: of nodes on other machines; the times of ``rows`` are those of the notebook's clock.
        lack: from `missing_records`.
    """
    chart = layout(rows, ranks)
    late = straggler(rows)
    late_rank, sentence = (-1, "") if late is None else (late.rank, late.sentence())
    more = len(chart.ranks) - _MAX_RANKS
    note = f"{more} more ranks are not drawn; -r RANKS chooses" if more > 0 else ""
    below = [
        *open_operations(rows),
        *(
            text
            for text in (*wrapped(lack, WIDTH, indent=2), sentence, note, clocks_text(clocks))
            if text
        ),
    ]
    html_legend = _legend(chart, is_html=True)
    sentences = "".join(f"<div>{escape(text)}</div>" for text in below)
    return {
        "text/plain": clean(
            "\n".join(
                [
                    headline,
                    *_text_rows(chart, late_rank),
                    _legend(chart, is_html=False),
                    *below,
                ]
            )
        ),
        "text/html": (
            f"<div><div><b>{escape(headline)}</b></div>{_image(chart, sentence, late_rank)}"
            f'<div style="font-size:90%">{html_legend}</div>{sentences}</div>'
        ),
    }


# --- text ----------------------------------------------------------------------------------------


def _text_rows(chart: Chart, late_rank: int) -> list[str]:
    """Lines with equal rows once; the row of ``late_rank`` is there even if rows are left out."""
    head = max(len(f"rank {rank}") for rank in chart.ranks) + 4
    width = WIDTH
    while head > WIDTH - width:  # the labels depend on which rows are equal at this width
        width = WIDTH - head
        rows = {rank: _text_row(chart, chart.bars[rank], width) for rank in chart.ranks}
        by_line = ranks_by_value(rows)
        labels = {line: ranks.describe(limit=16) for line, ranks in by_line.items()}
        head = max(map(len, labels.values())) + 2
    labelled_lines = list(labels.items())
    if late_rank in chart.ranks:
        at = next(index for index, ranks in enumerate(by_line.values()) if late_rank in ranks)
        if at >= _MAX_TEXT_ROWS:
            labelled_lines[_MAX_TEXT_ROWS - 1] = labelled_lines[at]
    lines = [f"{label:<{head}}{line.rstrip()}" for line, label in labelled_lines[:_MAX_TEXT_ROWS]]
    rest = len(by_line) - _MAX_TEXT_ROWS
    if rest > 0:
        lines.append(f"and {rest} more rows; -r RANKS chooses")
    return [*lines, f"{'':<{head}}0{chart.end:>{width - 1}}"]


def _text_row(chart: Chart, bars: Sequence[Bar], width: int) -> str:
    """A letter where data moves, a slash where the rank waits for others."""
    row = [_IDLE_CHAR] * width
    for is_move in (False, True):  # moves are short, and drawn over waits
        for bar in bars:
            begin, end = (bar.moves_ns, bar.end_ns) if is_move else (bar.begin_ns, bar.moves_ns)
            if end <= begin and not (is_move and bar.begin_ns == bar.end_ns):
                continue
            first = min(width - 1, begin * width // chart.span_ns)
            last = min(width - 1, max(begin, end - 1) * width // chart.span_ns)
            for column in range(first, last + 1):
                row[column] = chart.letter(bar) if is_move else _WAIT_CHAR
            if bar.has_failed:
                row[last] = _FAILED_CHAR
    return "".join(row)


def _legend(chart: Chart, *, is_html: bool) -> str:
    parts = []
    for op, letter in chart.letters.items():
        tinted = f'<b style="{tint(_op_colour(letter))}">&nbsp;{letter}&nbsp;</b> {escape(op)}'
        parts.append(tinted if is_html else f"{letter} {op}")
    bars = [bar for bars in chart.bars.values() for bar in bars]
    if any(chart.letter(bar) == _OTHER for bar in bars):
        parts.append(f"{_OTHER} other")
    hatched = "hatched" if is_html else _WAIT_CHAR
    parts.append(f"{hatched}: waits for the others")
    if unknown := RankSet.of(rank for bar in bars for rank in bar.row.unknown):
        parts.append(f"{_PERHAPS}: waits for {unknown.describe()}, or data moves")
    endings = {bar.part.ending for bar in bars}
    failed = " or ".join(ending for ending in _FAILED if ending in endings)
    if failed:
        parts.append(f"{'framed, ' if is_html else ''}{_FAILED_CHAR}: {failed}")
    if is_html and any(_is_left_open(bar) for bar in bars):
        parts.append("framed: not complete")
    return ("&ensp; " if is_html else "   ").join(parts)


# --- picture -------------------------------------------------------------------------------------


def _image(chart: Chart, sentence: str, late_rank: int) -> str:
    ranks = chart.ranks.ranks[:_MAX_RANKS]
    row_px, text_size = (_ROW_PX, SMALL) if len(ranks) <= _MANY_RANKS else (_SMALL_ROW_PX, TINY)
    labels = [f"rank {rank}" for rank in ranks]
    left = ceil(max(text_width(label, text_size) for label in labels)) + 10
    scale = (_WIDTH_PX - left - 2) / chart.span_ns
    height = row_px * len(ranks) + _AXIS_PX
    picture = Picture(_WIDTH_PX, height)
    areas: list[tuple[float, str]] = []
    for index, rank in enumerate(ranks):
        top = index * row_px
        high = row_px - 3
        label_top = top + (high - text_height(text_size)) / 2
        ink = INK
        if rank == late_rank:  # letters need more contrast than a transparent background has
            ink = WHITE
            label_wide = text_width(labels[index], text_size) + 4
            picture.fill(0, top, label_wide, high, _rgb(colour_of(rank)))
        picture.text(2, label_top, labels[index], ink, size=text_size)
        picture.fill(left, top + high / 2, _WIDTH_PX - left, 0.5, (*INK, 70))
        for bar in chart.bars[rank]:
            lane_px = high / bar.lanes
            x = left + bar.begin_ns * scale
            y = top + bar.lane * lane_px
            wide = max(1.0, (bar.end_ns - bar.begin_ns) * scale)
            waits = (bar.moves_ns - bar.begin_ns) * scale
            _draw(picture, chart, bar, (x, y, wide, max(2.0, lane_px - 1)), waits)
            if wide >= _MIN_AREA_PX:
                box = ",".join(str(round(v)) for v in (x, y, x + wide, y + lane_px))
                tip = escape(bar.tip)
                areas.append((wide, f'<area shape="rect" coords="{box}" title="{tip}">'))
    axis_y = row_px * len(ranks) + 3
    end = chart.end
    picture.text(left, axis_y, "0", size=SMALL)
    picture.text(_WIDTH_PX - text_width(end, SMALL) - 1, axis_y, end, size=SMALL)
    data = base64.b64encode(picture.png()).decode()
    name = f"nbddp-{hashlib.sha256(data.encode()).hexdigest()[:10]}"
    longest = sorted(areas, key=lambda area: -area[0])[:_MAX_AREAS]
    alt = escape(f"a row of operations for each rank. {sentence}".strip())
    return (
        f'<div style="overflow-x:auto"><img src="data:image/png;base64,{data}" '
        f'width="{_WIDTH_PX}" height="{height}" '
        f'style="max-width:none" alt="{alt}" usemap="#{name}">'
        f'<map name="{name}">{"".join(area for _, area in longest)}</map></div>'
    )


def _draw(
    picture: Picture, chart: Chart, bar: Bar, box: tuple[float, float, float, float], waits: float
) -> None:
    x, y, wide, high = box
    colour = chart.colour(bar)
    if waits >= 1:
        picture.fill(x, y, waits, high, (*colour[:3], 36))
        if len(chart.ranks) <= _MANY_RANKS:
            picture.hatch(x, y, waits, high, (*colour[:3], 190), gap=4.0)
        else:  # upright lines make the file a tenth of the size
            for stripe in range(ceil(x / _STRIPE_PX), int((x + waits) / _STRIPE_PX) + 1):
                picture.fill(stripe * _STRIPE_PX, y, 0.5, high, colour)
    moves = wide - waits
    if moves > 0:
        picture.fill(x + waits, y, moves, high, colour)
        letter = chart.letter(bar)
        if letter != _OTHER:
            _letter(picture, letter, (x + waits, y, moves, high))
    if bar.has_failed or _is_left_open(bar):
        picture.frame(x, y, wide, high, _rgb(RANK_COLOURS[6]), thickness=1.5)
    if bar.has_failed and wide >= 9 and high >= 9:
        picture.fill(x + wide - 9, y, 9, high, _rgb(RANK_COLOURS[6]))
        _letter(picture, _FAILED_CHAR, (x + wide - 9, y, 9, high))


def _letter(picture: Picture, letter: str, box: tuple[float, float, float, float]) -> None:
    """Write a letter in the middle of a bar, if there is room."""
    x, y, wide, high = box
    if wide >= 9 and high >= 9:
        size = SMALL if wide >= 12 else TINY
        left, top = (wide - text_width(letter, size)) / 2, (high - text_height(size)) / 2
        picture.text(x + left, y + top, letter, WHITE, size=size)


def _is_left_open(bar: Bar) -> bool:
    return bar.part.ending == "open" and not bar.goes_on


def _op_colour(letter: str) -> str:
    return RANK_COLOURS[(ord(letter) - ord("A")) % len(RANK_COLOURS)]


def _rgb(colour: str) -> Colour:
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return red, green, blue


def headline_of(rows: Sequence[TraceRow], cell: int | None, counts: str, rest: str = "") -> str:
    """``timeline of cell [4]: 12 all_reduce on group 0; 4.2 MB in 1.3 s``.

    Args:
        rows: at least one.
        cell: its number; None: not known.
        counts: from `trace_table.counts`.
        rest: text behind all of it.
    """
    where = f" of cell [{cell}]" if cell else ""
    nbytes = sum(row.nbytes for row in rows)
    parts = [part for row in rows for part in row.parts.values()]
    ends = [part.completed_ns or part.open_at_ns or part.created_ns for part in parts]
    span = duration(max(ends) - min(row.first_ns for row in rows))
    so_far = " so far" if any(row.open_at_ns for row in rows) else ""
    amount = f"; {size(nbytes)}" if nbytes else ""
    return shorten(f"timeline{where}: {counts}{amount} in {span}{so_far}{rest}", 2 * WIDTH)
