"""Gives fresh ranks the variables that they lack: cells run again, then states are given.

Runs in: the notebook's process, the thread of the caller.

    NamesOf --> ranks --Names--> make_plan --cells--> ranks, and others aside --> state_sync.give
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from nbddp.controller.catch_up import (
    CatchUp,
    CatchUpPlan,
    HeldValues,
    Roles,
    Unfinished,
    alone_names,
    choose_roles,
    expected_names,
    lacked,
    make_plan,
    regained_names,
    still_lacking,
    with_joint_names,
)
from nbddp.controller.cell_errors import interrupted_catch_up
from nbddp.controller.pool.caught_up_values import (
    in_doubt,
    overtaken_names,
    perhaps_new,
    ranks_behind,
    values_behind,
)
from nbddp.controller.pool.cell_options import CellOptions, Replay
from nbddp.controller.pool.copied_values import bring, compare, copy_values
from nbddp.controller.pool.random_numbers import (
    RANDOM,
    RandomNumbers,
    random_numbers,
    share_random_numbers,
)
from nbddp.controller.pool.replayed_cells import (
    NO_REPLAY,
    VALUES,
    RunOwn,
    Say,
    give_states,
    replay,
)
from nbddp.controller.state import LeftOut, catch_up_command
from nbddp.errors import (
    BadOptionError,
    CellInterruptedError,
    NbddpError,
)
from nbddp.wire.flight_recorder import cell_name
from nbddp.wire.rank_set import NO_RANKS, RankSet
from nbddp.wire.values.value_questions import (
    NameKind,
    Names,
    NamesOf,
)

if TYPE_CHECKING:
    from nbddp.controller.hub import Run
    from nbddp.controller.pool.pool import Pool
    from nbddp.controller.pool.view_protocol import CellView


def catch_up(
    pool: "Pool",
    ranks: Sequence[int] | str | int | None,
    cells: Sequence[int],
    count: int,
    make_view: "Callable[[Pool, Run], CellView]",
    *,
    say: Say = lambda step: None,
) -> CatchUp:
    """Give fresh ranks the variables that they lack; see `Pool.catch_up`.

    Args:
        pool: the pool.
        ranks: see `Pool.catch_up`.
        cells: see `Pool.catch_up`.
        count: number of the cell that asks for it.
        make_view: makes what shows the cells.
        say: shows what is done now.
    """
    result = _catch_up(pool, ranks, cells, count, make_view, say=say)
    made = (*result.regained, *result.synced, *result.copied)
    pool.history.doubts.note(result.ranks, made, result.in_doubt)
    return result


def _catch_up(
    pool: "Pool",
    ranks: Sequence[int] | str | int | None,
    cells: Sequence[int],
    count: int,
    make_view: "Callable[[Pool, Run], CellView]",
    *,
    say: Say,
) -> CatchUp:
    had, infos = _names(pool), pool.ranks()
    roles = choose_roles(pool.history, infos, had, None if ranks is None else pool.rank_set(ranks))
    fresh, source = roles.fresh, roles.source
    _check_cells(pool, cells)

    def run(ranks: RankSet, code: str, replay: Replay = NO_REPLAY) -> None:
        """Run a cell of ours; without a replay, namespaces beside the user's are dropped."""
        options = CellOptions(
            ranks,
            asks=False,
            execution_count=count,
            cell_name=cell_name(count),
            replay=replay,
        )
        pool.run_cell(f"{code}\n", options, make_view)

    expected, kinds = expected_names(pool.history, had, roles)
    lacking = lacked(kinds, expected, had)
    processes = [info.process for info in infos if info.rank in set(fresh)]
    before = pool.history.replaced.unfinished(processes)
    plan = make_plan(pool.history, lacking, fresh, sorted({*cells, *before}), len(had))
    pushed = {name for rank in fresh for name in pool.history.pushed_to(rank)}
    copied = bring(pool, plan, roles, had, lacking, say=say)
    with _holding(
        plan,
        roles,
        run,
        _gone(lacking, copied),
        catch_up_command(NO_RANKS if ranks is None else fresh, cells),
    ):
        replayed = replay(pool, plan, fresh, make_view, run, say=say)
        now = _names(pool)
        unfinished, changed = (
            Unfinished(plan.cells, numbers, kinds)
            for numbers in (replayed.failed_on_fresh - plan.changed, plan.changed)
        )
        renewed = _renewed(plan, cells, before - unfinished.cells)
        held = _held_values(plan, roles, had, lacking, renewed)
        held.see(now, copied)
        _put_back(held, fresh, run)
        deleted = _deleted(plan.deleted, roles, had, now, run)
        missing = {*lacked(kinds, expected, now)}
        made_again = {name for rank in fresh for name in held.made_again(rank)}
        synced = tuple(
            name
            for name, kind in kinds.items()
            if kind == "state" and name not in missing and (name in lacking or name in made_again)
        )
        not_synced = give_states(pool, synced, roles, run, say)
        synced = tuple(name for name in synced if name not in dict(not_synced))
        asked = [
            name
            for name in sorted(
                missing | (kinds.keys() & (made_again | unfinished.names | changed.names))
            )
            if kinds[name] in ("plain", "data") and name not in copied
        ]
        compared = compare(pool, roles, asked, say)
        behind, own_role = values_behind(
            compared, ranks_behind(held, asked, expected, now), plan, kinds
        )
        plain = {
            name: late
            for name, late in behind.items()
            if kinds[name] == "plain" and all(compared.can_copy(name, rank) for rank in late)
        }
        copied = (*copied, *copy_values(pool, plain, roles, say))
        random = random_numbers(pool, roles) if lacking or plan.cells else RandomNumbers()
        own = tuple(name for name in random.own if name in lacking or name in made_again)
        share_random_numbers(pool, random, roles, own, run)
        _drop(compared.stale_values(plan, (*copied, *synced)), fresh, had, now, run)
    lacks = {rank: names - now[rank].keys() - {*copied} for rank, names in expected.items()}
    still = {name for names in lacks.values() for name in names}
    regained = tuple(
        sorted(
            lacking.keys()
            & regained_names(pool.history, lacks, had, {r: {*now[r], *copied} for r in fresh}),
            key=lambda name: (lacking[name] == "definition", [*lacking].index(name)),
        )
    )
    left_out = (
        *with_joint_names(
            still_lacking(
                plan, lacks, dict(replayed.failed), kinds, is_partial=pool.history.is_partial
            ),
            pool.answers(RankSet.of([source]), "names", NamesOf(), Names)[0].joint,
        ),
        *alone_names(pool.history, fresh, source, now, dict(replayed.failed)),
    )
    failed = _that_matter(replayed.failed, replayed.failed_on_fresh - plan.changed, left_out)
    pool.history.note_catch_up(
        processes, is_whole=not (failed or not_synced), unfinished=unfinished.cells
    )
    pool.history.note_left_out(fresh, left_out)
    doubtful, unrepeated = in_doubt(
        [unfinished, changed],
        {*asked} - {*copied, *missing, *({*own} & {*random.own_alike})},
        compared,
    )
    overtaken = overtaken_names(
        pool,
        plan,
        compared,
        {*asked} - {*copied, *behind, *still, *dict(doubtful), *dict(unrepeated)},
    )
    makers = plan.makers({*regained, *synced} - set(copied))
    known = {*dict(doubtful), *dict(unrepeated), *dict(overtaken)}
    doubted = tuple(
        (name, holders)
        for name in regained
        if name not in {*copied, *synced, *known} and (holders := compared.doubted(name))
    )
    return CatchUp(
        ranks=fresh,
        others=roles.others,
        source=source,
        cells=tuple(cell.number for cell in plan.cells),
        aside=replayed.aside,
        synced=synced,
        left_out=left_out,
        failed=failed,
        prompted=tuple(sorted(plan.prompted)),
        struck=tuple(sorted(plan.struck)),
        unrepeated=unrepeated,
        failed_aside=tuple(
            each for each in replayed.failed if each[0] not in replayed.failed_on_fresh
        ),
        not_synced=not_synced,
        copied=tuple(sorted(copied)),
        # A generator that has got the state of the others since is equal now.
        different=tuple(
            name
            for name in behind
            if name not in {*copied, *missing, *dict(doubtful), *dict(unrepeated), *dict(doubted)}
            and not (name in own and name in random.own_alike)
        ),
        initial=tuple(
            name
            for name in regained
            if name not in {*copied, *behind, *known, *dict(doubted)}
            and compared.is_initial(name, plan)
        ),
        overtaken=overtaken,
        deleted=deleted,
        alike_random=random.alike,
        seeding=tuple(cell.number for cell in plan.cells if cell.names.seeds and not roles.settled),
        reseeded=() if roles.settled else tuple(sorted({*random.seeded} - {*random.alike})),
        restarted=tuple(name for name in own if name not in random.own_alike),
        drawn=tuple(
            name
            for name in random.drawn
            if name in regained
            and name not in {*copied, *dict(doubtful)}
            and kinds[name] in ("plain", "data")
            and (name in own_role or not compared.is_alike(name))
        ),
        regained=regained,
        regained_in_part=tuple(
            (name, holders)
            for name in regained
            if name not in copied
            and (holders := RankSet.of(rank for rank in fresh if name in now[rank])) != fresh
        ),
        makers_by_name=makers,
        to_push=tuple(
            (name, cell.number)
            for cell in plan.cells
            if cell.number in dict(failed)
            for name in sorted(cell.names.reads & still)
            if pool.history.was_pushed_to(name, RankSet.of(r for r in fresh if name in lacks[r]))
        ),
        doubtful=doubtful,
        elsewhere=tuple(each for each in plan.elsewhere if each[0] in still),
        perhaps_new=perhaps_new(pool, fresh, {*copied} - pushed),
        doubted=doubted,
        passed_over=roles.passed_over,
    )


