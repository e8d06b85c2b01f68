"""Gives fresh ranks the variables that they lack: cells run again, then states are given.

Runs in: the notebook's process, the thread of the caller.

    NamesOf --> ranks --Names--> make_plan --cells--> ranks, and others aside --> nbddp.sync
"""

import secrets
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nbddp.controller.catch_up import CatchUpPlan, LeftOut, PastCell, Reason, make_plan
from nbddp.controller.pool.cell_options import CellOptions, Replay
from nbddp.errors import (
    BadOptionError,
    CellError,
    CellInterruptedError,
    RankExitedError,
    TransferError,
)
from nbddp.wire.flight_recorder import cell_name
from nbddp.wire.rank_set import NO_RANKS, RankSet
from nbddp.wire.values.value_questions import (
    NameKind,
    Names,
    NamesOf,
    RandomStates,
    RandomStatesOf,
    Variable,
)

if TYPE_CHECKING:
    from nbddp.controller.hub import Run
    from nbddp.controller.pool.cell_view import CellView
    from nbddp.controller.pool.pool import Pool


#: Types of data that is copied; what they hold may be anything.
_PLAIN_TYPES = frozenset(
    ("NoneType", "bool", "int", "float", "complex", "str", "bytes", "list", "tuple", "dict", "set")
)


@dataclass(frozen=True)
class CatchUp:
    """The variables that fresh ranks have got, as `Pool.catch_up` returns them.

    Example:
        >>> pool.catch_up(1).source
        0
    """

    ranks: RankSet  #: the fresh ranks
    others: RankSet  #: the ranks that have lived longer
    source: int  #: the rank whose names and states they got
    cells: tuple[int, ...] = ()  #: numbers of the cells that ran again
    aside: RankSet = NO_RANKS  #: ranks that ran these cells aside
    synced: tuple[str, ...] = ()  #: names of the objects whose state was given
    left_out: tuple[LeftOut, ...] = ()  #: names that the ranks still lack
    #: The numbers of cells that failed when they ran again, and the ends of their errors.
    failed: tuple[tuple[int, str], ...] = ()
    #: Names of objects whose state could not be given, and the ends of the errors.
    not_synced: tuple[tuple[str, str], ...] = ()
    #: Names of plain data that was copied, since it is equal on all other ranks.
    copied: tuple[str, ...] = ()
    #: Other names whose values are equal on all other ranks, and different on a fresh one.
    different: tuple[str, ...] = ()
    #: Names that the cells defined, and that were deleted again as on the other ranks.
    deleted: tuple[str, ...] = ()
    #: Generators of random numbers that have the state of ``source``, since all other ranks are in
    #: that state: ``torch``, ``random``, ``numpy``, ``cuda``.
    alike_random: tuple[str, ...] = ()
    seeding: tuple[int, ...] = ()  #: numbers of the cells, of those that ran, that seed generators
    regained: tuple[str, ...] = ()  #: names that the ranks lacked and have now, data before code
    #: The numbers of the cells, of those that ran, that made or changed these names and ``synced``;
    #: the others make or change what these use, or seed random numbers.
    makers: tuple[int, ...] = ()


