"""Operations of all ranks as rows, and their export. Pure."""

from nbddp.controller.trace.export import chrome_trace, trace_records
from nbddp.controller.trace.pauses import Pauses
from nbddp.controller.trace.rows import (
    RankPart,
    TraceRow,
    rows_of_views,
    select,
)

__all__ = [
    "Pauses",
    "RankPart",
    "TraceRow",
    "chrome_trace",
    "rows_of_views",
    "select",
    "trace_records",
]