def _that_matter(
    failed: Sequence[tuple[int, str]], unchanged: frozenset[int], left_out: Sequence[LeftOut]
) -> tuple[tuple[int, str], ...]:
    """The cells that failed, but for those changed at their prompt, which fail again each time.

    Such a cell matters if a name of it lacks.
    """
    mattering = unchanged | {left.cell for left in left_out}
    return tuple(each for each in failed if each[0] in mattering)


def _check_cells(pool: "Pool", cells: Sequence[int]) -> None:
    known = {cell.number for cell in pool.history}
    if unknown := sorted(set(cells) - known):
        since = " since it was taken back" if pool.history.is_partial else ""
        ran = ", ".join(map(str, sorted(known)))
        step = "name some of these" if known else "leave out the cells"
        raise BadOptionError(
            f"the pool has not run {cell_name(unknown[0])}{since}; it has run {ran or 'no cell'}. "
            f"Next: {step}"
        )


def _renewed(plan: CatchUpPlan, wanted: Collection[int], finished: Collection[int]) -> set[str]:
    """The names whose values cells replace, on fresh ranks that have them already.

    Args:
        plan: the cells that ran again.
        wanted: the numbers of those that the user has named.
        finished: the numbers of those that failed in the last catch-up, or used what such a cell
            makes, and are well now. If one failed again, what the user has made meanwhile stays.
    """
    renewed: set[str] = set()
    for cell in plan.cells:
        if cell.number in wanted or cell.number in finished:
            renewed |= cell.names.binds
        if cell.number in finished:
            renewed |= cell.names.changes | cell.names.touches
    return renewed


