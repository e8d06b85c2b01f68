"""Judges the values that fresh ranks have after a catch-up, beside those of the others.

Runs in: the notebook's process, the thread of the caller.
"""

from collections.abc import Collection, Container, Mapping, Sequence
from typing import TYPE_CHECKING

from nbddp.controller.catch_up import (
    CatchUpPlan,
    ComparedVariables,
    HeldValues,
    Unfinished,
)
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values.value_questions import NameKind

if TYPE_CHECKING:
    from nbddp.controller.pool.pool import Pool


def ranks_behind(
    held: HeldValues,
    names: Sequence[str],
    expected: Mapping[int, Collection[str]],
    now: Mapping[int, Collection[str]],
) -> dict[str, list[int]]:
    """The fresh ranks that may lack the values of names, or have others than the other ranks.

    A rank whose branch does not make a name has none, and does not lack it.
    """
    return {
        name: [rank for rank in held.changed(name) if name in expected[rank] or name in now[rank]]
        for name in names
    }


def values_behind(
    compared: ComparedVariables,
    late: Mapping[str, Sequence[int]],
    plan: CatchUpPlan,
    kinds: Mapping[str, NameKind],
) -> tuple[dict[str, RankSet], set[str]]:
    """The names whose values all others have, with the fresh ranks that have not.

    Returns:
        They, without those that these ranks have by their role, unless later code has perhaps
        changed the value; and the names that were left out.
    """
    states = {name for name, kind in kinds.items() if kind == "state"}
    behind = {name: ranks for name in late if (ranks := compared.behind(name, late[name]))}
    own_role = {
        name
        for name, ranks in behind.items()
        if all(compared.is_own(name, rank) for rank in ranks)
        and not compared.changed_since(name, plan, states)
    }
    return {name: ranks for name, ranks in behind.items() if name not in own_role}, own_role


def perhaps_new(pool: "Pool", fresh: RankSet, names: Collection[str]) -> tuple[str, ...]:
    """Those of ``names`` whose cells, on fresh ranks, had all failed: perhaps before that line."""
    size = len(pool.all_ranks)
    known: set[str] = set()
    of_failed: set[str] = set()
    for cell in pool.history:
        for rank in fresh:
            made = frozenset[str]().union(*cell.binds_on(rank, size))
            (known if cell.is_ok else of_failed).update(made)
    return tuple(sorted(of_failed.intersection(names) - known))


def in_doubt(
    doubtful: Sequence[Unfinished], names: Container[str], compared: ComparedVariables
) -> list[tuple[tuple[str, int], ...]]:
    """The ``names`` of cells that have perhaps not done what they did, if they are not equal."""
    return [
        tuple(
            (name, number)
            for name, number in cells.cell_by_name.items()
            if name in names and not compared.is_equal(name)
        )
        for cells in doubtful
    ]


def overtaken_names(
    pool: "Pool", plan: CatchUpPlan, compared: ComparedVariables, names: Container[str]
) -> tuple[tuple[str, int], ...]:
    """The ``names`` that cells which do not run again have changed; see `CatchUp.overtaken`.

    Values that a good cell has changed and that are told as the initial ones are left out.
    """
    failed = {cell.number for cell in pool.history if not cell.is_ok}
    return tuple(
        (name, number)
        for name, number in plan.overtaken
        if name in names
        and not compared.is_equal(name)
        and (number in failed or not compared.is_initial(name, plan))
    )
