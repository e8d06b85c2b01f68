"""Traced process groups, whose operations can be aborted, and which are rebuilt in place.

Runs in: the rank process.
"""

from nbddp.rank.collectives.service import Collectives

__all__ = [
    "Collectives",
]
