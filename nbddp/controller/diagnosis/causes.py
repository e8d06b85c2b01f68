"""Finds the causes in the wait-for graph: why ranks are stuck, and which ranks others wait for.

Runs in: the notebook's process. Pure. Each stuck rank is explained by one cause: the most telling
of those that it waits for, directly or through others.
"""

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from nbddp.controller.diagnosis.crossed_lines import CrossedLines
from nbddp.controller.diagnosis.data_reads import DataFinding
from nbddp.controller.diagnosis.disagreement import Disagreement
from nbddp.controller.diagnosis.guard import NO_GUARD, Guard
from nbddp.controller.diagnosis.replica_comparison import PartedReplicas
from nbddp.controller.diagnosis.report import KINDS, Kind
from nbddp.controller.diagnosis.shifted_loops import ShiftedLoop, find_shifted_loops
from nbddp.controller.diagnosis.wait_graph import Obstacle, WaitForGraph
from nbddp.wire.flight_recorder import Mismatch, Operation, SanitizerFinding
from nbddp.wire.flight_recorder.matching import MESSAGES, Differences
from nbddp.wire.rank_set import Rank, RankSet


@dataclass(frozen=True)
class Cause:
    """The facts of a finding, before `words` tells them."""

    kind: Kind
    culprits: RankSet
    waiting: RankSet
    proven: bool = True
    owner: Rank = -1  #: the rank that issued `operation`
    operation: Operation | None = None  #: the one that most of the waiting ranks wait for
    direct: RankSet = field(default_factory=RankSet)  #: ranks that wait in this very operation
    disagreement: Disagreement | None = None
    shifted: ShiftedLoop | None = None
    crossed: CrossedLines | None = None
    parted: PartedReplicas | None = None
    data: DataFinding | None = None
    #: The findings of the sanitizer, by culprit.
    finding_by_rank: Mapping[Rank, SanitizerFinding] = field(default_factory=dict)
    #: Of a cycle: a rank, the operation in which it waits, and the ranks that it waits for.
    circle: tuple[tuple[Rank, Operation, RankSet], ...] = ()
    #: Other cycles of messages, which have the same number of ranks that wait at the same lines.
    alike: tuple[RankSet, ...] = ()
    is_consequence: bool = False  #: evidence of another cause, or its result


def find_causes(graph: WaitForGraph, guard: Guard = NO_GUARD) -> list[Cause]:
    """The causes of stuck ranks; also dead ranks, and mismatches that ended a cell by themselves.

    Args:
        graph: the ranks at one moment.
        guard: of each search: ranks that a failed one would explain are left for the others.

    Returns:
        Causes that keep ranks waiting first, then in the order of `KINDS`.
    """
    search = _Search(graph)
    causes = [
        *guard.found(search.dead),
        *guard.found(search.raised),
        *guard.found(search.mismatched),
        *guard.found(lambda: _merge_alike(search.cycles())),
        *guard.found(lambda: search.never_came("p2p-unmatched", MESSAGES)),
        *guard.found(lambda: search.never_came("store-wait", ("creation",))),
        *guard.found(lambda: search.never_came("missing-rank", ("collective",))),
        *guard.found(lambda: search.never_came("store-wait", ("store",))),
    ]
    causes.sort(key=lambda cause: (not cause.waiting, KINDS.index(cause.kind)))
    return causes


def shifted_causes(graph: WaitForGraph, run_id: str, *, is_evidence: bool) -> list[Cause]:
    """Ranks that called collectives in different iterations of one loop.

    Args:
        graph: the ranks at one moment.
        run_id: only operations of this run count; empty: those of all runs.
        is_evidence: a fact beside a deadlock or a mismatch; False: a finding of its own, which is
            never proven: ranks that share the work of a loop are at different iterations, too.
    """
    return [
        Cause(
            "desynchronized-loop",
            loop.culprits,
            RankSet(),
            proven=is_evidence,
            owner=loop.owner,
            operation=loop.operation,
            shifted=loop,
            is_consequence=is_evidence,
        )
        for loop in find_shifted_loops(graph, run_id)
    ]


@dataclass
class _BlockedOperation:
    """An operation, and the ranks that wait in it."""

    owner: Rank
    operation: Operation
    waiting: set[Rank] = field(default_factory=set)
    culprits: set[Rank] = field(default_factory=set)
    counted: set[int] = field(default_factory=set)  #: identities of sets that are in ``culprits``


