"""Lines below a sanitized cell: what its data loaders did that is mostly right, and its time.

Runs in: the notebook's process. Pure.
"""

from nbddp.controller.diagnosis import data_notes
from nbddp.controller.state import RunOutcome

_LONG_S = 1.0
_LARGE_SHARE = 0.25
_SHOWN_S = 0.05


def sanitizer_lines(outcome: RunOutcome) -> list[str]:
    """Return the lines; none for most cells."""
    cost = cost_line(outcome)
    return [*_data_lines(outcome), *([cost] if cost else [])]


def _data_lines(outcome: RunOutcome) -> list[str]:
    reads = {
        rank: result.sanitizer.reads
        for rank, result in outcome.results.items()
        if result.sanitizer is not None and result.sanitizer.reads
    }
    return data_notes(reads, has_failed=bool(outcome.ranks("error", "exited", "unfinished")))


def cost_line(outcome: RunOutcome) -> str:
    """Return the time of the checks on the rank where it was longest; empty: it says nothing."""
    spent = [
        (result.sanitizer.spent_ns / 1e9, result.elapsed_s, rank, result.sanitizer.after_ns / 1e9)
        for rank, result in outcome.results.items()
        if result.sanitizer is not None
    ]
    spent_s, elapsed_s, rank, after_s = max(spent, default=(0.0, 0.0, 0, 0.0))
    if spent_s < max(_LONG_S, _LARGE_SHARE * (elapsed_s + after_s)):
        return ""
    # The time of a cell ends with its code; checks go on.
    during = f"{spent_s - after_s:.1f} s of the {elapsed_s:.1f} s of this cell"
    after = f" and {after_s:.1f} s after it" if after_s >= _SHOWN_S else ""
    return f"--sanitize took {during}{after} (rank {rank})"
