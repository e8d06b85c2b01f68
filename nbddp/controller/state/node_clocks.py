"""The clocks of nodes on other machines, as the notebook has measured them.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nbddp.controller.state.rank_state import RankInfo


@dataclass(frozen=True)
class NodeClock:
    """The monotonic clock of a node minus that of the notebook."""

    node: int
    host: str
    offset_ns: int
    error_ns: int  #: the largest error of the offset


def clock_by_rank(
    clocks: Iterable[NodeClock], ranks: Iterable[RankInfo]
) -> Mapping[int, NodeClock]:
    """The clocks of ranks; ranks whose clock is not known are absent."""
    by_node = {clock.node: clock for clock in clocks}
    return {info.rank: by_node[info.node] for info in ranks if info.node in by_node}
