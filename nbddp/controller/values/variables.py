"""The user's variables on ranks, as ``pool.vars()`` returns them.

Runs in: the thread of the caller. All but `ask_variables` is pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from nbddp.controller.values.descriptions import Descriptions
from nbddp.errors import BadOptionError
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values.value_questions import Variable, Variables, VariablesOf

#: None: the rank has no such variable.
VariablesByName = dict[str, dict[int, Variable | None]]


def ask_variables(
    descriptions: Descriptions, names: Sequence[str], ranks: RankSet
) -> dict[int, Variables]:
    """Ask ranks for the variables with these names, or for all that hold data.

    Args:
        descriptions: the question to these ranks.
        names: empty: all variables that hold data.
        ranks: the ranks that are asked.

    Returns:
        The answers by rank.

    Raises:
        BadOptionError: a name is not an identifier, or no rank has such a variable.
        NbddpError: see `Descriptions.ask`.
    """
    for name in names:
        if not name.isidentifier():
            raise BadOptionError(
                f"%ddp vars: {name!r} is not a name. Next: %ddp diff compares any expression"
            )
    answers = descriptions.ask(VariablesOf(tuple(names)), Variables)
    variables_by_rank: dict[int, Variables] = dict(zip(ranks, answers, strict=True))
    unknown = [
        name
        for name, by_rank in by_name_and_rank(variables_by_rank, names).items()
        if not any(by_rank.values())
    ]
    if unknown:
        raise BadOptionError(
            f"%ddp vars: {ranks.describe()} {ranks.verb('has', 'have')} no variable "
            f"{', '.join(map(repr, unknown))}. Next: %ddp vars lists all"
        )
    return variables_by_rank


def by_name_and_rank(
    variables_by_rank: Mapping[int, Variables], names: Sequence[str] = ()
) -> VariablesByName:
    """Return the variables by name and rank: ``names`` first, then all others."""
    by_rank = {
        rank: {variable.name: variable for variable in answer.variables}
        for rank, answer in sorted(variables_by_rank.items())
    }
    all_names = dict.fromkeys(names)
    for variables in by_rank.values():
        all_names.update(dict.fromkeys(variables))
    return {
        name: {rank: variables.get(name) for rank, variables in by_rank.items()}
        for name in all_names
    }


def variables_to_dict(
    variables_by_rank: Mapping[int, Variables],
) -> dict[str, dict[int, dict[str, Any] | None]]:
    """Return the variables as plain data, by name and rank."""
    return {
        name: {
            rank: None if variable is None else asdict(variable)
            for rank, variable in by_rank.items()
        }
        for name, by_rank in by_name_and_rank(variables_by_rank).items()
    }
