"""The random numbers of fresh ranks, once cells have run again there.

Runs in: the notebook's process, the thread of the caller.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nbddp.controller.catch_up import Roles
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values.value_questions import RandomStates, RandomStatesOf

if TYPE_CHECKING:
    from nbddp.controller.pool.pool import Pool

#: Modules that cells of ours use on ranks.
RANDOM = "nbddp.rank.random_states"
_DRAWS = "nbddp.rank.random_draws"


@dataclass(frozen=True)
class RandomNumbers:
    """The random numbers of fresh ranks, once the cells have run."""

    #: Generators of a process, and those in variables, that are in one state on all other ranks.
    alike: tuple[str, ...] = ()
    own_alike: tuple[str, ...] = ()
    own: tuple[str, ...] = ()  #: variables that are generators, in another state than elsewhere
    drawn: tuple[str, ...] = ()  #: variables with numbers that the cells drew without a seed
    seeded: tuple[str, ...] = ()  #: generators of a process that the cells have seeded


def random_numbers(pool: "Pool", roles: Roles) -> RandomNumbers:
    """Compare generators of fresh ranks with those of the others.

    A generator that is in one state on all others gets it. Ranks whose states differ have numbers
    of their own, and so has a fresh one.
    """
    asked = RankSet.of([*roles.others, *roles.fresh])
    answers = pool.answers(asked, "random generators", RandomStatesOf(), RandomStates)
    by_rank = dict(zip(asked, answers, strict=True))
    others, fresh = ([by_rank[rank] for rank in ranks] for ranks in (roles.others, roles.fresh))
    has_young = bool(roles.fresh - roles.settled)
    own = {name for each in fresh for name in each.digest_by_name}
    return RandomNumbers(
        _alike([each.digest_by_generator for each in others]) if has_young else (),
        _alike([each.digest_by_name for each in others]),
        tuple(
            name
            for name in sorted(own)
            if len({each.digest_by_name.get(name) for each in (*fresh, *others)}) > 1
        ),
        tuple(sorted({name for each in fresh for name in each.drawn})),
        tuple(sorted({name for each in fresh for name in each.seeded})),
    )


def _alike(digests: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """The names that several ranks have with one digest."""
    if len(digests) < 2:
        return ()
    return tuple(
        name
        for name, digest in digests[0].items()
        if all(each.get(name) == digest for each in digests)
    )


def share_random_numbers(
    pool: "Pool",
    random: RandomNumbers,
    roles: Roles,
    own: Collection[str],
    run: Callable[[RankSet, str], None],
) -> None:
    """Give fresh ranks the states of generators that are in one state on all other ranks.

    Args:
        pool: the pool.
        random: the random numbers.
        roles: the ranks.
        own: variables of fresh ranks that are generators, which may get a state.
        run: runs a cell on ranks.
    """
    if random.alike:
        to = f"src={roles.source}, to={(roles.fresh - roles.settled).ranks}"
        run(pool.all_ranks, f"{RANDOM}.share_own({random.alike!r}, {to})")
    if alike := [name for name in own if name in random.own_alike]:
        to = f"src={roles.source}, to={roles.fresh.ranks}"
        run(pool.all_ranks, f"{_DRAWS}.share(globals(), {alike!r}, {to})")