def _held_values(
    plan: CatchUpPlan,
    roles: Roles,
    had: Mapping[int, Mapping[str, NameKind]],
    lacking: Mapping[str, NameKind],
    renewed: Collection[str],
) -> HeldValues:
    """The values of fresh ranks that stay: not the renewed ones."""
    bound = {name for cell in plan.cells for name in cell.names.binds}
    names = sorted(({name for rank in roles.fresh for name in had[rank]} & bound) - {*renewed})
    return HeldValues(names, bound, had, roles, lacking)


def _put_back(held: HeldValues, fresh: RankSet, run: RunOwn) -> None:
    """Give fresh ranks the values again that stay."""
    if held.names:
        values = f"{held.names!r}, only_plain={held.only_plain}"
        run(fresh, f"{VALUES}.put_back(globals(), {values})")


def _gone(lacking: Mapping[str, NameKind], copied: Collection[str]) -> list[str]:
    """The names that fresh ranks lack until cells make them: modules and functions come last."""
    names = [name for name in lacking if name not in copied]
    return sorted(names, key=lambda name: lacking[name] == "definition")


@contextmanager
def _holding(
    plan: CatchUpPlan, roles: Roles, run: RunOwn, lacking: Sequence[str], again: str
) -> Iterator[None]:
    """Keep the values that fresh ranks have; if the catch-up ends early, they have these again.

    Otherwise a rank would have values of old cells that no later catch-up takes for old ones.

    Args:
        plan: the cells that run again.
        roles: the parts that ranks take.
        run: runs a cell of ours.
        lacking: the names that fresh ranks lack if the catch-up ends early.
        again: the command that asks for it again.
    """
    bound = sorted({name for cell in plan.cells for name in cell.names.binds})
    settled = roles.settled if plan.cells else NO_RANKS
    if bound:
        run(roles.fresh, f"{VALUES}.hold(globals(), {bound!r})")
    if settled:
        run(settled, f"{RANDOM}.hold()")
    try:
        yield
    except BaseException as error:
        are_as_before = True
        for rank in roles.fresh if bound else NO_RANKS:
            try:
                run(RankSet.of([rank]), f"{VALUES}.roll_back(globals())")
            except NbddpError:  # the rank has exited, or is still inside of the cell
                are_as_before = False
        for rank in settled:
            with suppress(NbddpError):
                run(RankSet.of([rank]), f"{RANDOM}.put_back()")
        if isinstance(error, CellInterruptedError) and are_as_before:
            raise interrupted_catch_up(error, roles.fresh, lacking, again) from None
        raise
    if bound:
        run(roles.fresh, f"{VALUES}.release()")
    if settled:
        run(settled, f"{RANDOM}.put_back()")


