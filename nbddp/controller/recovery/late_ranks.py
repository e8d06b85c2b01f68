"""The verdict of a cell with the ranks that were still on their way when it was reached.

Runs in: the hub thread. Pure.
"""

from collections.abc import Callable
from dataclasses import replace

from nbddp.controller.diagnosis import Report, completed, settled_views
from nbddp.controller.recovery.probes import Views
from nbddp.controller.state import VerdictReached


def with_late_ranks(
    verdict: VerdictReached, views: Views, diagnose: Callable[[Views], Report]
) -> VerdictReached | None:
    """Return the verdict that takes the place of another one.

    Args:
        verdict: what was proven during the cell.
        views: the views after its end.
        diagnose: explains views.

    Returns:
        The verdict with all ranks; None: the report of the end is about something else.
    """
    before = verdict.report
    settled = settled_views(before, verdict.views, views)
    report = completed(before, diagnose(settled))
    if report is None:
        return None
    return replace(verdict, report=report, views=settled, replaces=before.fingerprint)
