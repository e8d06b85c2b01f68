"""The users' names on ranks, as ``pool.vars()`` gives them.

Runs in: the thread that asks. All but `tell` is pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from nbddp.controller.values.descriptions import Descriptions
from nbddp.errors import BadOptionError
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values.fingerprints import Variable, Variables, VariablesOf

ByName = dict[str, dict[int, Variable | None]]


def tell(asked: Descriptions, names: Sequence[str], ranks: RankSet) -> dict[int, Variables]:
    """Ask ranks for these names, or for all that hold data.

    Raises:
        BadOptionError: what is no name, or a name that none of them has.
        NbddpError: what ``asked`` raises.
    """
    for name in names:
        if not name.isidentifier():
            raise BadOptionError(
                f"%ddp vars: {name!r} is not a name. Next: %ddp diff compares any expression"
            )
    answers = asked.ask(VariablesOf(tuple(names)), Variables)
    told: dict[int, Variables] = dict(zip(ranks, answers, strict=True))
    unknown = [
        name for name, by_rank in by_name_and_rank(told, names).items() if not any(by_rank.values())
    ]
    if unknown:
        raise BadOptionError(
            f"%ddp vars: {ranks.describe()} {ranks.verb('has', 'have')} no variable "
            f"{', '.join(map(repr, unknown))}. Next: %ddp vars lists all"
        )
    return told


def by_name_and_rank(told: Mapping[int, Variables], wanted: Sequence[str] = ()) -> ByName:
    """What each rank has of each name; None: it has no such name."""
    names = dict.fromkeys(wanted)
    for each in told.values():
        names.update(dict.fromkeys(variable.name for variable in each.found))
    by_rank = {
        rank: {variable.name: variable for variable in each.found}
        for rank, each in sorted(told.items())
    }
    return {name: {rank: found.get(name) for rank, found in by_rank.items()} for name in names}


def to_dict(told: Mapping[int, Variables]) -> dict[str, dict[int, dict[str, Any] | None]]:
    """As plain data: by name and rank."""
    return {
        name: {
            rank: None if variable is None else asdict(variable)
            for rank, variable in by_rank.items()
        }
        for name, by_rank in by_name_and_rank(told).items()
    }
