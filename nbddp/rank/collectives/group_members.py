"""The members of a group, and an identity that no other group has.

Runs in: the rank process, the thread that makes the group.

Torch names groups by a counter, so a group often has the name of an earlier one. It may also have
the same store, and the user chooses ``rank`` and ``world_size``. So each member writes a card to
the group's store before torch connects the members, and reads the cards of all members afterwards:

    enter: write the own card  -->  torch connects all members  -->  read: all cards are there

No member may continue before all have read (`GroupFactory.create` ensures this), because the next
group with the same name in the same store overwrites these cards.
"""

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nbddp.errors import CollectiveRefusedError


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

    def enter(self, pool: str, rank: int, *, is_new: bool) -> None:
        """Write the card of this process: ``rank`` of ``pool``.

        Args:
            pool: name of the pool.
            rank: of this process in it.
            is_new: no other group has had these keys.

        Raises:
            CollectiveRefusedError: another rank has taken this place in a new group.
        """
        key, card = self.keys[self._index], f"{pool} {rank} {secrets.token_hex(8)}"
        if is_new:
            # The place is taken in one step: C++ would wait for a missing member.
            first = bytes(self._store.compare_set(key, "", card)).decode(errors="replace").split()
            if first[:1] == [pool] and first[1:2] != [str(rank)]:
                raise CollectiveRefusedError(
                    f"this rank calls init_process_group with rank={self._index}, as rank "
                    f"{first[1]} of the pool does\n"
                    "  each process needs a rank of its own\n"
                    "  next: pass rank=rank, world_size=world_size; in a %%ddp cell `rank` is the "
                    "number of the process"
                )
        self._store.set(key, card)

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


class SharedList:
    """The list of members that all ranks pass to ``new_group``, in the group's store.

    Torch numbers groups in the order of their creation. If ranks pass lists that have no member
    in common, both groups have the same number, and so the same keys in the store: under torchrun
    their members read each other's addresses, and hang or fail. Lists with a common member are left
    to the diagnosis, which sees that this member cannot be in both calls.

    Args:
        store: store of the group.
        key: the same on all ranks for one call of ``new_group``.
    """

    def __init__(self, store: Any, key: str) -> None:
        self._store = store
        self._key = key
        self._is_first = False

    def compare(self, rank: int, ranks: Sequence[int]) -> None:
        """Compare the list of this rank with that of the rank that called ``new_group`` first.

        Raises:
            CollectiveRefusedError: they have no member in common.
        """
        own = json.dumps([rank, list(ranks)])
        try:
            first = bytes(self._store.compare_set(self._key, "", own)).decode()
        except (RuntimeError, NotImplementedError):
            return  # a store without compare_set
        self._is_first = first == own
        first_rank, first_list = json.loads(first)
        if not set(ranks).intersection(first_list):
            raise CollectiveRefusedError(
                f"this rank called new_group({list(ranks)}), and rank {first_rank} called "
                f"new_group({first_list})\n"
                "  torch numbers groups in the order of their creation: both would be the same "
                "group number, and under torchrun their members would read each other's "
                "addresses\n"
                "  nothing was sent; every variable is kept\n"
                "  next: make every group on all ranks, members or not, in the same order; or "
                "pass use_local_synchronization=True"
            )

    def withdraw(self) -> None:
        """Remove the list, if it is that of this rank, after its group was not made."""
        if self._is_first:
            self._is_first = False
            try:
                self._store.delete_key(self._key)
            except (RuntimeError, NotImplementedError):
                return
