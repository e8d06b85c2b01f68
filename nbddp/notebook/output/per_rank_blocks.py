"""The output of a cell rank by rank; ranks with equal output share a block.

Runs in: the notebook's main thread. Pure: no clock, no I/O.

    ``%%ddp --out ranks``: RankBlocks    all of it, when the cell ends
    ``%%ddp``:             details       below a long cell whose ranks differ, one click away
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nbddp.notebook.output.cell_output import OutputSpec
from nbddp.notebook.output.excerpt import Excerpt, Limit
from nbddp.notebook.output.fair_excerpt import amounts_by_rank
from nbddp.notebook.output.folded_sink import folded, printed_html
from nbddp.notebook.output.gatherer import Gatherer
from nbddp.notebook.output.items import freeze
from nbddp.notebook.output.rank_text import RankText, keys_of
from nbddp.notebook.output.shows import Redraw, Rich, Show, Text
from nbddp.notebook.render.colours import tint_of
from nbddp.notebook.render.html import FAINT_LINE, escape, one_line, shorten, without_codes
from nbddp.notebook.render.html import details as folded_details
from nbddp.wire.messages import ClearOutput, Display, Output, Result
from nbddp.wire.rank_set import RankSet, ranks_by

#: More blocks than this are folded, each with its last line as summary.
_MAX_OPEN = 8
_HEAD_LINES, _TAIL_LINES = 20, 10
_MAX_LAST = 80
#: A cell that printed at least this many lines, or different ones on more than `_MAX_OPEN` ranks,
#: whose lines and bars may be folded, offers its output rank by rank, up to this many characters.
_MIN_LINES = 25
_MAX_CHARS = 12_000


def details(text_by_rank: Mapping[int, RankText]) -> dict[str, str] | None:
    """Return the folded output rank by rank; None if all ranks are equal, or printed little."""
    by_key = ranks_by((key, rank) for rank, key in keys_of(text_by_rank).items())
    groups = [(ranks, text_by_rank[ranks.ranks[0]]) for ranks in by_key.values()]
    totals = [text.excerpt.lines for _, text in groups if text.excerpt.lines]
    if len(totals) < 2 or (sum(totals) < _MIN_LINES and len(totals) <= _MAX_OPEN):
        return None
    room = _MAX_CHARS // len(groups)
    blocks = [
        _block_html(ranks, _fitting(text.excerpt, room), len(groups) <= _MAX_OPEN)
        for ranks, text in groups
        if text.excerpt.lines
    ]
    lost = RankSet.of(rank for rank, text in text_by_rank.items() if text.is_lost)
    compared = [str(ranks) for ranks, text in groups if not text.is_lost]
    names = (
        "; ".join(compared) if len(compared) <= _MAX_OPEN else f"{len(compared)} kinds of output"
    )
    if lost:
        them = lost.verb("it", "them")
        names += (
            f"{'; ' if compared else ''}{lost} not compared, since output of {them} was left out"
        )
    return {
        "text/plain": "",
        "text/html": folded_details(
            f"rank by rank: {names}{_totals(text_by_rank)}", "".join(blocks)
        ),
    }


def _totals(text_by_rank: Mapping[int, RankText]) -> str:
    """Return the number of lines of each rank, in words."""
    lines_by_rank = {rank: text.excerpt.lines for rank, text in text_by_rank.items()}
    if any(text.is_lost for text in text_by_rank.values()):
        return ""
    if len(set(lines_by_rank.values())) == 1:
        return f" ({max(lines_by_rank.values()):,} lines of each)"
    return f" (lines: {amounts_by_rank(lines_by_rank)})"


def _fitting(text: Excerpt, room: int) -> list[str]:
    """Return the first and the last lines, in about ``room`` characters."""
    lines = [*text.head, *text.tail]
    if not text.left_out_lines and sum(map(len, lines)) <= room:
        return lines
    last = text.tail or text.head[-_TAIL_LINES:]
    head = Limit(len(lines) - len(last), room - sum(map(len, last)))
    shorter = Excerpt(head, tail=Limit(len(last)))
    shorter.extend(text)
    left_out = shorter.left_out_lines
    note = [f"... {left_out:,} lines left out here"] if left_out else []
    return [*shorter.head, *note, *shorter.tail]


@dataclass
class RankBlock:
    """The shows of one rank, or of several ranks with equal output."""

    ranks: RankSet
    shows: list[Text | Rich] = field(default_factory=list)

    def add(self, shows: Sequence[Show]) -> None:
        """Add the next shows of a rank."""
        for show in shows:
            last = self.shows[-1] if self.shows else None
            match show:
                case Redraw():
                    self.shows = list(show.blocks)
                case Rich() if show.update:
                    self.shows = [
                        replace(shown, data=show.data, metadata=show.metadata)
                        if isinstance(shown, Rich) and shown.display_id == show.display_id
                        else shown
                        for shown in self.shows
                    ]
                case Text() if isinstance(last, Text) and last.stream == show.stream:
                    self.shows[-1] = Text(show.stream, last.text + show.text)
                case _:
                    self.shows.append(show)

    def has(self, display_id: str | None) -> bool:
        """Return whether the display with this id is shown."""
        return any(isinstance(show, Rich) and show.display_id == display_id for show in self.shows)

    def key(self, printed: object = None) -> object:
        """Return a key that is equal for ranks with equal output.

        Args:
            printed: stands for the text if some of it was left out: the places of cuts are random.
        """
        return printed, *(
            (show.stream, show.text)
            if isinstance(show, Text)
            else (show.kind, freeze(show.data), freeze(show.metadata))
            for show in self.shows
            if printed is None or not isinstance(show, Text)
        )


def spec_of_rank(spec: OutputSpec, rank: int) -> OutputSpec:
    """Return the facts for a gatherer of one rank, with its share of the text of the cell."""
    share = max(1024, spec.settings.notebook_total_bytes // max(1, len(spec.ranks)))
    return replace(
        spec,
        ranks=RankSet((rank,)),
        world_size=1,
        can_redraw=False,
        cell_id=None,
        settings=replace(
            spec.settings,
            notebook_burst_bytes=share,
            notebook_total_bytes=share,
            output_fold_s=0.0,
        ),
    )


class RankBlocks:
    """The `CellOutput` that shows nothing before `end`.

    Each rank has its own gatherer, which handles carriage returns, clearing and limits. Each rank
    gets an equal share of the text that a cell may show; no text is left out because of its rate.
    """

    def __init__(self, spec: OutputSpec) -> None:
        self._gatherer_by_rank = {rank: Gatherer(spec_of_rank(spec, rank)) for rank in spec.ranks}
        self._block_by_rank = {rank: RankBlock(RankSet((rank,))) for rank in spec.ranks}

    def add(self, event: Output | Display | Result | ClearOutput, now: float) -> list[Show]:
        """See `CellOutput.add`."""
        gatherer = self._gatherer_by_rank.get(event.rank)
        if gatherer is not None:
            self._block_by_rank[event.rank].add(gatherer.add(event, now))
        return []

    def finish_rank(self, rank: int, now: float) -> list[Show]:
        """See `CellOutput.finish_rank`."""
        gatherer = self._gatherer_by_rank.get(rank)
        if gatherer is not None:
            self._block_by_rank[rank].add(gatherer.finish_rank(rank, now))
        return []

    def tick(self, now: float) -> list[Show]:
        """See `CellOutput.tick`."""
        for rank, gatherer in self._gatherer_by_rank.items():
            self._block_by_rank[rank].add(gatherer.tick(now))
        return []

    def keep_order(self) -> None:
        """See `CellOutput.keep_order`: the blocks are shown when the cell ends."""

    def next_deadline(self) -> float | None:
        """See `CellOutput.next_deadline`."""
        times = [gatherer.next_deadline() for gatherer in self._gatherer_by_rank.values()]
        return min((time for time in times if time is not None), default=None)

    def open_lines(self) -> list[tuple[RankSet, str]]:
        """Return the last line of each rank: nothing else is shown before `end`."""
        ranks_by_line = ranks_by(
            (line, rank)
            for rank, gatherer in self._gatherer_by_rank.items()
            if (line := gatherer.last_line(rank)) is not None
        )
        return [(ranks, line) for line, ranks in ranks_by_line.items()]

    def text_by_rank(self) -> dict[int, RankText]:
        """Return nothing: the blocks show the text."""
        return {}

    def end(self, now: float) -> list[Show]:
        """Return all blocks, in the order of the ranks."""
        for rank, gatherer in self._gatherer_by_rank.items():
            self._block_by_rank[rank].add(gatherer.end(now))
        blocks = self._folded_blocks()
        full = [block for block in blocks if block.shows]
        silent = [block for block in blocks if not block.shows]
        shows: list[Show] = []
        for block in full:
            for show in _shows(block, is_open=len(full) <= _MAX_OPEN):
                _join(shows, show)
        if silent and full:
            _join(shows, _rich(_head(silent[0].ranks, "nothing")))
        return shows

    def _folded_blocks(self) -> list[RankBlock]:
        """Return one block for all ranks with equal output."""
        gatherers = self._gatherer_by_rank.values()
        printed_by_rank: dict[int, object] = {}
        if any(gatherer.has_left_out for gatherer in gatherers):
            texts: dict[int, RankText] = {}
            for gatherer in gatherers:
                texts.update(gatherer.text_by_rank())
            printed_by_rank = keys_of(texts, is_cut=True)
        block_by_key: dict[object, RankBlock] = {}
        for rank, block in self._block_by_rank.items():
            same = block_by_key.setdefault(block.key(printed_by_rank.get(rank)), block)
            same.ranks = RankSet.of((*same.ranks, rank))
        return sorted(block_by_key.values(), key=lambda block: block.ranks.ranks)


def _shows(block: RankBlock, *, is_open: bool) -> list[Show]:
    """Return a heading, and the shows of the ranks, in order."""
    if all(isinstance(show, Text) for show in block.shows):
        lines = [line for show in block.shows if isinstance(show, Text) for line in _lines(show)]
        plain = f"{_plain_head(block.ranks)}\n{_plain(lines)}"
        html = _block_html(block.ranks, lines, is_open)
        return [_rich({"text/plain": plain, "text/html": html})]
    shows: list[Show] = [_rich(_head(block.ranks))]
    for show in block.shows:
        if isinstance(show, Text):
            html = f"<div>{text_html(_lines(show))}</div>"
            shows.append(_rich({"text/plain": _plain(_lines(show)), "text/html": html}))
        else:
            shows.append(replace(show, ranks=block.ranks))
    return shows


def _join(shows: list[Show], show: Show) -> None:
    """Add a show; consecutive blocks of text become one display."""
    last = shows[-1] if shows else None
    if isinstance(last, Rich) and isinstance(show, Rich) and not (last.ranks or show.ranks):
        data = {
            "text/plain": f"{last.data['text/plain']}\n{show.data['text/plain']}",
            "text/html": f"{last.data['text/html']}{show.data['text/html']}",
        }
        shows[-1] = replace(last, data=data)
    else:
        shows.append(show)


def _block_html(ranks: RankSet, lines: Sequence[str], is_open: bool) -> str:
    if is_open:
        return f"{_head(ranks)['text/html']}{text_html(lines)}"
    last = shorten(one_line(without_codes(lines[-1])), _MAX_LAST) if lines else ""
    return (
        f'<details><summary style="cursor:pointer">{_name(ranks)} &ensp;<code>{escape(last)}</code>'
        f"</summary>{text_html(lines)}</details>"
    )


def _rich(bundle: dict[str, str]) -> Rich:
    """Return a bundle without ranks, which gets no label."""
    return Rich(RankSet(), "display", dict(bundle), {})


def _head(ranks: RankSet, note: str = "") -> dict[str, str]:
    after = f' &ensp;<span style="opacity:0.7">{note}</span>' if note else ""
    return {
        "text/plain": f"{_plain_head(ranks)}{f' {note}' if note else ''}",
        "text/html": (
            f'<div style="border-top:{FAINT_LINE};margin-top:4px">{_name(ranks)}{after}</div>'
        ),
    }


def _plain_head(ranks: RankSet) -> str:
    return f"--- {ranks.describe()}"


def _name(ranks: RankSet) -> str:
    tint = tint_of(ranks)
    style = f' style="{tint}"' if tint else ""
    return f"<b{style}>{escape(ranks.describe())}</b>"


def _lines(text: Text) -> list[str]:
    return text.text.removesuffix("\n").split("\n")


def _hidden(lines: Sequence[str]) -> int:
    """Return the number of lines to hide; 0 if it would be only a few."""
    hidden = len(lines) - _HEAD_LINES - _TAIL_LINES
    return hidden if hidden >= _TAIL_LINES else 0


def _plain(lines: Sequence[str]) -> str:
    hidden = _hidden(lines)
    if hidden:
        lines = [*lines[:_HEAD_LINES], f"... {hidden:,} more lines", *lines[-_TAIL_LINES:]]
    return "\n".join(lines)


def text_html(lines: Sequence[str]) -> str:
    """Return the lines of one rank; the middle of a long text is folded."""
    if not _hidden(lines):
        return printed_html(lines)
    return printed_html(lines[:_HEAD_LINES]) + folded(lines[_HEAD_LINES:], _TAIL_LINES)["text/html"]
