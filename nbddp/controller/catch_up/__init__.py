"""Finds the cells that a fresh rank has to run to get the variables that it lacks.

Runs in: the notebook's process. Pure.

    cell_history  CellHistory   the cells that the pool has run, and how they ended
    cell_names    CellNames     the names that a cell binds, changes and reads
    plan          make_plan     names that are lacking -> cells to run again, in order
"""

from nbddp.controller.catch_up.cell_history import CellHistory, PastCell
from nbddp.controller.catch_up.plan import CatchUpPlan, make_plan
from nbddp.controller.state import LeftOut, Reason

__all__ = ["CatchUpPlan", "CellHistory", "LeftOut", "PastCell", "Reason", "make_plan"]
