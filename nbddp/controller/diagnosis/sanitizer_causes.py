"""Groups what the sanitizers of the ranks saw in a cell: one cause for one fault of the code.

Runs in: the notebook's process. Pure.
"""

from typing import TYPE_CHECKING

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.rank_set import Rank, RankSet

if TYPE_CHECKING:
    from nbddp.wire.flight_recorder import Fault


def sanitizer_causes(graph: WaitForGraph) -> list[Cause]:
    """The causes of findings that only ``--sanitize`` gives.

    Args:
        graph: the ranks after the cell.
    """
    return _buffers(graph)


def _buffers(graph: WaitForGraph) -> list[Cause]:
    """One cause for the same lines on several ranks."""
    by_lines: dict[object, dict[Rank, Fault]] = {}
    for rank, view in graph.views.items():
        for fault in view.sanitizer.faults if view.sanitizer is not None else ():
            lines = fault.operation.site.position, fault.site.position
            key = fault.kind, fault.operation.signature.op, *lines
            by_lines.setdefault(key, {}).setdefault(rank, fault)
    return [
        Cause(
            "buffer-in-use",
            RankSet.of(fault_by_rank),
            RankSet(),
            # A later cell may wait for it.
            proven=not all(fault.has_handle for fault in fault_by_rank.values()),
            owner=rank,
            operation=fault.operation,
            fault_by_rank=fault_by_rank,
        )
        for fault_by_rank in by_lines.values()
        for rank, fault in [next(iter(fault_by_rank.items()))]
    ]
