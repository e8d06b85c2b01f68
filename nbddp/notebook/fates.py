"""What happens to the ranks that wait, in a sentence of the card.

Runs in: the notebook's process. Pure; a part of `nbddp.notebook.cards`.
"""

from collections.abc import Mapping

from nbddp.controller.report import Report
from nbddp.notebook.tables import duration, name_ranks, words
from nbddp.wire.ranks import RankSet

#: Operations with a shorter time-out are left to it; see ``Settings.own_timeout_s``.
_OWN_TIMEOUT_MS = 60_000


def fate(
    report: Report, acted: bool, means: str, torn: Mapping[str, RankSet], *, is_over: bool = False
) -> str:
    """What happens to the ranks that wait; ``is_over``: what has happened, the cell has ended."""
    waiting = report.stuck or RankSet.of(r for each in report.findings for r in each.waiting)
    if not waiting:
        return ""
    is_one = len(waiting) == 1
    who, their_place = name_ranks(waiting), "its line" if is_one else "their lines"
    if acted:
        # The process of a dead rank is gone: whether the next cell runs depends on more.
        then = ", and the next cell runs" * all(f.kind != "dead-rank" for f in report.findings)
        return (
            f"{who} {'is' if is_one else 'are'} freed: an exception is raised in {their_place}. "
            f"{'It keeps' if is_one else 'They keep'} every variable{_except(torn)}{then}."
        )
    limit_ms, left_ms = report.earliest_timeout_ms, report.earliest_timeout_left_ms
    has_limit = limit_ms is not None and left_ms is not None and limit_ms <= _OWN_TIMEOUT_MS
    limit, left = duration((limit_ms or 0) * 1e6), duration(max(0, left_ms or 0) * 1e6)
    if is_over:
        by = f"the operation was left to its own time-out of {limit}, and " if has_limit else ""
        return f"{by}the cell has ended."
    stop = (
        f"{means} frees {who}, which {'keeps' if is_one else 'keep'} every variable{_except(torn)}."
    )
    if not report.verdict:
        return f"nothing is interrupted, the cell may still go on. {stop}"
    if has_limit:
        return f"the operation ends by its own time-out of {limit}, in {left}. {stop}"
    return f"nothing is interrupted. {stop}"


def _except(torn: Mapping[str, RankSet]) -> str:
    """Behind "every variable"."""
    if not torn:
        return ""
    which = words(f"{name} on {name_ranks(ranks)}" for name, ranks in torn.items())
    return f", but the tensors of {which} may hold partial results"
