"""The headline of a card without findings, as far as ranks have told what they do.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping

from nbddp.controller.diagnosis import Finding, RankVerb, RankView, Report
from nbddp.wire.rank_set import RankSet


def no_finding(report: Report, views: Mapping[int, RankView]) -> Finding:
    """Make what stands in the place of findings.

    Args:
        report: without findings.
        views: the probed state of the ranks.
    """
    reforming = RankSet.of(
        rank for rank, each in report.ranks.items() if each.predicate.verb is RankVerb.MAKES_GROUPS
    )
    silent = RankSet.of(rank for rank, each in report.ranks.items() if each.status == "silent")
    unheard = RankSet.of(rank for rank in silent if rank in views and views[rank].unheard)
    headline = f"No rank {'that answers ' * bool(silent)}waits for another"
    if reforming:
        make = reforming.verb(*RankVerb.MAKES_GROUPS.value)
        headline = f"{reforming.describe().capitalize()} {make}: cells wait until that is done"
    if unheard:
        headline += f"; nothing is known of {unheard.describe()}"
    return Finding(
        kind="straggler",
        proven=False,
        culprits=RankSet(),
        waiting=RankSet(),
        headline=headline,
        reason="",
        next_step="",
        ranks=report.ranks,
        begins_with_ranks=False,
    )
