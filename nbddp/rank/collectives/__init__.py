"""Traced process groups, whose operations can be aborted, and which are rebuilt in place.

Runs in: the rank process.
"""

from nbddp.rank.collectives.service import Collectives
from nbddp.rank.collectives.stops import NO_REASON, StopReason

__all__ = [
    "NO_REASON",
    "Collectives",
    "StopReason",
]
