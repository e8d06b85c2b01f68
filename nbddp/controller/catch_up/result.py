"""The variables that fresh ranks have got.

Runs in: the notebook's process. Pure.
"""

from dataclasses import dataclass

from nbddp.controller.state import LeftOut
from nbddp.wire.rank_set import NO_RANKS, RankSet


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
    #: The numbers of cells that failed on these ranks, or made not all that these lack, when they
    #: ran again, and the ends of their errors.
    failed: tuple[tuple[int, str], ...] = ()
    #: The numbers of cells, of those that ran, that `run`, `retry`, `skip` or a debugger had
    #: changed at their prompt: this is not repeated.
    prompted: tuple[int, ...] = ()
    #: The numbers of cells, of those that ran, in which a fault on purpose had struck: this is not
    #: repeated.
    struck: tuple[int, ...] = ()
    #: Names that have a value, perhaps not the right one, each with the number of a cell of
    #: ``prompted`` or ``struck``: this or a later cell made or changed them.
    unrepeated: tuple[tuple[str, int], ...] = ()
    failed_aside: tuple[tuple[int, str], ...] = ()  #: the same, of other ranks only
    #: Names of objects whose state could not be given, and the ends of the errors.
    not_synced: tuple[tuple[str, str], ...] = ()
    #: Names of plain data that was copied: it is equal on all other ranks, or was pushed to all.
    copied: tuple[str, ...] = ()
    #: Other names whose values are equal on all other ranks, and different on a fresh one.
    different: tuple[str, ...] = ()
    #: Names that have the value of their first cell again, while the others have gone on, each to a
    #: value of its own.
    initial: tuple[str, ...] = ()
    #: Names that have the value of their cell again, each with the number of a later cell that has
    #: changed it on other ranks, and did not run again: it had failed, or is a loop.
    overtaken: tuple[tuple[str, int], ...] = ()
    #: Names that the cells defined, and that were deleted again as on the other ranks.
    deleted: tuple[str, ...] = ()
    #: Generators of random numbers that have the state of ``source``, since all other ranks are in
    #: that state: ``torch``, ``random``, ``numpy``, ``cuda``.
    alike_random: tuple[str, ...] = ()
    seeding: tuple[int, ...] = ()  #: numbers of the cells, of those that ran, that seed generators
    #: Generators that begin again at these seeds: the others are not all in one state.
    reseeded: tuple[str, ...] = ()
    #: Variables that are generators, and are as the cells make them: they draw their first numbers.
    restarted: tuple[str, ...] = ()
    #: Variables whose values the cells drew without a seed: other random numbers than before.
    drawn: tuple[str, ...] = ()
    regained: tuple[str, ...] = ()  #: names that the ranks lacked and have now, data before code
    #: Names of ``regained`` that a part of ``ranks`` has, each with these ranks.
    regained_in_part: tuple[tuple[str, RankSet], ...] = ()
    #: Each name of ``regained`` and ``synced`` with the numbers of the cells, of those that ran,
    #: that made or changed it.
    makers_by_name: tuple[tuple[str, tuple[int, ...]], ...] = ()
    #: Names that cells of ``failed`` use, and the ranks lack, since they were pushed, each with the
    #: number of such a cell.
    to_push: tuple[tuple[str, int], ...] = ()
    #: Names that have a value, perhaps not the right one, each with the number of a cell that
    #: failed: this or a later cell made or changed them. The cells run again in the next catch-up.
    doubtful: tuple[tuple[str, int], ...] = ()
    #: Names that the ranks still lack, since only cells of other ranks define them, each with the
    #: number of the last of these cells.
    elsewhere: tuple[tuple[str, int], ...] = ()
    #: Names of ``copied`` that the fresh ranks perhaps never had: their cells had failed there.
    perhaps_new: tuple[str, ...] = ()
    #: Names that have a value, perhaps not the right one, each with the other ranks of which an
    #: earlier catch-up has said that.
    doubted: tuple[tuple[str, RankSet], ...] = ()
    #: Ranks that were replaced, lack something, too, and have values of cells that ran since.
    passed_over: RankSet = NO_RANKS

    @property
    def in_doubt(self) -> frozenset[str]:
        """The names whose values are perhaps not the right ones, as the answer says.

        Example:
            >>> "no_such_name" in pool.catch_up(1).in_doubt
            False
        """
        pairs = (*self.unrepeated, *self.doubtful, *self.overtaken, *self.not_synced, *self.doubted)
        return frozenset({*self.initial, *self.different, *(name for name, _ in pairs)})

    @property
    def makers(self) -> tuple[int, ...]:
        """The numbers of the cells that made or changed ``regained`` and ``synced``.

        The others of ``cells`` make or change what these use, or seed random numbers.

        Example:
            >>> pool.catch_up(1).makers
            ()
        """
        return tuple(sorted({number for _, cells in self.makers_by_name for number in cells}))
