"""Sets of ranks as users write them: ``0,2-3``.

Runs in: every process. Pure.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from nbddp.errors import BadOptionError

#: A global rank, as in ``torch.distributed``.
Rank = int
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, order=True)
class RankSet:
    """An immutable, sorted set of global ranks.

    >>> from nbddp.wire.rank_set import RankSet
    >>> RankSet.parse("0,2-3", world_size=4)
    RankSet(0,2-3)
    >>> str(RankSet.of([3, 1, 2, 2]))
    '1-3'
    """

    ranks: tuple[Rank, ...] = ()

    @classmethod
    def of(cls, ranks: Iterable[Rank]) -> "RankSet":
        """Make the set of these ranks; order and repetition do not matter.

        >>> RankSet.of([2, 0, 2])
        RankSet(0,2)
        """
        return cls(tuple(sorted(set(ranks))))

    @classmethod
    def all(cls, world_size: int) -> "RankSet":
        """Make the set of all ranks of a pool.

        >>> RankSet.all(4)
        RankSet(0-3)
        """
        return cls(tuple(range(world_size)))

    @classmethod
    def parse(cls, text: str, world_size: int) -> "RankSet":
        """Read ``all``, ``2``, ``0,2-3`` or ``1-`` (to the last rank).

        Args:
            text: the list of ranks.
            world_size: number of ranks of the pool.

        Returns:
            The set of these ranks.

        Raises:
            BadOptionError: the text has another form or is empty, or a rank is not below
                ``world_size``.

        >>> RankSet.parse("0,2-", world_size=4)
        RankSet(0,2-3)
        """
        legal = f"legal: 'all', a rank, or a list such as '0,2-3', with ranks 0 to {world_size - 1}"
        if text.strip() == "all":
            return cls.all(world_size)
        ranks: set[Rank] = set()
        for part in text.split(","):
            first, dash, last = (piece.strip() for piece in part.partition("-"))
            last = last or str(world_size - 1) if dash else first
            if not (first.isascii() and first.isdigit() and last.isascii() and last.isdigit()):
                raise BadOptionError(f"{text!r} is not a list of ranks; {legal}")
            low, high = int(first), int(last)
            if low > high or high >= world_size:
                wrong = f"{low}-{high}" if dash else str(low)
                raise BadOptionError(
                    f"rank {wrong} is out of range in a pool of {world_size} ranks; {legal}"
                )
            ranks.update(range(low, high + 1))
        return cls.of(ranks)

    def __str__(self) -> str:
        spans: list[list[int]] = []
        for rank in self.ranks:
            if spans and spans[-1][1] == rank - 1:
                spans[-1][1] = rank
            else:
                spans.append([rank, rank])
        return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)

    def __repr__(self) -> str:
        return f"RankSet({self})"

    def describe(self) -> str:
        """Return ``rank 2`` or ``ranks 0,2-3``, for sentences.

        >>> RankSet.of([0, 2, 3]).describe()
        'ranks 0,2-3'
        """
        return f"{'rank' if len(self.ranks) == 1 else 'ranks'} {self}"

    def verb(self, singular: str, plural: str) -> str:
        """Return the form of a word that agrees with the number of ranks.

        >>> RankSet.of([1]).verb("is", "are"), RankSet.of([1, 2]).verb("is", "are")
        ('is', 'are')
        """
        return singular if len(self.ranks) == 1 else plural

    def __iter__(self) -> Iterator[Rank]:
        return iter(self.ranks)

    def __len__(self) -> int:
        return len(self.ranks)

    def __contains__(self, rank: object) -> bool:
        return rank in self.ranks

    def __sub__(self, other: "RankSet") -> "RankSet":
        removed = set(other.ranks)
        return RankSet(tuple(rank for rank in self.ranks if rank not in removed))


NO_RANKS = RankSet()


def ranks_by(pairs: Iterable[tuple[_Key, Rank]]) -> dict[_Key, RankSet]:
    """Group ranks by a key; the keys are in the order in which they first appear.

    >>> ranks_by([("even", 2), ("odd", 1), ("even", 0)])
    {'even': RankSet(0,2), 'odd': RankSet(1)}
    """
    ranks_by_key: dict[_Key, list[Rank]] = {}
    for key, rank in pairs:
        ranks_by_key.setdefault(key, []).append(rank)
    return {key: RankSet.of(ranks) for key, ranks in ranks_by_key.items()}


def ranks_by_value(value_by_rank: Mapping[Rank, _Key]) -> dict[_Key, RankSet]:
    """The ranks that have the same value.

    >>> ranks_by_value({0: "a", 1: "b", 2: "a"})
    {'a': RankSet(0,2), 'b': RankSet(1)}
    """
    return ranks_by((value, rank) for rank, value in value_by_rank.items())
