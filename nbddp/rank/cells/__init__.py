"""Runs the cells of a rank: IPython's shell, interrupts, input, output, debugger.

Runs in: the rank process.
"""

from nbddp.rank.cells.breakpoints import end_steps, open_stop_debugger
from nbddp.rank.cells.executor import CellExecutor, Interrupts
from nbddp.rank.cells.glances import CODE_TYPES
from nbddp.rank.cells.import_guard import ImportReports, imported_library
from nbddp.rank.cells.name_lookup import NameLookupThread
from nbddp.rank.cells.shell import RankShell
from nbddp.rank.cells.stdin import Stdin

__all__ = [
    "CODE_TYPES",
    "CellExecutor",
    "ImportReports",
    "Interrupts",
    "NameLookupThread",
    "RankShell",
    "Stdin",
    "end_steps",
    "imported_library",
    "open_stop_debugger",
]