class _Search:
    def __init__(self, graph: WaitForGraph) -> None:
        self.graph = graph
        self.views = graph.views
        self.unclaimed = set(graph.stuck)
        self.obstacles: dict[Rank, list[Obstacle]] = {
            rank: graph.obstacles(rank) for rank in graph.stuck
        }
        #: For each rank the sets of stuck ranks that wait for it; for a key of the store, all
        #: others. Ranks that wait for the same ones are one set.
        self.followers: dict[Rank, list[set[Rank]]] = {}
        self.wide_followers: dict[Rank, list[set[Rank]]] = {}
        alike: dict[tuple[int, bool], tuple[Obstacle, set[Rank]]] = {}
        for rank, obstacles in self.obstacles.items():
            for obstacle in obstacles:
                key = id(obstacle.missing), obstacle.needs_anyone
                alike.setdefault(key, (obstacle, set()))[1].add(rank)
        #: One obstacle for each tuple of missing ranks.
        self.kinds_of_obstacles = [obstacle for obstacle, _ in alike.values()]
        for obstacle, ranks in alike.values():
            for other in obstacle.missing:
                self.wide_followers.setdefault(other, []).append(ranks)
                if not obstacle.needs_anyone:
                    self.followers.setdefault(other, []).append(ranks)

    def claim(
        self, direct: Iterable[Rank], *, wide: bool = False, without: Iterable[Rank] = ()
    ) -> RankSet:
        """Take these stuck ranks, and the ranks that wait for them, out of ``unclaimed``.

        Args:
            direct: ranks that one cause explains.
            wide: also take ranks that wait for a key of the store.
            without: ranks that stay unclaimed.

        Returns:
            The ranks that were taken.
        """
        followers = self.wide_followers if wide else self.followers
        seen = set(direct)
        pending = list(seen)
        taken: set[int] = set()
        while pending:
            for ranks in followers.get(pending.pop(), ()):
                if id(ranks) not in taken:
                    taken.add(id(ranks))
                    pending += ranks - seen
                    seen |= ranks
        claimed = (seen & self.unclaimed) - set(without)
        self.unclaimed -= claimed
        return RankSet.of(claimed)

    # --- dead ranks, errors --------------------------------------------------------------------

    def dead(self) -> Iterable[Cause]:
        dead = RankSet.of(rank for rank, view in self.views.items() if view.state == "dead")
        if dead:
            yield self._because_of("dead-rank", dead)

    def raised(self) -> Iterable[Cause]:
        missing = {other for obstacle in self.kinds_of_obstacles for other in obstacle.missing}
        raised = {
            rank
            for rank in missing
            if self.views[rank].state == "raised" and not self.views[rank].has_mismatched
        }
        # A rank that was freed raised because of another rank.
        raised = {rank for rank in raised if not self.views[rank].was_freed} or raised
        quitters = {rank for rank in raised if self.views[rank].has_left_debugger}
        kinds: tuple[tuple[Kind, set[Rank]], ...]
        kinds = (("first-error", raised - quitters), ("left-debugger", quitters))
        for kind, culprits in kinds:
            if culprits:
                cause = self._because_of(kind, RankSet.of(culprits))
                if cause.waiting:
                    yield cause

    def _because_of(self, kind: Kind, culprits: RankSet) -> Cause:
        """The cause that explains all ranks that wait for these."""
        known = set(culprits)
        misses_one = {
            id(obstacle.missing)
            for obstacle in self.kinds_of_obstacles
            if not known.isdisjoint(obstacle.missing)
        }
        direct = [
            (rank, obstacle.operation)
            for rank, obstacles in self.obstacles.items()
            for obstacle in obstacles
            if id(obstacle.missing) in misses_one and rank in self.unclaimed
        ]
        waiting = self.claim((rank for rank, _ in direct), wide=True)
        owner, operation, together = _commonest(direct)
        return Cause(kind, culprits, waiting, owner=owner, operation=operation, direct=together)

    # --- mismatches ----------------------------------------------------------------------------

    def mismatched(self) -> Iterable[Cause]:
        disagreements: dict[Hashable, Disagreement] = {}
        direct: dict[Hashable, set[Rank]] = {}
        raised_at: dict[Rank, Hashable] = {}
        for view in self.views.values():
            if view.has_mismatched:
                wrong = view.mismatches[-1]
                key = _key(view.rank, wrong.mine)
                raised_at[view.rank] = key
                disagreements.setdefault(key, self._reported_disagreement(wrong))
        for rank, obstacles in self.obstacles.items():
            for obstacle in obstacles:
                if obstacle.disagreement is not None:
                    key = _key(rank, obstacle.operation)
                    disagreements[key] = obstacle.disagreement
                    direct.setdefault(key, set()).add(rank)
                for other in obstacle.missing if raised_at else ():
                    if other in raised_at:
                        direct.setdefault(raised_at[other], set()).add(rank)
        for key, disagreement in disagreements.items():
            waiting = self.claim(direct.get(key, ()), wide=True)
            if not waiting and key in direct and key not in raised_at.values():
                continue  # another cause, which tells more, explains all of its ranks
            owner, operation = next(iter(disagreement.operation_by_rank.items()))
            yield Cause(
                "mismatched-collective",
                disagreement.culprits,
                waiting,
                owner=owner,
                operation=operation,
                disagreement=disagreement,
            )

    def _reported_disagreement(self, wrong: Mismatch) -> Disagreement:
        """The disagreement that a rank has seen itself, of all members if they are known."""
        point = wrong.mine.pg_id, wrong.mine.collective_seq_id
        if wrong.mine.signature.kind == "collective":
            known = self.graph.disagreement(point)
            if known is not None:
                return known
        both = RankSet.of((wrong.rank, wrong.peer))
        return Disagreement(
            point=point,
            operation_by_rank={wrong.rank: wrong.mine, wrong.peer: wrong.theirs},
            clusters=tuple(RankSet.of((rank,)) for rank in both),
            culprits=both,
            differences=Differences(blocking=wrong.fields),
        )

    # --- cycles --------------------------------------------------------------------------------

    def cycles(self) -> Iterable[Cause]:
        rings = self._rings()
        in_rings = {rank for ring in rings for rank in ring}
        for ring in rings:
            waiting = self.claim(ring, without=in_rings - ring)
            circle = tuple(
                (rank, obstacle.operation, RankSet.of(ring.intersection(obstacle.missing)))
                for rank in sorted(ring)
                for obstacle in self.obstacles[rank]
                if not obstacle.needs_anyone and ring.intersection(obstacle.missing)
            )
            kind, culprits = _kind_of(circle)
            operation_kinds = ("collective",) if kind == "group-cycle" else MESSAGES
            direct = [
                (rank, operation)
                for rank, operation, _ in circle
                if operation.signature.kind in operation_kinds
            ]
            if kind == "store-wait":
                direct, culprits = self._makers(circle)
            owner, operation, together = _commonest(direct)
            yield Cause(
                kind,
                culprits,
                waiting,
                owner=owner,
                operation=operation,
                direct=together,
                circle=circle,
            )

    def _makers(
        self, circle: tuple[tuple[Rank, Operation, RankSet], ...]
    ) -> tuple[list[tuple[Rank, Operation]], RankSet]:
        """The ranks of a circle that make groups, with the creation, and the culprits.

        The culprits are the ranks that make another group than most; without a majority, all.
        """
        everyone = {rank for rank, *_ in circle}
        new_groups = {each.pg_id for _, each, _ in circle if each.signature.kind == "creation"}
        ranks_by_group: dict[str, set[Rank]] = {}
        direct = [
            (rank, obstacle.operation)
            for rank, obstacles in self.obstacles.items()
            for obstacle in obstacles
            if obstacle.operation.pg_id in new_groups
        ]
        for rank, operation in direct:
            ranks_by_group.setdefault(operation.pg_id, set()).add(rank)
        most = max(map(len, ranks_by_group.values()))
        groups = [pg_id for pg_id, ranks in ranks_by_group.items() if len(ranks) == most]
        culprits = everyone - ranks_by_group[groups[0]] if len(groups) == 1 else everyone
        if not culprits or len(groups) > 1:
            return direct, RankSet.of(everyone)
        return [each for each in direct if each[1].pg_id == groups[0]], RankSet.of(culprits)

    def _rings(self) -> list[set[Rank]]:
        """Sets of ranks that all wait for each other, directly or through others of the set."""
        left = {
            id(obstacle.missing): self.unclaimed.intersection(obstacle.missing)
            for obstacle in self.kinds_of_obstacles
        }
        targets = {
            rank: set[Rank]().union(
                *(
                    left[id(obstacle.missing)]
                    for obstacle in self.obstacles[rank]
                    if not obstacle.needs_anyone
                )
            )
            for rank in self.unclaimed
        }
        reached = {rank: _reach(rank, targets) for rank in sorted(targets) if targets[rank]}
        rings: list[set[Rank]] = []
        in_rings: set[Rank] = set()
        for rank, reachable in reached.items():
            if rank in reachable and rank not in in_rings:
                ring = {other for other in reachable if rank in reached.get(other, ())}
                rings.append(ring)
                in_rings |= ring
        return rings

    # --- operations whose other side never came ------------------------------------------------

    def never_came(self, kind: Kind, operations: tuple[str, ...]) -> Iterable[Cause]:
        blocked_by_key: dict[Hashable, _BlockedOperation] = {}
        over = {
            id(obstacle.missing): {r for r in obstacle.missing if self.views[r].is_over}
            for obstacle in self.kinds_of_obstacles
        }
        for rank, obstacles in self.obstacles.items():
            for obstacle in obstacles:
                operation = obstacle.operation
                absent = over[id(obstacle.missing)]
                is_cause = bool(absent) or obstacle.needs_anyone
                if operation.signature.kind in operations and is_cause and rank in self.unclaimed:
                    blocked = blocked_by_key.setdefault(
                        _key(rank, operation), _BlockedOperation(rank, operation)
                    )
                    blocked.waiting.add(rank)
                    if not obstacle.needs_anyone and id(absent) not in blocked.counted:
                        blocked.counted.add(id(absent))
                        blocked.culprits |= absent
        for blocked in sorted(blocked_by_key.values(), key=lambda each: -len(each.waiting)):
            waiting = self.claim(blocked.waiting)
            if waiting:
                yield Cause(
                    kind,
                    RankSet.of(blocked.culprits),
                    waiting,
                    owner=blocked.owner,
                    operation=blocked.operation,
                    direct=RankSet.of(blocked.waiting),
                )


