"""The output of a cell rank by rank, ranks with equal output together.

Runs in: the notebook's main thread. Pure: no clock, no I/O.

    ``%%ddp --out ranks``: RankBlocks    in place of `Gatherer`: all of it, when the cell ends
    ``%%ddp``:             details       below a long cell whose ranks differ, one click away
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nbddp.notebook.output.fair_excerpt import amounts_by_rank
from nbddp.notebook.output.folded_sink import folded, pre
from nbddp.notebook.output.gatherer import Gatherer, Redraw, Rich, Show, Text
from nbddp.notebook.output.items import RankText, freeze, keys_of
from nbddp.notebook.render.colours import colour_of
from nbddp.notebook.render.html import (
    FAINT_LINE,
    escape,
    name_ranks,
    one_line,
    shorten,
    without_codes,
)
from nbddp.notebook.render.html import details as folded_details
from nbddp.settings import Settings
from nbddp.wire.messages import ClearOutput, Display, Output, Result
from nbddp.wire.rank_set import RankSet

#: More blocks than this are folded, each behind its last line.
_MAX_OPEN = 8
_HEAD_LINES, _TAIL_LINES = 20, 10
_MAX_LAST = 80
#: Below a cell that printed at least so many lines its output is there rank by rank, up to so
#: many characters of each in all.
_MIN_LINES = 25
_MAX_CHARS = 12_000


def details(text_by_rank: Mapping[int, RankText]) -> dict[str, str] | None:
    """The output rank by rank, folded; None where all ranks are alike, or little was printed."""
    ranks_by_key: dict[object, list[int]] = {}
    for rank, key in keys_of(text_by_rank).items():
        ranks_by_key.setdefault(key, []).append(rank)
    groups = [(RankSet.of(ranks), text_by_rank[ranks[0]]) for ranks in ranks_by_key.values()]
    totals = [text.total for _, text in groups if text.total]
    if len(totals) < 2 or sum(totals) < _MIN_LINES:
        return None
    room = _MAX_CHARS // len(groups)
    parts = [
        _block(ranks, _cut(text, room), len(groups) <= _MAX_OPEN)
        for ranks, text in groups
        if text.total
    ]
    lost = RankSet.of(rank for rank, text in text_by_rank.items() if text.is_lost)
    told = [str(ranks) for ranks, text in groups if not text.is_lost]
    names = "; ".join(told) if len(told) <= _MAX_OPEN else f"{len(told)} kinds of output"
    if lost:
        them = lost.verb("it", "them")
        names += f"{'; ' if told else ''}{lost} not compared, since output of {them} was left out"
    return {
        "text/plain": "",
        "text/html": folded_details(
            f"rank by rank: {names}{_totals(text_by_rank)}", "".join(parts)
        ),
    }


def _totals(text_by_rank: Mapping[int, RankText]) -> str:
    """Which rank printed how much."""
    totals = {rank: text.total for rank, text in text_by_rank.items()}
    if any(text.is_lost for text in text_by_rank.values()):
        return ""
    if len(set(totals.values())) == 1:
        return f" ({max(totals.values()):,} lines of each)"
    return f" (lines: {amounts_by_rank(totals)})"


def _cut(text: RankText, room: int) -> list[str]:
    """The first and the last lines, in so many characters."""
    head = list(text.head)
    tail = list(text.tail)
    if sum(map(len, head)) + sum(map(len, tail)) <= room and not text.left_out:
        return head + tail
    last = tail or head[-_TAIL_LINES:]
    kept: list[str] = []
    used = sum(map(len, last))
    for line in head[: len(head) - (0 if tail else len(last))]:
        used += len(line) + 1
        if used > room:
            break
        kept.append(line)
    hidden = text.total - len(kept) - len(last)
    return [*kept, *([f"... {hidden:,} lines left out here"] if hidden else []), *last]


@dataclass
class _Block:
    """What one rank, or several alike, have shown."""

    ranks: RankSet
    shows: list[Text | Rich] = field(default_factory=list)

    def key(self, printed: object = None) -> object:
        """Equal for ranks that showed the same.

        Where something was left out, ``printed`` stands for the text: where it was cut is chance.
        """
        return printed, *(
            (each.stream, each.text)
            if isinstance(each, Text)
            else (each.kind, freeze(each.data), freeze(each.metadata))
            for each in self.shows
            if printed is None or not isinstance(each, Text)
        )

    def lines(self) -> list[str]:
        """All text."""
        text = "".join(each.text for each in self.shows if isinstance(each, Text))
        return text.removesuffix("\n").split("\n") if text else []


class RankBlocks(Gatherer):
    """Shows nothing before `end`.

    Each rank has a gatherer of its own, which knows carriage returns, clearing and limits. The
    text that a cell may show is shared out evenly; nothing is lost for coming fast.
    """

    def __init__(
        self,
        ranks: RankSet,
        world_size: int,
        *,
        run_id: str,
        settings: Settings,
        log_path_by_rank: Mapping[int, str],
    ) -> None:
        super().__init__(
            ranks,
            world_size,
            run_id=run_id,
            settings=settings,
            log_path_by_rank=log_path_by_rank,
        )
        share = max(1024, settings.notebook_total_bytes // max(1, len(ranks)))
        own = replace(
            settings,
            notebook_burst_bytes=share,
            notebook_total_bytes=share,
            output_fold_s=0.0,
        )
        self._gatherer_by_rank = {
            rank: Gatherer(
                RankSet((rank,)), 1, run_id=run_id, settings=own, log_path_by_rank=log_path_by_rank
            )
            for rank in ranks
        }
        self._block_by_rank = {rank: _Block(RankSet((rank,))) for rank in ranks}

    def add(self, event: Output | Display | Result | ClearOutput, now: float) -> list[Show]:
        """See `Gatherer.add`."""
        gatherer = self._gatherer_by_rank.get(event.rank)
        if gatherer is not None:
            self._keep(event.rank, gatherer.add(event, now))
        return []

    def finish_rank(self, rank: int, now: float) -> list[Show]:
        """See `Gatherer.finish_rank`."""
        if rank in self._gatherer_by_rank:
            self._keep(rank, self._gatherer_by_rank[rank].finish_rank(rank, now))
        return []

    def tick(self, now: float) -> list[Show]:
        """See `Gatherer.tick`."""
        for rank, gatherer in self._gatherer_by_rank.items():
            self._keep(rank, gatherer.tick(now))
        return []

    def next_deadline(self) -> float | None:
        """See `Gatherer.next_deadline`."""
        times = [gatherer.next_deadline() for gatherer in self._gatherer_by_rank.values()]
        return min((time for time in times if time is not None), default=None)

    def open_lines(self) -> list[tuple[RankSet, str]]:
        """The last line of each rank, while nothing else is shown."""
        ranks_by_line: dict[str, list[int]] = {}
        for rank, gatherer in self._gatherer_by_rank.items():
            for line in gatherer.last_lines(rank):
                ranks_by_line.setdefault(line, []).append(rank)
        return [(RankSet.of(ranks), line) for line, ranks in ranks_by_line.items()]

    def end(self, now: float) -> list[Show]:
        """All blocks, in the order of the ranks."""
        for rank, gatherer in self._gatherer_by_rank.items():
            self._keep(rank, gatherer.end(now))
        texts = {
            rank: gatherer.text_by_rank()[rank] for rank, gatherer in self._gatherer_by_rank.items()
        }
        counts = [gatherer.counts for gatherer in self._gatherer_by_rank.values()]
        is_whole = not any(each.left_out_bytes for one in counts for each in one.values())
        printed = {} if is_whole else keys_of(texts, is_cut=True)
        blocks: dict[object, _Block] = {}
        for rank, block in self._block_by_rank.items():
            same = blocks.setdefault(block.key(printed.get(rank)), block)
            same.ranks = RankSet.of((*same.ranks, rank))
        found = sorted(blocks.values(), key=lambda block: block.ranks.ranks)
        silent = [block for block in found if not block.shows]
        told = [block for block in found if block.shows]
        shows: list[Show] = []
        for block in told:
            for show in _shows(block, is_open=len(told) <= _MAX_OPEN):
                _join(shows, show)
        if silent and told:
            _join(shows, _rich(_head(silent[0].ranks, "nothing")))
        return list(shows)

    def _keep(self, rank: int, shows: Sequence[Show]) -> None:
        block = self._block_by_rank[rank]
        for show in shows:
            match show:
                case Redraw():
                    block.shows = list(show.blocks)
                case Rich() if show.update:
                    block.shows = [
                        replace(each, data=show.data, metadata=show.metadata)
                        if isinstance(each, Rich) and each.display_id == show.display_id
                        else each
                        for each in block.shows
                    ]
                case _:
                    last = block.shows[-1] if block.shows else None
                    if (
                        isinstance(show, Text)
                        and isinstance(last, Text)
                        and last.stream == show.stream
                    ):
                        block.shows[-1] = Text(show.stream, last.text + show.text)
                    else:
                        block.shows.append(show)


def _shows(block: _Block, *, is_open: bool) -> list[Show]:
    """A heading, and what the ranks showed, in order."""
    if all(isinstance(each, Text) for each in block.shows):
        lines = block.lines()
        plain = "\n".join([_plain_head(block.ranks), *_shortened(lines)])
        return [_rich({"text/plain": plain, "text/html": _block(block.ranks, lines, is_open)})]
    found: list[Show] = [_rich(_head(block.ranks))]
    for show in block.shows:
        if isinstance(show, Text):
            lines = show.text.removesuffix("\n").split("\n")
            plain = "\n".join(_shortened(lines))
            found.append(_rich({"text/plain": plain, "text/html": f"<div>{_body(lines)}</div>"}))
        else:
            found.append(replace(show, ranks=block.ranks))
    return found


def _join(shows: list[Show], show: Show) -> None:
    """Add a show; blocks of text that follow each other are one display."""
    last = shows[-1] if shows else None
    if isinstance(last, Rich) and isinstance(show, Rich) and not (last.ranks or show.ranks):
        data = {
            "text/plain": f"{last.data['text/plain']}\n{show.data['text/plain']}",
            "text/html": f"{last.data['text/html']}{show.data['text/html']}",
        }
        shows[-1] = replace(last, data=data)
    else:
        shows.append(show)


def _block(ranks: RankSet, lines: Sequence[str], is_open: bool) -> str:
    if is_open:
        return f"{_head(ranks)['text/html']}{_body(lines)}"
    last = shorten(one_line(without_codes(lines[-1])), _MAX_LAST) if lines else ""
    return (
        f'<details><summary style="cursor:pointer">{_name(ranks)} &ensp;<code>{escape(last)}</code>'
        f"</summary>{_body(lines)}</details>"
    )


def _rich(bundle: dict[str, str]) -> Rich:
    """Of no rank: it has no label."""
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
    return f"--- {name_ranks(ranks)}"


def _name(ranks: RankSet) -> str:
    colour = colour_of(ranks)
    style = f' style="color:{colour}"' if colour else ""
    return f"<b{style}>{escape(name_ranks(ranks))}</b>"


def _shortened(lines: Sequence[str]) -> list[str]:
    """Head and tail."""
    hidden = len(lines) - _HEAD_LINES - _TAIL_LINES
    if hidden < _TAIL_LINES:
        return list(lines)
    return [*lines[:_HEAD_LINES], f"... {hidden:,} more lines", *lines[-_TAIL_LINES:]]


def _body(lines: Sequence[str]) -> str:
    if len(lines) - _HEAD_LINES - _TAIL_LINES < _TAIL_LINES:
        return pre(lines)
    return pre(lines[:_HEAD_LINES]) + folded(lines[_HEAD_LINES:], _TAIL_LINES)["text/html"]
