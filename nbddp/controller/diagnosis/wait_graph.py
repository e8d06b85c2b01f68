"""Who waits for whom: the wait-for graph, and which ranks can never go on.

Runs in: the notebook's process. Pure.

A thread that waits for operations goes on when **all** of them complete; a rank goes on when
**any** of its threads does. An operation can complete if every rank whose part is missing can still
do it. Which ranks those are is a least fixpoint: it begins with the ranks that run Python or C, and
adds whoever they can set free, directly or through others. A rank that runs its cell and is not
reached is stuck, whatever happens next.

Source: T. Hilbrich et al., MPI runtime error detection with MUST (AND-OR wait-for graphs).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from nbddp.controller.diagnosis.rank_view import Histories, History, RankView
from nbddp.controller.diagnosis.report import GroupRef
from nbddp.wire.flight_recorder.matching import EXCHANGES, Differences, compare
from nbddp.wire.flight_recorder.schema import (
    GroupInfo,
    Operation,
    RankLook,
    Signature,
    ThreadLook,
    group_name_of,
)
from nbddp.wire.rank_set import Rank, RankSet

Point = tuple[str, int]  #: a collective: ``pg_id`` and ``collective_seq_id``


@dataclass(frozen=True)
class Disagreement:
    """Members of a group that brought different things to the same collective."""

    point: Point
    operation_by_rank: Mapping[Rank, Operation]
    clusters: tuple[RankSet, ...]  #: ranks that agree, the largest cluster first
    culprits: RankSet  #: the minority; without one, all who disagree
    differences: Differences


@dataclass(frozen=True)
class Obstacle:
    """Why an operation that a rank waits for can never complete."""

    operation: Operation
    missing: tuple[Rank, ...] = ()  #: ranks whose part is missing and who can never do it
    disagreement: Disagreement | None = None
    needs_anyone: bool = False  #: any process might have done it; ``missing`` are all ranks left


@dataclass(frozen=True)
class Waiting:
    """A thread that waits for operations."""

    rank: Rank
    thread: ThreadLook
    operations: tuple[Operation, ...]
    is_whole: bool  #: all operations that it waits for are known
    since_ns: int

    @property
    def needs_all(self) -> bool:
        """Otherwise one operation may be enough.

        A thread that waits inside of torch waits for some of the operations that are open; which
        ones, nobody outside of torch can tell.
        """
        return self.thread.wait is None or self.thread.wait.kind == "operation"


@dataclass
class WaitFor:
    """The graph of a pool at one moment."""

    views: Mapping[Rank, RankView]
    histories: Histories = field(init=False)
    waits: dict[Rank, tuple[Waiting, ...]] = field(init=False)  #: of each rank, main thread first
    able: set[Rank] = field(init=False)  #: ranks that can go on, now or after others

    def __post_init__(self) -> None:
        self.histories = Histories((rank, History(view)) for rank, view in self.views.items())
        for view in self.views.values():
            for wrong in view.mismatches:
                self.histories[view.rank].add_mismatched(wrong.mine)
                if wrong.peer in self.histories:
                    self.histories[wrong.peer].add_mismatched(wrong.theirs)
        self._groups: dict[str, GroupInfo] = {}
        for history in self.histories.values():
            self._groups.update((group.pg_id, group) for group in history.groups())
        #: Processes that no look tells of: they may set keys, and join groups of the user's store.
        self.has_others = any(
            view.look is not None and view.look.has_children for view in self.views.values()
        )
        self._disagreements: dict[Point, Disagreement | None] = {}
        self._absent: dict[tuple[Rank, int], tuple[Rank, ...] | None] = {}
        self.waits = {rank: tuple(self._waits(view)) for rank, view in self.views.items()}
        self.able = {rank for rank, view in self.views.items() if can_act(view)}
        self._spread()

    def _spread(self) -> None:
        """Add ranks until nobody else can be set free."""
        left = [rank for rank in self.views if rank not in self.able and self.waits[rank]]
        while True:
            freed = [rank for rank in left if any(map(self._can_end, self.waits[rank]))]
            if not freed:
                return
            self.able.update(freed)
            left = [rank for rank in left if rank not in self.able]

    @property
    def stuck(self) -> RankSet:
        """Ranks that run their cell and can never go on."""
        return RankSet.of(
            rank
            for rank, view in self.views.items()
            if view.state == "running" and rank not in self.able
        )

    def obstacles(self, rank: Rank) -> list[Obstacle]:
        """Of everything that a rank waits for; of a stuck rank there is at least one."""
        found = (
            self.obstacle(rank, operation)
            for waiting in self.waits[rank]
            for operation in waiting.operations
        )
        return [obstacle for obstacle in found if obstacle is not None]

    def involved(self) -> RankSet:
        """The ranks that must not have moved while the proof was made; dead ones never do."""
        found: set[Rank] = set()
        left = list(self.stuck)
        while left:
            rank = left.pop()
            if rank in found:
                continue
            found.add(rank)
            for obstacle in self.obstacles(rank):
                left += obstacle.missing
        return RankSet.of(found)

    def group(self, operation: Operation) -> GroupRef | None:
        """The group of an operation, also one that is being made."""
        info = self._groups.get(operation.pg_id)
        if info is not None:
            return GroupRef(info.pg_id, info.name, info.desc, RankSet.of(info.ranks))
        if operation.signature.kind == "store" or not operation.pg_id:
            return None
        members = self._members(operation) or ()
        name = group_name_of(operation.pg_id)
        return GroupRef(operation.pg_id, name, ranks=RankSet.of(members))

    # --- what can end --------------------------------------------------------------------------

    def _can_end(self, waiting: Waiting) -> bool:
        if not waiting.is_whole:
            return True
        ends = all if waiting.needs_all else any
        return ends(self.obstacle(waiting.rank, each) is None for each in waiting.operations)

    def obstacle(self, rank: Rank, operation: Operation) -> Obstacle | None:
        """Why an operation of a rank can never complete; None: it may."""
        if operation.state != "scheduled":
            return None
        disagreement = self.blocking_disagreement(rank, operation)
        if disagreement is not None:
            return Obstacle(operation, disagreement=disagreement)
        absent = self.absent(rank, operation)
        if absent is None:
            # Any rank might do it: a key of the store may be set by everybody.
            may_end = self.able or self.has_others or self._may_be_whole(operation)
            left = () if may_end else tuple(self.views)
        else:
            left = tuple(other for other in absent if other not in self.able)
            if len(left) < len(absent) and is_from_any(operation):
                left = ()  # one sender is enough
        return Obstacle(operation, left, needs_anyone=absent is None) if left else None

    def _may_be_whole(self, operation: Operation) -> bool:
        """Whether all members of a group may be here, and torch connects them.

        That takes as long as it takes. Which ranks they are is not known, but how many.
        """
        if operation.signature.kind != "creation":
            return False
        here = sum(history.makes(operation) for history in self.histories.values())
        return here >= len(operation.signature.keys)

    def absent(self, rank: Rank, operation: Operation) -> tuple[Rank, ...] | None:
        """Ranks whose part in an operation of ``rank`` is missing; None: it is not known whose.

        Only ranks of which something is known: the others may have done their part.
        """
        key = rank, operation.record_id
        if key not in self._absent:
            found = self._find_absent(rank, operation)
            if found is not None:
                found = tuple(other for other in found if other in self.views)
            self._absent[key] = found
        return self._absent[key]

    def _find_absent(self, rank: Rank, operation: Operation) -> tuple[Rank, ...] | None:
        histories = self.histories
        pg_id, seq = operation.pg_id, operation.collective_seq_id
        match operation.signature.kind:
            case "collective":
                if self.is_shifted(rank, operation):
                    return ()
                return self._members_without(
                    rank, operation, lambda other: histories[other].has_joined(pg_id, seq)
                )
            case "creation":
                may_come = self.has_others and is_in_own_store(operation)
                return () if may_come else self._absent_makers(rank, operation)
            case "recv" if is_from_any(operation):
                return self._absent_senders(rank, operation)
            case "recv" | "send":
                return self._absent_peer(rank, operation)
            case "store":
                return None
            case _ as never:
                assert_never(never)

    def _members_without(
        self, rank: Rank, operation: Operation, has_come: Callable[[Rank], bool]
    ) -> tuple[Rank, ...] | None:
        members = self._members(operation)
        if members is None:
            return None
        return tuple(
            other
            for other in members
            if other != rank and other in self.views and not has_come(other)
        )

    def _absent_makers(self, rank: Rank, operation: Operation) -> tuple[Rank, ...] | None:
        clock = self.histories[rank].clock
        return self._members_without(
            rank, operation, lambda other: self.histories[other].has_created(operation, clock)
        )

    def _absent_peer(self, rank: Rank, operation: Operation) -> tuple[Rank, ...]:
        peer = self.histories.get(operation.peer)
        if peer is None:
            return ()
        key = operation.pg_id, rank, operation.tag
        if operation.signature.kind == "recv":
            is_done = peer.has_sent(*key, self.histories[rank].number_now(operation))
        else:
            is_done = peer.has_received(*key, operation.p2p_seq_id)
        return () if is_done else (operation.peer,)

    def _absent_senders(self, rank: Rank, operation: Operation) -> tuple[Rank, ...] | None:
        """Whoever could still send what is taken from any source."""
        members = self._members(operation)
        if members is None:
            return None
        pg_id, tag = operation.pg_id, operation.tag
        others = tuple(other for other in members if other != rank)
        if not set(others) <= set(self.views):
            return ()
        histories = [self.histories[other] for other in others]
        mine = self.histories[rank]
        asked = [
            each for source in (-1, *others) for each in mine.messages("recv", pg_id, source, tag)
        ]
        given = [one.count("send", pg_id, rank, tag) for one in histories]
        taken = [mine.count("recv", pg_id, source, tag) for source in others]
        if None not in (*given, *taken):
            # What a receive from any source has got counts for its sender.
            left = sum(each.state == "scheduled" and each.peer >= 0 for each in asked)
            return () if sum(filter(None, given)) > sum(filter(None, taken)) - left else others
        sent = [each for one in histories for each in one.messages("send", pg_id, rank, tag)]
        done = sum(each.state == "completed" for each in asked)
        if any(each.state == "scheduled" for each in sent) or len(sent) > done:
            return ()
        if any(one.may_have_messages_left_out(pg_id) for one in (mine, *histories)):
            return ()
        return others

    # --- collectives on which members disagree -------------------------------------------------

    def blocking_disagreement(self, rank: Rank, operation: Operation) -> Disagreement | None:
        """How members differ in a collective of a rank, so that it cannot complete."""
        if operation.signature.kind != "collective" or self.is_shifted(rank, operation):
            return None
        found = self.disagreement((operation.pg_id, operation.collective_seq_id))
        return found if found is not None and found.differences.blocking else None

    def disagreement(self, point: Point) -> Disagreement | None:
        """How members differ in a collective; None: as far as known they agree."""
        if point not in self._disagreements:
            self._disagreements[point] = self._disagree(point)
        return self._disagreements[point]

    def _disagree(self, point: Point) -> Disagreement | None:
        info = self._groups.get(point[0])
        members = info.ranks if info else tuple(self.views)
        known = {
            rank: operation
            for rank in members
            if rank in self.histories
            and (operation := self.histories[rank].collective(*point)) is not None
        }
        signatures = {operation.signature for operation in known.values()}
        if len(signatures) == 1 and signatures.pop().op not in EXCHANGES:
            return None  # most often
        return disagreement(point, known, members)

    def is_shifted(self, rank: Rank, operation: Operation) -> bool:
        """Some member has used up numbers of its own: nothing can be said of what follows."""
        point = operation.pg_id, operation.run_id, operation.collective_seq_id
        mine = self.histories[rank].stumbles(*point)
        members = self._members(operation) or ()
        return any(
            self.histories[other].stumbles(*point) != mine
            for other in members
            if other in self.histories
        )

    # --- facts ---------------------------------------------------------------------------------

    def _members(self, operation: Operation) -> tuple[Rank, ...] | None:
        info = self._groups.get(operation.pg_id)
        if info is not None:
            return info.ranks
        keys = operation.signature.keys
        if operation.signature.kind == "creation" and keys and all(map(str.isdecimal, keys)):
            return tuple(map(int, keys))
        return None

    def _waits(self, view: RankView) -> Iterable[Waiting]:
        threads = view.look.threads if view.look and view.state not in ("dead", "silent") else ()
        is_running = view.look is not None and view.look.activity == "running"
        for thread in sorted(threads, key=lambda thread: not thread.is_main):
            if thread.wait is None or (thread.is_main and not is_running):
                continue
            found = [
                self.histories[view.rank].operations.get(record)
                for record in thread.wait.record_ids
            ]
            known = tuple(each for each in found if each is not None)
            is_whole = len(known) == len(found) > 0
            yield Waiting(view.rank, thread, known, is_whole, thread.wait.since_ns)


def is_in_own_store(operation: Operation) -> bool:
    """A group is made in a store of the user's own, in which other processes may meet, too."""
    return operation.signature.kind == "creation" and "@@" in operation.pg_id


