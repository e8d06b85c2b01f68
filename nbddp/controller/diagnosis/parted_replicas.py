"""Finds DDP models whose replicas are not equal after a step, by the hashes that ranks have taken.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import DIGEST_BYTES, ReplicaSteps, Site
from nbddp.wire.rank_set import Rank, RankSet, ranks_by_value


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
    is_beside: bool = False
    #: A setting of the optimizer that was not equal in this step: its name, the value of each rank.
    setting: tuple[str, Mapping[Rank, str]] | None = None

    @property
    def culprits(self) -> RankSet:
        """The minority; without one, all ranks."""
        has_majority = len(self.clusters[0]) > len(self.clusters[1])
        return RankSet.of(rank for ranks in self.clusters[has_majority:] for rank in ranks)

    @property
    def site(self) -> Site:
        """The line of the step."""
        return self.steps.sites[self.steps.site_of_step[self.step]]


def find_parted_replicas(graph: WaitForGraph) -> list[PartedReplicas]:
    """Find for each model the first step after which its replicas differ.

    Args:
        graph: the ranks after the cell.
    """
    models: dict[object, dict[Rank, ReplicaSteps]] = {}
    for rank, view in graph.views.items():
        for steps in view.sanitizer.replicas if view.sanitizer is not None else ():
            key = steps.pg_id, steps.number, steps.optimizer_number, steps.tensors
            models.setdefault(key, {})[rank] = steps
    partings = (_parted(by_rank) for by_rank in models.values() if len(by_rank) > 1)
    return [each for each in partings if each is not None]


def _parted(by_rank: Mapping[Rank, ReplicaSteps]) -> PartedReplicas | None:
    some = next(iter(by_rank.values()))
    # A rank that has less data makes fewer steps.
    count = min(len(each.site_of_step) for each in by_rank.values())
    if not some.optimizer and not any(
        _part(each.digests, 0) != _part(each.digests, 1) for each in by_rank.values()
    ):
        return None  # gradients were averaged, and no weight was updated
    for step in range(count):
        clusters = _clusters({rank: _part(each.digests, step) for rank, each in by_rank.items()})
        if len(clusters) > 1:
            if some.copy_site.line and not step:
                return None  # models of each rank, which look at the gradients of others
            is_late = any(
                len(each.details) < (step + 1) * len(each.newest) for each in by_rank.values()
            )
            names = _differing(by_rank, step, is_late=is_late)
            return PartedReplicas(
                some,
                step,
                "".join(names[:1]),
                len(names) - 1,
                is_late,
                clusters,
                setting=_differing_setting(by_rank, step),
            )
    beside = [{rank: _named(each.buffers, each.buffer_digests) for rank, each in by_rank.items()}]
    if all(len(each.site_of_step) == count for each in by_rank.values()):
        # A rank with less data makes fewer steps, and has an older state of the optimizer.
        beside.append(
            {rank: _named(each.states, each.state_digests) for rank, each in by_rank.items()}
        )
    for digests_by_rank in beside:
        for name in next(iter(digests_by_rank.values())):
            # An optimizer that shards its state has each part on one rank.
            if not all(name in each for each in digests_by_rank.values()):
                continue
            clusters = _clusters({rank: each[name] for rank, each in digests_by_rank.items()})
            if len(clusters) > 1:
                return PartedReplicas(some, count - 1, name, 0, True, clusters, is_beside=True)
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
    names = next(iter(by_rank.values())).tensors
    return [
        name for index, name in enumerate(names) if len({_part(one, index) for one in digests}) > 1
    ]


def _clusters(digests: Mapping[Rank, bytes]) -> tuple[RankSet, ...]:
    clusters = ranks_by_value(digests).values()
    return tuple(sorted(clusters, key=lambda ranks: (-len(ranks), ranks.ranks)))


def _part(digests: bytes, index: int) -> bytes:
    return digests[index * DIGEST_BYTES : (index + 1) * DIGEST_BYTES]
