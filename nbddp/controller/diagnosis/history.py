"""The history of the operations that a rank has issued.

Runs in: the notebook's process. Pure.

The history in a look is bounded: it has all open operations and the newest others. Where an
answer depends on operations that were left out, `History` gives the answer that proves nothing.
"""

from typing import Literal

from nbddp.controller.diagnosis.rank_view import RankView
from nbddp.wire.flight_recorder import (
    GroupInfo,
    Operation,
    group_counter_of,
    group_name_of,
)
from nbddp.wire.rank_set import Rank


class Histories(dict[Rank, "History"]):
    """The history of each rank of a pool; that of any other is empty."""

    def __missing__(self, rank: Rank) -> "History":
        return History(RankView(rank=rank, state="silent"))


class History:
    """The operations of one rank."""

    def __init__(self, view: RankView) -> None:
        self.rank = view.rank
        self.is_dead = view.state == "dead"
        self.clock = view.look.clock if view.look is not None else ""
        self.operations: dict[int, Operation] = {}  # by record, the newest last
        recorded = (*view.operations, *(view.look.operations if view.look else ()))
        for operation in sorted(recorded, key=lambda operation: operation.record_id):
            known = self.operations.get(operation.record_id)
            if known is None or known.state == "scheduled":
                self.operations[operation.record_id] = operation
        self._groups = {group.pg_id: group for group in view.look.groups} if view.look else {}
        self._collectives: dict[tuple[str, int], Operation] = {}
        self._creations: dict[str, Operation] = {}
        for operation in self.operations.values():
            if operation.signature.kind == "collective":
                self._collectives[operation.pg_id, operation.collective_seq_id] = operation
            elif operation.signature.kind == "creation":
                self._creations[operation.pg_id] = operation
        self._local_failures = [
            call for call in self._collectives.values() if is_local_failure(call)
        ]
        #: Whether older operations were left out. Records count from 1.
        self.is_cut = max(self.operations, default=0) > len(self.operations)

    def add_mismatched(self, operation: Operation) -> None:
        """Add an operation that is known only from a mismatch."""
        key = operation.pg_id, operation.collective_seq_id
        if operation.signature.kind == "collective":
            self._collectives.setdefault(key, operation)

    def group(self, pg_id: str) -> GroupInfo | None:
        """The group, if this rank has it."""
        return self._groups.get(pg_id)

    def groups(self) -> tuple[GroupInfo, ...]:
        """All groups that it has."""
        return tuple(self._groups.values())

    def newest(self, pg_id: str | None = None, run_id: str | None = None) -> Operation | None:
        """The last operation, of a group and in a run if they are given.

        A call that was left out, or made again, at the prompt is none.
        """
        for operation in reversed(self.operations.values()):
            is_meant = pg_id in (None, operation.pg_id) and run_id in (None, operation.run_id)
            if is_meant and not operation.is_replaced:
                return operation
        return None

    def is_whole(self, run_id: str) -> bool:
        """Whether no operation of a run was left out."""
        oldest = next(iter(self.operations.values()), None)
        return not self.is_cut or (oldest is not None and oldest.run_id != run_id)

    # --- collectives ---------------------------------------------------------------------------

    def collective(self, pg_id: str, seq: int) -> Operation | None:
        """The collective with a number, if it reached the group and is still known."""
        operation = self._collectives.get((pg_id, seq))
        return None if operation is None or is_local_failure(operation) else operation

    def has_joined(self, pg_id: str, seq: int) -> bool:
        """Whether its part in a collective is done, or goes on without its help."""
        operation = self._collectives.get((pg_id, seq))
        if self.is_dead:
            if operation is not None:
                return operation.state == "completed"
            # All open operations are known, so those before a known one were complete.
            known = [number for group, number in self._collectives if group == pg_id]
            return max(known, default=0) > seq or (self.is_cut and not known)
        if operation is not None:
            return operation.state != "failed"
        info = self._groups.get(pg_id)
        return info is not None and info.collective_seq_id >= seq

    def ordinal(self, operation: Operation, *, of_any_kind: bool = False) -> int | None:
        """The place of a collective among the same calls of its cell; 0: it is the only one.

        Args:
            operation: of this rank, or one that it has joined.
            of_any_kind: among all collectives of its group in the cell.

        Returns:
            None: that is not known, as older calls were left out.
        """
        known = [*self.operations.values()]
        if not known or (self.is_cut and known[0].run_id == operation.run_id):
            return None
        numbers = {
            each.collective_seq_id
            for each in (*known, operation)
            if (each.run_id, each.pg_id) == (operation.run_id, operation.pg_id)
            and each.signature.kind == "collective"
            and (of_any_kind or each.signature.op == operation.signature.op)
        }
        earlier = sum(number <= operation.collective_seq_id for number in numbers)
        return earlier if len(numbers) > 1 else 0

    def local_failures(self, pg_id: str, run_id: str, before: int) -> int:
        """The number of calls in a run that took a number and never reached the others.

        The numbers of this rank are then shifted against those of the others.
        """
        return sum(
            (call.pg_id, call.run_id) == (pg_id, run_id) and call.collective_seq_id < before
            for call in self._local_failures
        )

    # --- creations -----------------------------------------------------------------------------

    def has_created(self, wanted: Operation, clock: str = "") -> bool:
        """Whether it has called the function that makes this group.

        Args:
            wanted: the call of another rank.
            clock: that of the other rank, see `RankLook.clock`.
        """
        made = self._creations.get(wanted.pg_id)
        if made is not None:
            is_comparable = bool(clock) and clock == self.clock
            if is_comparable and 0 < made.time_completed_ns < wanted.time_created_ns:
                return False  # that group was complete before this call, so it is another one
            return made.state == "completed" or (made.state == "scheduled" and not self.is_dead)
        if self.is_dead and self.is_cut:
            return True
        name = group_name_of(wanted.pg_id)
        members = wanted.signature.keys
        return any(
            group.pg_id == wanted.pg_id
            or (
                self.is_cut
                and group.run_id == wanted.run_id  # one of an earlier cell is another one
                and group.name == name
                and tuple(map(str, group.ranks)) == members
            )
            for group in self._groups.values()
        )

    def makes(self, wanted: Operation) -> bool:
        """Whether this rank makes a group like that of another rank's call, or has in its cell."""
        return any(
            creation.run_id == wanted.run_id
            and creation.state in ("scheduled", "completed")
            and creation.signature == wanted.signature
            and group_name_of(creation.pg_id) == group_name_of(wanted.pg_id)
            for creation in self._creations.values()
        )

    def creation_of(self, number: str, before: Operation) -> Operation | None:
        """The group that this rank made under a number of torch, before another call."""
        made = [
            creation
            for creation in self._creations.values()
            if group_name_of(creation.pg_id) == number
            and group_counter_of(creation.pg_id) == group_counter_of(before.pg_id)
            and creation.time_created_ns < before.time_created_ns
        ]
        return max(made, key=lambda creation: creation.time_created_ns, default=None)

    # --- messages ------------------------------------------------------------------------------

    def messages(
        self, kind: Literal["send", "recv"], pg_id: str, peer: int, tag: int
    ) -> list[Operation]:
        """The messages of one direction that did not fail; peer -1: receives from any source."""
        return [
            message
            for message in self.operations.values()
            if message.signature.kind == kind
            and (message.pg_id, message.peer, message.tag) == (pg_id, peer, tag)
            and message.state != "failed"
            and not (self.is_dead and message.state == "scheduled")
        ]

    def may_have_messages_left_out(self, pg_id: str, number: int = 1) -> bool:
        """Whether the history may lack messages with this number, or with higher ones."""
        if not self.is_cut:
            return False
        info = self._groups.get(pg_id)
        return info is None or info.p2p_seq_id >= number

    def count(self, kind: Literal["send", "recv"], pg_id: str, peer: int, tag: int) -> int | None:
        """The number of messages it has issued since the group was formed; None: not reported."""
        info = self._groups.get(pg_id)
        if info is None or info.messages is None:
            return None
        numbers = (
            counter.count
            for counter in info.messages
            if (counter.direction, counter.peer, counter.tag) == (kind, peer, tag)
        )
        return next(numbers, info.p2p_base) - info.p2p_base

    def may_take_any(self, pg_id: str, tag: int) -> bool:
        """Whether a receive from any source may have taken a message with this tag."""
        if self.messages("recv", pg_id, -1, tag):
            return True
        count = self.count("recv", pg_id, -1, tag)
        return self.is_cut if count is None else count > 0

    def number_now(self, received: Operation) -> int:
        """The number of the message that an open receive can still get from its sender.

        An earlier receive from any source may have taken the message that was meant for it.
        """
        key = received.pg_id, received.peer, received.tag
        count = self.count("recv", *key)
        if count is None:
            return received.p2p_seq_id
        later = sum(
            receive.state == "scheduled" and receive.record_id > received.record_id
            for receive in self.messages("recv", *key)
        )
        base = self._groups[received.pg_id].p2p_base
        return max(received.p2p_seq_id, base + count - later)

    def _has_failed(
        self, kind: Literal["send", "recv"], pg_id: str, peer: int, tag: int, number: int
    ) -> bool:
        """Whether its part in this message has failed, and was not tried again."""
        states = [
            message.state
            for message in self.operations.values()
            if message.signature.kind == kind
            and (message.pg_id, message.peer) == (pg_id, peer)
            and (message.tag, message.p2p_seq_id) == (tag, number)
        ]
        return states[-1:] == ["failed"]

    def has_sent(self, pg_id: str, to: int, tag: int, number: int) -> bool:
        """Whether it has sent the message with this number, or has a send that is still open."""
        sent = self.messages("send", pg_id, to, tag)
        count = self.count("send", pg_id, to, tag)
        if count is not None:
            is_counted = count >= number - self._groups[pg_id].p2p_base
            return is_counted and not self._has_failed("send", pg_id, to, tag, number)
        if sent:
            return any(each.state == "scheduled" or each.p2p_seq_id >= number for each in sent)
        return self.may_have_messages_left_out(pg_id, number)

    def has_received(self, pg_id: str, source: int, tag: int, number: int) -> bool:
        """Whether it has a receive for the message with this number, or one that is still open."""
        exact = self.messages("recv", pg_id, source, tag)
        of_any = self.messages("recv", pg_id, -1, tag)
        count = self.count("recv", pg_id, source, tag)
        if count is not None:
            if any(each.state == "scheduled" for each in of_any):
                return True
            is_counted = count >= number - self._groups[pg_id].p2p_base
            return is_counted and not self._has_failed("recv", pg_id, source, tag, number)
        if any(each.state == "scheduled" for each in (*exact, *of_any)):
            return True
        if not exact and not of_any:
            return self.may_have_messages_left_out(pg_id, number)
        # A receive from any source may have taken any number; both count from a common base.
        numbers = [max((each.p2p_seq_id for each in side), default=0) for side in (exact, of_any)]
        return sum(numbers) >= number


def is_local_failure(operation: Operation) -> bool:
    """Whether the call failed before it reached the others: mostly because of a bad argument.

    A call that did not match, or was freed, is none: the others have made, or expect, the same one.
    """
    failure = operation.failure
    is_shared = failure is not None and failure.kind in ("collective", "freed", "lost")
    return operation.state == "failed" and operation.waited_ns == 0 and not is_shared
