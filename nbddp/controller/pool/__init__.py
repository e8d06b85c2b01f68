"""The pool as Python code calls it: start, run, restart, stop."""

from nbddp.controller.catch_up import CatchUp
from nbddp.controller.pool.cell_options import CellOptions
from nbddp.controller.pool.ended_jobs import note_ended_jobs
from nbddp.controller.pool.kept_pool import KeptPool, find_kept
from nbddp.controller.pool.left_cell import LeftCell
from nbddp.controller.pool.pool import Pool
from nbddp.controller.pool.rank_catch_up import catch_up
from nbddp.controller.pool.rank_logs import LogTail, log_tails

__all__ = [
    "CatchUp",
    "CellOptions",
    "KeptPool",
    "LeftCell",
    "LogTail",
    "Pool",
    "catch_up",
    "find_kept",
    "log_tails",
    "note_ended_jobs",
]
