"""Copies plain values of other ranks to fresh ones, and compares variables for that.

Runs in: the notebook's process, the thread of the caller.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from nbddp.controller.catch_up import CatchUpPlan, ComparedVariables, Reason, Roles, ValuesByRank
from nbddp.controller.pool.replayed_cells import Say
from nbddp.errors import TransferError, TransferInterruptedError
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values.value_questions import NameKind, Variables, VariablesOf

if TYPE_CHECKING:
    from nbddp.controller.pool.pool import Pool


def bring(
    pool: "Pool",
    plan: CatchUpPlan,
    roles: Roles,
    had: Mapping[int, Collection[str]],
    lacking: Mapping[str, NameKind],
    *,
    say: Say,
) -> tuple[str, ...]:
    """Copy values that no cell makes, such as those of `%ddp push`, before cells use them."""
    without_cell = {
        name
        for left in plan.left_out
        if left.reason in (Reason.NO_CELL, Reason.FAILED)
        for name in left.names
    }
    names = sorted(
        name
        for name in without_cell | plan.needs & lacking.keys()
        if lacking.get(name) == "plain" and name in had[roles.source]
    )
    compared = compare(pool, roles, names, say)
    alike = {
        name: RankSet.of(rank for rank in roles.fresh if name not in had[rank])
        for name in names
        if all(compared.can_copy(name, rank) for rank in roles.fresh if name not in had[rank])
        or _has_same_push(pool, name, roles)
    }
    return copy_values(pool, alike, roles, say)


def _has_same_push(pool: "Pool", name: str, roles: Roles) -> bool:
    """Whether the source has the value of a push that fresh ranks have got, too."""
    ranks = RankSet.of([roles.source, *roles.fresh])
    return pool.history.has_same_push(name, ranks) and roles.source not in (
        pool.history.doubts.holders(name)
    )


def compare(pool: "Pool", roles: Roles, names: Sequence[str], say: Say) -> ComparedVariables:
    """Compare variables of fresh ranks with those of the others; perhaps none of them has one."""
    asked = RankSet.of([*roles.others, *roles.fresh])
    if names:
        say(f"compares variables of {roles.fresh.describe()} with those of other ranks")
    question = VariablesOf(tuple(names))
    answers = pool.answers(asked, "variables", question, Variables) if names else []
    by_rank = dict(zip(asked, answers, strict=bool(names)))
    cells = (cell for cell in pool.history if names and not set(roles.fresh).isdisjoint(cell.ranks))
    return ComparedVariables(by_rank, roles, ValuesByRank(cells), pool.history.doubts)


def copy_values(
    pool: "Pool", ranks_by_name: Mapping[str, RankSet], roles: Roles, say: Say
) -> tuple[str, ...]:
    """Copy plain values from one rank to fresh ones; return the names of those that were copied."""
    copied = []
    for name, ranks in ranks_by_name.items():
        say(f"copies {name} from rank {roles.source} to {ranks.describe()}")
        try:
            pool.copy_variable(name, roles.source, ranks)
        except TransferInterruptedError:
            raise
        except TransferError:  # a part cannot be pickled
            continue
        # From now on it is as if all that have it had got it at once. Other ranks, to which it was
        # not pushed, must not lack it.
        holders = pool.history.pushed_with(name, roles.source) or roles.others
        pool.history.note_push([name], RankSet.of([*holders, *ranks]))
        copied.append(name)
    return tuple(copied)
