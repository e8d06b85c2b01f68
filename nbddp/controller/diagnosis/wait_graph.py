"""The wait-for graph: which ranks wait for which, and which of them can never continue.

Runs in: the notebook's process. Pure.

A thread that waits for operations continues when **all** of them complete; a rank continues when
**any** of its threads does. An operation can complete if every rank whose part is missing can still
do it. The set of those ranks is a least fixpoint: it begins with the ranks that run Python or C,
and adds the ranks that they can set free, directly or through others. A rank that runs its cell and
is not in the set is stuck, whatever happens next.

Source: T. Hilbrich et al., MPI runtime error detection with MUST (AND-OR wait-for graphs).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from nbddp.controller.diagnosis.disagreement import Disagreement, Point, find_disagreement
from nbddp.controller.diagnosis.history import Histories, History
from nbddp.controller.diagnosis.rank_view import RankView
from nbddp.controller.diagnosis.report import GroupRef
from nbddp.wire.flight_recorder import (
    CONNECTION,
    GroupInfo,
    Operation,
    RankLook,
    Site,
    ThreadLook,
    group_name_of,
)
from nbddp.wire.rank_set import Rank, RankSet


@dataclass(frozen=True)
class Obstacle:
    """The reason why an operation that a rank waits for can never complete."""

    operation: Operation
    missing: tuple[Rank, ...] = ()  #: ranks whose part is missing and that can never do it
    disagreement: Disagreement | None = None
    needs_anyone: bool = False  #: any process might have done it; ``missing`` are all ranks left


@dataclass(frozen=True)
class Waiting:
    """A thread that waits for operations."""

    rank: Rank
    thread: ThreadLook
    operations: tuple[Operation, ...]
    is_whole: bool  #: whether all operations that it waits for are known
    since_ns: int

    @property
    def needs_all(self) -> bool:
        """Whether it continues only when all operations complete; else one may be enough.

        A thread that waits inside of torch waits for some of the open operations; for which of
        them is not known outside of torch.
        """
        return self.thread.wait is None or self.thread.wait.kind == "operation"


@dataclass
class WaitForGraph:
    """The graph of a pool at one moment."""

    views: Mapping[Rank, RankView]
    histories: Histories = field(init=False)
    waits: dict[Rank, tuple[Waiting, ...]] = field(init=False)  #: of each rank, main thread first
    able: set[Rank] = field(init=False)  #: ranks that can continue, now or after others

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
        #: Whether there are processes that no look reports: they may set keys, and join groups in
        #: the user's own store.
        self.has_others = any(
            view.look is not None and view.look.has_children for view in self.views.values()
        )
        self._group_refs: dict[str, GroupRef] = {}
        self._disagreements: dict[Point, Disagreement | None] = {}
        #: The same for all members of a group, so that many ranks cost no square of their number.
        self._not_joined: dict[Point, tuple[Rank, ...] | None] = {}
        self._has_not_joined: dict[Point, frozenset[Rank]] = {}
        self._missing: dict[int, tuple[Rank, ...]] = {}  # by the identity of what `absent` returns
        self._failure_counts: dict[tuple[str, str, int], frozenset[int]] = {}
        self._places: dict[str, tuple[Site, ...]] = {}
        self._everyone = tuple(self.views)
        self._absent: dict[tuple[Rank, int], tuple[Rank, ...] | None] = {}
        self.waits = {rank: tuple(self._waits(view)) for rank, view in self.views.items()}
        self.able = {rank for rank, view in self.views.items() if can_act(view)}
        self._add_freed_ranks()

    def _add_freed_ranks(self) -> None:
        """Add ranks to `able` until no other rank can be set free."""
        blocked = [rank for rank in self.views if rank not in self.able and self.waits[rank]]
        while True:
            freed = [rank for rank in blocked if any(map(self._can_end, self.waits[rank]))]
            if not freed:
                return
            self.able.update(freed)
            self._missing.clear()
            blocked = [rank for rank in blocked if rank not in self.able]

    def places(self, run_id: str) -> tuple[Site, ...]:
        """Return a line of each cell and file in which operations of a run were called."""
        if run_id not in self._places:
            sites = (
                each.site
                for history in self.histories.values()
                for each in history.operations.values()
                if each.run_id == run_id and each.site.line
            )
            self._places[run_id] = tuple({site.position[:2]: site for site in sites}.values())
        return self._places[run_id]

    @property
    def stuck(self) -> RankSet:
        """The ranks that run their cell and can never continue."""
        return RankSet.of(
            rank
            for rank, view in self.views.items()
            if view.state == "running" and rank not in self.able
        )

    def obstacles(self, rank: Rank) -> list[Obstacle]:
        """The obstacles of all operations that a rank waits for; a stuck rank has at least one."""
        obstacles = (
            self._obstacle_to(rank, operation)
            for waiting in self.waits[rank]
            for operation in waiting.operations
        )
        return [obstacle for obstacle in obstacles if obstacle is not None]

    def involved(self) -> RankSet:
        """The ranks that must not have moved while the proof was made; dead ranks never move."""
        involved: set[Rank] = set()
        seen: dict[int, tuple[Rank, ...]] = {}  # many ranks miss the same ones
        pending = list(self.stuck)
        while pending:
            rank = pending.pop()
            if rank in involved:
                continue
            involved.add(rank)
            for obstacle in self.obstacles(rank):
                if id(obstacle.missing) not in seen:
                    seen[id(obstacle.missing)] = obstacle.missing
                    pending += obstacle.missing
        return RankSet.of(involved)

    def group(self, operation: Operation) -> GroupRef | None:
        """The group of an operation, also a group that is being made; None: it has none."""
        info = self._groups.get(operation.pg_id)
        if info is not None:
            if info.pg_id not in self._group_refs:
                self._group_refs[info.pg_id] = GroupRef.of(info)
            return self._group_refs[info.pg_id]
        if operation.signature.kind == "store" or not operation.pg_id:
            return None
        members = self._members(operation) or ()
        name = group_name_of(operation.pg_id)
        return GroupRef(operation.pg_id, name, ranks=RankSet.of(members))

    # --- operations that can end ---------------------------------------------------------------

    def _can_end(self, waiting: Waiting) -> bool:
        if not waiting.is_whole:
            return True
        ends = all if waiting.needs_all else any
        return ends(self._obstacle_to(waiting.rank, each) is None for each in waiting.operations)

    def _obstacle_to(self, rank: Rank, operation: Operation) -> Obstacle | None:
        """The reason why an operation of a rank can never complete; None: it may complete."""
        if operation.state != "scheduled":
            return None
        disagreement = self.blocking_disagreement(rank, operation)
        if disagreement is not None:
            return Obstacle(operation, disagreement=disagreement)
        absent = self.absent(rank, operation)
        if absent is None:
            # Any rank might do it: every process can set a key of the store.
            may_end = self.able or self.has_others or self.may_be_whole(operation)
            missing = () if may_end else self._everyone
        else:
            missing = self._unable(absent)
            if len(missing) < len(absent) and is_from_any(operation):
                missing = ()  # one sender is enough
        return Obstacle(operation, missing, needs_anyone=absent is None) if missing else None

    def _unable(self, absent: tuple[Rank, ...]) -> tuple[Rank, ...]:
        """The ranks that can never come; the same object for all that wait for the same ranks."""
        key = id(absent)  # it is kept in `_absent`, so no other object gets its identity
        if key not in self._missing:
            self._missing[key] = tuple(other for other in absent if other not in self.able)
        return self._missing[key]

    def may_be_whole(self, operation: Operation) -> bool:
        """Whether all members of a new group may have come, and torch connects them now.

        That may take any time. The number of members is known, the ranks are not.
        """
        if operation.signature.kind != "creation":
            return False
        makers = sum(history.makes(operation) for history in self.histories.values())
        return makers >= len(operation.signature.keys)

    def absent(self, rank: Rank, operation: Operation) -> tuple[Rank, ...] | None:
        """The ranks whose part in an operation of ``rank`` is missing; None: they are not known.

        Ranks without a view are left out: they may have done their part.
        """
        key = rank, operation.record_id
        if key not in self._absent:
            absent = self._find_absent(rank, operation)
            if absent is not None and operation.signature.kind != "collective":
                absent = tuple(other for other in absent if other in self.views)
            self._absent[key] = absent
        return self._absent[key]

    def _find_absent(self, rank: Rank, operation: Operation) -> tuple[Rank, ...] | None:
        match operation.signature.kind:
            case "collective":
                if self.has_unaligned_numbers(rank, operation):
                    return ()
                return self._without_joined(rank, operation)
            case "creation":
                may_come = self.has_others and is_in_own_store(operation)
                return () if may_come else self._absent_makers(rank, operation)
            case "recv" if is_from_any(operation):
                return self._absent_senders(rank, operation)
            case "recv" | "send":
                return self._absent_peer(rank, operation)
            case "store":
                # A store may be served by any process, on any machine, and often is begun later.
                return () if operation.signature.op == CONNECTION else None
            case _ as never:
                assert_never(never)

    def _without_joined(self, rank: Rank, operation: Operation) -> tuple[Rank, ...] | None:
        """The other members that have not called a collective."""
        point = operation.pg_id, operation.collective_seq_id
        if point not in self._not_joined:
            self._not_joined[point] = self._members_without(
                None, operation, lambda other: self.histories[other].has_joined(*point)
            )
            self._has_not_joined[point] = frozenset(self._not_joined[point] or ())
        absent = self._not_joined[point]
        if absent is None or rank not in self._has_not_joined[point]:
            return absent
        return tuple(other for other in absent if other != rank)

    def _members_without(
        self, rank: Rank | None, operation: Operation, has_come: Callable[[Rank], bool]
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
        """The ranks that could still send the message of a receive from any source."""
        members = self._members(operation)
        if members is None:
            return None
        pg_id, tag = operation.pg_id, operation.tag
        others = tuple(other for other in members if other != rank)
        if not set(others) <= set(self.views):
            return ()
        histories = [self.histories[other] for other in others]
        mine = self.histories[rank]
        receives = [
            receive
            for source in (-1, *others)
            for receive in mine.messages("recv", pg_id, source, tag)
        ]
        send_counts = [one.count("send", pg_id, rank, tag) for one in histories]
        receive_counts = [mine.count("recv", pg_id, source, tag) for source in others]
        if None not in (*send_counts, *receive_counts):
            # A message that a receive from any source got counts for its sender.
            pending = sum(each.state == "scheduled" and each.peer >= 0 for each in receives)
            received = sum(filter(None, receive_counts)) - pending
            return () if sum(filter(None, send_counts)) > received else others
        sends = [each for one in histories for each in one.messages("send", pg_id, rank, tag)]
        completed = sum(each.state == "completed" for each in receives)
        if any(each.state == "scheduled" for each in sends) or len(sends) > completed:
            return ()
        if any(one.may_have_messages_left_out(pg_id) for one in (mine, *histories)):
            return ()
        return others

    # --- collectives on which members disagree -------------------------------------------------

    def blocking_disagreement(self, rank: Rank, operation: Operation) -> Disagreement | None:
        """The disagreement because of which a collective of a rank cannot complete."""
        if operation.signature.kind != "collective" or self.has_unaligned_numbers(rank, operation):
            return None
        disagreement = self.disagreement((operation.pg_id, operation.collective_seq_id))
        is_blocking = disagreement is not None and disagreement.differences.blocking
        return disagreement if is_blocking else None

    def disagreement(self, point: Point) -> Disagreement | None:
        """The disagreement of members on a collective; None: they agree, as far as is known."""
        if point not in self._disagreements:
            info = self._groups.get(point[0])
            members = info.ranks if info else tuple(self.views)
            known = {
                rank: operation
                for rank in members
                if rank in self.histories
                and (operation := self.histories[rank].collective(*point)) is not None
            }
            self._disagreements[point] = find_disagreement(point, known, members)
        return self._disagreements[point]

    def has_unaligned_numbers(self, rank: Rank, operation: Operation) -> bool:
        """Whether some member numbers its calls otherwise, so that later numbers prove nothing.

        A call that failed before it reached the others has taken a number of its member alone.
        """
        point = operation.pg_id, operation.run_id, operation.collective_seq_id
        if point not in self._failure_counts:
            self._failure_counts[point] = frozenset(
                self.histories[member].local_failures(*point)
                for member in self._members(operation) or ()
                if member in self.histories
            )
        return not self._failure_counts[point] <= {self.histories[rank].local_failures(*point)}

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
            records = thread.wait.record_ids
            operations = self.histories[view.rank].operations
            known = tuple(operations[record] for record in records if record in operations)
            is_whole = len(known) == len(records) > 0
            yield Waiting(view.rank, thread, known, is_whole, thread.wait.since_ns)


def is_in_own_store(operation: Operation) -> bool:
    """Whether a group is made in the user's own store, where other processes may join it."""
    return operation.signature.kind == "creation" and "@@" in operation.pg_id


def is_from_any(operation: Operation) -> bool:
    """Whether it is a receive from any source."""
    return operation.signature.kind == "recv" and operation.peer < 0


def can_act(view: RankView) -> bool:
    """Whether the rank runs Python or C, or may do so: where that is not known, it may."""
    if view.state == "dead":
        return False
    look = view.look
    if look is None or view.state in ("silent", "starting"):
        return True
    is_running = look.activity == "running"
    if view.state != "idle" and is_running is view.is_over:
        return True  # its cell has begun or ended since then
    if look.activity == "reforming":
        return True
    if is_running and not any(thread.is_main for thread in look.threads):
        return True
    return bool(acting_threads(look))


def acting_threads(look: RankLook) -> list[ThreadLook]:
    """The threads that are not blocked in an operation, and so may issue one."""
    is_running = look.activity == "running"
    return [
        thread
        for thread in look.threads
        if (is_running or not thread.is_main) and thread.wait is None and not thread.is_dormant
    ]
