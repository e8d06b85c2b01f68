"""Finds ranks that keep others waiting where no bug is proven.

Runs in: the notebook's process. Pure. A notice interrupts nothing and claims no bug.
"""

import re
from collections.abc import Hashable, Iterable
from typing import Final

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.guard import NO_GUARD, Guard
from nbddp.controller.diagnosis.rank_view import RankView
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import STORE_QUESTIONS, WAITS_FOR_USER, Operation, ThreadLook
from nbddp.wire.flight_recorder.matching import MESSAGES, other_kind
from nbddp.wire.rank_set import Rank, RankSet

#: An operation that all members have joined is reported after this time: it should have ended.
IN_PROGRESS_NS: Final = 5_000_000_000

#: Functions of Python that wait for something outside of the ranks.
_WAITING_FUNCTIONS: Final = frozenset(
    (
        "_poll",
        "_recv",
        "_try_get_data",  # of a DataLoader
        "_try_wait",  # of a subprocess
        "_wait_for_tstate_lock",  # Thread.join
        *WAITS_FOR_USER,
        "accept",
        "acquire",
        "communicate",
        "get",
        "join",
        "readinto",
        "result",
        "select",
        "wait",
    )
)
#: C functions have no frame: the line that calls them shows them.
WAITING_CALL: Final = re.compile(
    r"\b(accept|acquire|communicate|connect|input|poll|read|readline|recv|recv_into|select"
    r"|sleep|wait)\s*\("
)


def find_notices(graph: WaitForGraph, now_ns: int, guard: Guard = NO_GUARD) -> list[Cause]:
    """Find ranks that others wait for and that may still come, and keys that may still be set.

    Args:
        graph: the ranks at one moment.
        now_ns: `time.monotonic_ns` of the caller, for ranks that did not tell their own time.
        guard: of the search for each kind.
    """
    stuck = set(graph.stuck)
    waits = {
        rank: graph.waits[rank][0].operations
        for rank, view in graph.views.items()
        if view.state == "running"
        and rank not in stuck
        and graph.waits[rank]
        and graph.waits[rank][0].thread.is_main
    }
    return [
        *guard.found(lambda: _polls(graph)),
        *guard.found(lambda: _slow_ranks(graph, waits)),
        *guard.found(lambda: _unset_keys(waits)),
        *guard.found(lambda: _unknown_members(graph, waits)),
        *guard.found(lambda: _slow_operations(graph, waits, now_ns)),
        *guard.found(lambda: _silent_mismatches(graph, waits)),
    ]


def is_outside(view: RankView) -> bool:
    """Whether the rank waits for something other than an operation of torch.distributed."""
    if view.state == "silent":
        return True
    main = view.look.main if view.look else None
    return main is not None and main.wait is None and is_waiting_outside(main)


def is_waiting_outside(thread: ThreadLook) -> bool:
    """Whether its innermost function or line is a known wait outside of torch.distributed."""
    if thread.importing:
        return False  # it reads files
    if thread.innermost in _WAITING_FUNCTIONS:
        return True
    # If the innermost function is not that of the line, the line's own call does not run now.
    line = thread.stack[0] if thread.stack else None
    if line is None or thread.innermost not in ("", line.function):
        return False
    return bool(WAITING_CALL.search(line.source))


def _slow_ranks(graph: WaitForGraph, waits: dict[Rank, tuple[Operation, ...]]) -> list[Cause]:
    """One notice for each set of ranks that others wait for."""
    groups: list[tuple[set[Rank], set[Rank]]] = []  # the awaited ranks, the waiting ranks
    alike: dict[tuple[int, ...], set[Rank]] = {}  # ranks that wait for the same ones
    for rank, operations in waits.items():
        key = tuple(id(graph.absent(rank, operation)) for operation in operations)
        alike.setdefault(key, set()).add(rank)
    for waiting in alike.values():
        culprits = _awaited(graph, waits, min(waiting))
        if not culprits:
            continue
        apart = []
        for others, theirs in groups:
            if others & culprits:
                culprits |= others
                waiting.update(theirs)
            else:
                apart.append((others, theirs))
        groups = [*apart, (culprits, waiting)]
    return [_slow_rank(graph, waits, *group) for group in groups]


def _slow_rank(
    graph: WaitForGraph,
    waits: dict[Rank, tuple[Operation, ...]],
    culprits: set[Rank],
    waiting: set[Rank],
) -> Cause:
    ranks_by_call: dict[Hashable, list[tuple[Rank, Operation]]] = {}
    for rank in sorted(waiting):
        for operation in waits[rank]:
            if culprits.intersection(graph.absent(rank, operation) or ()):
                ranks_by_call.setdefault(_call(operation), []).append((rank, operation))
    together = max(ranks_by_call.values(), key=len)
    owner, operation = together[0]
    are_outside = all(is_outside(graph.views[rank]) for rank in culprits)
    return Cause(
        "stuck-outside" if are_outside else "straggler",
        RankSet.of(culprits),
        RankSet.of(waiting),
        proven=False,
        owner=owner,
        operation=operation,
        direct=RankSet.of(rank for rank, _ in together),
    )


def _call(operation: Operation) -> Hashable:
    """A key that is equal for the operations that one sentence names: two receives from a rank."""
    kind, pg_id = operation.signature.kind, operation.pg_id
    return kind, operation.signature.op, pg_id, operation.collective_seq_id, operation.peer


