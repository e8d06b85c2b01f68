"""Durations as people write them: ``4h``, ``30 min``, ``90s``.

Runs in: every process. Pure.
"""

import re
from typing import Final

UNITS_S: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TEXT: Final = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]+)")


def parse_duration(text: str) -> float | None:
    """Read a duration, in seconds; None: it is none.

    >>> parse_duration("4h"), parse_duration("1.5 min"), parse_duration("soon")
    (14400.0, 90.0, None)
    """
    match = _TEXT.fullmatch(text.strip())
    if match is None or match[2] not in UNITS_S:
        return None
    return float(match[1]) * UNITS_S[match[2]]


def write_duration(seconds: float) -> str:
    """Write a duration as `parse_duration` reads it, in the largest unit that loses nothing.

    >>> write_duration(14400.0), write_duration(90.0), write_duration(86400 * 2)
    ('4h', '90s', '2d')
    """
    for unit, size in reversed(UNITS_S.items()):
        if seconds % size == 0 and seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.10g}s"
