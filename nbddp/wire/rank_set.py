"""Sets of ranks as users write them: ``0,2-3``.

Runs in: every process. Pure.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from nbddp.errors import BadOptionError

#: Sentences list this many ranks and ranges; more have a short name if there is a rule.
_MAX_LISTED = 6
#: Without a rule, a name that is longer is cut.
_MAX_CHARACTERS = 40
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

        Args:
            ranks: global ranks.

        Returns:
            The set.

        Example:
            >>> RankSet.of([2, 0, 2])
            RankSet(0,2)
        """
        return cls(tuple(sorted(set(ranks))))

    @classmethod
    def all(cls, world_size: int) -> "RankSet":
        """Make the set of all ranks of a pool.

        Args:
            world_size: number of ranks of the pool.

        Returns:
            The set.

        Example:
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

        Example:
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
                wrong = f"ranks {low}-{high} are" if dash else f"rank {low} is"
                pool = f"a pool of {world_size} {'rank' if world_size == 1 else 'ranks'}"
                raise BadOptionError(f"{wrong} out of range in {pool}; {legal}")
            ranks.update(range(low, high + 1))
        return cls.of(ranks)

    def __str__(self) -> str:
        return ",".join(self._pieces())

    def _pieces(self) -> list[str]:
        spans: list[list[int]] = []
        for rank in self.ranks:
            if spans and spans[-1][1] == rank - 1:
                spans[-1][1] = rank
            else:
                spans.append([rank, rank])
        return [str(low) if low == high else f"{low}-{high}" for low, high in spans]

    def __repr__(self) -> str:
        return f"RankSet({self})"

    def describe(self, *, limit: int = _MAX_CHARACTERS, in_full: bool = False) -> str:
        """Return ``rank 2`` or ``ranks 0,2-3``, for sentences.

        A long list has a short name that is as exact; without one it is cut.

        Args:
            limit: number of characters beyond which it is cut.
            in_full: do not cut it.

        Returns:
            The word "rank" or "ranks" with the numbers, or with their rule.

        Example:
            >>> RankSet.of([0, 2, 3]).describe()
            'ranks 0,2-3'
            >>> RankSet.of(range(1, 64, 2)).describe()
            'odd ranks 1-63'
            >>> RankSet.of(range(1, 64, 4)).describe()
            'ranks 1-61 in steps of 4'
            >>> RankSet.of(rank * rank for rank in range(2, 20)).describe()
            'ranks 4,9,16,25,36,49,64,81,100,121,144,… (18 ranks)'
        """
        prefix, rest = self._rule()
        word = self.verb("rank", "ranks")
        numbers = rest or (str(self) if in_full else self._cut(limit - len(word) - 1))
        return f"{prefix}{word} {numbers}"

    def numbers(self, limit: int = _MAX_CHARACTERS) -> str:
        """Return the same without the word "ranks".

        Args:
            limit: number of characters beyond which it is cut, if there is no short name.

        Returns:
            The numbers, or their rule.

        Example:
            >>> RankSet.of(rank * rank for rank in range(2, 20)).numbers(16)
            '4,9,16,25,36,49,… (18 ranks)'
        """
        return self.short_name or self._cut(limit)

    def _cut(self, limit: int) -> str:
        text = str(self)
        if len(text) <= limit:
            return text
        end = text.rfind(",", 0, limit)
        end = text.find(",") if end < 0 else end  # a number may be longer than the limit
        return text if end < 0 else f"{text[:end]},… ({len(self.ranks)} ranks)"

    @property
    def short_name(self) -> str:
        """The exact name of a long list with a rule, without the word "ranks"; else empty.

        >>> RankSet.of(range(0, 64, 2)).short_name
        'even 0-62'
        >>> RankSet.of(rank for rank in range(64) if rank % 4).short_name
        '1-63 except 4-60 in steps of 4'
        """
        return "".join(self._rule())

    def _rule(self) -> tuple[str, str]:
        """The parts of `short_name` in front of the word "ranks" and behind it."""
        if len(self._pieces()) <= _MAX_LISTED:
            return "", ""
        whole = f"{self.ranks[0]}-{self.ranks[-1]}"
        step = _step(self.ranks)
        if step == 2:
            return ("odd " if self.ranks[0] % 2 else "even "), whole
        if step:
            return "", f"{whole} in steps of {step}"
        if self.ranks[-1] - self.ranks[0] >= 2 * len(self.ranks):
            return "", ""  # most ranks between them are absent
        absent = sorted(set(range(self.ranks[0], self.ranks[-1])).difference(self.ranks))
        step = _step(absent)
        return "", f"{whole} except {absent[0]}-{absent[-1]} in steps of {step}" if step else ""

    def verb(self, singular: str, plural: str) -> str:
        """Return the form of a word that agrees with the number of ranks.

        Args:
            singular: the form for one rank.
            plural: the form for several ranks, or none.

        Returns:
            One of the two.

        Example:
            >>> RankSet.of([1]).verb("is", "are"), RankSet.of([1, 2]).verb("is", "are")
            ('is', 'are')
        """
        return singular if len(self.ranks) == 1 else plural

    def __iter__(self) -> Iterator[Rank]:
        return iter(self.ranks)

    def __len__(self) -> int:
        return len(self.ranks)

    def __contains__(self, rank: object) -> bool:
        if not isinstance(rank, int):
            return False
        at = bisect_left(self.ranks, rank)
        return at < len(self.ranks) and self.ranks[at] == rank

    def __sub__(self, other: "RankSet") -> "RankSet":
        removed = set(other.ranks)
        return RankSet(tuple(rank for rank in self.ranks if rank not in removed))


NO_RANKS = RankSet()


def _step(ranks: Sequence[Rank]) -> int:
    """The difference of neighbours, if that is always the same; else 0."""
    steps = {after - before for before, after in pairwise(ranks)}
    return steps.pop() if len(steps) == 1 else 0


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
