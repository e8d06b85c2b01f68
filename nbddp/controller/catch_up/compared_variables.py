"""Variables of fresh ranks beside those of the others: which are alike, and which are initial.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Collection, Mapping

from nbddp.controller.catch_up.doubts import Doubts
from nbddp.controller.catch_up.plan import CatchUpPlan
from nbddp.controller.catch_up.roles import Roles
from nbddp.controller.catch_up.values_by_rank import ValuesByRank
from nbddp.wire.rank_set import NO_RANKS, RankSet
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
        roles: the parts that ranks take.
        by_rank: the names whose values depend on the rank.
        doubts: the values of ranks that prove nothing.
    """

    def __init__(
        self,
        told: Mapping[int, Variables],
        roles: Roles,
        by_rank: ValuesByRank,
        doubts: Doubts,
    ) -> None:
        self._by_rank = by_rank
        self._doubts = doubts
        self._source = roles.source
        self._fresh = roles.fresh
        self._others = roles.others
        self._told = {
            rank: {variable.name: variable for variable in answer.variables}
            for rank, answer in told.items()
        }

    def _of(self, name: str, rank: int) -> Variable:
        return self._told.get(rank, {}).get(name) or Variable(name=name)

    def _trusted(self, name: str) -> list[int]:
        """The other ranks whose value of a name is not in doubt."""
        return [*self._others - self._doubts.holders(name)]

    def is_alike(self, name: str) -> bool:
        """Whether it is equal on several other ranks, and not in doubt there."""
        trusted = self._trusted(name)
        digests = {self._of(name, rank).digest for rank in trusted}
        return len(trusted) > 1 and len(digests) == 1 and "" not in digests

    def is_equal(self, name: str) -> bool:
        """Whether it is equal on all of these ranks, but for those where it is in doubt."""
        trusted = self._trusted(name)
        digests = {self._of(name, rank).digest for rank in (*trusted, *self._fresh)}
        return bool(trusted) and len(digests) == 1 and "" not in digests

    def can_copy(self, name: str, rank: int) -> bool:
        """Whether the value that all others have is one for a fresh rank, too."""
        return (
            self.is_alike(name)
            and self._source not in self._doubts.holders(name)
            and not self.is_own(name, rank)
        )

    def is_own(self, name: str, rank: int) -> bool:
        """Whether the value that cells make on a fresh rank is right there by its role."""
        return self._by_rank.is_own(name, self._of(name, rank).type)

    def doubted(self, name: str) -> RankSet:
        """The other ranks whose value is in doubt, unless it is equal on the trusted ones."""
        holders = self._doubts.holders(name)
        return (
            NO_RANKS if self.is_equal(name) else RankSet.of(r for r in self._others if r in holders)
        )

    def changed_since(self, name: str, plan: CatchUpPlan, states: Collection[str]) -> bool:
        """Whether a value of a role, and what it was made from, has perhaps changed since.

        Args:
            name: its name.
            plan: the cells that ran again.
            states: names of objects that have got the state of another rank since.
        """
        later = plan.rebound | {*states, *dict(plan.overtaken)}
        is_touched = any(
            each in plan.touched and self._of(each, rank).type in _CONTAINERS
            for each in (name, *self._by_rank.uses(name))
            for rank in self._fresh
        )
        return is_touched or not {name, *self._by_rank.uses(name)}.isdisjoint(later)

    def behind(self, name: str, ranks: Collection[int]) -> RankSet:
        """The ranks, of these, whose values differ from the one that all others have.

        A fresh rank whose object is of another kind may be the only one that has such an object: a
        group of which the others are no members, a file that one rank writes. And it may be no
        member of the group of the others.
        """
        if not self.is_alike(name):
            return RankSet()
        whole = self._of(name, self._trusted(name)[0])
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
            digests = [self._of(name, other).digest for other in self._trusted(name)]
            if not digests or not {"", own.digest}.isdisjoint(digests):
                return False
        return True
