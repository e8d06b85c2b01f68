"""The part of a Ray cluster that a pool asks for.

Runs in: the driver of a Ray job. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

#: Amounts of a node or a bundle, by the names that Ray gives them.
Resources: TypeAlias = Mapping[str, float]


def bundle(nproc_per_node: int, nnodes: int, device: str, nodes: Sequence[Resources]) -> Resources:
    """Choose what one agent and its ranks ask for: a processor for each rank, and a GPU.

    Args:
        nproc_per_node: ranks on each node.
        nnodes: number of nodes.
        device: the value of ``--device``. With ``auto`` GPUs are asked for if enough nodes have one
            for each rank.
        nodes: all amounts of each node that is alive.

    >>> bundle(2, 1, "auto", [{"CPU": 8.0, "GPU": 4.0}])
    {'CPU': 2, 'GPU': 2}
    >>> bundle(2, 2, "auto", [{"CPU": 8.0, "GPU": 4.0}, {"CPU": 8.0}])
    {'CPU': 2}
    """
    with_gpus: Resources = {"CPU": nproc_per_node, "GPU": nproc_per_node}
    if device == "cuda" or (device == "auto" and count_fitting(with_gpus, nodes) >= nnodes):
        return with_gpus
    return {"CPU": nproc_per_node}


def count_fitting(wanted: Resources, nodes: Sequence[Resources]) -> int:
    """Return the number of nodes that have these amounts.

    >>> count_fitting({"CPU": 2}, [{"CPU": 8.0}, {"CPU": 1.0}])
    1
    """
    return sum(all(node.get(name, 0) >= wanted[name] for name in wanted) for node in nodes)


def too_small_text(wanted: Resources, nnodes: int, nodes: Sequence[Resources]) -> str:
    r"""Say why a cluster can never have the pool; empty: it can.

    >>> too_small_text({"CPU": 4}, 2, [{"CPU": 8.0}, {"CPU": 2.0}]).partition(". Next")[0]
    'the Ray cluster is too small: 2 nodes with CPU 4 each are needed, 1 of its 2 nodes has that \
(CPU 8; CPU 2)'
    """
    fitting = count_fitting(wanted, nodes)
    if fitting >= nnodes:
        return ""
    has = "; ".join(_amounts(wanted, node) for node in nodes)
    need = f"{_count(nnodes)} with {_amounts(wanted, wanted)} {'each are' if nnodes > 1 else 'is'}"
    return (
        f"the Ray cluster is too small: {need} needed, {fitting} of its {_count(len(nodes))} "
        f"{'has' if fitting == 1 else 'have'} that ({has}). Next: a smaller -n or --nnodes, or "
        "more nodes in the cluster"
    )


def waiting_text(wanted: Resources, nnodes: int, free: Resources) -> str:
    """Say what the job waits for.

    >>> waiting_text({"CPU": 4}, 2, {"CPU": 3.0, "memory": 1e9})
    'Ray: waits for CPU 4 on 2 nodes; free in the whole cluster: CPU 3'
    """
    return (
        f"Ray: waits for {_amounts(wanted, wanted)} on {_count(nnodes)}; "
        f"free in the whole cluster: {_amounts(wanted, free)}"
    )


def _amounts(names: Resources, amounts: Resources) -> str:
    return ", ".join(f"{name} {amounts.get(name, 0):g}" for name in names)


def _count(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"
