"""The names that fresh ranks still lack after a catch-up, by their cells.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Collection, Container, Mapping
from dataclasses import replace

from nbddp.controller.catch_up.plan import CatchUpPlan
from nbddp.controller.state import LeftOut, Reason
from nbddp.wire.rank_set import NO_RANKS, RankSet
from nbddp.wire.values.value_questions import NameKind


def still_lacking(
    plan: CatchUpPlan,
    lacks: Mapping[int, Collection[str]],
    failed: Container[int],
    kinds: Mapping[str, NameKind],
    *,
    is_partial: bool,
) -> tuple[LeftOut, ...]:
    """The names that were left out or whose cell failed, without those that another has made.

    Args:
        plan: has the names that were left out.
        lacks: the names that fresh ranks lack, by rank.
        failed: numbers of cells that failed when they ran again.
        kinds: the kinds of values on the source.
        is_partial: cells have run that are not known.
    """
    failing = (
        LeftOut(tuple(sorted(cell.names.binds)), Reason.FAILS_NOW, cell.number)
        for cell in plan.cells
        if cell.number in failed
    )
    rest = []
    for left in (*plan.left_out, *failing):
        is_unknown = left.reason is Reason.NO_CELL and is_partial
        reason = Reason.NO_CELL_SINCE_ATTACH if is_unknown else left.reason
        alike: dict[tuple[RankSet, bool], list[str]] = {}
        for name in left.names:
            ranks = RankSet.of(rank for rank, names in lacks.items() if name in names)
            is_plain = kinds.get(name) == "plain" or reason is not Reason.NO_CELL
            if ranks:
                alike.setdefault((ranks, is_plain), []).append(name)
        for (ranks, _), names in alike.items():
            some = NO_RANKS if set(ranks) == set(lacks) else ranks
            copyable, with_state, definitions = (
                frozenset(name for name in names if kinds[name] == kind)
                for kind in ("plain", "state", "definition")
            )
            rest.append(
                replace(
                    left,
                    names=tuple(names),
                    reason=reason,
                    ranks=some,
                    copyable=copyable,
                    with_state=with_state,
                    definitions=definitions,
                )
            )
    return tuple(rest)
