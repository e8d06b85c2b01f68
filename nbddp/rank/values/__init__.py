"""Values of a rank that the notebook asks for: push, pull, vars, diff, show."""

from nbddp.rank.values.transfers import Variables

__all__ = [
    "Variables",
]
