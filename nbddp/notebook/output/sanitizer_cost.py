"""A line about the time that ``--sanitize`` took, where it took much of a cell.

Runs in: the notebook's process. Pure.
"""

from nbddp.controller.state import RunOutcome

_LONG_S = 1.0
_LARGE_SHARE = 0.25


def cost_line(outcome: RunOutcome) -> str:
    """Return the time of the checks on the rank where it was longest; empty: it says nothing."""
    spent = [
        (result.sanitizer.spent_ns / 1e9, result.elapsed_s, rank)
        for rank, result in outcome.results.items()
        if result.sanitizer is not None
    ]
    spent_s, elapsed_s, rank = max(spent, default=(0.0, 0.0, 0))
    if spent_s < max(_LONG_S, _LARGE_SHARE * elapsed_s):
        return ""
    return f"--sanitize took {spent_s:.1f} s of the {elapsed_s:.1f} s of this cell (rank {rank})"
