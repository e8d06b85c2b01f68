"""The words about keys of the store, and about groups, whose members meet in the store.

Runs in: the notebook's process. Pure.
"""

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.phrases import describe_keys, place, quote, subject
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.similar_keys import similar_keys
from nbddp.controller.diagnosis.words.notices import describe_running
from nbddp.controller.diagnosis.words.shared import Words, in_turn
from nbddp.wire.flight_recorder import (
    CONNECTION,
    STORE_QUESTIONS,
    Operation,
    group_counter_of,
    group_name_of,
)
from nbddp.wire.rank_set import Rank, RankSet, ranks_by_value

_NOBODY_LEFT = "every rank of the pool is blocked, or has ended the cell"


def store_wait(cause: Cause, reports: RankReports) -> Words:
    """Ranks wait for a key that no rank sets, or make a group that not all members make."""
    operation = cause.operation
    ranks = cause.direct or cause.waiting
    waits = f"{subject(ranks)} {ranks.verb('waits', 'wait')} in"
    if operation is not None and operation.signature.kind == "creation":
        return _creation(cause, operation, waits, reports)
    if operation is not None and operation.signature.op == CONNECTION:
        return _connection(operation, waits)
    if operation is not None and operation.signature.op in STORE_QUESTIONS:
        return _poll(operation, ranks, reports)
    them = "them" if len(_unset_keys(operation, reports)) > 1 else "it"
    for_it = f"{ranks.describe()} {ranks.verb('waits', 'wait')} for {them}"
    if not cause.proven:
        return Words(
            f"{_nobody_has_set(operation, reports)} yet: {for_it}.",
            f"it may still be set by {describe_running(reports.graph)}.",
            "Wait, or interrupt the cell.",
            begins_with_ranks=False,
        )
    if operation is not None and operation.is_rendezvous:
        return Words(
            f"{waits} init_process_group for {operation.signature.keys[0]}, and no other rank is "
            "left that could join.",
            f"{_NOBODY_LEFT}.{in_turn(cause)}",
            "Call init_process_group on all ranks, with the number of ranks "
            f"({len(reports.graph.views)} in this pool) as world_size and each rank once.",
        )
    similar = [] if operation is None else similar_keys(operation, reports.graph)
    step = "Set the key on some rank before another one waits for it."
    if similar:
        step = f"Use one name for the key: {'; '.join(similar)}."
    return Words(
        f"{_nobody_has_set(operation, reports)}: {for_it}, and no rank is left that could set "
        f"{them}.",
        f"{_NOBODY_LEFT}; only a process outside of the pool could still set it.{in_turn(cause)}",
        step,
        begins_with_ranks=False,
    )


def _unset_keys(operation: Operation | None, reports: RankReports) -> list[str]:
    """Those of the awaited keys that no rank has set; all of them if that is not known."""
    wanted = () if operation is None else operation.signature.keys
    looks = (view.look for view in reports.graph.views.values())
    known = {key for look in looks if look is not None for key in look.set_keys}
    return [key for key in wanted if key not in known] or list(wanted)


def _nobody_has_set(operation: Operation | None, reports: RankReports) -> str:
    """``Nobody has set the key 'ready'``: those of the awaited keys that no rank has set."""
    keys = _unset_keys(operation, reports)
    return f"Nobody has set {describe_keys(keys) if keys else 'the key'}"


def _poll(operation: Operation, ranks: RankSet, reports: RankReports) -> Words:
    """A loop asks the store the same question again and again."""
    key, other = operation.signature.keys[0], describe_running(reports.graph, without=ranks)
    changed = "its value does not change"
    if operation.signature.op == "store.check":
        changed = "no rank has set it"
    loop = f"a loop with {operation.signature.op}, at {quote(operation)}"
    return Words(
        f"{subject(ranks)} {ranks.verb('asks', 'ask')} for {key!r} again and again, and {changed}.",
        f"{loop}; it may still be changed by {other}.",
        "Set the key on another rank, or interrupt the cell.",
    )


def _connection(operation: Operation, waits: str) -> Words:
    """Ranks make a store that no process serves, or wait for its clients."""
    address, *clients = operation.signature.keys
    others = "a process of another machine, or one that begins later, may still"
    if not clients:
        return Words(
            f"{waits} TCPStore: no process listens at {address}.",
            f"{others} serve it.",
            "Make the store with is_master=True on one rank, or check the host and port; an "
            "interrupt ends the wait.",
        )
    return Words(
        f"{waits} TCPStore at {address} until {clients[0]} ranks have made it, and not all have.",
        f"{others} make it.",
        f"Make it on {clients[0]} ranks, or leave out `world_size`; an interrupt ends the wait.",
    )


