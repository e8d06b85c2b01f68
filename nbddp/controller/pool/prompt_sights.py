"""Facts about all ranks that are shown at the prompt of a step; stopped ranks are not asked.

Runs in: the thread that waits for the cell.
"""

from contextlib import suppress
from typing import TYPE_CHECKING

from nbddp.controller.pool.cell_wait import CellView
from nbddp.controller.prompts import Sight
from nbddp.errors import PoolBrokenError

if TYPE_CHECKING:
    from nbddp.controller.pool.pool import Pool


def show(pool: "Pool", view: CellView, sight: Sight) -> None:
    """Show facts in the view of a cell; nothing if the pool was stopped meanwhile."""
    with suppress(PoolBrokenError):
        if sight is Sight.TRACE:
            view.show_trace(pool.trace_rows())
        else:
            view.show_waits(pool.observe())
