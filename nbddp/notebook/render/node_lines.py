"""The line of ``%ddp status`` about the machines of a pool.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Collection, Mapping, Sequence

from nbddp.controller.state import Diagnosed, PoolSnapshot
from nbddp.wire.message_types import NodeFacts

#: More nodes, or folders of logs, are not listed one by one.
MAX_NODES = 16


def unanswered_nodes(snapshot: PoolSnapshot, diagnosed: Diagnosed) -> set[int]:
    """The nodes of which neither a rank nor the agent has answered."""
    nodes = {info.node for info in snapshot.ranks if info.rank in diagnosed.silent}
    return nodes - {info.node for info in snapshot.ranks if info.rank not in diagnosed.silent}


def node_lines(
    nodes: Sequence[NodeFacts],
    silent_s: Mapping[int, float],
    lost: Mapping[int, str],
    *,
    behind: Mapping[int, str] | None = None,
    unanswered: Collection[int] = (),
    silent_after_s: float = 0.0,
) -> list[str]:
    """The line about the nodes; of many, those that stand out, and the first and the last one.

    Args:
        nodes: the machines, in order; none: all are this one.
        silent_s: for how long nothing is heard of nodes.
        lost: why nodes are lost.
        behind: what is said of nodes that are heard, and answer late.
        unanswered: nodes that do not answer, some of which may be silent or lost.
        silent_after_s: a node is silent after this time.
    """
    behind = behind or {}
    quiet = {*unanswered, *behind} - {*silent_s, *lost}
    names = {}
    for node, facts in enumerate(nodes):
        state = f", silent for {silent_s[node]:.0f} s" if node in silent_s else ""
        if node in quiet:
            state = f", does not answer: after {silent_after_s:g} s nbddp says whether it is silent"
            state = f", {behind[node]}" if node in behind else state
        if node in lost:
            state = f", lost{lost[node]}"
        # Of a node that was lost before this notebook came, the address is not known.
        address = f" ({facts.address})" if facts.address else ""
        names[node] = f"{node} {facts.host}{address}{state}"
    if len(names) <= MAX_NODES:
        return [f"nodes: {'; '.join(names.values())}"] if names else []
    odd = sorted({*silent_s, *lost, *quiet} & set(names))
    shown = [names[node] for node in odd[:MAX_NODES]]
    more = [f"and {len(odd) - MAX_NODES} more"] if len(odd) > MAX_NODES else []
    last = len(names) - 1
    whole = f"{len(names)} nodes: {nodes[0].host} to {nodes[last].host}"
    return ["; ".join([whole, *shown, *more])]
