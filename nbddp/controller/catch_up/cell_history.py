"""The cells that a pool has run.

Runs in: the notebook's process, the thread that runs cells. Pure.
"""

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from msgspec import structs

from nbddp.controller.catch_up.cell_names import joint_names
from nbddp.controller.catch_up.doubts import Doubts
from nbddp.controller.catch_up.past_cell import PastCell, callers_that_bind
from nbddp.controller.catch_up.plan import leaves_loops, loops_of
from nbddp.controller.diagnosis import Code
from nbddp.controller.state import LeftOut, LostNames, MissedCell, RankInfo, RankResult, RunOutcome
from nbddp.settings import PREDEFINED_NAMES
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet

#: A rank, and the generation of its process: see `RankInfo.process`.
_Process: TypeAlias = tuple[Rank, int]

_MAX_CELLS = 1000
_MAX_FREED = 64


class ReplacedProcesses:
    """The processes that took the places of others, and whether they are as good as those now.

    One that has values of its own *lives on*: it has run a cell after it has caught up in part, or
    a cell that defines something. A catch-up changes it only if the user names it.
    """

    def __init__(self) -> None:
        self._whole: set[_Process] = set()
        self._tried: set[_Process] = set()  # have caught up, at least in part
        self._living: set[_Process] = set()
        self._unfinished: dict[_Process, frozenset[int]] = {}  # numbers of cells

    def note_cell(self, processes: Iterable[_Process], cell: PastCell) -> None:
        """Note a cell of the user that has ended well in processes."""
        new = set(processes) - self._living
        if new:  # mostly there is none, and the names of the cell need not be found
            names = cell.names
            defines = bool(names.binds or names.changes or names.has_star)
            self._living |= new if defines else new & self._tried

    def note_catch_up(
        self,
        processes: Sequence[_Process],
        *,
        is_whole: bool,
        unfinished: frozenset[int] = frozenset(),
    ) -> None:
        """Note processes that have caught up: wholly, or in part.

        Args:
            processes: those of the ranks that have caught up.
            is_whole: they have all that they lacked.
            unfinished: numbers of the cells that run again in their next catch-up.
        """
        (self._whole if is_whole else self._tried).update(processes)
        self._unfinished.update(dict.fromkeys(processes, unfinished))

    def unfinished(self, processes: Iterable[_Process]) -> frozenset[int]:
        """The numbers of the cells that failed in the last catch-up of processes, or used such."""
        none: frozenset[int] = frozenset()
        return none.union(*(self._unfinished.get(process, none) for process in processes))

    def is_whole(self, rank: Rank, generation: int) -> bool:
        """Whether a process has caught up."""
        return (rank, generation) in self._whole

    def has_caught_up(self, rank: Rank, generation: int) -> bool:
        """Whether a process has caught up, wholly or in part."""
        return (rank, generation) in self._whole or (rank, generation) in self._tried

    def lives_on(self, rank: Rank, generation: int) -> bool:
        """Whether a process has values of its own."""
        return (rank, generation) in self._living

    def is_fresh(self, rank: Rank, generation: int) -> bool:
        """Whether a process that took the place of another still lacks what that one had."""
        return not (self.is_whole(rank, generation) or self.lives_on(rank, generation))

    def marked(self, infos: Iterable[RankInfo]) -> list[RankInfo]:
        """Return the ranks, of which only the fresh ones are marked as `RankInfo.replaced`."""
        return [i if self.is_fresh(*i.process) else structs.replace(i, replaced="") for i in infos]


