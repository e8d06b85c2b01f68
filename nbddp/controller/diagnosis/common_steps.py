"""Finds the steps of a model that all of its ranks made in the same lines, and those of some alone.

Runs in: the notebook's process. Pure. A rank that steps alone, such as in a warm-up, has other
numbers for the steps after that: hashes of steps with equal numbers are not of the same step.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from msgspec.structs import replace

from nbddp.wire.flight_recorder import HASH_BYTES, ReplicaSteps, Site, StepStart
from nbddp.wire.rank_set import Rank, RankSet

#: A line that steps, and the lines that called it, by their positions.
_Place: TypeAlias = tuple[tuple[str, int, int], ...]
_StepsOfRanks: TypeAlias = Mapping[Rank, Sequence[ReplicaSteps]]


@dataclass(frozen=True)
class StepAlone:
    """A step that some ranks made, and the others did not."""

    ranks: RankSet
    site: Site
    optimizer: str


@dataclass(frozen=True)
class LastSteps:
    """The last steps of each rank, as many of each, with the hashes from before them."""

    count: int
    by_rank: Mapping[Rank, ReplicaSteps]  #: with numbers of their own
    alone: StepAlone | None  #: before them, of some ranks alone


class CommonSteps:
    """The steps of a model, of which some were made by some ranks alone.

    Args:
        steps_of: the steps of each rank that has made any, by each of its optimizers.
    """

    def __init__(self, steps_of: _StepsOfRanks) -> None:
        self._steps_of = steps_of
        places = [self._places_of(rank) for rank in steps_of]
        self._common: frozenset[_Place] = frozenset.intersection(*places)

    @cached_property
    def has_alone(self) -> bool:
        """Whether steps with the same number are steps of different lines on some ranks.

        Not where no line is common, as the two sides of an `if`, or where ranks take turns; nor
        where each rank makes its last step in a line of its own: `last` tells more.
        """
        if not self._common:
            return False
        first, *rest = ([self._row(each) for each in of] for of in self._steps_of.values())
        rows = [row for of in (first, *rest) for row in of]
        if not any(None in row for row in rows):
            return False
        if len(rows) == len(self._steps_of) and all(row[-1] is None for row in rows):
            return False
        return any(len(of) != len(first) or not all(map(_fits, of, first)) for of in rest)

    @cached_property
    def steps_of(self) -> Mapping[Rank, tuple[ReplicaSteps, ...]]:
        """The common steps of each rank, with numbers of their own."""
        reduced: dict[Rank, tuple[ReplicaSteps, ...]] = {}
        for rank, of in self._steps_of.items():
            steps = [self._reduced(each) for each in of if self._numbers(each)]
            known = [each for each in steps if each is not None]
            if len(known) < len(steps):
                return {}  # too many lines: the hashes from before a first step are not known
            reduced[rank] = tuple(known)
        return reduced

    @cached_property
    def are_unpaired(self) -> bool:
        """Whether neither lines nor numbers tell which steps of ranks are the same step.

        Some ranks make more steps, and not the same lines one after the other.
        """
        if self.has_alone or any(len(of) != 1 for of in self._steps_of.values()):
            return False
        first, *rest = (self._all_places(of[0]) for of in self._steps_of.values())
        return any(len(row) != len(first) for row in rest) and not all(
            _fits(row, first) for row in rest
        )

    @property
    def has_turns(self) -> bool:
        """Whether each rank makes all of its steps in one line, as where ranks take turns."""
        return all(len(self._places_of(rank)) == 1 for rank in self._steps_of)

    @cached_property
    def last(self) -> LastSteps | None:
        """The last steps of each rank, from the last time on at which all were equal, if any.

        None: there are no hashes from before them.
        """
        steps_of = {rank: of[0] for rank, of in self._steps_of.items()}
        if any(steps.later_steps for steps in steps_of.values()):
            return None  # the last ones that are known are not the last ones
        rows = {rank: self._all_places(steps) for rank, steps in steps_of.items()}
        if len({steps.tensors for steps in steps_of.values()}) > 1:
            return None
        longest = 0
        for count in range(1, min(map(len, rows.values())) + 1):
            starts = [
                start_of(steps, len(rows[rank]) - count + 1) for rank, steps in steps_of.items()
            ]
            digests = {None if start is None else start.digest for start in starts}
            if None in digests:
                continue
            if len(digests) == 1:
                longest = count
                break
            # A line that runs again may do so for another step.
            if all(set(row[:-count]).isdisjoint(row[-count:]) for row in rows.values()):
                longest = count
        return self._last(longest, steps_of, rows) if longest else None

    def _last(
        self, count: int, steps_of: Mapping[Rank, ReplicaSteps],
        rows: Mapping[Rank, Sequence[_Place]],
    ) -> LastSteps:  # fmt: skip
        earlier = {rank: row[:-count] for rank, row in rows.items()}
        outside = {position for row in earlier.values() for place in row for position in place}
        by_rank: dict[Rank, ReplicaSteps] = {}
        for rank, steps in steps_of.items():
            numbers = list(range(len(rows[rank]) - count + 1, len(rows[rank]) + 1))
            reduced = _with_numbers(steps, numbers, outside)
            if reduced is not None:
                by_rank[rank] = reduced
        ranks = RankSet.of(rank for rank, row in earlier.items() if row)
        alone = None
        if len(ranks) < len(rows) and len({earlier[rank][-1] for rank in ranks}) == 1:
            first = next(iter(ranks))
            alone = self._alone(steps_of[first], len(earlier[first]))
        return LastSteps(count, by_rank, alone)

    def alone_with_value(self, name: str, values: Mapping[Rank, bytes]) -> StepAlone | None:
        """Return a step of some ranks alone that these and no others have in a tensor.

        Others have the value from before it: nothing has sent the new one.

        Args:
            name: of the tensor.
            values: its hash on each rank, later.
        """
        for rank in values:
            earlier: set[bytes] = set()
            alone: StepAlone | None = None
            for steps in self._steps_of[rank]:
                for step in self._numbers_alone(steps) if name in steps.tensors else ():
                    before, after = _around(steps, step, steps.tensors.index(name))
                    earlier.add(before)
                    if after == values[rank] != before:
                        alone = self._alone(steps, step)
            others = {
                value for other, value in values.items() if alone and other not in alone.ranks
            }
            if alone is not None and values[rank] not in others and others & earlier:
                return alone
        return None

    def alone_before(
        self, by_rank: Mapping[Rank, ReplicaSteps], step: int, unequal: Mapping[Rank, object]
    ) -> StepAlone | None:
        """Return the last step of some ranks alone between a common step and the one before.

        Args:
            by_rank: the common steps of an optimizer.
            step: the number of the common step.
            unequal: what differs since; no others may have what these ranks have.
        """
        for rank, reduced in by_rank.items():
            steps = next(
                each
                for each in self._steps_of[rank]
                if each.optimizer_number == reduced.optimizer_number
            )
            first, last = [0, *self._numbers(steps)][step - 1 : step + 1]
            between = [each for each in self._numbers_alone(steps) if first < each < last]
            if between:
                alone = self._alone(steps, between[-1])
                others = {value for other, value in unequal.items() if other not in alone.ranks}
                if unequal[rank] not in others:
                    return alone
        return None

    def _alone(self, steps: ReplicaSteps, step: int) -> StepAlone:
        place = _place(steps, steps.site_of_step[step])
        ranks = RankSet.of(rank for rank in self._steps_of if place in self._places_of(rank))
        inside = {position for each in self._common for position in each}
        site = _shown(steps, steps.site_of_step[step], inside)
        return StepAlone(ranks, site, optimizer_at(steps, step)[1])

    def _places_of(self, rank: Rank) -> frozenset[_Place]:
        return frozenset(
            _place(steps, index)
            for steps in self._steps_of[rank]
            for index in set(steps.site_of_step[1:])
        )

    def _row(self, steps: ReplicaSteps) -> tuple[_Place | None, ...]:
        """The line of each step; None: of some ranks alone."""
        return tuple(place if place in self._common else None for place in self._all_places(steps))

    def _numbers(self, steps: ReplicaSteps) -> list[int]:
        return [step for step, place in enumerate(self._row(steps), 1) if place is not None]

    def _numbers_alone(self, steps: ReplicaSteps) -> list[int]:
        return [step for step, place in enumerate(self._row(steps), 1) if place is None]

    def _all_places(self, steps: ReplicaSteps) -> tuple[_Place, ...]:
        places = [_place(steps, index) for index in range(len(steps.sites))]
        return tuple(places[index] for index in steps.site_of_step[1:])

    def _reduced(self, steps: ReplicaSteps) -> ReplicaSteps | None:
        """Leave out the steps of some ranks alone; None: the hashes before are not known."""
        return _with_numbers(steps, self._numbers(steps), self._outside)

    @cached_property
    def _outside(self) -> set[tuple[str, int, int]]:
        """The positions of the lines in which some ranks have stepped, and not all."""
        return {
            position
            for rank in self._steps_of
            for place in self._places_of(rank) - self._common
            for position in place
        }


def _with_numbers(
    steps: ReplicaSteps, numbers: Sequence[int], outside: set[tuple[str, int, int]]
) -> ReplicaSteps | None:
    """Leave out the steps with other numbers; None: the hashes before are not known.

    Args:
        steps: of a rank.
        numbers: of the steps that stay.
        outside: positions of the lines of other steps.
    """
    start = start_of(steps, numbers[0])
    if start is None:
        return None
    size = len(steps.newest)
    kept = [step for step in numbers if len(steps.details) >= (step + 1) * size]
    chosen = [0, *numbers]
    each_begun = list(zip(steps.setting_steps, steps.settings, strict=True))
    # Those before the first step may be of the optimizer of a step that is left out.
    begun = [(0, text) for begin, text in each_begun if begin <= numbers[0]][-1:]
    begun += [
        (step, text)
        for begin, text in each_begun
        if begin > numbers[0] and (step := bisect_left(chosen, begin)) < len(chosen)
    ]
    of_step = [optimizer_at(steps, step) for step in [numbers[0], *numbers]]
    # Those of steps that are left out do not count: ranks number the others by their first steps.
    optimizers = list(dict.fromkeys(of_step))
    return replace(
        steps,
        digests=start.digest + b"".join(part_of(steps.digests, step) for step in numbers),
        details=start.details
        + b"".join(steps.details[step * size : (step + 1) * size] for step in kept),
        settings=tuple(text for _, text in begun),
        setting_steps=tuple(step for step, _ in begun),
        sites=tuple(_shown(steps, index, outside) for index in range(len(steps.sites))),
        site_of_step=bytes(steps.site_of_step[step] for step in [numbers[0], *numbers]),
        optimizers=tuple(name for _, name in optimizers),
        optimizer_of_step=bytes(map(optimizers.index, of_step)),
        callers=(),
        state_hashes=b"",  # steps alone explain states that differ at the end
        lost_states=(),
        starts=tuple(
            replace(each, step=numbers.index(each.step) + 1)
            for each in steps.starts
            if each.step in numbers
        ),
    )


def _fits(row: Sequence[_Place | None], other: Sequence[_Place | None]) -> bool:
    """Whether steps have the same numbers on both ranks; one of them may make more in the end."""
    count = min(len(row), len(other))
    return row[:count] == other[:count]


def start_of(steps: ReplicaSteps, step: int) -> StepStart | None:
    """Return the hashes from before a step, if they were taken.

    Args:
        steps: of a rank.
        step: the number of the step.
    """
    return next((each for each in steps.starts if each.step == step), None)


def optimizer_at(steps: ReplicaSteps, step: int) -> tuple[int, str]:
    """Return the number of the optimizer that has made a step, and its class; empty: none has.

    Args:
        steps: of a rank.
        step: the number of the step.
    """
    of_step = steps.optimizer_of_step
    number = of_step[step] if step < len(of_step) else 0
    return number, steps.optimizers[number] if steps.optimizers else ""


def _around(steps: ReplicaSteps, step: int, index: int) -> tuple[bytes, bytes]:
    """The hashes of a tensor before and after a step; empty: they were not kept."""
    start, size = start_of(steps, step), len(steps.newest)
    before = steps.details[(step - 1) * size : step * size] if start is None else start.details
    after = steps.details[step * size : (step + 1) * size]
    return part_of(before, index), part_of(after, index)


def _place(steps: ReplicaSteps, index: int) -> _Place:
    callers = steps.callers[index] if index < len(steps.callers) else ()
    return tuple(site.position for site in (steps.sites[index], *callers))


def _shown(steps: ReplicaSteps, index: int, others: set[tuple[str, int, int]]) -> Site:
    """The outermost line of a step that is none of other steps."""
    callers = steps.callers[index] if index < len(steps.callers) else ()
    lines = (steps.sites[index], *callers)
    own = [site for site in lines if site.position not in others]
    return own[-1] if own else lines[0]


def part_of(hashes: bytes, index: int) -> bytes:
    """Return one hash of several that stand behind each other."""
    return hashes[index * HASH_BYTES : (index + 1) * HASH_BYTES]
