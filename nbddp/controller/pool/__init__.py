"""The pool as Python code calls it: start, run, restart, stop."""

from nbddp.controller.pool.pool import CellOptions, Pool

__all__ = [
    "CellOptions",
    "Pool",
]
