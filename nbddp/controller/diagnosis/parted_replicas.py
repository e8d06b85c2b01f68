"""Finds DDP models whose replicas are not equal after a step, by the hashes that ranks have taken.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from nbddp.controller.diagnosis.common_steps import CommonSteps, StepAlone, start_of
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import DIGEST_BYTES, ReplicaSteps, Site
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet, ranks_by_value

#: Of a model: its group, and its number there.
_Key: TypeAlias = tuple[str, int]


@dataclass(frozen=True)
class PartedReplicas:
    """A model whose replicas have parted."""

    steps: ReplicaSteps  #: of one of the ranks
    step: int  #: the first one after which they differ; 0: before the first one of the cell
    tensor: str  #: the first that differs, then or, if ``is_late``, at the end of the cell
    others: int  #: number of other tensors that differ then
    is_late: bool  #: the hashes of single tensors were not kept for this many steps
    clusters: tuple[RankSet, ...]  #: ranks with equal replicas, most ranks first
    #: The tensor is a buffer, or a state of the optimizer; the parameters are equal.
    beside: Literal["", "buffer", "state"] = ""
    #: A setting of the optimizer that was not equal in this step: its name, the value of each rank.
    setting: tuple[str, Mapping[Rank, str]] | None = None
    #: The class of the optimizer of each rank; empty: all have the same.
    optimizers: Mapping[Rank, str] = field(default_factory=dict)
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
    begins_equal: bool = False  #: they were equal right before ``step``
    is_unpaired: bool = False  #: nothing tells which steps are the same: ``tensor`` is of the end
    was_equal: bool = False  #: a DDP model whose replicas were equal when gradients were sent first

    @property
    def culprits(self) -> RankSet:
        """The minority; without one, all ranks."""
        return _minority(self.clusters)

    @property
    def site(self) -> Site:
        """The line of the step, of a rank that knows it."""
        own = _site(self.steps, self.step)
        return own if own.line else next((each for each in self.sites.values() if each.line), own)

    @property
    def is_of_end(self) -> bool:
        """The replicas differ at the end; their first steps may be those of other iterations."""
        return not self.step and bool(self.step_counts)

    @property
    def all_differ(self) -> bool:
        """No two of several ranks are equal: each of them does the same wrong thing, perhaps."""
        return len(self.clusters) > 1 and all(len(ranks) == 1 for ranks in self.clusters)


def find_parted_replicas(graph: WaitForGraph) -> list[PartedReplicas]:
    """Find for each model the first step after which its replicas differ.

    Args:
        graph: the ranks after the cell.
    """
    whole, steps_of = _by_model(graph)
    common_of = {model: CommonSteps(by_rank) for model, by_rank in steps_of.items()}
    partings_of: dict[_Key, list[PartedReplicas]] = {}
    for model, by_rank in _by_optimizer(steps_of, common_of):
        parted = _parted(by_rank) if len(by_rank) > 1 else None
        ends = whole.get(model, {})
        if len({each.tensors for each in ends.values()}) > 1:
            ends = {}  # ranks train other parameters
        if parted is not None and (parted.beside or not _are_equal_at_end(ends, by_rank)):
            explained = _explained(parted, by_rank, ends, steps_of[model], common_of[model])
            partings = partings_of.setdefault(model, [])
            # What the end shows is told once, not for each optimizer.
            if explained is not None and not any(each.is_of_end for each in partings):
                partings.append(explained)
    for model, ends in whole.items():
        if len(ends) < 2 or any(not each.beside for each in partings_of.get(model, ())):
            continue
        if model in steps_of and not _may_be_replicas(ends):
            continue
        parted = _parted_at_end(ends, steps_of.get(model, {}))
        if parted is not None:
            partings_of[model] = [parted]
    return [each for partings in partings_of.values() for each in _first_reasons(partings)]


def _first_reasons(partings: Sequence[PartedReplicas]) -> Sequence[PartedReplicas]:
    """Of several optimizers of a model, those after a step of some ranks alone, if any are."""
    return [each for each in partings if each.alone] or partings


def _by_model(
    graph: WaitForGraph,
) -> tuple[dict[_Key, dict[Rank, ReplicaSteps]], dict[_Key, dict[Rank, list[ReplicaSteps]]]]:
    """The hashes of whole models, and those of the steps of each optimizer."""
    whole: dict[_Key, dict[Rank, ReplicaSteps]] = {}
    steps_of: dict[_Key, dict[Rank, list[ReplicaSteps]]] = {}
    for rank, view in graph.views.items():
        for steps in view.sanitizer.replicas if view.sanitizer is not None else ():
            model = steps.pg_id, steps.number
            if steps.optimizer:
                steps_of.setdefault(model, {}).setdefault(rank, []).append(steps)
            else:
                whole.setdefault(model, {})[rank] = steps
    return whole, steps_of


def _by_optimizer(
    steps_of: Mapping[_Key, Mapping[Rank, Sequence[ReplicaSteps]]],
    common_of: Mapping[_Key, CommonSteps],
) -> Iterator[tuple[_Key, Mapping[Rank, ReplicaSteps]]]:
    """Yield the model and the steps of ranks that are compared with each other."""
    for model, all_steps in steps_of.items():
        common = common_of[model]
        stepped: dict[object, dict[Rank, ReplicaSteps]] = {}
        for rank, each_steps in (common.steps_of if common.has_alone else all_steps).items():
            for index, steps in enumerate(each_steps):
                number = steps.optimizer_number
                if common.has_alone:  # a step alone may have changed their order
                    same = (each for each in each_steps[:index] if each.tensors == steps.tensors)
                    number = len(list(same))
                stepped.setdefault((number, steps.tensors), {})[rank] = steps
        yield from ((model, by_rank) for by_rank in stepped.values())


def _may_be_replicas(ends: Mapping[Rank, ReplicaSteps]) -> bool:
    """Whether ranks step the same parameters: of a DDP model, or equal ones before the first step.

    The first steps of ranks may be those of different iterations, as where they take turns.
    """
    if all(each.is_ddp for each in ends.values()):
        return True
    return len({(each.tensors, _part(each.digests, 0)) for each in ends.values()}) == 1


def _are_equal_at_end(
    ends: Mapping[Rank, ReplicaSteps], by_rank: Mapping[Rank, ReplicaSteps]
) -> bool:
    """Whether replicas that differ after a step are equal again, as after a broadcast.

    In `Join`, steps with the same number may not be the same step.
    """
    last = {_part(each.digests, 1) for each in ends.values()}
    return by_rank.keys() <= ends.keys() and len(last) == 1


def _step_counts(
    ends: Mapping[Rank, ReplicaSteps], steps_of: Mapping[Rank, Sequence[ReplicaSteps]]
) -> Mapping[Rank, int]:
    """The steps that each rank has made; empty: a rank has not ended the cell well."""
    if not steps_of.keys() <= ends.keys():
        return {}
    return {
        rank: sum(len(each.site_of_step) - 1 for each in steps_of.get(rank, ())) for rank in ends
    }


def _explained(
    parted: PartedReplicas,
    by_rank: Mapping[Rank, ReplicaSteps],
    ends: Mapping[Rank, ReplicaSteps],
    steps_of: Mapping[Rank, Sequence[ReplicaSteps]],
    common: CommonSteps,
) -> PartedReplicas | None:
    """Add what the whole cell shows about replicas that parted in a step."""
    explained: PartedReplicas | None = parted
    if common.has_alone:
        parted = explained = replace(parted, in_common=RankSet.of(by_rank))
    elif common.are_unpaired and not parted.beside and (not parted.step or not common.has_turns):
        last = common.last
        if last is None:
            return _unpaired(parted, by_rank, ends, _step_counts(ends, steps_of), common)
        by_rank, of_last = last.by_rank, _parted(last.by_rank)
        if of_last is None or of_last.beside:
            return None
        parted = explained = replace(of_last, last=last.count, in_common=RankSet.of(by_rank))
    else:
        explained = _counted(parted, by_rank, ends, _step_counts(ends, steps_of))
    steps = parted.steps
    is_known = parted.setting or parted.optimizers or steps.copy_site.line or steps.left_out
    if explained is None or explained.beside or explained.step_counts or is_known:
        return explained
    return _from_start(explained, by_rank, common)


def _unpaired(
    parted: PartedReplicas,
    by_rank: Mapping[Rank, ReplicaSteps],
    ends: Mapping[Rank, ReplicaSteps],
    counts: Mapping[Rank, int],
    common: CommonSteps,
) -> PartedReplicas | None:
    """What the end shows, and no step; None: the error of the cell explains it."""
    if not counts:
        return None
    followers = _followers(by_rank) if common.has_turns else NO_RANKS
    sites = {rank: _site(each, _length(each) - 1) for rank, each in by_rank.items()}
    at_end = _at_end(parted, ends, counts, followers)
    return replace(at_end, sites=sites, is_unpaired=not followers, setting=None)


def _at_end(
    parted: PartedReplicas,
    ends: Mapping[Rank, ReplicaSteps],
    counts: Mapping[Rank, int],
    followers: RankSet,
) -> PartedReplicas:
    """Replicas with the tensors that differ at the end of the cell."""
    names = _differing(ends, 1, is_late=True)
    return replace(
        parted,
        step=0,
        tensor="".join(names[:1]),
        others=len(names) - 1,
        is_late=True,
        clusters=_clusters({rank: _part(each.digests, 1) for rank, each in ends.items()}),
        followers=followers,
        step_counts=counts,
    )


def _counted(
    parted: PartedReplicas,
    by_rank: Mapping[Rank, ReplicaSteps],
    ends: Mapping[Rank, ReplicaSteps],
    counts: Mapping[Rank, int],
) -> PartedReplicas | None:
    """Add the numbers of steps of ranks, if these explain it; None: an error explains it."""
    was_equal = len(ends) > 1 and len({_part(each.digests, 0) for each in ends.values()}) == 1
    if not parted.step and not parted.beside:
        followers = _followers(by_rank)
        if followers and not counts:
            return None  # the error of the cell explains it
        is_known = parted.setting or parted.optimizers or parted.steps.copy_site.line
        is_uneven = len(set(counts.values())) > 1 and not (parted.steps.is_ddp or is_known)
        if followers or is_uneven:
            return _at_end(parted, ends, counts, followers)
    compared = {rank for ranks in parted.clusters for rank in ranks}
    of_step = {rank: count for rank, count in counts.items() if rank in compared}
    # Ranks that make more steps may not be those that have parted before.
    is_reason = (
        parted.step > 0
        and parted.setting is None
        and not parted.beside
        and len(set(of_step.values())) > 1
        and _minority(_clusters(of_step)) == parted.culprits
    )
    return replace(parted, was_equal=was_equal, step_counts=of_step if is_reason else {})


def _early_alone(by_rank: Mapping[Rank, ReplicaSteps]) -> StepAlone | None:
    """A step of some ranks alone, before the gradients were reduced first."""
    early = {rank: each for rank, each in by_rank.items() if each.early_site.line}
    if not 0 < len(early) < len(by_rank):
        return None
    first = next(iter(early.values()))
    return StepAlone(RankSet.of(early), first.early_site, first.optimizer)


def _from_start(
    parted: PartedReplicas, by_rank: Mapping[Rank, ReplicaSteps], common: CommonSteps
) -> PartedReplicas:
    """Add what was not equal before the step, and the step of some ranks alone that made it so."""
    step = max(parted.step, 1)
    early = _early_alone(by_rank) if step == 1 else None
    starts = {rank: start_of(each, step) for rank, each in by_rank.items()}
    known = {rank: start for rank, start in starts.items() if start is not None}
    if len(known) < len(by_rank):
        if parted.in_common:
            after = {rank: _part(each.digests, step) for rank, each in by_rank.items()}
            return replace(parted, alone=common.alone_before(by_rank, step, after))
        return replace(parted, alone=None if parted.step else early)
    details = {rank: start.details for rank, start in known.items()}
    states = {rank: start.states for rank, start in known.items()}
    names = _unequal(parted.steps.tensors, details)
    state_names: list[str] = []
    # An optimizer that shards its state has each part on one rank.
    if len({each.states for each in by_rank.values()}) == 1:
        state_names = _unequal(parted.steps.states, states)
    if names and not parted.in_common:
        return replace(parted, alone=None if parted.step else early)
    if not names and not (parted.step and state_names):
        return parted
    if parted.last:
        early = _alone_before_last(common, details if names else states)
        if early is not None and names:
            index = parted.steps.tensors.index(names[0])
            values = {rank: _part(part, index) for rank, part in details.items()}
            early = common.alone_with_value(names[0], values)
    elif early is None and parted.in_common and names:
        index = parted.steps.tensors.index(names[0])
        values = {rank: _part(part, index) for rank, part in details.items()}
        early = common.alone_with_value(names[0], values)
    elif early is None and parted.in_common:
        early = common.alone_before(by_rank, step, states)
    return replace(
        parted,
        step=step,
        is_before=True,
        is_late=False,
        tensor="".join(names[:1]),
        others=len(names) - 1,
        clusters=_clusters(details if names else states),
        states=tuple(state_names),
        alone=early,
    )


def _alone_before_last(common: CommonSteps, unequal: Mapping[Rank, bytes]) -> StepAlone | None:
    """The step of some ranks alone before the last ones, if no others have what these have."""
    alone = None if common.last is None else common.last.alone
    if alone is None:
        return None
    others = {value for rank, value in unequal.items() if rank not in alone.ranks}
    is_cause = others.isdisjoint(unequal[rank] for rank in alone.ranks)
    return alone if is_cause else None


def _unequal(names: Sequence[str], digests: Mapping[Rank, bytes]) -> list[str]:
    return [
        name
        for index, name in enumerate(names)
        if len({_part(one, index) for one in digests.values()}) > 1
    ]


def _followers(by_rank: Mapping[Rank, ReplicaSteps]) -> RankSet:
    """Ranks whose first step began with weights that another rank had after a step.

    Their first steps are those of other iterations, as where ranks take turns and broadcast.
    """
    starts = {rank: _part(each.digests, 0) for rank, each in by_rank.items()}
    return RankSet.of(
        rank
        for rank, start in starts.items()
        if any(
            start != starts[other]
            and any(start == _part(each.digests, step) for step in range(len(each.site_of_step)))
            for other, each in by_rank.items()
        )
    )


def _parted_at_end(
    ends: Mapping[Rank, ReplicaSteps], steps_of: Mapping[Rank, Sequence[ReplicaSteps]]
) -> PartedReplicas | None:
    """Compare whole models: what no step has in common, or what came after the last one."""
    parted = _parted(ends)
    if parted is None or not steps_of:
        return parted
    begin_equal = bool(parted.step) or _begin_equal(ends, steps_of)
    # A rank without such a line has stepped the model before gradients were sent: it may have sent
    # its weights since.
    if not begin_equal and all(_site(each, 0).line for each in ends.values()):
        return parted
    parted, counts = _parted(ends, first=1), _step_counts(ends, steps_of)
    if parted is None or not counts:
        return None  # the error of the cell explains it
    return _explained_at_end(parted, ends, steps_of, counts, begin_equal=begin_equal)


def _explained_at_end(
    parted: PartedReplicas,
    ends: Mapping[Rank, ReplicaSteps],
    steps_of: Mapping[Rank, Sequence[ReplicaSteps]],
    counts: Mapping[Rank, int],
    *,
    begin_equal: bool,
) -> PartedReplicas | None:
    """Add what the steps show about replicas that differ at the end."""
    longest = max((each for steps in steps_of.values() for each in steps), key=_length)
    last = {rank: max(steps, key=_length) for rank, steps in steps_of.items()}
    parted = replace(
        parted,
        steps=longest,
        step=_length(longest) - 1,
        is_late=True,
        was_equal=True,
        sites={rank: _site(each, _length(each) - 1) for rank, each in last.items()},
    )
    if len(set(counts.values())) > 1:
        lists = {tuple(each.tensors for each in steps) for steps in steps_of.values()}
        is_compared = len(lists) == 1 and len(next(iter(lists))) == 1
        fewest = min(counts.values()) if is_compared else 0
        parted = replace(parted, step_counts=counts, equal_steps=fewest)
        return _with_own_lines(parted, steps_of)
    stepped = {
        rank: {name for each in steps for name in each.tensors} for rank, steps in steps_of.items()
    }
    for name in _differing(ends, 1, is_late=False):
        without = RankSet.of(rank for rank, names in stepped.items() if name not in names)
        if 0 < len(without) < len(ends):
            return replace(parted, tensor=name, without_tensor=without)
    if not (begin_equal and all(each.is_ddp for each in ends.values())):
        return None  # the code may have given the ranks models of their own after its steps
    is_stepped = any(parted.tensor in names for names in stepped.values())
    return replace(parted, is_after=True, is_stepped=is_stepped)


def _with_own_lines(
    parted: PartedReplicas, steps_of: Mapping[Rank, Sequence[ReplicaSteps]]
) -> PartedReplicas:
    """Show the lines in which only ranks have stepped that made more steps than others."""
    counts = parted.step_counts
    fewest = min(counts.values())
    common = {
        each.sites[index]
        for rank, steps in steps_of.items()
        for each in steps
        for index in each.site_of_step[1:]
        if counts[rank] == fewest
    }
    pairs = [(rank, replica) for rank, steps in steps_of.items() for replica in steps]
    for rank, replica in pairs:
        own = [n for n in range(1, _length(replica)) if _site(replica, n) not in common]
        if own and common:
            sites = {**parted.sites, rank: _site(replica, own[0])}
            parted = replace(parted, steps=replica, step=own[0], sites=sites)
    return parted


def _begin_equal(
    ends: Mapping[Rank, ReplicaSteps], steps_of: Mapping[Rank, Sequence[ReplicaSteps]]
) -> bool:
    """Whether all ranks made their first steps at equal weights.

    The gradients may be those of other weights of each rank, which are put back before the step.
    """
    starts = {
        tuple((each.tensors, _part(each.digests, 0)) for each in steps_of.get(rank, ()))
        for rank in ends
    }
    return len(starts) == 1 and () not in starts


def _parted(by_rank: Mapping[Rank, ReplicaSteps], first: int = 0) -> PartedReplicas | None:
    """Find the step, from ``first`` on, after which replicas were equal no more."""
    some = next(iter(by_rank.values()))
    # A rank that has less data makes fewer steps.
    count = min(len(each.site_of_step) for each in by_rank.values())
    # Of a DDP model, the gradients of different weights were averaged.
    if (
        not some.optimizer
        and not some.is_ddp
        and not any(_part(each.digests, 0) != _part(each.digests, 1) for each in by_rank.values())
    ):
        return None  # gradients were averaged, and no weight was updated
    # What has parted before the replicas were equal again is over.
    step = count
    begins_equal = False
    while step > first and len({_part(each.digests, step - 1) for each in by_rank.values()}) > 1:
        step -= 1
        begun = [start_of(each, step) for each in by_rank.values()] if step else []
        begins_equal = None not in begun and len({each.digest for each in begun if each}) == 1
        if begins_equal:
            break
    if step == count:
        return _parted_beside(by_rank, count)
    if not step and any(each.may_be_own for each in by_rank.values()):
        return None  # models of each rank, which look at the gradients of others
    is_late = any(len(each.details) < (step + 1) * len(each.newest) for each in by_rank.values())
    names = _differing(by_rank, step, is_late=is_late)
    optimizers = {rank: each.optimizer for rank, each in by_rank.items()}
    is_one = len(set(optimizers.values())) == 1
    return PartedReplicas(
        some,
        step,
        "".join(names[:1]),
        len(names) - 1,
        is_late,
        _clusters({rank: _part(each.digests, step) for rank, each in by_rank.items()}),
        setting=_differing_setting(by_rank, step) if is_one else None,
        optimizers={} if is_one else optimizers,
        sites={rank: _site(each, step) for rank, each in by_rank.items()},
        begins_equal=begins_equal,
    )


def _parted_beside(by_rank: Mapping[Rank, ReplicaSteps], count: int) -> PartedReplicas | None:
    """Compare the buffers and the states of optimizers, where the parameters are equal."""
    some = next(iter(by_rank.values()))
    beside: list[tuple[Literal["buffer", "state"], dict[Rank, dict[str, bytes]]]] = []
    beside.append(
        (
            "buffer",
            {rank: _named(each.buffers, each.buffer_digests) for rank, each in by_rank.items()},
        )
    )
    if all(len(each.site_of_step) == count for each in by_rank.values()):
        # A rank with less data makes fewer steps, and has an older state of the optimizer.
        beside.append(
            (
                "state",
                {rank: _named(each.states, each.state_digests) for rank, each in by_rank.items()},
            )
        )
    for kind, digests_by_rank in beside:
        for name in next(iter(digests_by_rank.values())):
            # An optimizer that shards its state has each part on one rank.
            if not all(name in each for each in digests_by_rank.values()):
                continue
            clusters = _clusters({rank: each[name] for rank, each in digests_by_rank.items()})
            if len(clusters) > 1:
                return PartedReplicas(some, count - 1, name, 0, True, clusters, beside=kind)
    return None


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


def _named(names: Sequence[str], digests: bytes) -> dict[str, bytes]:
    return {name: _part(digests, index) for index, name in enumerate(names)}


def _differing(by_rank: Mapping[Rank, ReplicaSteps], step: int, *, is_late: bool) -> list[str]:
    """The tensors that differ after a step, or at the end."""
    digests = [
        each.newest if is_late else each.details[step * len(each.newest) :]
        for each in by_rank.values()
    ]
    some = next(iter(by_rank.values()))
    return _unequal(some.tensors, dict(zip(by_rank, digests, strict=True)))


def _site(steps: ReplicaSteps, step: int) -> Site:
    return steps.sites[steps.site_of_step[step]]


def _length(steps: ReplicaSteps) -> int:
    return len(steps.site_of_step)


def _clusters(digests: Mapping[Rank, bytes | int]) -> tuple[RankSet, ...]:
    clusters = ranks_by_value(digests).values()
    return tuple(sorted(clusters, key=lambda ranks: (-len(ranks), ranks.ranks)))


def _minority(clusters: Sequence[RankSet]) -> RankSet:
    """The ranks outside of the largest cluster; all, if it is not larger than others."""
    has_majority = len(clusters[0]) > len(clusters[1])
    return RankSet.of(rank for ranks in clusters[has_majority:] for rank in ranks)


def _part(digests: bytes, index: int) -> bytes:
    return digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