def _names(pool: "Pool") -> dict[int, dict[str, NameKind]]:
    """The user's names on each rank, with the kinds of their values."""
    answers = pool.answers(pool.all_ranks, "names", NamesOf(), Names)
    return {rank: answer.kind_by_name for rank, answer in zip(pool.all_ranks, answers, strict=True)}


def _deleted(
    deleted: frozenset[str],
    roles: Roles,
    had: Mapping[int, Collection[str]],
    now: Mapping[int, Collection[str]],
    run: RunOwn,
) -> tuple[str, ...]:
    """Delete those names that fresh ranks have again and others have not; return them."""
    kept = {name for rank in roles.others for name in now[rank]}
    kept |= {name for rank in roles.fresh for name in had[rank]}
    has_again = set.intersection(*({*now[rank]} for rank in roles.fresh))
    names = tuple(sorted((deleted & has_again) - kept))
    if names:
        run(roles.fresh, f"del {', '.join(names)}")
    return names


def _drop(
    stale: frozenset[str],
    fresh: RankSet,
    had: Mapping[int, Collection[str]],
    now: Mapping[int, dict[str, NameKind]],
    run: RunOwn,
) -> None:
    """Delete names of old cells on fresh ranks which had no such name, and in ``now``.

    A name that is missing is told with its next step; an old value would be taken for the last
    one. Where the answer tells of the value (`CatchUp.initial`) it stays: functions may use it.
    """
    for rank in fresh:
        names = sorted(stale & now[rank].keys() - {*had[rank]})
        if names:
            run(RankSet.of([rank]), f"del {', '.join(names)}")
        for name in names:
            del now[rank][name]