class CellHistory:
    """The last cells of a pool, in the order in which they ran.

    Args:
        is_partial: the pool has run other cells before, for a kernel that has let it go.
        before: the history before the user restarted all ranks; None: that did not happen.
    """

    def __init__(self, *, is_partial: bool = False, before: "CellHistory | None" = None) -> None:
        self.is_partial = is_partial
        self._before: list[PastCell] = []  #: cells from before the last restarts of all ranks
        self._pushed_before: dict[str, RankSet] = {}  #: names that were pushed then, and to which
        if before is not None:
            self._before = [*before._before, *before._cells][-_MAX_CELLS:]
            self._pushed_before = dict(before._pushed_before)
            for name, pushes in before._pushed.items():
                known = self._pushed_before.get(name, NO_RANKS)
                self._pushed_before[name] = RankSet.of(set(known).union(*pushes))
        self._cells: deque[PastCell] = deque(maxlen=_MAX_CELLS)
        self._open: tuple[str, PastCell] | None = None
        self._replaced: frozenset[_Process] = frozenset()  # in the open cell
        self._calls: dict[tuple[int, str], int] = {}  # collectives so far, by rank and group
        self._fresh_since: dict[int, int] = {}  # numbers of cells, by rank
        self._count = 0  # of the cells that have ended, also of those that are forgotten
        self._births: dict[Rank, int] = {}  # `_count` when the process of a rank was replaced
        #: Of replaced ranks; None: the next cell tells it.
        self._generations: dict[Rank, int | None] = {}
        self._freed: dict[str, RankSet] = {}  # in cells in which others exited, by run
        self._left_out: dict[int, Mapping[str, LeftOut]] = {}  # by rank and name
        self._pushed: dict[str, list[RankSet]] = {}  # by name, since a push to all of its ranks
        self.replaced = ReplacedProcesses()
        self.doubts = Doubts()

    def __iter__(self) -> Iterator[PastCell]:
        return iter(tuple(self._cells))

    @property
    def last(self) -> PastCell | None:
        """The last cell that has ended; None: none has."""
        return self._cells[-1] if self._cells else None

    def begin(self, run_id: str, cell: PastCell, replaced: Iterable[_Process] = ()) -> None:
        """Note a cell that begins; `end` completes it.

        Args:
            run_id: names its run.
            cell: the cell.
            replaced: the processes that took the place of others.
        """
        self._open = run_id, cell
        self._replaced = frozenset(replaced)
        for rank, generation in self._replaced:
            known = self._generations.get(rank, 0)
            self._generations[rank] = generation
            if known is not None and known != generation:  # replaced since the last cell
                self._note_new_process(rank, generation)
        # If all ranks have died at once, their new processes are no replacements.
        self._generations = {rank: known or 0 for rank, known in self._generations.items()}

    def end(self, outcome: RunOutcome | None) -> None:
        """Note the end of the last cell; None: there is none yet. It may be called again."""
        if outcome is None or self._open is None or self._open[0] != outcome.run_id:
            return
        _, cell = self._open
        self._open = None
        self._count += 1
        for rank in outcome.fresh:
            self._note_new_process(rank, None)
            self._fresh_since[rank] = cell.number
        ok = outcome.ranks("ok")
        self.doubts.note_cell(cell, ok)
        self.replaced.note_cell((each for each in self._replaced if each[0] in ok), cell)
        self._cells.append(
            replace(
                cell,
                is_ok=ok == cell.ranks and not outcome.is_wrong,
                # A skipped operation leaves no record, and its code calls it again.
                has_operations=self._note_calls(outcome) or outcome.has_skips,
                makes_groups=any(result.made_groups for result in outcome.results.values()),
                was_struck=outcome.was_struck,
                run_above=max(_run_above(result, cell) for result in outcome.results.values()),
            )
        )

    def note_change(self) -> None:
        """Note that the user changes what the open cell does, at its prompt."""
        if self._open is not None:
            run_id, cell = self._open
            self._open = run_id, replace(cell, was_changed=True)

    def note_freed(self, run_id: str, ranks: RankSet) -> None:
        """Note ranks that waited in a cell in which others exited."""
        self._freed[run_id] = ranks
        if len(self._freed) > _MAX_FREED:
            del self._freed[next(iter(self._freed))]

    def was_freed(self, run_id: str, rank: int) -> bool:
        """Whether a rank waited in a cell in which others exited, and so was freed."""
        return rank in self._freed.get(run_id, ())

    def note_restart(self, ranks: RankSet) -> None:
        """Note that the user has replaced the processes of these ranks, in no cell."""
        for rank in ranks:
            self._note_new_process(rank, None)

    def _note_new_process(self, rank: Rank, generation: int | None) -> None:
        self._births[rank] = self._count
        self._generations[rank] = generation
        self._fresh_since.pop(rank, None)
        self._left_out.pop(rank, None)
        self.doubts.forget(rank)

    def note_catch_up(
        self, processes: Sequence[_Process], *, is_whole: bool, unfinished: frozenset[int]
    ) -> None:
        """Note processes that have caught up; see `ReplacedProcesses.note_catch_up`."""
        self._generations |= dict(processes)
        self.replaced.note_catch_up(processes, is_whole=is_whole, unfinished=unfinished)

    def _note_calls(self, outcome: RunOutcome) -> bool:
        calls = {
            (rank, mark.pg_id): mark.collective_seq_id
            for rank, result in outcome.results.items()
            for mark in result.marks
        }
        has_collectives = any(self._calls.get(key, 0) != count for key, count in calls.items())
        self._calls.update(calls)
        # A group that is not broken has a mark only where the cell has used it: for a message, too.
        marks = (mark for result in outcome.results.values() for mark in result.marks)
        return has_collectives or any(not mark.is_broken for mark in marks)

    def origin(self, name: str) -> int:
        """The number of the last cell that bound a name; 0: none of these did."""
        numbers = (cell.number for cell in reversed(self._cells) if name in cell.names.binds)
        return next(numbers, 0)

    def before_restart(self, name: str, ranks: RankSet) -> tuple[int, ...]:
        """The cells that made and changed a name before the user restarted all ranks.

        Args:
            name: the name.
            ranks: all of them have run the cell that made it.

        Returns:
            Their numbers: first that of the last cell that made it without its old value, or 0 if
            it was pushed to the ranks then. None of them: it was not there, or a cell has deleted
            it before the restart, or bound it, too, since then.
        """
        if any(name in cell.names_run.binds for cell in self._cells):
            return ()
        changed: list[int] = []  # the last one first
        was_there = False
        is_assigned = any(name in cell.names_run.assigns for cell in self._before)
        callers = callers_that_bind(name, self._before) if is_assigned else ()
        for cell in reversed(self._before):
            done = cell.names_run
            if set(ranks).isdisjoint(cell.ranks):
                continue
            if name in done.deletes:
                return ()
            # A function binds it where it is called, and not where it is defined.
            binds = name in (done.assigns if is_assigned else done.binds)
            is_of_all = binds and not set(ranks) - set(cell.ranks)
            if is_of_all and name not in done.reads - done.perhaps:
                return (cell.number, *reversed(changed))
            was_there = was_there or is_of_all
            is_changed = name in done.changes | done.fills or (binds and name in done.reads)
            if is_changed or cell.number in callers:
                changed.append(cell.number)
        if not set(ranks) - set(self._pushed_before.get(name, NO_RANKS)):
            return (0, *reversed(changed))
        return tuple(reversed(changed)) if was_there else ()

    def missed(self, name: str, ranks: RankSet) -> MissedCell | None:
        """The last cell that bound a name and that no process of ``ranks`` has run; None: none is.

        A cell that is known to have bound it comes before one that failed, perhaps before it did;
        and one that ran on one of these ranks before one that ran on others only.
        """
        first = self._count - len(self._cells)
        missed = []
        made = 0  # the last of them that ended well
        for index, cell in enumerate(self._cells, first):
            if name in cell.names.binds:
                holders = RankSet.of(rank for rank in cell.ranks if self._has_run(rank, index))
                if not set(holders).intersection(ranks):
                    is_theirs = not set(cell.ranks).isdisjoint(ranks)
                    made = cell.number if cell.is_ok and is_theirs else made
                    missed.append((name in cell.names_run.binds, is_theirs, index, cell, holders))
        if not missed:
            return None
        *_, last, holders = max(missed, key=lambda each: each[:3])
        joint = joint_names(Code(last.python, last.first_line).statements)
        loops = loops_of(name, self._cells, ranks) if holders and last.is_ok else ()
        return MissedCell(last.number, last.ranks, holders, last.is_ok, made, name in joint, loops)

    def leaves_loops(self, ranks: RankSet) -> bool:
        """Whether ``ranks``, if they are fresh, may lack names of loops after a catch-up."""
        return leaves_loops(self._cells, ranks)

    def missed_star(self, ranks: RankSet) -> int:
        """The last good cell with ``import *`` that no process of ``ranks`` has run; 0: none is."""
        for index, cell in enumerate(reversed(self._cells), 1):
            is_good_star = cell.is_ok and cell.names.has_star
            if is_good_star and not any(self._has_run(r, self._count - index) for r in ranks):
                return cell.number
        return 0

    def lost_by_all(self, ranks: RankSet) -> set[str]:
        """The names of good cells that no process of all ``ranks`` has run; all are newer.

        A name of a cell of some ranks is not meant if another rank is as old as that cell.
        """
        lost: set[str] = set()
        if not all(self._births.get(rank) for rank in ranks):
            return lost
        for index, cell in enumerate(self._cells, self._count - len(self._cells)):
            if cell.is_ok:
                if any(self._has_run(rank, index) for rank in cell.ranks):
                    lost -= cell.names.binds
                elif not any(self._has_run(rank, index) for rank in ranks):
                    lost |= cell.names.binds
                lost -= cell.names.deletes
        return lost

    def _has_run(self, rank: Rank, index: int) -> bool:
        """Whether the process of a rank is as old as a cell, or has caught up."""
        generation = self._generations.get(rank)
        has_caught_up = generation is not None and self.replaced.has_caught_up(rank, generation)
        return self._births.get(rank, 0) <= index or has_caught_up

    def lost_names(self, ranks: RankSet, world_size: int) -> list[LostNames]:
        """The names that processes of ranks had, which the last cell replaced, by their cells.

        Predefined names are there again. Names that the last cell would have bound on these ranks
        only are not meant: perhaps they ended before they had them.

        Returns:
            The names of each cell that no later cell bound again, those of the oldest cell first.
        """
        cells: dict[str, tuple[int, bool]] = {}  # by name: number, and whether it is known
        for cell in self._cells:
            left_out = set(PREDEFINED_NAMES)
            if cell is self.last and cell.number in map(self.fresh_since, ranks):
                left_out |= cell.names.binds.difference(
                    *(
                        names
                        for rank in cell.ranks - ranks
                        for names in cell.binds_on(rank, world_size)
                    )
                )
            for known, perhaps in (cell.binds_on(rank, world_size) for rank in ranks):
                cells.update(dict.fromkeys(sorted(known - left_out), (cell.number, True)))
                for name in sorted(perhaps - left_out):
                    cells.setdefault(name, (cell.number, False))
            if any(rank in cell.ranks for rank in ranks):
                for name in cell.names.deletes:
                    cells.pop(name, None)
        return [
            LostNames(
                number,
                tuple(name for name, place in cells.items() if place == (number, True)),
                tuple(name for name, place in cells.items() if place == (number, False)),
            )
            for number in sorted({number for number, _ in cells.values()})
        ]

    def never_bound(self, rank: Rank, world_size: int) -> set[str]:
        """The names that a rank never had: its cells bind them, and none of them on this rank.

        They are those inside ``if rank == 0:``, on rank 1, and those that were pushed to others
        only. A name that was pushed to the rank is none of them, and where a cell of it has
        ``from module import *``, none is known.
        """
        names: set[str] = set()
        possible: set[str] = set()
        for cell in self._cells:
            if rank in cell.ranks:
                if cell.names.has_star:
                    return set()
                names |= cell.names.binds
                possible = possible.union(*cell.binds_on(rank, world_size))
        of_others: set[str] = set()
        if not self.is_partial:  # else it was perhaps pushed to this rank before
            of_others = self._pushed.keys() - names
        return (names | of_others) - possible - self.pushed_to(rank)

    def note_new_values(self, names: Collection[str], ranks: RankSet) -> None:
        """Note names that the user has pushed to ranks."""
        self.note_push(names, ranks)
        self.doubts.note_values(names, ranks)

    def note_push(self, names: Iterable[str], ranks: RankSet) -> None:
        """Note names that were pushed to ranks, or copied there."""
        for name in names:
            before = [each for each in self._pushed.get(name, ()) if set(each) - set(ranks)]
            self._pushed[name] = [*before, ranks]

    def has_same_push(self, name: str, ranks: RankSet) -> bool:
        """Whether one value was pushed to all of some ranks, and none to a part of them since."""
        last = next(
            (each for each in reversed(self._pushed.get(name, ())) if set(each) & set(ranks)), None
        )
        return last is not None and not set(ranks) - set(last)

    def pushed_with(self, name: str, rank: Rank) -> RankSet:
        """The ranks of the last push of a name to a rank; none: it was not pushed there."""
        pushes = reversed(self._pushed.get(name, ()))
        return next((each for each in pushes if rank in each), NO_RANKS)

    def was_pushed_to(self, name: str, ranks: RankSet) -> bool:
        """Whether each of some ranks has got a name by a push, perhaps in an earlier process."""
        return not set(ranks).difference(*self._pushed.get(name, ()))

    def pushed_to(self, rank: Rank) -> set[str]:
        """The names that were pushed to a rank, perhaps to an earlier process, or copied there."""
        return {name for name, to in self._pushed.items() if any(rank in each for each in to)}

    def is_of_others(self, rank: Rank, name: str) -> bool:
        """Whether cells bind a name, none of which ran on a rank, and it was not pushed there."""
        ranks = [cell.ranks for cell in self._cells if name in cell.names.binds]
        ran_there = any(rank in each for each in ranks)
        return bool(ranks) and not (ran_there or name in self.pushed_to(rank))

    def has_lost(self, rank: Rank, name: str) -> bool:
        """Whether the process of a rank is newer than its last cell of a name, and has it not.

        Either it has not caught up, or the name was left out.
        """
        first = self._count - len(self._cells)
        own = [
            index
            for index, cell in enumerate(self._cells, first)
            if rank in cell.ranks and name in cell.names.binds
        ]
        return bool(own) and (name in self.lacks(rank) or not self._has_run(rank, own[-1]))

    def note_left_out(self, ranks: RankSet, left_out: Iterable[LeftOut]) -> None:
        """Note the names that ranks still lack after they have caught up."""
        left_out = list(left_out)
        for rank in ranks:
            of_rank = [left for left in left_out if rank in (left.ranks or ranks)]
            self._left_out[rank] = {name: left for left in of_rank for name in left.names}

    def lacks(self, rank: int) -> Collection[str]:
        """The names that a rank lacked when it had caught up."""
        return self._left_out.get(rank, {}).keys()

    def left_out(self, rank: int, name: str) -> LeftOut | None:
        """Why a rank that has caught up still lacks a name; None: that is not known."""
        return self._left_out.get(rank, {}).get(name)

    def fresh_since(self, rank: int) -> int:
        """The number of the cell in which this rank's process was replaced; 0: in none."""
        return self._fresh_since.get(rank, 0)


def _run_above(result: RankResult, cell: PastCell) -> float:
    """The line above which a rank has run a cell, if it still has what that has bound."""
    if result.status == "ok":
        return math.inf
    if result.exited is not None:
        return 0.0
    site = None if result.error is None else result.error.site
    is_of_cell = site is not None and (site.cell, site.function) == (cell.number, "<module>")
    return float(site.line) if site is not None and is_of_cell else 0.0
