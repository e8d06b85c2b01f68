"""The members of a group, and an identity that no other group has.

Runs in: the rank process, the thread that makes the group.

Torch names groups by a counter, so a group often has the name of an earlier one. It may also have
the same store, and the user chooses ``rank`` and ``world_size``. So each member writes a card to
the group's store before torch connects the members, and reads the cards of all members afterwards:

    enter: write the own card  -->  torch connects all members  -->  read: all cards are there

No member may continue before all have read (`GroupFactory.create` ensures this), because the next
group with the same name in the same store overwrites these cards.
"""

import secrets
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Members:
    """The members of a group, equal on all of them."""

    identity: str  #: of the group: the secret of its first member's card
    ranks: tuple[int, ...]  #: ranks of the pool, in the order of the group's own ranks


class MemberList:
    """The cards of one group that is being made.

    Args:
        store: store of the group.
        base: prefix of the keys, equal on all members.
        index: rank of this process in the group.
        size: number of members.
    """

    def __init__(self, store: Any, base: str, index: int, size: int) -> None:
        self._store = store
        self._index = index
        #: Keys of all cards of the group.
        self.keys = [f"{base}/member/{number}" for number in range(size)]

    def enter(self, pool: str, rank: int) -> None:
        """Write the card of this process: ``rank`` of ``pool``."""
        self._store.set(self.keys[self._index], f"{pool} {rank} {secrets.token_hex(8)}")

    def read(self, pool: str) -> Members | None:
        """Read all cards; None: a member is no rank of this pool, or has written none."""
        try:
            values = self._values() if self._store.check(self.keys) else []
        except (RuntimeError, NotImplementedError):
            values = []  # a store of the user that lacks some methods
        cards = [bytes(value).decode(errors="replace").split(" ") for value in values]
        if not cards:
            return None
        if any(len(card) != 3 or card[0] != pool or not card[1].isdecimal() for card in cards):
            return None
        ranks = tuple(int(rank) for _, rank, _ in cards)
        return Members(cards[0][2], ranks) if len(set(ranks)) == len(ranks) else None

    def _values(self) -> list[Any]:
        if self._store.has_extended_api():
            return list(self._store.multi_get(self.keys))
        return [self._store.get(key) for key in self.keys]
