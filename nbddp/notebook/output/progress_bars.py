"""Arranges the progress bars of ranks in rows that stay where they are.

Runs in: the notebook's main thread. Pure: no clock, no I/O.

Bars of several ranks differ in their rates and times, so that folding equal ones would follow
chance. Up to 8 ranks have a row each; of more ranks, the slowest, the median and the fastest do.
"""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from nbddp.wire.rank_set import Rank, RankSet

#: The bars of more ranks are three rows.
MAX_ROWS = 8
#: ``train:  40%|████      | 4/10 [00:01<00:02, 2.60it/s]``, as tqdm writes it. Units such as ``M``
#: are the same on all ranks.
_BAR = re.compile(
    r"^(?P<name>[^|]*?)\s*\d+%\|[^|]*\|\s*(?P<done>[\d.]+)\S*/(?P<total>[\d.]+\S*)\s*\[(?P<took>[\d:]*)"
    r"(?:[^,\]]*,\s*(?P<rate>[\d.]+)\S*?(?P<unit>/s|s/))?"
)


@dataclass(frozen=True)
class Row:
    """A line without an end."""

    ranks: RankSet
    text: str
    word: str = ""  #: ``slowest``, ``median`` or ``fastest``
    is_bar: bool = False


def bar_key(text: str) -> Hashable:
    """Return the same for the ended bars of one loop on several ranks; None: it is no bar."""
    bar = _BAR.match(text) if "%|" in text else None
    return None if bar is None else ("bar", bar["name"], bar["done"], bar["total"])


def ended(ranks: Sequence[Rank], texts: Sequence[str]) -> list[tuple[Rank, str]]:
    """Return the rows that stay of ended bars, each with its rank.

    Args:
        ranks: those that have a bar with the same `bar_key`.
        texts: the bar of each.
    """
    rows = _rows([(_speed(text), rank, text) for rank, text in zip(ranks, texts, strict=True)])
    width = max(len(row.word) for row in rows)
    return [(row.ranks.ranks[0], f"{row.word:{width}} {row.text}".lstrip()) for row in rows]


def _speed(text: str) -> float:
    """Return the rate of an ended bar, which is as far as all others."""
    bar = _BAR.match(text)
    if bar is None or not bar["rate"]:
        return 0.0
    rate = float(bar["rate"])
    return rate if bar["unit"] == "/s" else 1 / max(rate, 1e-9)


def arranged(lines: Sequence[tuple[RankSet, str]]) -> list[Row]:
    """Arrange lines without an end.

    Args:
        lines: each with all ranks that have it.

    Returns:
        Each line that is no progress bar; in the place of the first of several bars with the same
        name, those of their ranks.
    """
    rows: list[Row] = []
    bars: dict[str, list[tuple[float, Rank, str]]] = {}
    place_by_name: dict[str, int] = {}
    for ranks, text in lines:
        bar = _BAR.match(text)
        if bar is None:
            rows.append(Row(ranks, text))
            continue
        name = bar["name"]
        if name not in bars:
            place_by_name[name] = len(rows)
            rows.append(Row(RankSet(), ""))
        bars.setdefault(name, []).extend((float(bar["done"]), rank, text) for rank in ranks)
    rows_by_place = {place_by_name[name]: _rows(of_ranks) for name, of_ranks in bars.items()}
    return [each for place, row in enumerate(rows) for each in rows_by_place.get(place, [row])]


def _rows(bars: Sequence[tuple[float, Rank, str]]) -> list[Row]:
    if len(bars) <= MAX_ROWS:
        in_order = sorted(bars, key=lambda bar: bar[1])
        return [Row(RankSet.of([rank]), text, is_bar=True) for _, rank, text in in_order]
    by_progress = sorted(bars)
    middle = (len(bars) - 1) // 2
    chosen = (by_progress[0], by_progress[middle], by_progress[-1])
    return [
        Row(RankSet.of([rank]), text, word, is_bar=True)
        for word, (_, rank, text) in zip(("slowest", "median", "fastest"), chosen, strict=True)
    ]
