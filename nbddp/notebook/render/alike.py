"""Phrases about ranks that differ in numbers only: many ranks share a line.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, TypeAlias

from nbddp.controller.diagnosis import Predicate, rank_at
from nbddp.notebook.render.html import without_numbers
from nbddp.wire.rank_set import Rank

#: Makes the predicates of several ranks equal.
Fold: TypeAlias = Callable[[Predicate, Rank], Predicate]


def _exactly(predicate: Predicate, rank: Rank) -> Predicate:
    return predicate


def _by_distance(predicate: Predicate, rank: Rank) -> Predicate:
    """``waits in recv from the next rank``: as exact, and equal for all pairs of neighbours."""
    return predicate.with_peer(rank_at(predicate.peer - rank))


def _without_numbers(predicate: Predicate, rank: Rank) -> Predicate:
    plain = predicate.with_peer("another rank")
    one, several = map(without_numbers, plain.aside)
    return replace(plain, rest=without_numbers(plain.rest), aside=(one, several))


#: The most exact one comes first.
FOLDS: Final[tuple[Fold, ...]] = (_exactly, _by_distance, _without_numbers)


def peers_of(predicates: Mapping[Rank, Predicate]) -> str:
    """`` (0: 2, 1: 3)``: the other ends of messages that a folded predicate does not name."""
    peers = {rank: each.peer for rank, each in predicates.items() if each.peer >= 0}
    listed = ", ".join(f"{rank}: {peer}" for rank, peer in peers.items())
    return f" ({listed})" if len(peers) > 1 else ""
