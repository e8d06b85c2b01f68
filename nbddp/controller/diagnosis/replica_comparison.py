"""Compares the hashes that ranks have taken of a model, step by step.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from nbddp.controller.diagnosis.common_steps import StepAlone, optimizer_at, part_of, start_of
from nbddp.wire.flight_recorder import ReplicaSteps, Site
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet, ranks_by_value


@dataclass(frozen=True)
class DifferingTensors:
    """Tensors of which the same ranks have equal values."""

    first: str
    count: int
    clusters: tuple[RankSet, ...]  #: ranks with equal values, most ranks first


@dataclass(frozen=True)
class PartedReplicas:
    """A model whose replicas have parted."""

    steps: ReplicaSteps  #: of one of the ranks
    step: int  #: the first one after which they differ; 0: before the first one of the cell
    tensor: str  #: the first that differs, then or, if ``is_late``, at the end of the cell
    others: int  #: number of other tensors that differ then
    is_late: bool  #: the hashes of single tensors were not kept for this many steps
    clusters: tuple[RankSet, ...]  #: ranks with equal replicas, most ranks first
    #: The classes of the optimizers that any of the ranks has stepped; empty: there is none.
    classes: tuple[str, ...]
    #: The tensors that differ, in several parts if other ranks differ in each; empty: not known.
    parts: tuple[DifferingTensors, ...] = ()
    #: The tensor is a buffer, or a state of the optimizer; the parameters are equal.
    beside: Literal["", "buffer", "state"] = ""
    #: A setting of the optimizer that was not equal in this step: its name, the value of each rank.
    setting: tuple[str, Mapping[Rank, str]] | None = None
    #: The class of the optimizer of each rank; empty: all have the same.
    optimizers: Mapping[Rank, str] = field(default_factory=dict)
    #: Ranks that make this step with another optimizer than before, while others do not, and the
    #: number of the first of their steps with it. It has the same parameters.
    new_optimizers: Mapping[Rank, int] = field(default_factory=dict)
    #: The steps that each rank has made, if that explains why they differ.
    step_counts: Mapping[Rank, int] = field(default_factory=dict)
    #: The line of the step of each rank.
    sites: Mapping[Rank, Site] = field(default_factory=dict)
    #: Ranks whose optimizers do not step ``tensor``, which those of others do.
    without_tensor: RankSet = NO_RANKS
    #: The replicas were equal after this many steps of all ranks, of which some have made more.
    equal_steps: int = 0
    is_after: bool = False  #: what optimizers step was equal after the last step
    is_stepped: bool = True  #: an optimizer steps ``tensor``
    #: Ranks whose first step began with weights that another one had after a step.
    followers: RankSet = NO_RANKS
    #: Ranks of which some have stepped alone: ``step`` counts the steps that these have in common.
    in_common: RankSet = NO_RANKS
    is_before: bool = False  #: they differ before ``step``, and not only after it
    #: States of the optimizer that differed before ``step``, at equal parameters or beside others.
    states: tuple[str, ...] = ()
    #: A step of some ranks alone, after which the parameters or the states were not equal.
    alone: StepAlone | None = None
    #: ``step`` counts these last steps of each rank: nothing else tells which are the same. 0: all.
    last: int = 0
    #: The line of the cell that has called the function which steps, if it is one on all ranks.
    caller: Site | None = None
    begins_equal: bool = False  #: they were equal right before ``step``
    is_unpaired: bool = False  #: nothing tells which steps are the same: ``tensor`` is of the end
    was_equal: bool = False  #: a DDP model whose replicas were equal when gradients were sent first
    lost_by: RankSet = NO_RANKS  #: ranks whose optimizers have lost the state ``tensor``

    def of_steps(self, steps: ReplicaSteps, step: int) -> "PartedReplicas":
        """Return the same with other steps, and the classes of the optimizers of these."""
        return replace(self, steps=steps, classes=classes_of([steps]), step=step)

    @property
    def culprits(self) -> RankSet:
        """The minority; without one, all ranks."""
        return self.lost_by or minority(self.clusters)

    @property
    def site(self) -> Site:
        """The line of the step, of a rank that knows it."""
        own = site_of(self.steps, self.step)
        return own if own.line else next((each for each in self.sites.values() if each.line), own)

    @property
    def optimizer(self) -> str:
        """The class of the optimizer of the step."""
        return optimizer_at(self.steps, self.step)[1]

    @property
    def is_of_end(self) -> bool:
        """The replicas differ at the end; their first steps may be those of other iterations."""
        return not self.step and bool(self.step_counts)

    @property
    def all_differ(self) -> bool:
        """No two of several ranks are equal: each of them does the same wrong thing, perhaps."""
        return len(self.clusters) > 1 and all(len(ranks) == 1 for ranks in self.clusters)


def first_parting(by_rank: Mapping[Rank, ReplicaSteps], first: int = 0) -> PartedReplicas | None:
    """Find the step, from ``first`` on, after which replicas were equal no more."""
    some = next(iter(by_rank.values()))
    classes = classes_of(by_rank.values())
    # A rank that has less data makes fewer steps.
    count = min(len(each.site_of_step) for each in by_rank.values())
    # Of a DDP model, the gradients of different weights were averaged.
    if (
        not classes
        and not some.is_ddp
        and not any(
            part_of(each.digests, 0) != part_of(each.digests, 1) for each in by_rank.values()
        )
    ):
        return None  # gradients were averaged, and no weight was updated
    # Replicas that parted earlier and were equal again are not reported.
    step = count
    begins_equal = False
    while step > first and len({part_of(each.digests, step - 1) for each in by_rank.values()}) > 1:
        step -= 1
        begun = [start_of(each, step) for each in by_rank.values()] if step else []
        begins_equal = None not in begun and len({each.digest for each in begun if each}) == 1
        if begins_equal:
            break
    is_cut = any(each.later_steps for each in by_rank.values())
    if is_cut and len({each.newest for each in by_rank.values()}) == 1:
        step = count  # they are equal again, after steps of which nothing is known
    if step == count:
        return _parted_beside(some, by_rank, count)
    if not step and any(each.may_be_own for each in by_rank.values()):
        return None  # models of each rank, which look at the gradients of others
    is_late = any(len(each.details) < (step + 1) * len(each.newest) for each in by_rank.values())
    optimizers = {rank: optimizer_at(each, step)[1] for rank, each in by_rank.items()}
    is_one = len(set(optimizers.values())) == 1
    return PartedReplicas(
        some,
        step,
        is_late=is_late,
        clusters=clusters_of({rank: part_of(each.digests, step) for rank, each in by_rank.items()}),
        classes=classes,
        **differing(some.tensors, tensor_hashes(by_rank, step, is_late=is_late)),
        setting=_differing_setting(by_rank, step) if is_one else None,
        optimizers={} if is_one else optimizers,
        new_optimizers=_new_optimizers(by_rank, step),
        sites={rank: site_of(each, step) for rank, each in by_rank.items()},
        caller=_caller(by_rank.values(), step),
        begins_equal=begins_equal,
    )


def _new_optimizers(by_rank: Mapping[Rank, ReplicaSteps], step: int) -> Mapping[Rank, int]:
    """The ranks that make a step with a later optimizer than others, since which of their steps."""
    since: dict[Rank, int] = {}
    for number in range(step, 0, -1):
        numbers = {rank: optimizer_at(each, number)[0] for rank, each in by_rank.items()}
        ahead = [rank for rank in numbers if numbers[rank] > min(numbers.values())]
        since |= {rank: number for rank in ahead if since.get(rank) == number + 1 or number == step}
        if number not in since.values():
            break
    return since


def _caller(each_steps: Iterable[ReplicaSteps], step: int) -> Site | None:
    """The outermost line that called a step; None: there is none, or ranks have several."""
    callers = set()
    for steps in each_steps:
        index = steps.site_of_step[step]
        around = steps.callers[index] if index < len(steps.callers) else ()
        callers.add(around[-1] if around else None)
    return callers.pop() if len(callers) == 1 else None


def _parted_beside(
    some: ReplicaSteps, by_rank: Mapping[Rank, ReplicaSteps], count: int
) -> PartedReplicas | None:
    """Compare the buffers and the states of optimizers, where the parameters are equal."""
    if some.later_steps and len({each.newest for each in by_rank.values()}) > 1:
        return None  # the parameters have parted since
    beside: list[tuple[Literal["buffer", "state"], dict[Rank, dict[str, bytes]]]] = []
    beside.append(
        (
            "buffer",
            {rank: _named(each.buffers, each.buffer_hashes) for rank, each in by_rank.items()},
        )
    )
    # Of an optimizer in whose place another one has stepped, there are none.
    is_reported = all(each.state_hashes or not each.states for each in by_rank.values())
    if is_reported and len({made(each) for each in by_rank.values()}) == 1:
        # A rank with less data makes fewer steps, and has an older state of the optimizer.
        beside.append(
            (
                "state",
                {rank: _named(each.states, each.state_hashes) for rank, each in by_rank.items()},
            )
        )
    for kind, hashes_by_rank in beside:
        for name in next(iter(hashes_by_rank.values())):
            # An optimizer that shards its state has each part on one rank.
            if not all(name in each for each in hashes_by_rank.values()):
                continue
            clusters = clusters_of({rank: each[name] for rank, each in hashes_by_rank.items()})
            if len(clusters) > 1:
                classes = classes_of(by_rank.values())
                return PartedReplicas(
                    some, count - 1, name, 0, True, clusters, classes, beside=kind
                )
    return _lost_state(some, by_rank, count) if len(beside) > 1 else None


def _lost_state(
    some: ReplicaSteps, by_rank: Mapping[Rank, ReplicaSteps], count: int
) -> PartedReplicas | None:
    """A state that the optimizers of some ranks have lost since their first step."""
    lost: dict[str, tuple[RankSet, RankSet]] = {}
    for name in dict.fromkeys(name for each in by_rank.values() for name in each.states):
        without = RankSet.of(rank for rank, each in by_rank.items() if name in each.lost_states)
        others = RankSet.of(rank for rank, each in by_rank.items() if name in each.states)
        if without:
            lost[name] = others, without
    if not lost:
        return None
    name, clusters = next(iter(lost.items()))
    classes = classes_of(by_rank.values())
    return PartedReplicas(
        some, count - 1, name, len(lost) - 1, True, clusters, classes,
        beside="state", lost_by=clusters[1],
    )  # fmt: skip


def _differing_setting(
    by_rank: Mapping[Rank, ReplicaSteps], step: int
) -> tuple[str, Mapping[Rank, str]] | None:
    """The first setting of the optimizer that ranks did not have alike in a step."""
    values: dict[Rank, dict[str, str]] = {}
    for rank, steps in by_rank.items():
        begun = zip(steps.setting_steps, steps.settings, strict=True)
        before = [text for begin, text in begun if begin <= step]
        pairs = (part.partition("=") for part in (before[-1] if before else "").split(", "))
        values[rank] = {name: value for name, _, value in pairs if value}
    if not all(values.values()):  # not known for as many steps
        return None
    for name in next(iter(values.values())):
        if len({each.get(name) for each in values.values()}) > 1:
            return name, {rank: each.get(name, "none") for rank, each in values.items()}
    return None


def _named(names: Sequence[str], hashes: bytes) -> dict[str, bytes]:
    return {name: part_of(hashes, index) for index, name in enumerate(names)}


def tensor_hashes(
    by_rank: Mapping[Rank, ReplicaSteps], step: int, *, is_late: bool
) -> Mapping[Rank, bytes]:
    """The hashes of single tensors after a step, or at the end."""
    return {
        rank: each.newest if is_late else each.details[step * len(each.newest) :]
        for rank, each in by_rank.items()
    }


def differing(names: Sequence[str], hashes: Mapping[Rank, bytes]) -> dict[str, Any]:
    """Return the fields of `PartedReplicas` about the tensors that differ.

    Args:
        names: of the tensors.
        hashes: their hashes on each rank.
    """
    by_clusters: dict[tuple[RankSet, ...], list[str]] = {}
    for index, name in enumerate(names):
        clusters = clusters_of({rank: part_of(one, index) for rank, one in hashes.items()})
        if len(clusters) > 1:
            by_clusters.setdefault(clusters, []).append(name)
    return {
        "tensor": next((each[0] for each in by_clusters.values()), ""),
        "others": sum(map(len, by_clusters.values())) - 1,
        "parts": tuple(
            DifferingTensors(each[0], len(each), clusters) for clusters, each in by_clusters.items()
        ),
    }


def unequal(names: Sequence[str], hashes: Mapping[Rank, bytes]) -> list[str]:
    """Return the names whose hashes are not the same on all ranks."""
    return [
        name
        for index, name in enumerate(names)
        if len({part_of(one, index) for one in hashes.values()}) > 1
    ]


def classes_of(each_steps: Iterable[ReplicaSteps]) -> tuple[str, ...]:
    """Return the classes of optimizers, each once, by their first steps on the first rank.

    Classes that only other ranks have follow in the order of ranks.
    """
    return tuple(dict.fromkeys(name for steps in each_steps for name in steps.optimizers))


def site_of(steps: ReplicaSteps, step: int) -> Site:
    """Return the line of a step."""
    return steps.sites[steps.site_of_step[step]]


def length(steps: ReplicaSteps) -> int:
    """Return the number of steps, with the time before the first one."""
    return len(steps.site_of_step)


def made(steps: ReplicaSteps) -> int:
    """Return the number of steps, also of those of which no hashes were taken."""
    return length(steps) - 1 + steps.later_steps


def clusters_of(hashes: Mapping[Rank, bytes | int]) -> tuple[RankSet, ...]:
    """Return the ranks with equal hashes, most ranks first."""
    clusters = ranks_by_value(hashes).values()
    return tuple(sorted(clusters, key=lambda ranks: (-len(ranks), ranks.ranks)))


def minority(clusters: Sequence[RankSet]) -> RankSet:
    """The ranks outside of the largest cluster; all, if it is not larger than others."""
    has_majority = len(clusters[0]) > len(clusters[1])
    return RankSet.of(rank for ranks in clusters[has_majority:] for rank in ranks)
