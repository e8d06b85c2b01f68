"""The pause between two looks at something that another process changes.

Runs in: the rank process, any thread. Pure.
"""


def pause_s(passed_s: float, *, shortest_s: float = 0.0002, longest_s: float = 0.02) -> float:
    """Return the seconds until the next look: a quarter of the time waited so far.

    Args:
        passed_s: seconds since the first look.
        shortest_s: never less than this.
        longest_s: never more than this.
    """
    return min(max(passed_s / 4, shortest_s), longest_s)
