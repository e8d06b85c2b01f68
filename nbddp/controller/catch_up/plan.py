"""Chooses the cells that a fresh rank runs again.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

from nbddp.controller.catch_up.cell_names import CellNames
from nbddp.controller.catch_up.loops import Loops
from nbddp.controller.catch_up.past_cell import PastCell
from nbddp.controller.state import LeftOut, Reason
from nbddp.wire.rank_set import RankSet
from nbddp.wire.values.value_questions import NameKind


class _Missing(TypedDict, total=False):
    """Why a cell is left out that uses names which are not made; see `LeftOut`."""

    uses: tuple[str, ...]
    loops: tuple[int, ...]


@dataclass(frozen=True)
class CatchUpPlan:
    """The cells to run again, and the names that they do not make."""

    cells: tuple[PastCell, ...]  #: in order
    #: Whether other ranks take part, because the cells have collectives. They run them aside, in a
    #: namespace that is thrown away.
    has_peers: bool
    left_out: tuple[LeftOut, ...] = ()
    #: Names that the ranks lack since no cell of theirs binds them, each with the last that does.
    elsewhere: tuple[tuple[str, int], ...] = ()
    deleted: frozenset[str] = frozenset()  #: names that they bind and a cell has deleted since
    #: Names that they use and no good cell of these ranks has bound, such as those of `%ddp push`.
    needs: frozenset[str] = frozenset()
    #: Names that they bind, and whose values later code may have changed that does not run again:
    #: it binds them, or, for the second, it changes or touches what they hold.
    rebound: frozenset[str] = frozenset()
    touched: frozenset[str] = frozenset()
    #: Names that they bind, each with the number of the last cell, of those that do not run again,
    #: that has changed it on other ranks since, or has bound it and failed.
    overtaken: tuple[tuple[str, int], ...] = ()

    @property
    def changed(self) -> frozenset[int]:
        """The numbers of cells that a user at their prompt, or a fault on purpose, had changed."""
        return self.prompted | self.struck

    @property
    def prompted(self) -> frozenset[int]:
        """The numbers of cells that the user had changed at their prompt."""
        return frozenset(cell.number for cell in self.cells if cell.was_changed)

    @property
    def struck(self) -> frozenset[int]:
        """The numbers of cells in which a fault on purpose had struck."""
        return frozenset(cell.number for cell in self.cells if cell.was_struck)

    @property
    def stale(self) -> frozenset[str]:
        """Names that cells bind beside others, though the cell that made them last is left out."""
        bound = {name for cell in self.cells for name in cell.names.binds}
        reasons = (Reason.LOOP, Reason.NEEDS)
        left = {n for each in self.left_out if each.reason in reasons for n in each.names}
        return frozenset(left & bound)

    def makers(self, names: Container[str]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Each of these names with the cell that binds it last, and those that change it later."""
        makers: dict[str, list[int]] = {}
        for cell in self.cells:
            for name in (cell.names.changes | cell.names.fills) - cell.names.binds:
                makers.get(name, []).append(cell.number)
            makers.update({name: [cell.number] for name in cell.names.binds if name in names})
        return tuple((name, tuple(numbers)) for name, numbers in sorted(makers.items()))


def make_plan(
    history: Iterable[PastCell],
    lacking: Mapping[str, NameKind],
    fresh: RankSet,
    wanted: Sequence[int] = (),
    world_size: int = 0,
) -> CatchUpPlan:
    """Choose the cells that make names again.

    Chosen are, for each name, the last good cell that binds it, the cells that change its value
    later, the cells that bind what these use, and cells that seed random numbers. A loop with
    collectives, also one in a function that the cell calls, is left out, unless the cell binds a
    definition, or a module or an optimizer, or one of these is built from its names.

    Args:
        history: the cells so far, in order.
        lacking: the names that fresh ranks lack, with the kinds of their values elsewhere.
        fresh: the ranks that lack them.
        wanted: numbers of cells that are chosen in any case.
        world_size: the number of ranks; 0: the branches that the fresh ranks take are not known.
    """
    return _Planner(list(history), lacking, fresh, frozenset(wanted), world_size).plan()


