"""The names that a rank should have: not those of branches that it does not take.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Collection, Mapping

from nbddp.controller.catch_up.cell_history import CellHistory
from nbddp.controller.catch_up.roles import Roles
from nbddp.controller.state import LeftOut, Reason
from nbddp.settings import PREDEFINED_NAMES
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet
from nbddp.wire.values.value_questions import NameKind


def own_kinds(
    history: CellHistory, rank: int, had: Mapping[int, Mapping[str, NameKind]]
) -> dict[str, NameKind]:
    """The names that good cells have bound on a rank, and that other ranks have, with their kinds.

    Modules and the like are left out: where no rank has the same one, none can give its state.
    """
    bound: set[str] = set()
    for cell in history:
        if cell.is_ok:
            bound |= cell.binds_on(rank, len(had))[0]
    kinds: dict[str, NameKind] = {}
    for other, kind_by_name in had.items():
        if other != rank:
            for name, kind in kind_by_name.items():
                if name in bound and kind != "state":
                    kinds.setdefault(name, kind)
    return kinds


def expected_names(
    history: CellHistory, had: Mapping[int, Mapping[str, NameKind]], roles: Roles
) -> tuple[dict[int, set[str]], dict[str, NameKind]]:
    """The names that each fresh rank should have, and the kinds of these and of the source's.

    A rank should have the names of the source that it may have had, and those of its own cells.

    A loss becomes a leaf when it is copied, and a leaf with a gradient looks like a parameter: the
    ranks that have it of their own know better.

    Args:
        history: the cells so far.
        had: the user's names on each rank, with the kinds of their values.
        roles: the parts that ranks take.
    """
    expected: dict[int, set[str]] = {}
    kinds = {**had[roles.source]}
    for rank in roles.fresh:
        own = own_kinds(history, rank, had)
        whole = {*had[roles.source]} - history.never_bound(rank, len(had))
        expected[rank] = whole | {*own}
        kinds |= {name: kind for name, kind in own.items() if name not in kinds}
    plain = {name for rank in roles.others for name, kind in had[rank].items() if kind == "plain"}
    return expected, {
        name: "plain" if kind == "data" and name in plain else kind for name, kind in kinds.items()
    }


def lacked(
    kinds: Mapping[str, NameKind],
    expected: Mapping[int, Collection[str]],
    has: Mapping[int, Collection[str]],
) -> dict[str, NameKind]:
    """The names, with their kinds, that any of these ranks should have, and has not."""
    names = {name for rank, own in expected.items() for name in own if name not in has[rank]}
    return {name: kind for name, kind in kinds.items() if name in names}


def regained_names(
    history: CellHistory,
    lacks: Mapping[int, Collection[str]],
    had: Mapping[int, Collection[str]],
    has: Mapping[int, Collection[str]],
) -> set[str]:
    """The names that a fresh rank has got, and that no fresh rank lacks which ran a cell of them.

    Args:
        history: the cells so far.
        lacks: the names that fresh ranks still lack, by rank.
        had: the user's names on each rank before the catch-up.
        has: those after it.
    """
    made = {name for rank in lacks for name in has[rank] if name not in had[rank]}
    return made - {
        name
        for rank, names in lacks.items()
        for name in names
        if not history.is_of_others(rank, name)
    }


def alone_names(
    history: CellHistory,
    fresh: RankSet,
    source: Rank,
    has: Mapping[int, Collection[str]],
    failed: Collection[int],
) -> tuple[LeftOut, ...]:
    """The names that fresh ranks had, still lack, and that no other rank has.

    Of a cell that has failed: those that the source lacks, whichever ranks have them.

    No other rank tells that such a name was there at the end. One that ranks have bound too, which
    have lived since, and lack, is gone everywhere, perhaps on purpose: it is left out.

    Args:
        history: the cells so far.
        fresh: the ranks that have caught up.
        source: the rank whose names they have got.
        has: the user's names on each rank.
        failed: numbers of cells that failed when they ran again.
    """
    size, others = len(has), set(has) - set(fresh)
    known = {*PREDEFINED_NAMES, *(name for other in others for name in has[other])}
    of_source = {*PREDEFINED_NAMES, *has[source]}
    ranks_by_name: dict[tuple[str, int, bool], list[int]] = {}
    for rank in fresh:
        for name, (number, is_ok) in _bound_on(history, rank, size).items():
            is_told = name in (known if is_ok else of_source) or name in has[rank]
            if not (name.startswith("_") or is_told):
                ranks_by_name.setdefault((name, number, is_ok), []).append(rank)
    binders: dict[str, set[int]] = {name: set() for name, *_ in ranks_by_name}
    for cell in history:
        if cell.is_ok and not binders.keys().isdisjoint(cell.names.binds):
            for other in others:  # the branches of few cells are looked at
                for name in frozenset[str]().union(*cell.binds_on(other, size)) & binders.keys():
                    binders[name].add(other)
    somewhere = frozenset[str]().union(*has.values())
    alike: dict[tuple[int, RankSet, Reason], list[str]] = {}
    for (name, number, is_ok), ranks in sorted(ranks_by_name.items()):
        reason = Reason.GONE if binders[name] else Reason.ALONE
        reason = Reason.FAILS_NOW if number in failed else reason
        reason = reason if is_ok and number else Reason.FAILED if number else Reason.GONE
        is_true = reason is not Reason.GONE or name not in somewhere
        if is_true and all(history.has_lost(other, name) for other in binders[name]):
            alike.setdefault((number, RankSet.of(ranks), reason), []).append(name)
    return tuple(
        LeftOut(tuple(names), reason, number, NO_RANKS if set(ranks) == set(fresh) else ranks)
        for (number, ranks, reason), names in sorted(alike.items(), key=lambda each: each[0][0])
    )


def _bound_on(history: CellHistory, rank: int, world_size: int) -> dict[str, tuple[int, bool]]:
    """The names that were bound on a rank, each with the last cell, and whether that ended well.

    The cell is 0 if no cell binds the name: then it was pushed to the rank, or copied there.
    """
    bound: dict[str, tuple[int, bool]] = {}
    pushed = history.pushed_to(rank)
    for cell in history:
        if rank not in cell.ranks:
            continue
        # `own += 1` makes none: it needs the pushed value.
        pushed -= cell.names.binds - (cell.names.reads - cell.names.perhaps)
        names = cell.binds_on(rank, world_size)[0]
        if not cell.is_ok:  # a rank that ended in it has perhaps not bound them
            is_last = history.fresh_since(rank) == cell.number
            names = frozenset() if is_last else names & cell.names_run.binds
        bound |= dict.fromkeys(names, (cell.number, cell.is_ok))
        for name in cell.names.deletes:
            bound.pop(name, None)
            pushed.discard(name)
    return bound | dict.fromkeys(pushed, (0, True))
