"""The ranks that catch up, and those whose variables they get.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from nbddp.controller.catch_up.cell_history import CellHistory
from nbddp.controller.state import RankInfo, catch_up_command
from nbddp.errors import BadOptionError
from nbddp.settings import PREDEFINED_NAMES
from nbddp.wire.rank_set import NO_RANKS, RankSet

_MAX_NAMES = 8
_NO_FRESH = (
    "no fresh rank lacks a variable that %ddp catchup makes on its own. Next: for a rank that "
    "lacks some, %ddp catchup -r RANK, or a cell with %%ddp -r RANK that makes them"
)
_NOTHING_LACKS = (
    "no rank lacks a variable that %ddp catchup makes, so there is nothing to catch up. Next: run "
    "the next cell"
)
_ALL_FRESH = (
    "every rank is fresh, so none has variables that others lack. Next: run the cells again"
)
_NO_SOURCE = (
    "no rank is left that could give its variables to those that you name: every other rank is "
    "fresh, too. Next: run the cells again"
)
_NO_VARIABLES = (
    "no rank has a variable of a cell, so none has what others lack. Next: run the cells again"
)


@dataclass(frozen=True)
class Roles:
    """The parts that ranks take in a catch-up."""

    fresh: RankSet  #: they get what they lack
    source: int  #: the rank whose names and states they get
    others: RankSet  #: with the source
    settled: RankSet = NO_RANKS  #: those of ``fresh`` that have run cells of their own
    passed_over: RankSet = NO_RANKS  #: they lack something, too, and have values of their own


def choose_roles(
    history: CellHistory,
    infos: Iterable[RankInfo],
    had: Mapping[int, Collection[str]],
    named: RankSet | None,
) -> Roles:
    """Choose the ranks that catch up: those that were named, or the fresh ones that lack something.

    A rank that took the place of another and has values of its own is changed only if it is named.

    Args:
        history: the cells so far.
        infos: all ranks.
        had: the user's names on each rank.
        named: the ranks that the user has named; None: none.

    Raises:
        BadOptionError: no rank is fresh, or every rank is, or none has a variable, or none is left
            beside those that were named.
    """
    all_ranks = RankSet.of(had)
    replaced = history.replaced
    processes = [info.process for info in infos if info.is_replacement]
    behind = RankSet.of(one[0] for one in processes if not replaced.is_whole(*one))
    living = RankSet.of(one[0] for one in processes if one[0] in behind and replaced.lives_on(*one))
    young = behind - living
    whole = all_ranks - behind - (named or NO_RANKS)
    alive = living - (named or NO_RANKS)
    # A rank whose cells all ran well, but for the loops, may lack what one with failed cells has.
    poor = _poor(history, whole, alive, had)
    # None but ranks that have caught up in part: they are better than none.
    part = RankSet.of(
        process[0]
        for process in processes
        if process[0] in behind - (named or NO_RANKS)
        and had[process[0]]
        and replaced.has_caught_up(*process)
    )
    base = whole - poor or alive or whole or part
    young = young - base
    if not any(had.values()):
        raise BadOptionError(_NO_VARIABLES)
    if not (named or behind):
        raise BadOptionError(_ALL_FRESH if _are_all_fresh(history, had) else _NO_FRESH)
    if not base:
        are_fresh = named is None or _are_all_fresh(history, had)
        raise BadOptionError(_ALL_FRESH if are_fresh else _without_others(history, had, named))
    source = base.ranks[0]
    lacks = {rank: _lost(history, rank, source, had) for rank in behind - base}
    if named is not None:
        return Roles(named, source, whole - poor or base, named - young)
    passed_over = RankSet.of(rank for rank in living if lacks.get(rank))
    fresh = RankSet.of(rank for rank in young if lacks[rank]) or young
    if not fresh and not passed_over and _are_all_fresh(history, had):
        raise BadOptionError(_ALL_FRESH)
    if not fresh:
        raise BadOptionError(_without_fresh(passed_over, lacks))
    return Roles(fresh, source, all_ranks - fresh - passed_over - poor, passed_over=passed_over)


def _poor(
    history: CellHistory, whole: RankSet, alive: RankSet, had: Mapping[int, Collection[str]]
) -> RankSet:
    """The ranks of ``whole`` that still lack names of their catch-up which one of ``alive`` has."""
    known = {name for rank in alive for name in had[rank]}
    return RankSet.of(r for r in whole if (known & {*history.lacks(r)}) - {*had[r]})


def _lost(
    history: CellHistory, rank: int, source: int, had: Mapping[int, Collection[str]]
) -> list[str]:
    """The names that a rank lacks, without those that cells bind on other ranks only."""
    lost = []
    never = history.never_bound(rank, len(had))
    for name in had[source]:
        binders = [cell for cell in history if name in cell.names.binds]
        is_of_rank = not binders or any(rank in cell.ranks for cell in binders)
        if is_of_rank and name not in had[rank] and name not in never:
            lost.append(name)
    return lost


def _are_all_fresh(history: CellHistory, had: Mapping[int, Collection[str]]) -> bool:
    """Whether all processes are newer than a cell whose names are gone."""
    known = {*PREDEFINED_NAMES, *(name for names in had.values() for name in names)}
    lost = history.lost_by_all(RankSet.of(had))
    return any(name not in known for name in lost if not name.startswith("_"))


def _without_others(
    history: CellHistory, had: Mapping[int, Collection[str]], named: RankSet | None
) -> str:
    richest = max(had, key=lambda rank: len(had[rank]))
    lacking = RankSet.of(rank for rank in had if _lost(history, rank, richest, had))
    if not lacking:
        return _NOTHING_LACKS
    if lacking == named:  # the same command would be refused again
        return _NO_SOURCE
    return (
        "no rank is left that could give its variables to those that you name. Next: name only "
        f"ranks that lack some, {catch_up_command(lacking)}"
    )


def _without_fresh(living: RankSet, lacks: Mapping[int, Collection[str]]) -> str:
    if not living:
        return _NO_FRESH
    names = list(dict.fromkeys(name for rank in living for name in lacks[rank]))
    some = f"{', '.join(names[:_MAX_NAMES])}{' and more' if len(names) > _MAX_NAMES else ''}"
    return (
        f"{living.describe()} {living.verb('lacks', 'lack')} {some}, and "
        f"{living.verb('has', 'have')} values of cells that ran since "
        f"{living.verb('it was', 'they were')} replaced: {living.verb('it is', 'they are')} "
        f"changed only if you name {living.verb('it', 'them')}. Next: {catch_up_command(living)}"
    )