class _Planner:
    def __init__(
        self,
        cells: list[PastCell],
        lacking: Mapping[str, NameKind],
        fresh: RankSet,
        wanted: frozenset[int],
        world_size: int,
    ) -> None:
        self._cells = cells
        self._lacking = lacking
        self._fresh = set(fresh)
        self._wanted = wanted
        self._world_size = world_size
        self._is_possible: dict[int, bool] = {}  # by index: whether its names can be made again
        self._chosen: set[int] = set()
        self._not_made: set[str] = set()  # used by wanted cells, and made by none that runs again
        self._loops = Loops(cell for cell in cells if cell.is_ok)

    def plan(self) -> CatchUpPlan:
        left_out: dict[tuple[int, Reason], list[str]] = {}
        elsewhere = []
        for name, kind in self._lacking.items():  # first: `_is_possible` is for all
            index = self._maker(name) if kind == "state" else None
            if index is not None:
                self._choose(index, for_state=True)
        for name in self._lacking:
            if other := self._cell_of_others(name):
                elsewhere.append((name, other))
                continue
            index = self._maker(name)
            if index is None:
                number = self._failed_binder(name)
                reason = Reason.FAILED if number else Reason.NO_CELL
                left_out.setdefault((number, reason), []).append(name)
            elif not self._choose(index):
                is_loop = self._is_long_loop(index)
                key = self._cells[index].number, Reason.LOOP if is_loop else Reason.NEEDS
                left_out.setdefault(key, []).append(name)
        for index, cell in enumerate(self._cells):
            has_star = cell.names.has_star and cell.is_ok and bool(self._lacking)
            if cell.number in self._wanted or has_star:
                self._choose(index)
        if self._chosen:
            for index, cell in enumerate(self._cells):
                if cell.names.seeds and cell.is_ok:
                    self._choose(index)
        cells = tuple(self._cells[index] for index in sorted(self._chosen))
        has_peers = any(cell.has_operations or cell.makes_groups for cell in cells)
        if not has_peers:
            cells = tuple(cell for cell in cells if not self._fresh.isdisjoint(cell.ranks))
        return CatchUpPlan(
            cells,
            has_peers,
            tuple(
                LeftOut(tuple(names), reason, number, **self._missing(number, reason))
                for (number, reason), names in left_out.items()
            ),
            tuple(elsewhere),
            self._deleted(cells),
            frozenset(
                name
                for cell in cells
                for name in cell.names.reads
                if name in self._not_made or self._binder(name, len(self._cells)) is None
            ),
            *self._changed(cells),
            self._overtaken(cells),
        )

    def loops_of(self, name: str) -> tuple[int, ...]:
        """See the function of this name."""
        index = self._maker(name)
        if index is None or self._choose(index):
            return ()
        return tuple(sorted(self._refused_loops(index, set())))

    def leaves_loops(self) -> bool:
        """See the function of this name."""
        return any(
            any(self._maker(name) == index for name in cell.names.binds)
            for index, cell in enumerate(self._cells)
            if cell.is_ok and self._is_long_loop(index)
        )

    def _overtaken(self, chosen: tuple[PastCell, ...]) -> tuple[tuple[str, int], ...]:
        """The names that cells which do not run again have changed after the chosen ones.

        They are those that have failed, and loops.
        """
        again = set(map(id, chosen))
        made: set[str] = set()
        late: dict[str, int] = {}
        for cell in self._cells:
            if id(cell) in again:
                made |= cell.names.binds - cell.names.defines
                late = {n: number for n, number in late.items() if n not in cell.names.binds}
            elif not self._fresh.isdisjoint(cell.ranks):
                done = self._names_on(cell) if cell.is_ok else [cell.names_run]
                changed = {name for part in done for name in part.changes | part.fills}
                changed |= frozenset() if cell.is_ok else cell.names_run.binds
                late |= dict.fromkeys(changed & made, cell.number)
        return tuple(sorted(late.items()))

    def _changed(self, chosen: tuple[PastCell, ...]) -> tuple[frozenset[str], frozenset[str]]:
        """The names that other cells, and functions of all cells, may bind, and may change."""
        makers: dict[str, int] = {}  # by name: the index of the last cell that binds it
        again = set(map(id, chosen))
        for index, cell in enumerate(self._cells):
            if id(cell) in again:
                makers.update(dict.fromkeys(cell.names.assigns, index))
        rebound: set[str] = set()
        touched: set[str] = set()
        parts = [self._names_on(cell) for cell in self._cells]
        later = {name for names in parts for part in names for name in part.later}
        rebound_later = {
            name for names in parts for part in names for name in part.binds & part.later
        }
        for name, maker in makers.items():
            after = [
                part
                for cell, names in zip(self._cells[maker + 1 :], parts[maker + 1 :], strict=True)
                if id(cell) not in again
                for part in names
            ]
            # Any of these cells may have called a function that binds or changes it.
            if after and (name in rebound_later or any(name in each.binds for each in after)):
                rebound.add(name)
            is_touched = any(name in each.changes or name in each.touches for each in after)
            if after and (name in later or is_touched):
                touched.add(name)
        return frozenset(rebound), frozenset(touched)

    def _names_on(self, cell: PastCell) -> list[CellNames]:
        """The names of a cell, without branches that a fresh rank does not take, for each of them.

        A rank whose branch leaves a name alone keeps the value that the name had before.
        """
        size = self._world_size
        return [cell.names_on(rank, size) for rank in self._fresh] if size else [cell.names]

    def _deleted(self, chosen: Iterable[PastCell]) -> frozenset[str]:
        """The names that chosen cells bind, and that are deleted at the end of all cells."""
        deleted: set[str] = set()
        for cell in self._cells:
            if cell.is_ok and not self._fresh.isdisjoint(cell.ranks):
                deleted = (deleted - cell.names.binds) | cell.names.deletes
        bound = {name for cell in chosen for name in cell.names.binds}
        return frozenset(deleted & bound)

    def _choose(self, index: int, *, for_state: bool = False) -> bool:
        """Choose a cell with all that it uses; return whether that is possible.

        Args:
            index: of the cell.
            for_state: a module or an optimizer is built from its names, so it may be a loop.
        """
        known = self._is_possible.get(index)
        if known is not None:
            return known
        self._is_possible[index] = True  # cells may use names of each other
        cell = self._cells[index]
        if self._is_long_loop(index) and not for_state:
            self._is_possible[index] = False
            return False
        for name, source in self._sources(cell, index):
            # One that has run well has perhaps bound the name itself: then it does so again.
            if self._choose(source, for_state=for_state) or name in cell.names.perhaps:
                continue
            if cell.number not in self._wanted:
                self._is_possible[index] = False
                return False
            self._not_made.add(name)
        self._chosen.add(index)
        for later in range(index + 1, len(self._cells)):
            names = self._cells[later].names
            # `F.relu_(w)` changes no module.
            values = cell.names.binds - cell.names.defines
            is_changed = not names.changes.isdisjoint(cell.names.binds)
            if self._cells[later].is_ok and (is_changed or not names.fills.isdisjoint(values)):
                self._choose(later)
        return True

    def _missing(self, number: int, reason: Reason) -> "_Missing":
        """The names that a cell uses and that are not made, and the loops to name for them."""
        if reason is not Reason.NEEDS:
            return {}
        index = next(
            i for i, cell in enumerate(self._cells) if cell.number == number and cell.is_ok
        )
        refused = self._refused_sources(index)
        return {
            "uses": tuple(dict.fromkeys(name for name, _ in refused)),
            "loops": tuple(sorted(self._refused_loops(index, set()))),
        }

    def _refused_sources(self, index: int) -> list[tuple[str, int]]:
        """Return names that a cell uses and cells do not make, each with its cell."""
        cell = self._cells[index]
        return [
            (name, source)
            for name, source in self._sources(cell, index)
            if name not in cell.names.perhaps
            and not self._is_possible.get(source, not self._is_long_loop(source))
        ]

    def _refused_loops(self, index: int, seen: set[int]) -> set[int]:
        """The numbers of the loops for which a cell is left out."""
        seen.add(index)
        if self._is_long_loop(index):
            return {self._cells[index].number}
        sources = {source for _, source in self._refused_sources(index)} - seen
        return {n for source in sorted(sources) for n in self._refused_loops(source, seen)}

    def _sources(self, cell: PastCell, index: int) -> list[tuple[str, int]]:
        """The cells that bind what a cell uses: before it, or else, for functions, after it.

        Returns:
            Each name, with the index of its cell.
        """
        binders = []
        for name in sorted(cell.names.reads):
            binder = self._binder(name, index)
            if binder is None and name not in cell.names.binds:
                binder = self._binder(name, len(self._cells))
            if binder is not None and binder != index:
                binders.append((name, binder))
        return binders

    def _is_long_loop(self, index: int) -> bool:
        cell = self._cells[index]
        if not cell.has_operations or cell.number in self._wanted:
            return False
        if not self._loops.runs_loop(cell):
            return False
        kinds = {
            self._lacking[name]
            for name in cell.names.binds.intersection(self._lacking)
            if self._maker(name) == index
        }
        return kinds <= {"plain", "data"}

    def _maker(self, name: str) -> int | None:
        """The last good cell that may bind a name on a fresh rank."""
        return self._binder(name, len(self._cells), own=True)

    def _binder(self, name: str, before: int, *, own: bool = False) -> int | None:
        """The last good cell of a fresh rank above ``before`` that binds a name.

        Args:
            name: the name.
            before: the index of a cell.
            own: branches that no fresh rank takes do not count. Where other ranks run a cell
                along, they need what it uses there, too.
        """
        by_function = None
        for index in reversed(range(before)):
            cell = self._cells[index]
            if not cell.is_ok or self._fresh.isdisjoint(cell.ranks):
                continue
            if own and name in cell.names.binds and not self._may_bind(cell, name):
                continue
            if name in cell.names.assigns:
                return index
            if by_function is None and name in cell.names.binds:
                by_function = index
        return by_function

    def _may_bind(self, cell: PastCell, name: str) -> bool:
        """Whether a fresh rank may have taken a branch of a cell that binds a name."""
        size = self._world_size
        return not size or any(
            name in names for rank in self._fresh for names in cell.binds_on(rank, size)
        )

    def _cell_of_others(self, name: str) -> int:
        """The last cell that binds a name, if none of these ran on a fresh rank; 0: one did."""
        binders = [cell for cell in self._cells if name in cell.names.binds]
        is_of_others = all(self._fresh.isdisjoint(cell.ranks) for cell in binders)
        return binders[-1].number if binders and is_of_others else 0

    def _failed_binder(self, name: str) -> int:
        """The number of the last cell that would have bound a name and failed; 0: none."""
        failed = (cell for cell in reversed(self._cells) if not cell.is_ok)
        return next((cell.number for cell in failed if name in cell.names.binds), 0)


