"""Finds the cells that a fresh rank has to run to get the variables that it lacks.

Runs in: the notebook's process. Pure.

    cell_history  CellHistory   the cells that the pool has run, and how they ended
    past_cell     PastCell      one of them
    cell_names    CellNames     the names that a cell binds, changes and reads
    plan          make_plan     names that are lacking -> cells to run again, in order
    roles         choose_roles  the ranks that catch up, and those whose variables they get
    names_of_ranks  expected_names  the names of a rank, without branches that it does not take
    lacking_names  still_lacking  the names that ranks lack in the end, by their cells
    result        CatchUp       what fresh ranks have got
    held_values   HeldValues    the values of fresh ranks that stay
    unfinished    Unfinished    cells that failed when they ran again, and those that use theirs
    values_by_rank  ValuesByRank  names whose values depend on the rank
    doubts       Doubts       values of ranks that are perhaps not the right ones
    compared_variables  ComparedVariables  values of fresh ranks beside those of the others
"""

from nbddp.controller.catch_up.cell_history import CellHistory
from nbddp.controller.catch_up.compared_variables import ComparedVariables
from nbddp.controller.catch_up.held_values import HeldValues
from nbddp.controller.catch_up.lacking_names import still_lacking
from nbddp.controller.catch_up.names_of_ranks import (
    alone_names,
    expected_names,
    lacked,
    regained_names,
)
from nbddp.controller.catch_up.past_cell import PastCell
from nbddp.controller.catch_up.plan import CatchUpPlan, make_plan, with_joint_names
from nbddp.controller.catch_up.result import CatchUp
from nbddp.controller.catch_up.roles import Roles, choose_roles
from nbddp.controller.catch_up.unfinished import Unfinished
from nbddp.controller.catch_up.values_by_rank import ValuesByRank
from nbddp.controller.state import LeftOut, Reason

__all__ = [
    "CatchUp",
    "CatchUpPlan",
    "CellHistory",
    "ComparedVariables",
    "HeldValues",
    "LeftOut",
    "PastCell",
    "Reason",
    "Roles",
    "Unfinished",
    "ValuesByRank",
    "alone_names",
    "choose_roles",
    "expected_names",
    "lacked",
    "make_plan",
    "regained_names",
    "still_lacking",
    "with_joint_names",
]