def _awaited(
    graph: WaitForGraph, waits: dict[Rank, tuple[Operation, ...]], start: Rank
) -> set[Rank]:
    """The ranks that run Python or C and that ``start`` waits for, directly or through others."""
    awaited: set[Rank] = set()
    seen = {start}
    pending = [start]
    while pending:
        rank = pending.pop()
        for operation in waits[rank]:
            for other in set(graph.absent(rank, operation) or ()) - seen:
                seen.add(other)
                if other in waits:
                    pending.append(other)
                elif other in graph.able:
                    awaited.add(other)
    return awaited


def _polls(graph: WaitForGraph) -> list[Cause]:
    """Loops that ask the store the same question again and again, with the same answer."""
    asked = {
        rank: tuple(
            operation
            for operation in graph.histories[rank].operations.values()
            if operation.state == "scheduled" and operation.signature.op in STORE_QUESTIONS
        )
        for rank, view in graph.views.items()
        if view.state == "running"
    }
    return _unset_keys(asked)


def _unset_keys(waits: dict[Rank, tuple[Operation, ...]]) -> list[Cause]:
    by_keys: dict[tuple[str, ...], tuple[Rank, Operation, list[Rank]]] = {}
    for rank, operations in waits.items():
        for operation in operations:
            if operation.signature.kind == "store":
                keys = operation.signature.keys
                by_keys.setdefault(keys, (rank, operation, []))[2].append(rank)
    return _store_waits(by_keys.values())


def _unknown_members(graph: WaitForGraph, waits: dict[Rank, tuple[Operation, ...]]) -> list[Cause]:
    """Groups for which fewer members have come than they have, and the others are not known."""
    by_group: dict[str, tuple[Rank, Operation, list[Rank]]] = {}
    for rank, operations in waits.items():
        for operation in operations:
            is_creation = operation.signature.kind == "creation" and operation.state == "scheduled"
            if is_creation and not (graph.absent(rank, operation) or graph.may_be_whole(operation)):
                by_group.setdefault(operation.pg_id, (rank, operation, []))[2].append(rank)
    return _store_waits(by_group.values())


def _store_waits(waits: Iterable[tuple[Rank, Operation, list[Rank]]]) -> list[Cause]:
    """The causes for waits: one of the ranks, its operation, all ranks that wait like it."""
    return [
        Cause(
            "store-wait",
            RankSet(),
            RankSet.of(ranks),
            proven=False,
            owner=owner,
            operation=operation,
        )
        for owner, operation, ranks in waits
    ]


def _slow_operations(
    graph: WaitForGraph, waits: dict[Rank, tuple[Operation, ...]], now_ns: int
) -> list[Cause]:
    """Operations that all their ranks have joined, and that have not ended in time."""
    by_point: dict[tuple[object, ...], tuple[Rank, Operation, list[Rank]]] = {}
    for rank, operations in waits.items():
        look = graph.views[rank].look
        now = look.time_ns if look else now_ns
        if now - graph.waits[rank][0].since_ns < IN_PROGRESS_NS:
            continue
        for operation in operations:
            is_open = operation.state == "scheduled" and graph.absent(rank, operation) == ()
            point: tuple[object, ...] = operation.pg_id, operation.collective_seq_id
            if operation.signature.kind in MESSAGES:
                point = rank, operation.record_id
                is_open = is_open and operation.peer >= 0
            if is_open and operation.signature.kind in ("collective", *MESSAGES):
                by_point.setdefault(point, (rank, operation, []))[2].append(rank)
    return [
        Cause(
            "straggler",
            RankSet(),
            RankSet.of(ranks),
            proven=False,
            owner=owner,
            operation=operation,
        )
        for owner, operation, ranks in by_point.values()
    ]


def other_end(graph: WaitForGraph, rank: Rank, operation: Operation) -> Operation | None:
    """The other end of a message of this rank, as its peer has recorded it; None: it is no message.

    Args:
        graph: the ranks.
        rank: the rank.
        operation: of the rank.
    """
    history = graph.histories.get(operation.peer)
    if history is None or operation.signature.kind not in MESSAGES:
        return None
    place = operation.pg_id, rank, operation.tag
    ends = history.messages(other_kind(operation.signature), *place)
    return next((each for each in ends if each.p2p_seq_id == operation.p2p_seq_id), None)


def _silent_mismatches(
    graph: WaitForGraph, waits: dict[Rank, tuple[Operation, ...]]
) -> list[Cause]:
    """Collectives that will complete, though ranks called them with different arguments."""
    cause_by_point: dict[tuple[str, int], Cause] = {}
    for rank, operations in waits.items():
        for operation in operations:
            point = operation.pg_id, operation.collective_seq_id
            if operation.signature.kind != "collective" or point in cause_by_point:
                continue
            disagreement = graph.disagreement(point)
            if disagreement is not None and not disagreement.differences.blocking:
                cause_by_point[point] = Cause(
                    "silent-mismatch",
                    disagreement.culprits,
                    RankSet(),
                    proven=False,
                    owner=rank,
                    operation=operation,
                    disagreement=disagreement,
                )
    return list(cause_by_point.values())