def loops_of(name: str, history: Iterable[PastCell], fresh: RankSet) -> tuple[int, ...]:
    """The loops that a fresh rank does not run again for a name, unless the user names them.

    It lacks all names. Of their values nothing is known but what the code says: so a loop is named
    that makes a module, too, though a catch-up would run it in any case.

    Args:
        name: the name.
        history: the cells so far, in order.
        fresh: the ranks that lack it.

    Returns:
        The numbers of these cells; empty: the name is made again without that, or not at all.
    """
    try:
        return _for_all_names(list(history), fresh).loops_of(name)
    except RecursionError:  # each of very many cells uses the one before: `steps += 1`
        return ()


def leaves_loops(history: Iterable[PastCell], fresh: RankSet) -> bool:
    """Whether a fresh rank may lack names of loops after a catch-up; see `loops_of`."""
    return _for_all_names(list(history), fresh).leaves_loops()


def _for_all_names(cells: list[PastCell], fresh: RankSet) -> _Planner:
    """The planner for a rank that lacks all names."""
    kinds: dict[str, NameKind] = {}
    for cell in cells:
        if cell.is_ok:
            kinds |= dict.fromkeys(sorted(cell.names.binds), "data")
            kinds |= dict.fromkeys(sorted(cell.names.defines), "definition")
    return _Planner(cells, kinds, fresh, frozenset(), 0)


def with_joint_names(
    left_out: Iterable[LeftOut], roots_by_name: Mapping[str, Collection[str]]
) -> tuple[LeftOut, ...]:
    """Note the names that all ranks must make, since they hang on one that a rank lacks.

    Args:
        left_out: the names that ranks lack.
        roots_by_name: see `nbddp.wire.values.value_questions.Names.joint`.
    """
    left_out = tuple(left_out)
    lacking = {name for left in left_out for name in left.names}
    joint = frozenset(
        name for name, roots in roots_by_name.items() if not lacking.isdisjoint(roots)
    )
    return tuple(replace(left, joint=joint.intersection(left.names)) for left in left_out)
