"""Rows of a card: the ranks that do the same at one place of the code, as text and as HTML.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nbddp.controller.diagnosis import PerRank, Predicate
from nbddp.line_breaks import wrapped
from nbddp.notebook.render.alike import FOLDS, peers_of
from nbddp.notebook.render.html import (
    FAINT,
    WIDTH,
    breakable,
    duration,
    escape,
    one_line,
    shorten,
)
from nbddp.wire.flight_recorder import Site
from nbddp.wire.rank_set import NO_RANKS, RankSet

#: Rows of a finding.
MAX_ROWS = 6
_MAX_SOURCE = 120
_FIELD = "text-align:left;vertical-align:top;border:none;padding:1px 14px 1px 0"
_GAP = "margin-right:10px"
_MAX_CODE_CHARS, _MAX_RANKS_CHARS = 32, 24  #: of code and names that keep to one line


@dataclass(frozen=True)
class RankRow:
    """Ranks that are at one place of the code and do the same there."""

    ranks: RankSet
    predicate: Predicate
    site: Site | None
    since_s: float | None
    is_culprit: bool
    is_inside: bool  #: they are still inside the cell
    peers: str = ""  #: the other ends of messages that `predicate` does not name
    nodes: RankSet = NO_RANKS  #: numbers of their nodes; empty: the pool has only one

    @property
    def names(self) -> str:
        """Its ranks: the one place of a card that does not cut a long list."""
        return self.ranks.describe(in_full=True)

    @property
    def node_names(self) -> str:
        """``node 1``, ``nodes 0-2``; empty: the pool has only one."""
        return f"node{'s' * (len(self.nodes) != 1)} {self.nodes.numbers()}" if self.nodes else ""

    @property
    def beginning(self) -> str:
        """The ranks and what they do, for a line of text: ``rank 2 (node 1) has raised ...``."""
        nodes = f" ({self.node_names})" if self.nodes else ""
        return f"{self.names}{nodes} {self.doing}"

    @property
    def doing(self) -> str:
        """The text behind the ranks: ``have waited in all_reduce #17 for 3.2 s``."""
        since = "" if self.since_s is None else f" for {duration(self.since_s * 1e9)}"
        predicate = self.predicate.describe(len(self.ranks), has_duration=bool(since))
        activity = one_line(predicate)
        return f"{activity}{self.peers}{since}"

    @property
    def source(self) -> str:
        """The line of code."""
        return "" if self.site is None else shorten(one_line(self.site.source), _MAX_SOURCE)


def rows_of(
    ranks: Mapping[int, PerRank],
    culprits: RankSet,
    limit: int = MAX_ROWS,
    *,
    with_peers: bool = False,
) -> list[RankRow]:
    """The rows of ranks: equal states share one; culprits come first.

    If there are more than ``limit`` rows, states that differ in numbers only are equal, too.

    Args:
        ranks: the state of each rank.
        culprits: see above.
        limit: see above.
        with_peers: list the other ends of messages that a row of several ranks does not name.
    """
    for fold in FOLDS:
        by_key: dict[tuple[Predicate, Site | None, bool], list[PerRank]] = {}
        for part in ranks.values():
            predicate = fold(part.predicate, part.rank)
            by_key.setdefault((predicate, part.site, part.rank in culprits), []).append(part)
        if len(by_key) <= limit:
            break
    entries = []
    for (predicate, site, is_culprit), parts in by_key.items():
        waits_s = [part.since_s for part in parts if part.since_s is not None]
        exact = {part.predicate for part in parts}
        entries.append(
            RankRow(
                ranks=RankSet.of(part.rank for part in parts),
                predicate=exact.pop() if len(exact) == 1 else predicate,
                peers=peers_of({part.rank: part.predicate for part in parts})
                if with_peers and fold is FOLDS[-1]
                else "",
                site=site,
                since_s=max(waits_s, default=None),
                is_culprit=is_culprit,
                nodes=RankSet.of(part.node for part in parts if part.node >= 0),
                is_inside=all(part.status in ("running", "silent") for part in parts),
            )
        )
    return sorted(entries, key=lambda entry: (not entry.is_culprit, entry.ranks))


def text(start: str, entry: RankRow) -> list[str]:
    """One line if it fits, else two: the place has its own."""
    if entry.site is None:
        return wrapped(start, WIDTH, indent=8)
    place = f"{entry.site}: {entry.source}" if entry.source else str(entry.site)
    whole = f"{start}, at {one_line(place)}"
    if len(whole) <= WIDTH:
        return [whole]
    lines = wrapped(f"{start},", WIDTH, indent=8)
    return [*lines, shorten(f"        at {one_line(place)}", WIDTH)]


def html(lines: Sequence[RankRow]) -> str:
    """One row for each place, the culprits in bold.

    The parts of a row flow: columns would leave room unused beside sentences and code that wrap.
    """
    if not lines:
        return ""
    rows = []
    has_nodes = any(entry.nodes for entry in lines)
    for entry in lines:
        name = entry.names
        ranks = breakable(name, _MAX_RANKS_CHARS)
        name_space = "normal" if len(name) > _MAX_RANKS_CHARS else "nowrap"
        code_space = "normal" if len(entry.source) > _MAX_CODE_CHARS else "nowrap"
        parts = [f'<span style="{_GAP}">{escape(entry.doing)}</span>']
        if entry.site is not None:
            place = escape(str(entry.site))
            parts.append(f'<span style="{_GAP};{FAINT};white-space:nowrap">{place}</span>')
        if entry.source:
            code = breakable(entry.source, _MAX_CODE_CHARS)
            parts.append(f'<code style="white-space:{code_space}">{code}</code>')
        rows.append(
            '<tr style="background-color:transparent">'
            f'<th scope="row" style="{_FIELD};font-weight:normal;white-space:{name_space}">'
            f"{f'<b>{ranks}</b>' if entry.is_culprit else ranks}</th>"
            f"{_node_field(entry) * has_nodes}"
            f'<td style="{_FIELD};white-space:normal;overflow-wrap:anywhere;min-width:160px">'
            f"{' '.join(parts)}</td></tr>"
        )
    return (
        '<table style="border-collapse:collapse;border:none;margin:4px 0;font-size:100%"><tbody>'
        f"{''.join(rows)}</tbody></table>"
    )


def _node_field(entry: RankRow) -> str:
    return f'<td style="{_FIELD};{FAINT};white-space:nowrap">{entry.node_names}</td>'