def _merge_alike(cycles: Iterable[Cause]) -> list[Cause]:
    """Make one cause of cycles of messages that one line of the program has made."""
    merged: dict[Hashable, Cause] = {}
    for number, cycle in enumerate(cycles):
        calls = [
            (operation.signature.kind, operation.site, operation.pg_id)
            for _, operation, _ in cycle.circle
        ]
        is_alone = cycle.kind != "p2p-cycle"
        key = number if is_alone else (len(cycle.circle), frozenset(calls))
        first = merged.get(key)
        if first is None:
            merged[key] = cycle
            continue
        merged[key] = replace(
            first,
            culprits=RankSet.of((*first.culprits, *cycle.culprits)),
            waiting=RankSet.of((*first.waiting, *cycle.waiting)),
            direct=RankSet.of((*first.direct, *cycle.direct)),
            alike=(*first.alike, cycle.culprits),
        )
    return list(merged.values())


def _kind_of(circle: tuple[tuple[Rank, Operation, RankSet], ...]) -> tuple[Kind, RankSet]:
    """The kind of a cycle, and its culprits."""
    everyone = RankSet.of(rank for rank, *_ in circle)
    if any(operation.signature.kind == "creation" for _, operation, _ in circle):
        return "store-wait", everyone
    messages = [operation for _, operation, _ in circle if operation.signature.kind in MESSAGES]
    if not messages:
        return "group-cycle", everyone
    if len(messages) < len(circle) or len(everyone) == 1:
        return "p2p-unmatched", everyone
    # Of two ranks one sends and one receives, but the messages do not match.
    is_facing = len(circle) == 2 and {each.signature.kind for each in messages} == set(MESSAGES)
    return ("p2p-unmatched" if is_facing else "p2p-cycle"), everyone


