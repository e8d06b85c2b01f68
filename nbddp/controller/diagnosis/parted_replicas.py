"""Finds models whose replicas are not equal after a step, by the hashes that ranks have taken.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from nbddp.controller.diagnosis.common_steps import (
    CommonSteps,
    StepAlone,
    optimizer_at,
    part_of,
    start_of,
)
from nbddp.controller.diagnosis.replica_comparison import (
    PartedReplicas,
    clusters_of,
    differing,
    first_parting,
    length,
    made,
    minority,
    site_of,
    tensor_hashes,
    unequal,
)
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import ReplicaSteps
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet

#: Of a model: its group, and its number there.
_Key: TypeAlias = tuple[str, int]


def find_parted_replicas(graph: WaitForGraph) -> list[PartedReplicas]:
    """Find for each model the first step after which its replicas differ.

    Args:
        graph: the ranks after the cell.
    """
    whole, steps_of = _by_model(graph)
    common_of = {model: CommonSteps(by_rank) for model, by_rank in steps_of.items()}
    partings_of: dict[_Key, list[PartedReplicas]] = {}
    for model, by_rank in _by_optimizer(steps_of, common_of):
        parted = first_parting(by_rank) if len(by_rank) > 1 else None
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
            if steps.optimizers:
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
    return len({(each.tensors, part_of(each.digests, 0)) for each in ends.values()}) == 1


def _are_equal_at_end(
    ends: Mapping[Rank, ReplicaSteps], by_rank: Mapping[Rank, ReplicaSteps]
) -> bool:
    """Whether replicas that differ after a step are equal again, as after a broadcast.

    In `Join`, steps with the same number may not be the same step.
    """
    last = {part_of(each.digests, 1) for each in ends.values()}
    return by_rank.keys() <= ends.keys() and len(last) == 1


def _step_counts(
    ends: Mapping[Rank, ReplicaSteps], steps_of: Mapping[Rank, Sequence[ReplicaSteps]]
) -> Mapping[Rank, int]:
    """The steps that each rank has made; empty: a rank has not ended the cell well."""
    if not steps_of.keys() <= ends.keys():
        return {}
    return {rank: sum(map(made, steps_of.get(rank, ()))) for rank in ends}


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
        by_rank, of_last = last.by_rank, first_parting(last.by_rank)
        if of_last is None or of_last.beside:
            return None
        parted = explained = replace(of_last, last=last.count, in_common=RankSet.of(by_rank))
    else:
        explained = _counted(parted, by_rank, ends, _step_counts(ends, steps_of))
    steps = parted.steps
    is_known = parted.setting or parted.optimizers or steps.copy_site.line or steps.left_out
    is_known = is_known or bool(parted.new_optimizers)
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
    """Tell of the end of the cell, and of no step; None: the error of the cell explains it."""
    if not counts:
        return None
    followers = _followers(by_rank) if common.has_turns else NO_RANKS
    sites = {rank: site_of(each, length(each) - 1) for rank, each in by_rank.items()}
    at_end = _at_end(parted, ends, counts, followers)
    return replace(at_end, sites=sites, is_unpaired=not followers, setting=None)


def _at_end(
    parted: PartedReplicas,
    ends: Mapping[Rank, ReplicaSteps],
    counts: Mapping[Rank, int],
    followers: RankSet,
) -> PartedReplicas:
    """Replicas with the tensors that differ at the end of the cell."""
    some = next(iter(ends.values()))
    return replace(
        parted,
        step=0,
        **differing(some.tensors, tensor_hashes(ends, 1, is_late=True)),
        is_late=True,
        clusters=clusters_of({rank: part_of(each.digests, 1) for rank, each in ends.items()}),
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
    was_equal = len(ends) > 1 and len({part_of(each.digests, 0) for each in ends.values()}) == 1
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
        and not parted.new_optimizers
        and not parted.beside
        and len(set(of_step.values())) > 1
        and minority(clusters_of(of_step)) == parted.culprits
    )
    return replace(parted, was_equal=was_equal, step_counts=of_step if is_reason else {})


def _early_alone(by_rank: Mapping[Rank, ReplicaSteps]) -> StepAlone | None:
    """A step of some ranks alone, before the gradients were reduced first."""
    early = {rank: each for rank, each in by_rank.items() if each.early_site.line}
    if not 0 < len(early) < len(by_rank):
        return None
    first = next(iter(early.values()))
    return StepAlone(RankSet.of(early), first.early_site, optimizer_at(first, 0)[1])


def _from_start(
    parted: PartedReplicas, by_rank: Mapping[Rank, ReplicaSteps], common: CommonSteps
) -> PartedReplicas:
    """Add what was not equal before the step, and the step of some ranks alone that made it so."""
    step = max(parted.step, 1)
    early = _early_alone(by_rank) if step == 1 else None
    starts = {rank: start_of(each, step) for rank, each in by_rank.items()}
    known = {rank: start for rank, start in starts.items() if start is not None}
    if len(known) < len(by_rank):
        if parted.in_common and not parted.last:
            after = {rank: part_of(each.digests, step) for rank, each in by_rank.items()}
            return replace(parted, alone=common.alone_before(by_rank, step, after))
        return replace(parted, alone=None if parted.step else early)
    details = {rank: start.details for rank, start in known.items()}
    states = {rank: start.states for rank, start in known.items()}
    names = unequal(parted.steps.tensors, details)
    state_names: list[str] = []
    # An optimizer that shards its state has each part on one rank.
    if len({each.states for each in by_rank.values()}) == 1:
        state_names = unequal(parted.steps.states, states)
    if names and not parted.in_common:
        return replace(parted, alone=None if parted.step else early)
    if not names and not (parted.step and state_names):
        return parted
    if parted.last:
        early = _alone_before_last(common, details if names else states)
    is_sought = early is not None if parted.last else early is None and bool(parted.in_common)
    if is_sought and names:
        index = parted.steps.tensors.index(names[0])
        values = {rank: part_of(part, index) for rank, part in details.items()}
        early = common.alone_with_value(names[0], values)
    elif is_sought and not parted.last:
        early = common.alone_before(by_rank, step, states)
    return replace(
        parted,
        step=step,
        is_before=True,
        is_late=False,
        **differing(parted.steps.tensors, details),
        clusters=clusters_of(details if names else states),
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


def _followers(by_rank: Mapping[Rank, ReplicaSteps]) -> RankSet:
    """Ranks whose first step began with weights that another rank had after a step.

    Their first steps are those of other iterations, as where ranks take turns and broadcast.
    """
    starts = {rank: part_of(each.digests, 0) for rank, each in by_rank.items()}
    return RankSet.of(
        rank
        for rank, start in starts.items()
        if any(
            start != starts[other]
            and any(start == part_of(each.digests, step) for step in range(len(each.site_of_step)))
            for other, each in by_rank.items()
        )
    )


def _parted_at_end(
    ends: Mapping[Rank, ReplicaSteps], steps_of: Mapping[Rank, Sequence[ReplicaSteps]]
) -> PartedReplicas | None:
    """Compare whole models: what no step has in common, or what came after the last one."""
    parted = first_parting(ends)
    if parted is None or not steps_of:
        return parted
    begin_equal = bool(parted.step) or _begin_equal(ends, steps_of)
    # A rank without such a line has stepped the model before gradients were sent: it may have sent
    # its weights since.
    if not begin_equal and all(site_of(each, 0).line for each in ends.values()):
        return parted
    parted, counts = first_parting(ends, first=1), _step_counts(ends, steps_of)
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
    longest = max((each for steps in steps_of.values() for each in steps), key=made)
    last = {rank: max(steps, key=length) for rank, steps in steps_of.items()}
    parted = replace(
        parted.of_steps(longest, length(longest) - 1),
        is_late=True,
        was_equal=True,
        sites={rank: site_of(each, length(each) - 1) for rank, each in last.items()},
    )
    if len(set(counts.values())) > 1:
        lists = {tuple(each.tensors for each in steps) for steps in steps_of.values()}
        is_compared = len(lists) == 1 and len(next(iter(lists))) == 1
        # Of later steps there are no hashes.
        fewest = min(*counts.values(), length(longest) - 1) if is_compared else 0
        parted = replace(parted, step_counts=counts, equal_steps=fewest)
        return _with_own_lines(parted, steps_of)
    stepped = {
        rank: {name for each in steps for name in each.tensors} for rank, steps in steps_of.items()
    }
    names = next(iter(ends.values())).tensors
    for name in unequal(names, tensor_hashes(ends, 1, is_late=False)):
        without = RankSet.of(rank for rank, names in stepped.items() if name not in names)
        if 0 < len(without) < len(ends):
            return replace(parted, tensor=name, without_tensor=without)
    if not (begin_equal and all(each.is_ddp for each in ends.values())):
        return None  # the code may have given the ranks models of their own after its steps
    if not _last_are_equal(parted.tensor, steps_of):
        direct = _in_direct_order(steps_of)
        if direct is not None:
            return direct
        return replace(_at_end(parted, ends, counts, NO_RANKS), is_unpaired=True)
    is_stepped = any(parted.tensor in names for names in stepped.values())
    return replace(parted, is_after=True, is_stepped=is_stepped)


def _last_are_equal(tensor: str, steps_of: Mapping[Rank, Sequence[ReplicaSteps]]) -> bool:
    """Whether a tensor was equal on all ranks after the last step of each of its optimizers."""
    last = {
        frozenset(
            (each.tensors, part_of(each.digests, length(each) - 1))
            for each in of
            if tensor in each.tensors
        )
        for of in steps_of.values()
    }
    return len(last) == 1


def _in_direct_order(
    steps_of: Mapping[Rank, Sequence[ReplicaSteps]],
) -> PartedReplicas | None:
    """Compare the steps with equal numbers, whatever their lines, if these tell an optimizer."""
    if any(len(of) != 1 for of in steps_of.values()):
        return None
    if len({of[0].tensors for of in steps_of.values()}) > 1:
        return None
    parted = first_parting({rank: of[0] for rank, of in steps_of.items()})
    return parted if parted is not None and parted.new_optimizers else None


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
        own = [n for n in range(1, length(replica)) if site_of(replica, n) not in common]
        if own and common:
            sites = {**parted.sites, rank: site_of(replica, own[0])}
            parted = replace(parted.of_steps(replica, own[0]), sites=sites)
    return parted


def _begin_equal(
    ends: Mapping[Rank, ReplicaSteps], steps_of: Mapping[Rank, Sequence[ReplicaSteps]]
) -> bool:
    """Whether all ranks made their first steps at equal weights.

    The gradients may be those of other weights of each rank, which are put back before the step.
    """
    starts = {
        tuple((each.tensors, part_of(each.digests, 0)) for each in steps_of.get(rank, ()))
        for rank in ends
    }
    return len(starts) == 1 and () not in starts
