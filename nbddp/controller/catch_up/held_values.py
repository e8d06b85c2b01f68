"""The values of fresh ranks that cells must not replace when they run again.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Collection, Mapping, Sequence

from nbddp.controller.catch_up.roles import Roles
from nbddp.wire.values.value_questions import NameKind


class HeldValues:
    """The values that fresh ranks have before cells run again, and the cells may bind again.

    Args:
        names: of these values.
        bound: all names that the cells bind.
        had: the names on each rank, before.
        lacking: the names that fresh ranks lack.
    """

    def __init__(
        self,
        names: Sequence[str],
        bound: Collection[str],
        had: Mapping[int, Mapping[str, NameKind]],
        roles: Roles,
        lacking: Mapping[str, NameKind],
    ) -> None:
        self.names = names
        #: An optimizer that was made again has the parameters of the module made with it.
        self.only_plain = True
        self._bound = bound
        self._had = had
        self._roles = roles
        self._lacking = lacking

    def see(self, now: Mapping[int, Collection[str]], copied: Collection[str]) -> None:
        """See the names on each rank after the cells, and those that were copied before."""
        gained = {
            kind
            for name, kind in self._lacking.items()
            if name not in copied
            and any(name in now[rank] and name not in self._had[rank] for rank in self._roles.fresh)
        }
        self.only_plain = not gained <= {"plain", "definition"}

    def made_again(self, rank: int) -> set[str]:
        """The names that cells have bound on a rank, and that were not put back."""
        kept = {name for name, kind in self._had[rank].items() if name in self.names}
        if self.only_plain:
            kept = {name for name in kept if self._had[rank][name] == "plain"}
        return set(self._bound) - kept

    def changed(self, name: str) -> list[int]:
        """The fresh ranks whose value of a name is not the one that they had."""
        return [
            rank
            for rank in self._roles.fresh
            if name not in self._had[rank] or name in self.made_again(rank)
        ]