def is_from_any(operation: Operation) -> bool:
    """A receive that takes the message of whoever sends one."""
    return operation.signature.kind == "recv" and operation.peer < 0


def can_act(view: RankView) -> bool:
    """The rank runs Python or C, or may do so: where that is not known, it does."""
    if view.state == "dead":
        return False
    look = view.look
    if look is None or view.state in ("silent", "starting"):
        return True
    is_running = look.activity == "running"
    if view.state != "idle" and is_running is view.is_over:
        return True  # its cell has begun or ended meanwhile
    if look.activity == "reforming":
        return True
    if is_running and not any(thread.is_main for thread in look.threads):
        return True
    return bool(acting_threads(look))


def acting_threads(look: RankLook) -> list[ThreadLook]:
    """Threads that are not blocked in an operation, and so may issue one."""
    is_running = look.activity == "running"
    return [
        thread
        for thread in look.threads
        if (is_running or not thread.is_main) and thread.wait is None and not thread.is_dormant
    ]


def disagreement(
    point: Point, operation_by_rank: Mapping[Rank, Operation], members: tuple[Rank, ...]
) -> Disagreement | None:
    """Compare what members brought; None: they agree."""
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
    differences = _merged([found for *_, found in pairs])
    hard = differences.hard
    # Beside an error warnings do not say who is wrong.
    foes: dict[Rank, set[Rank]] = {rank: set() for rank in ranks}
    for one, other, found in pairs:
        if found.hard or not hard:
            foes[one].add(other)
            foes[other].add(one)
    by_foes: dict[frozenset[Rank], list[Rank]] = {}
    for rank in ranks:
        by_foes.setdefault(frozenset(foes[rank]), []).append(rank)
    clusters = sorted(map(RankSet.of, by_foes.values()), key=lambda one: (-len(one), one.ranks))
    has_majority = len(clusters[0]) > len(clusters[1])
    return Disagreement(
        point=point,
        operation_by_rank=operation_by_rank,
        clusters=tuple(clusters),
        culprits=RankSet.of(
            rank for cluster in clusters[has_majority:] for rank in cluster if foes[rank]
        ),
        differences=differences,
    )


def _merged(found: list[Differences]) -> Differences:
    """All of them, each field in the most serious place in which it is found."""
    blocking = dict.fromkeys(name for one in found for name in one.blocking)
    wrong = dict.fromkeys(name for one in found for name in one.wrong if name not in blocking)
    soft = dict.fromkeys(
        name for one in found for name in one.soft if name not in {**blocking, **wrong}
    )
    return Differences(tuple(blocking), tuple(wrong), tuple(soft))
