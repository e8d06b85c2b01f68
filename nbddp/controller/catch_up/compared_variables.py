"""Variables of fresh ranks beside those of the others: which are alike, and which are initial.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Collection, Mapping

from nbddp.controller.catch_up.plan import CatchUpPlan
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values.value_questions import Variable, Variables

#: Types whose values change in place.
_CONTAINERS = frozenset(("list", "dict", "set", "OrderedDict", "Counter", "defaultdict", "deque"))
#: Types of data that a loop counts or collects in.
_PLAIN_TYPES = _CONTAINERS | {
    "NoneType",
    "bool",
    "int",
    "float",
    "complex",
    "str",
    "bytes",
    "tuple",
}
#: Ranks that are no members of a group have a number in its place.
_OF_GROUPS = frozenset(("ProcessGroup", "Work"))


class ComparedVariables:
    """Variables as ranks describe them.

    Args:
        told: the answers by rank.
        fresh: the ranks that catch up.
        others: those that have lived longer.
    """

    def __init__(self, told: Mapping[int, Variables], fresh: RankSet, others: RankSet) -> None:
        self._told = {
            rank: {variable.name: variable for variable in answer.variables}
            for rank, answer in told.items()
        }
        self._fresh = fresh
        self._others = others

    def _of(self, name: str, rank: int) -> Variable:
        return self._told.get(rank, {}).get(name) or Variable(name=name)

    def is_alike(self, name: str) -> bool:
        """Whether it is equal on several other ranks."""
        digests = {self._of(name, rank).digest for rank in self._others}
        return len(self._others) > 1 and len(digests) == 1 and "" not in digests

    def is_equal(self, name: str) -> bool:
        """Whether it is equal on all of these ranks."""
        digests = {self._of(name, rank).digest for rank in (*self._others, *self._fresh)}
        return len(digests) == 1 and "" not in digests

    def behind(self, name: str, ranks: Collection[int]) -> RankSet:
        """The ranks, of these, whose values differ from the one that all others have.

        A fresh rank whose object is of another kind may be the only one that has such an object: a
        group of which the others are no members, a file that one rank writes. And it may be no
        member of the group of the others.
        """
        if not self.is_alike(name):
            return RankSet()
        whole = self._of(name, self._others.ranks[0])
        usual = {*_PLAIN_TYPES, "", "Tensor", whole.type}
        return RankSet.of(
            rank
            for rank in ranks
            if (own := self._of(name, rank)).digest != whole.digest
            and own.type in usual
            and not (own.type and whole.type in _OF_GROUPS)
        )

    def stale_values(self, plan: CatchUpPlan, copied: Collection[str]) -> frozenset[str]:
        """Names with values of old cells of which the answer would not tell.

        Args:
            plan: the cells that ran again.
            copied: names that have the value, or the state, of another rank.
        """
        return frozenset(
            name
            for name in plan.stale - {*copied}
            if not self.is_equal(name) and not self.is_initial(name, plan)
        )

    def is_initial(self, name: str, plan: CatchUpPlan) -> bool:
        """Whether fresh ranks have what cells made first, and the others what came after it."""
        for rank in self._fresh:
            own = self._of(name, rank)
            is_left = name in plan.rebound or (own.type in _CONTAINERS and name in plan.touched)
            if own.type not in _PLAIN_TYPES or not is_left:
                return False
            if any(self._of(name, other).digest in ("", own.digest) for other in self._others):
                return False
        return True
