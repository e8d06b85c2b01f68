"""Runs cells again for fresh ranks, and gives these ranks the states of another rank.

Runs in: the notebook's process, the thread of the caller.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from nbddp.controller.catch_up import CatchUpPlan, PastCell, Roles
from nbddp.controller.pool.cell_options import CellOptions, Replay
from nbddp.errors import CellError, CellInterruptedError, RankExitedError
from nbddp.wire.flight_recorder import cell_name
from nbddp.wire.rank_set import NO_RANKS, RankSet

if TYPE_CHECKING:
    from nbddp.controller.hub import Run
    from nbddp.controller.pool.pool import Pool
    from nbddp.controller.pool.view_protocol import CellView

#: The module that cells of ours use on ranks for values.
VALUES = "nbddp.rank.values.plain_values"
NO_REPLAY = Replay("", NO_RANKS)

#: Runs a cell of ours on ranks.
RunOwn: TypeAlias = Callable[..., None]
#: Shows what a catch-up does now: ``runs cell [4] again on rank 2``.
Say: TypeAlias = Callable[[str], None]


@dataclass(frozen=True)
class Replayed:
    """The end of the cells that ran again."""

    aside: RankSet  #: ranks that ran them aside
    failed: tuple[tuple[int, str], ...]  #: the numbers of cells, and the ends of their errors
    failed_on_fresh: frozenset[int]  #: the numbers of those that failed on fresh ranks


def replay(
    pool: "Pool",
    plan: CatchUpPlan,
    fresh: RankSet,
    make_view: "Callable[[Pool, Run], CellView]",
    run: RunOwn,
    *,
    say: Say,
) -> Replayed:
    """Run the cells of a plan.

    A cell may fail that did not before: a file is not there any more. The names that it has defined
    until then count, and so do the cells below it.
    """
    name = secrets.token_hex(4)
    has_run_aside = RankSet.of(
        rank for cell in plan.cells if plan.has_peers for rank in cell.ranks - fresh
    )
    if has_run_aside and plan.needs:
        run(has_run_aside, f"{VALUES}.hold(globals(), {sorted(plan.needs)!r})")
        run(has_run_aside, f"{VALUES}.lend(globals())", Replay(name, has_run_aside))
    failed, failed_on_fresh = [], set()
    for number, cell in enumerate(plan.cells, 1):
        ranks = cell.ranks if plan.has_peers else RankSet.of(set(cell.ranks).intersection(fresh))
        say(_step(cell, ranks, fresh, f"{number} of {len(plan.cells)}"))
        options = _options_of(cell, ranks, Replay(name, ranks - fresh))
        try:
            pool.run_cell(cell.code, options, make_view)
        except (CellInterruptedError, RankExitedError):
            raise
        except CellError as error:
            failed.append((cell.number, _brief(error, fresh)))
            # Without a rank, the records of all ranks show the error after the cell.
            if not error.by_rank or set(fresh).intersection(error.by_rank):
                failed_on_fresh.add(cell.number)
    return Replayed(has_run_aside, tuple(failed), frozenset(failed_on_fresh))


def give_states(
    pool: "Pool", names: Sequence[str], roles: Roles, run: RunOwn, say: Say
) -> tuple[tuple[str, str], ...]:
    """Give fresh ranks the states of a rank; return the names that failed, and their errors.

    One cell for each object: the state of an optimizer whose parameters a rank has frozen by a
    method fits nowhere else, and the other objects must not suffer from it.
    """
    failed = []
    for name in names:
        say(f"copies the state of {name} from rank {roles.source} to {roles.fresh.describe()}")
        to = f"src={roles.source}, to={roles.fresh.ranks}"
        try:
            run(
                pool.all_ranks,
                f"nbddp.rank.collectives.state_sync.give(globals().get({name!r}), {to})",
            )
        except (CellInterruptedError, RankExitedError):
            raise
        except CellError as error:
            failed.append((name, _brief(error, pool.all_ranks)))
    return tuple(failed)


def _brief(error: CellError, fresh: RankSet) -> str:
    """``rank 1 raised ValueError: bad``, of a fresh rank if it raised."""
    if not error.by_rank:
        return error.headline
    rank = next((rank for rank in fresh if rank in error.by_rank), min(error.by_rank))
    name, text = error.by_rank[rank]
    return f"rank {rank} raised {name}: {text}".partition("\n")[0].rstrip(": ")


def _step(cell: PastCell, ranks: RankSet, fresh: RankSet, which: str) -> str:
    """``runs cell [4] again on rank 2 (1 of 3); ranks 0-1 run along``."""
    on, along = RankSet.of(set(ranks).intersection(fresh)), ranks - fresh
    step = f"runs {cell_name(cell.number)} again on {on.describe()} ({which})"
    return f"{step}; {along.describe()} {along.verb('runs', 'run')} along" if along else step


def _options_of(cell: PastCell, ranks: RankSet, replay: Replay) -> CellOptions:
    return CellOptions(
        ranks,
        asks=False,
        execution_count=cell.number,
        first_line=cell.first_line,
        cell_name=cell_name(cell.number),
        replay=replay,
    )