def catch_up(
    pool: "Pool",
    ranks: Sequence[int] | str | int | None,
    cells: Sequence[int],
    count: int,
    make_view: "Callable[[Pool, Run], CellView]",
) -> CatchUp:
    """Give fresh ranks the variables that they lack; see `Pool.catch_up`.

    Args:
        pool: the pool.
        ranks: see `Pool.catch_up`.
        cells: see `Pool.catch_up`.
        count: number of the cell that asks for it.
        make_view: makes what shows the cells.
    """
    infos = pool.ranks()
    replaced = RankSet.of(
        info.rank for info in infos if info.is_replacement and info.pid not in pool.caught_up
    )
    fresh = replaced if ranks is None else pool.rank_set(ranks)
    others = pool.all_ranks - replaced - fresh
    if not fresh:
        raise BadOptionError(
            "no rank is fresh: each has the variables of its cells. Next: for a rank that lacks "
            "some, %ddp catchup -r RANK"
        )
    if not others:
        raise BadOptionError(
            "every rank is fresh, so none has variables that others lack. Next: run the cells again"
        )
    known = {cell.number for cell in pool.history}
    if unknown := sorted(set(cells) - known):
        since = " since it was taken back" if pool.history.is_partial else ""
        raise BadOptionError(
            f"the pool has not run {cell_name(unknown[0])}{since}; it has run "
            f"{', '.join(map(str, sorted(known))) or 'no cell'}"
        )

    def run(ranks: RankSet, code: str) -> None:
        """Run a cell of ours after those that run again: other namespaces are dropped."""
        options = CellOptions(
            ranks,
            asks=False,
            execution_count=count,
            cell_name=cell_name(count),
            replay=Replay("", NO_RANKS),
        )
        pool.run_cell(f"{code}\n", options, make_view)

    source = others.ranks[0]
    lacking = _lacking(pool, source, fresh)
    plan = make_plan(pool.history, lacking, fresh, cells)
    aside, failed = _replay(pool, plan, fresh, make_view)
    deleted = _deleted(pool, plan.deleted, fresh, others, run)
    has = _names(pool, RankSet.of([source]))[0]
    missing = _lacking(pool, source, fresh)
    bound = {name for cell in plan.cells for name in cell.names.binds}
    synced = tuple(
        name
        for name, kind in has.items()
        if kind == "state" and name not in missing and (name in lacking or name in bound)
    )
    not_synced = _sync(pool, synced, source, run)
    synced = tuple(name for name in synced if name not in dict(not_synced))
    changed = {*missing, *(has.keys() & bound)} - {*synced, *dict(not_synced)}
    alike = _alike(pool, fresh, others, [name for name in sorted(changed) if has[name] == "data"])
    copied = _copied(pool, source, fresh, alike)
    alike_random = _with_alike_random(pool, source, others, run)
    if not failed and not not_synced:  # else the user will try again
        pool.caught_up.update(info.pid for info in infos if info.rank in set(fresh))
    regained = tuple(
        sorted(
            lacking.keys() - (missing.keys() - set(copied)),
            key=lambda name: (lacking[name] == "definition", [*lacking].index(name)),
        )
    )
    left_out = _still_lacking(plan, missing.keys() - set(copied), dict(failed))
    if pool.history.is_partial:
        left_out = tuple(map(_since_attach, left_out))
    pool.history.note_left_out(fresh, left_out)
    return CatchUp(
        ranks=fresh,
        others=others,
        source=source,
        cells=tuple(cell.number for cell in plan.cells),
        aside=aside,
        synced=synced,
        left_out=left_out,
        failed=failed,
        not_synced=not_synced,
        copied=copied,
        different=tuple(
            variable.name
            for variable in alike
            if variable.name not in copied and variable.name not in missing
        ),
        deleted=deleted,
        alike_random=alike_random,
        seeding=tuple(cell.number for cell in plan.cells if cell.names.seeds),
        regained=regained,
        makers=_makers(plan, {*regained, *synced} - set(copied)),
    )


def _names(pool: "Pool", ranks: RankSet) -> list[dict[str, NameKind]]:
    """The user's names on each rank, with the kinds of their values."""
    answers = pool.answers(ranks, "names", NamesOf(), Names)
    return [answer.kind_by_name for answer in answers]


def _lacking(pool: "Pool", source: int, fresh: RankSet) -> dict[str, NameKind]:
    """The names that ``source`` has and a fresh rank has not."""
    asked = RankSet.of([source, *fresh])
    names = dict(zip(asked, _names(pool, asked), strict=True))
    return {
        name: kind
        for name, kind in names[source].items()
        if any(name not in names[rank] for rank in fresh)
    }


def _makers(plan: CatchUpPlan, names: Container[str]) -> tuple[int, ...]:
    """The cells that bind one of these names last, and those that change it afterwards."""
    makers: dict[str, list[int]] = {}
    for cell in plan.cells:
        for name in cell.names.changes - cell.names.binds:
            makers.get(name, []).append(cell.number)
        makers.update({name: [cell.number] for name in cell.names.binds if name in names})
    return tuple(sorted({number for numbers in makers.values() for number in numbers}))


def _replay(
    pool: "Pool", plan: CatchUpPlan, fresh: RankSet, make_view: "Callable[[Pool, Run], CellView]"
) -> tuple[RankSet, tuple[tuple[int, str], ...]]:
    """Run the cells of a plan; return the ranks that ran them aside, and the cells that failed.

    A cell may fail that did not before: a file is not there any more. What it has defined until
    then counts, and so do the cells below it.
    """
    name = secrets.token_hex(4)
    has_run_aside, failed = NO_RANKS, []
    for cell in plan.cells:
        ranks = cell.ranks if plan.has_peers else RankSet.of(set(cell.ranks).intersection(fresh))
        aside = ranks - fresh
        has_run_aside = RankSet.of([*has_run_aside, *aside])
        options = _options_of(cell, ranks, Replay(name, aside))
        try:
            pool.run_cell(cell.code, options, make_view)
        except (CellInterruptedError, RankExitedError):
            raise
        except CellError as error:
            failed.append((cell.number, _brief(error, fresh)))
    return has_run_aside, tuple(failed)


def _sync(
    pool: "Pool",
    names: Sequence[str],
    source: int,
    run: Callable[[RankSet, str], None],
) -> tuple[tuple[str, str], ...]:
    """Give all ranks the states of a rank; return the names that failed, and their errors.

    One cell for each object: the state of an optimizer whose parameters a rank has frozen by a
    method fits nowhere else, and the other objects must not suffer from it.
    """
    failed = []
    for name in names:
        try:
            run(pool.all_ranks, f"nbddp.sync({name}, src={source})")
        except (CellInterruptedError, RankExitedError):
            raise
        except CellError as error:
            failed.append((name, _brief(error, pool.all_ranks)))
    return tuple(failed)


