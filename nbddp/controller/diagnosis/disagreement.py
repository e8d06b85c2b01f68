"""Finds which members of a group called a collective with other arguments than the others.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from nbddp.wire.flight_recorder import Operation, Signature
from nbddp.wire.flight_recorder.matching import EXCHANGES, Differences, compare
from nbddp.wire.rank_set import Rank, RankSet, ranks_by_value

Point = tuple[str, int]  #: a collective: ``pg_id`` and ``collective_seq_id``


@dataclass(frozen=True)
class Disagreement:
    """Members of a group that called the same collective with different arguments."""

    point: Point
    operation_by_rank: Mapping[Rank, Operation]
    clusters: tuple[RankSet, ...]  #: ranks that agree, the largest cluster first
    culprits: RankSet  #: the minority; without one, all ranks that disagree
    differences: Differences

    @property
    def is_of_collectives(self) -> bool:
        """Whether all of the calls are collectives: none is a message, or makes a group."""
        kinds = {each.signature.kind for each in self.operation_by_rank.values()}
        return kinds <= {"collective"}

    @property
    def ended(self) -> RankSet:
        """Members on which it has ended: they needed nothing of those that called differently."""
        return RankSet.of(
            rank for rank, each in self.operation_by_rank.items() if each.state == "completed"
        )

    @property
    def refused(self) -> RankSet:
        """Members that found the mismatch before they sent anything."""
        return RankSet.of(
            rank
            for rank, each in self.operation_by_rank.items()
            if each.failure is not None and each.failure.kind == "collective"
        )

    @property
    def written(self) -> RankSet:
        """Those of them on which it has written a result."""
        return RankSet.of(
            rank for rank in self.ended if _writes(self.operation_by_rank[rank].signature, rank)
        )


def used_as_scratch(operation_by_rank: Mapping[Rank, Operation]) -> RankSet:
    """Return the ranks, but for the root, on which a reduce has ended.

    Gloo adds up in their tensors: the parts of the sum stay there, also if the call succeeds.
    """
    return RankSet.of(
        rank
        for rank, each in operation_by_rank.items()
        if each.signature.op == "reduce"
        and each.signature.root != rank
        and each.state == "completed"
    )


def _writes(signature: Signature, rank: Rank) -> bool:
    """Whether a collective writes a tensor of this rank, which may be its root."""
    is_root = signature.root == rank
    match signature.op:
        case "broadcast":
            return not is_root
        case "reduce" | "gather":
            return is_root
        case _:
            return signature.tensors > 0 or bool(signature.output_sizes)


def find_disagreement(
    point: Point, operation_by_rank: Mapping[Rank, Operation], members: tuple[Rank, ...]
) -> Disagreement | None:
    """Compare the calls of members, which are ordered by their group rank; None: they agree."""
    signatures = {operation.signature for operation in operation_by_rank.values()}
    if len(signatures) == 1 and signatures.pop().op not in EXCHANGES:
        return None  # most often
    position = {rank: index for index, rank in enumerate(members)}
    ranks = list(operation_by_rank)
    pairs: list[tuple[Rank, Rank, Differences]] = []
    cache: dict[tuple[Signature, Signature], Differences] = {}
    for index, one in enumerate(ranks):
        for other in ranks[index + 1 :]:
            mine, theirs = operation_by_rank[one].signature, operation_by_rank[other].signature
            is_pairwise = mine.op in EXCHANGES
            differences = None if is_pairwise else cache.get((mine, theirs))
            if differences is None:
                differences = cache[mine, theirs] = compare(
                    mine, theirs, me=position[one], other=position[other], size=len(members)
                )
            if differences:
                pairs.append((one, other, differences))
    if not pairs:
        return None
    differences = _merged([each for *_, each in pairs])
    hard = differences.hard
    # Where some differences are errors, warnings do not show which ranks are wrong.
    opponents: dict[Rank, set[Rank]] = {rank: set() for rank in ranks}
    for one, other, pair_differences in pairs:
        if pair_differences.hard or not hard:
            opponents[one].add(other)
            opponents[other].add(one)
    by_opponents = ranks_by_value({rank: frozenset(opponents[rank]) for rank in ranks})
    clusters = sorted(by_opponents.values(), key=lambda one: (-len(one), one.ranks))
    has_majority = len(clusters[0]) > len(clusters[1])
    return Disagreement(
        point=point,
        operation_by_rank=operation_by_rank,
        clusters=tuple(clusters),
        culprits=RankSet.of(
            rank for cluster in clusters[has_majority:] for rank in cluster if opponents[rank]
        ),
        differences=differences,
    )


def _merged(parts: list[Differences]) -> Differences:
    """The union of all; a field stands in its most serious category."""
    blocking = dict.fromkeys(name for one in parts for name in one.blocking)
    wrong = dict.fromkeys(name for one in parts for name in one.wrong if name not in blocking)
    soft = dict.fromkeys(
        name for one in parts for name in one.soft if name not in {**blocking, **wrong}
    )
    return Differences(tuple(blocking), tuple(wrong), tuple(soft))