def _reach(start: Rank, targets: Mapping[Rank, set[Rank]]) -> set[Rank]:
    """All ranks that can be reached from a rank; also that rank if there is a way back."""
    seen: set[Rank] = set()
    pending = [start]
    while pending:
        new = targets.get(pending.pop(), set()) - seen
        seen |= new
        pending += new
    return seen


def _key(rank: Rank, operation: Operation) -> Hashable:
    """A key that is equal for the operations that ranks issue together."""
    signature = operation.signature
    match signature.kind:
        case "collective":
            return "collective", operation.pg_id, operation.collective_seq_id
        case "creation":
            return "creation", operation.pg_id
        case "store":
            return "store", signature.keys
        case "send":
            ends = rank, operation.peer
        case _:
            ends = operation.peer, rank
    return "message", operation.pg_id, ends, operation.tag, operation.p2p_seq_id


def _commonest(
    direct: list[tuple[Rank, Operation]],
) -> tuple[Rank, Operation | None, RankSet]:
    """The operation that most ranks wait for: one of the ranks, the operation, all these ranks."""
    if not direct:
        return -1, None, RankSet()
    ranks_by_key: dict[Hashable, list[Rank]] = {}
    for rank, operation in direct:
        ranks_by_key.setdefault(_key(rank, operation), []).append(rank)
    owner, operation = max(direct, key=lambda each: len(ranks_by_key[_key(*each)]))
    return owner, operation, RankSet.of(ranks_by_key[_key(owner, operation)])