def _deleted(
    pool: "Pool",
    deleted: frozenset[str],
    fresh: RankSet,
    others: RankSet,
    run: Callable[[RankSet, str], None],
) -> tuple[str, ...]:
    """Delete those names that fresh ranks have again and others have not; return them."""
    if not deleted:
        return ()
    kept = {name for names in _names(pool, others) for name in names}
    has_again = set.intersection(*map(set, _names(pool, fresh)))
    names = tuple(sorted((deleted & has_again) - kept))
    if names:
        run(fresh, f"del {', '.join(names)}")
    return names


def _with_alike_random(
    pool: "Pool",
    source: int,
    others: RankSet,
    run: Callable[[RankSet, str], None],
) -> tuple[str, ...]:
    """Give all ranks the random state of a rank, where all others are in that state.

    Return the names of these generators. Ranks whose states differ have numbers of their own, and
    so has a fresh one.
    """
    if len(others) < 2:
        return ()
    answers = pool.answers(others, "random generators", RandomStatesOf(), RandomStates)
    digests = [answer.digest_by_generator for answer in answers]
    alike = tuple(
        name
        for name, digest in digests[0].items()
        if all(each.get(name) == digest for each in digests)
    )
    if alike:
        run(pool.all_ranks, f"nbddp.rank.random_states.share({alike!r}, src={source})")
    return alike


def _brief(error: CellError, fresh: RankSet) -> str:
    """``rank 1 raised ValueError: bad``, of a fresh rank if it raised."""
    rank = next((rank for rank in fresh if rank in error.by_rank), min(error.by_rank))
    name, text = error.by_rank[rank]
    return f"rank {rank} raised {name}: {text}".partition("\n")[0].rstrip(": ")


def _alike(pool: "Pool", fresh: RankSet, others: RankSet, names: Sequence[str]) -> list[Variable]:
    """The variables that are equal on several other ranks, and not on all fresh ones.

    A fresh rank whose object is of another kind may be the only one that has such an object: a
    group of which the others are no members, a file that one rank writes.
    """
    if len(others) < 2 or not names:
        return []
    answers = pool.told_variables(names, ranks=str(RankSet.of([*others, *fresh])))
    by_rank = {
        rank: {variable.name: variable for variable in answer.variables}
        for rank, answer in answers.items()
    }
    digests = {
        name: {rank: named[name].digest if name in named else "" for rank, named in by_rank.items()}
        for name in names
    }
    whole = by_rank[others.ranks[0]]
    own = {
        variable.name
        for rank in fresh
        for variable in by_rank[rank].values()
        if variable.name in whole
        and variable.type not in {*_PLAIN_TYPES, "Tensor", whole[variable.name].type}
    }
    return [
        whole[name]
        for name in names
        if name not in own
        and len(values := {digests[name][rank] for rank in others}) == 1
        and (value := values.pop())
        and any(digests[name][rank] != value for rank in fresh)
    ]


def _copied(
    pool: "Pool", source: int, fresh: RankSet, variables: Sequence[Variable]
) -> tuple[str, ...]:
    """Copy plain data from one rank to fresh ones; return the names of what was copied.

    An object of the user's class stays: the notebook, through which values go, may lack the class.
    """
    copied = []
    for variable in variables:
        is_plain = variable.type in _PLAIN_TYPES
        is_tensor = variable.type == "Tensor" and variable.device == "cpu" and not variable.sharding
        if not (is_plain or is_tensor):
            continue
        with suppress(TransferError):  # a part cannot be pickled
            pool.push({variable.name: pool.pull(variable.name, ranks=source)}, ranks=fresh.ranks)
            copied.append(variable.name)
    return tuple(copied)


def _options_of(cell: PastCell, ranks: RankSet, replay: Replay) -> CellOptions:
    return CellOptions(
        ranks,
        asks=False,
        execution_count=cell.number,
        first_line=cell.first_line,
        cell_name=cell_name(cell.number),
        replay=replay,
    )


def _since_attach(left: LeftOut) -> LeftOut:
    is_unknown = left.reason is Reason.NO_CELL
    return replace(left, reason=Reason.NO_CELL_SINCE_ATTACH) if is_unknown else left


def _still_lacking(
    plan: CatchUpPlan, missing: Container[str], failed: Container[int]
) -> tuple[LeftOut, ...]:
    """The names that were left out or whose cell failed, without those that another has made."""
    failing = (
        LeftOut(tuple(sorted(cell.names.binds)), Reason.FAILS_NOW, cell.number)
        for cell in plan.cells
        if cell.number in failed
    )
    rest = [
        LeftOut(names, left.reason, left.cell)
        for left in (*plan.left_out, *failing)
        if (names := tuple(name for name in left.names if name in missing))
    ]
    return tuple(rest)
