"""Finds a key of the store that ranks have set, and that differs from an awaited one by a letter.

Runs in: the notebook's process. Pure.
"""

import difflib
import re

from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import CONNECTION, RENDEZVOUS, Operation
from nbddp.wire.rank_set import Rank, RankSet

#: Names of keys that are mistyped are as much alike as this, see `difflib`.
_ALIKE = 0.8
_DIGITS = re.compile(r"\d+")


def similar_keys(operation: Operation, graph: WaitForGraph) -> list[str]:
    """Return clauses such as ``rank 0 has set 'raedy', not 'ready'``.

    Args:
        operation: a rank waits in it for keys.
        graph: the ranks, with the keys that they have set.
    """
    set_by: dict[str, list[Rank]] = {}
    for rank, view in graph.views.items():
        for key in () if view.look is None else view.look.set_keys:
            set_by.setdefault(key, []).append(rank)
    clauses = []
    for key in operation.signature.keys:
        if key in set_by or operation.signature.op in (RENDEZVOUS, CONNECTION):
            continue
        # Keys of ranks and steps differ in their numbers on purpose.
        names = [name for name in set_by if _DIGITS.sub("", name) != _DIGITS.sub("", key)]
        for name in difflib.get_close_matches(key, names, n=1, cutoff=_ALIKE):
            ranks = RankSet.of(set_by[name])
            clauses.append(
                f"{ranks.describe()} {ranks.verb('has', 'have')} set {name!r}, not {key!r}"
            )
    return clauses