def _creation(cause: Cause, operation: Operation, waits: str, reports: RankReports) -> Words:
    """Ranks make a group, and not all of its members do."""
    ranks, culprits, op = cause.direct or cause.waiting, cause.culprits, operation.signature.op
    if not culprits:
        histories = reports.graph.histories
        wanted, there = len(operation.signature.keys), len(histories)
        come = sum(history.makes(operation) for history in histories.values())
        step = f"Call {op} on as many ranks as world_size says."
        if wanted > there:
            step = f"Give {op} `world_size={there}`: this pool has {there} ranks, not {wanted}."
        have = f"{waits} {reports.name(operation)} for {wanted} members: {come} "
        have += f"{'has' if come == 1 else 'have'} come"
        if not cause.proven:
            may = f"another one may still be {describe_running(reports.graph, without=ranks)}."
            return Words(f"{have}.", may, f"{step} An interrupt ends the wait.")
        return Words(
            f"{have}, and no rank is left that could be another.",
            f"{_NOBODY_LEFT}; only a process outside of the pool could still come.{in_turn(cause)}",
            step,
        )
    needs = "a group is made by all of its members, and these can no longer take part."
    if set(cause.direct) & set(culprits):
        return Words(
            _different_groups(cause, reports),
            f"{needs}{in_turn(cause)}",
            f"Call {op} on all ranks, in the same order, with the same ranks; also on ranks that "
            "are no members.",
        )
    return _several_numbers(cause, operation, reports) or Words(
        f"{reports.name(operation)} was never called by {culprits.describe()}; "
        f"{ranks.describe()} {ranks.verb('waits', 'wait')} for that.",
        f"{needs}{in_turn(cause)}",
        f"Call {op} on all ranks, in the same order.",
        begins_with_ranks=False,
    )


def _different_groups(cause: Cause, reports: RankReports) -> str:
    """The headline about ranks that make groups, and most of them do not make the same one."""
    ranks_by_label: dict[str, list[Rank]] = {}
    for rank, waited, _ in cause.circle:  # a rank with several waits is there several times
        label = reports.said(rank, waited)
        if waited.signature.kind == "creation":
            # Torch counts the groups of each rank: the numbers show which rank has made more.
            label += f" as group {group_name_of(waited.pg_id)!r}"
        ranks_by_label.setdefault(label, []).append(rank)
    parts = [
        f"{RankSet.of(ranks).describe()} in {label}" for label, ranks in ranks_by_label.items()
    ]
    action = "make different groups" if len(parts) > 1 else "make a group"
    return f"{subject(cause.culprits)} {action} and wait for each other: {', '.join(parts)}."


def _several_numbers(cause: Cause, operation: Operation, reports: RankReports) -> Words | None:
    """A group that its members make under different numbers; None: the reason is another one.

    Torch numbers the groups of each rank in the order of their creation, and the members of a group
    meet under its number. A rank that has made one group more than the others never meets them.
    """
    calls = _calls_of_culprits(cause, operation, reports)
    if not calls:
        return None
    everyone = {**dict.fromkeys(cause.direct, operation), **calls}
    numbers = {rank: group_name_of(call.pg_id) for rank, call in everyone.items()}
    ranks_by_number = ranks_by_value(numbers)
    lowest = min(ranks_by_number, key=int)
    first = ""
    for ranks in (ranks for number, ranks in ranks_by_number.items() if number != lowest):
        some = ranks.ranks[0]
        made = reports.graph.histories[some].creation_of(lowest, everyone[some])
        if made is not None and (line := place(made.site)):
            first = f" {subject(ranks)} made group {lowest} at {line}."
    parts = [f"group {n} on {ranks.describe()}" for n, ranks in ranks_by_number.items()]
    return Words(
        f"{reports.name(operation)} is {' and '.join(parts)}, so its members wait for each other.",
        "torch numbers the groups of each rank in the order of their creation, and members meet "
        f"by that number.{first}{in_turn(cause)}",
        f"Call {operation.signature.op} for every group on all ranks, members or not, in the same "
        "order; or pass use_local_synchronization=True.",
        begins_with_ranks=False,
    )


def _calls_of_culprits(
    cause: Cause, operation: Operation, reports: RankReports
) -> dict[Rank, Operation]:
    """The call of each culprit; empty if one of them makes another group, or none."""
    calls: dict[Rank, Operation] = {}
    number, counter = group_name_of(operation.pg_id), group_counter_of(operation.pg_id)
    for rank in cause.culprits:
        for call in reports.graph.histories[rank].operations.values():
            other = group_name_of(call.pg_id)
            is_counted = other.isdecimal() and group_counter_of(call.pg_id) == counter
            is_like = call.signature == operation.signature and call.state == "scheduled"
            if is_like and is_counted and other != number:
                calls[rank] = call
    return calls if number.isdecimal() and len(calls) == len(cause.culprits) else {}
