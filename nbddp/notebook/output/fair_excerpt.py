"""Chooses the lines of a long output that are shown: the first or the last ones of every rank.

Runs in: the notebook's process. Pure.

Lines have the labels of `nbddp.notebook.output.shows.Labels`, or none in a pool of one rank. The
lines of a rank keep their order: its hidden lines come after those of `head`, and before those of
`tail`.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from nbddp.notebook.output.excerpt import Limit
from nbddp.wire.rank_set import RankSet

#: The window on a growing text is chosen from this many last lines.
_MAX_WINDOW_LINES = 2000
#: A tail has a line for each rank, for at most this many ranks.
_MAX_RANKS = 64
_MAX_AMOUNTS = 3
#: Counts whose ratio is at least this are given as a range.
_SIMILAR = 0.9
_LABEL = re.compile(r"\[(\d+(?:[-,]\d+)*)\](?= |$)")
#: The ranks of a line without a label.
_NO_RANK = frozenset((-1,))


def head(lines: Sequence[str], limit: Limit, *, is_labelled: bool) -> tuple[list[str], list[str]]:
    """Return the first lines of each rank, and the other lines. Lines include their line ends."""

    def fits(chosen: Sequence[int]) -> bool:
        return len(chosen) <= limit.lines and sum(len(lines[i]) for i in chosen) <= limit.chars

    if fits(range(len(lines))):
        return list(lines), []
    kept = _fair(range(len(lines)), _ranks(lines, is_labelled), limit.lines, fits)[: limit.lines]
    while len(kept) > 1 and not fits(kept[:-1]):
        kept.pop()
    return _split(lines, kept)


def tail(lines: Sequence[str], limit: int, *, is_labelled: bool) -> tuple[list[str], list[str]]:
    """Return the other lines, and the last lines of each rank.

    Args:
        lines: all lines.
        limit: number of last lines; with more ranks than that, each rank still has one.
        is_labelled: whether lines begin with labels.
    """
    kept = _last(lines, limit, is_labelled)[: max(limit, _MAX_RANKS)]
    shown, others = _split(lines, sorted(kept))
    return others, shown


def window(lines: Sequence[str], limit: int, *, is_labelled: bool) -> list[str]:
    """Return the last lines of each rank, at most ``limit``; faster than `tail`."""
    last = lines[-_MAX_WINDOW_LINES:]
    return [last[i] for i in sorted(_last(last, limit, is_labelled)[:limit])]


def amounts(lines: Sequence[str]) -> str:
    """Return ``280 of each of ranks 0-2, 12 of rank 3``; empty if all lines have the same ranks."""
    count_by_label = Counter(_ranks(lines, is_labelled=True))
    if len(count_by_label) < 2:
        return ""
    count_by_rank: Counter[int] = Counter()
    for ranks, count in count_by_label.items():
        count_by_rank.update(dict.fromkeys(ranks - _NO_RANK, count))
    return amounts_by_rank(count_by_rank)


def amounts_by_rank(count_by_rank: Mapping[int, int]) -> str:
    """Return ``280 of each of ranks 0-2, 12 of rank 3``; if nearly equal ``270 to 280 of ...``."""
    ranks_by_count: dict[int, list[int]] = {}
    for rank, count in sorted(count_by_rank.items(), key=lambda item: (-item[1], item[0])):
        ranks_by_count.setdefault(count, []).append(rank)
    groups = list(ranks_by_count.items())
    are_similar = bool(groups) and groups[0][0] * _SIMILAR <= groups[-1][0]
    exact = 0 if are_similar else 1 if len(groups) > _MAX_AMOUNTS else len(groups)
    parts = [_amount(ranks, f"{count:,}") for count, ranks in groups[:exact]]
    rest = groups[exact:]
    if rest:
        most, least = rest[0][0], rest[-1][0]
        counts = f"{least:,} to {most:,}" if least < most else f"{most:,}"
        parts.append(_amount([rank for _, ranks in rest for rank in ranks], counts))
    return ", ".join(parts)


def _amount(ranks: Sequence[int], count: str) -> str:
    return f"{count} of {'each of ' if len(ranks) > 1 else ''}{RankSet.of(ranks).describe()}"


def _split(lines: Sequence[str], kept: Sequence[int]) -> tuple[list[str], list[str]]:
    places = set(kept)
    others = [line for i, line in enumerate(lines) if i not in places]
    return [lines[i] for i in kept], others


def _last(lines: Sequence[str], limit: int, is_labelled: bool) -> list[int]:
    backwards = range(len(lines) - 1, -1, -1)
    return _fair(backwards, _ranks(lines, is_labelled), limit, lambda kept: len(kept) <= limit)


def _fair(
    order: Sequence[int],
    ranks: Sequence[frozenset[int]],
    most: int,
    fits: Callable[[Sequence[int]], bool],
) -> list[int]:
    """Return the longest choice that fits and has the same number of lines of each rank."""
    all_ranks = frozenset[int]().union(*set(ranks))
    best = _first_of_each(order, ranks, 1, all_ranks)
    low, high = 1, most
    while low < high:
        count = (low + high + 1) // 2
        chosen = _first_of_each(order, ranks, count, all_ranks)
        if fits(chosen):
            best, low = chosen, count
        else:
            high = count - 1
    return best


def _first_of_each(
    order: Sequence[int], ranks: Sequence[frozenset[int]], count: int, all_ranks: frozenset[int]
) -> list[int]:
    """Return up to ``count`` lines of every rank; no line follows a left out line of its rank."""
    chosen: list[int] = []
    closed: set[int] = set()
    count_by_rank: Counter[int] = Counter()
    for i in order:
        is_open = closed.isdisjoint(ranks[i])
        if is_open and all(count_by_rank[rank] < count for rank in ranks[i]):
            count_by_rank.update(ranks[i])
            chosen.append(i)
            continue
        closed |= ranks[i]
        if len(closed) == len(all_ranks):
            break
    return chosen


def _ranks(lines: Sequence[str], is_labelled: bool) -> list[frozenset[int]]:
    """Return the ranks of each line."""
    if not is_labelled:
        return [_NO_RANK] * len(lines)
    labels = map(_LABEL.match, lines)
    return [_ranks_of(label[1]) if label else _NO_RANK for label in labels]


@lru_cache(maxsize=4096)
def _ranks_of(label: str) -> frozenset[int]:
    spans = (part.partition("-") for part in label.split(","))
    return frozenset(
        rank for first, _, last in spans for rank in range(int(first), int(last or first) + 1)
    )
