"""What one rank has issued so far, looked up in what is known of it.

Runs in: the notebook's process. Pure.

The history in a look is bounded: everything open, and the newest. Where an answer may lie in what
was left out, it is the answer that proves nothing.
"""

from dataclasses import dataclass
from typing import Literal

from nbddp.controller.diagnosis.report import RankStatus
from nbddp.wire.flight_recorder.schema import (
    LEFT_DEBUGGER,
    ExceptionLine,
    GroupInfo,
    Mismatch,
    Operation,
    RankLook,
    error_name,
    group_name_of,
)
from nbddp.wire.rank_set import Rank

_MISMATCH_ERROR = "CollectiveMismatchError"


@dataclass(frozen=True)
class RankView:
    """What the controller knows of one rank."""

    rank: Rank
    state: RankStatus
    look: RankLook | None = None  #: its own words, in every state; None: it did not answer
    error: ExceptionLine | None = None  #: of a rank that raised, if it is known
    was_freed: bool = False  #: it raised because nbddp had ended its operation
    mismatches: tuple[Mismatch, ...] = ()  #: that it saw during the cell
    exit_text: str = ""  #: of a dead rank: ``SIGKILL (signal 9)``
    how_it_exited: str = "exited"  #: likewise: ``exited with SIGKILL (signal 9)``
    operations: tuple[Operation, ...] = ()  #: of a silent or dead rank, as its agent has read them
    stack_text: str = ""
    is_stopped: bool = False  #: its process, by a signal or a debugger, as its agent has seen
    after: ExceptionLine | None = None  #: that was handled when it raised ``error``

    @property
    def handling(self) -> ExceptionLine | None:
        """What it is, or was, handling."""
        if self.state != "running" or self.look is None:
            return self.after
        return None if self.look.main is None else self.look.main.handling

    @property
    def is_over(self) -> bool:
        """Its main thread does nothing any more in this cell."""
        return self.state in ("finished", "raised", "idle", "dead")

    @property
    def has_left_debugger(self) -> bool:
        """Its user has left the cell with ``q``."""
        is_debuggers = self.error is not None and self.error.name == LEFT_DEBUGGER
        return self.state == "raised" and is_debuggers

    @property
    def how_it_left(self) -> str:
        """Of a rank that raised: ``raised ValueError: boom``, ``left the debugger``."""
        if self.has_left_debugger:
            return "left the debugger"
        return f"raised {'an error' if self.error is None else self.error.summary}"

    @property
    def has_mismatched(self) -> bool:
        """It raised because it saw a mismatch."""
        return self.state == "raised" and bool(self.mismatches)


class Known(dict[Rank, RankView]):
    """What is known of each rank of a pool.

    Of any other number nothing is known: members of a group come from what a rank has told, and it
    may name processes that are no ranks of the pool.
    """

    def __missing__(self, rank: Rank) -> RankView:
        return RankView(rank=rank, state="silent")


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
        seen = (*view.operations, *(view.look.operations if view.look else ()))
        for operation in sorted(seen, key=lambda each: each.record_id):
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
        self._stumbles = [each for each in self._collectives.values() if is_stumble(each)]
        #: Older operations were left out. Records count from 1.
        self.is_cut = max(self.operations, default=0) > len(self.operations)

    def add_mismatched(self, operation: Operation) -> None:
        """An operation that only a mismatch tells of."""
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
        """The last operation, of a group and in a run if they are given."""
        for operation in reversed(self.operations.values()):
            if pg_id in (None, operation.pg_id) and run_id in (None, operation.run_id):
                return operation
        return None

    # --- collectives ---------------------------------------------------------------------------

    def collective(self, pg_id: str, seq: int) -> Operation | None:
        """One collective that was really issued, if it is still known."""
        found = self._collectives.get((pg_id, seq))
        return None if found is None or is_stumble(found) else found

    def has_joined(self, pg_id: str, seq: int) -> bool:
        """Its part in a collective is done, or is being done without its help."""
        found = self._collectives.get((pg_id, seq))
        if self.is_dead:
            if found is not None:
                return found.state == "completed"
            # Everything open is known, so what came before something known was complete.
            known = [number for group, number in self._collectives if group == pg_id]
            return max(known, default=0) > seq or (self.is_cut and not known)
        if found is not None:
            return found.state != "failed"
        info = self._groups.get(pg_id)
        return info is not None and info.collective_seq_id >= seq

    def stumbles(self, pg_id: str, run_id: str, before: int) -> int:
        """Calls in a run that used up a number and never reached the others.

        The numbers of this rank are then shifted against those of the others.
        """
        return sum(
            (each.pg_id, each.run_id) == (pg_id, run_id) and each.collective_seq_id < before
            for each in self._stumbles
        )

    # --- creations -----------------------------------------------------------------------------

    def has_created(self, wanted: Operation, clock: str = "") -> bool:
        """It has called the function that makes this group.

        Args:
            wanted: the call of another rank.
            clock: of that rank, see `RankLook.clock`.
        """
        found = self._creations.get(wanted.pg_id)
        if found is not None:
            is_comparable = bool(clock) and clock == self.clock
            if is_comparable and 0 < found.time_completed_ns < wanted.time_created_ns:
                return False  # that group was whole before this call, and so is another one
            return found.state == "completed" or (found.state == "scheduled" and not self.is_dead)
        if self.is_dead and self.is_cut:
            return True
        name = group_name_of(wanted.pg_id)
        members = wanted.signature.keys
        return any(
            group.pg_id == wanted.pg_id
            or (self.is_cut and group.name == name and tuple(map(str, group.ranks)) == members)
            for group in self._groups.values()
        )

    def makes(self, wanted: Operation) -> bool:
        """Whether this rank makes a group like that of another rank's call, or has in its cell."""
        return any(
            each.run_id == wanted.run_id
            and each.state in ("scheduled", "completed")
            and each.signature == wanted.signature
            and group_name_of(each.pg_id) == group_name_of(wanted.pg_id)
            for each in self._creations.values()
        )

    # --- messages ------------------------------------------------------------------------------

    def messages(
        self, kind: Literal["send", "recv"], pg_id: str, peer: int, tag: int
    ) -> list[Operation]:
        """Messages of one direction that did not fail; peer -1: receives from any source."""
        return [
            each
            for each in self.operations.values()
            if each.signature.kind == kind
            and (each.pg_id, each.peer, each.tag) == (pg_id, peer, tag)
            and each.state != "failed"
            and not (self.is_dead and each.state == "scheduled")
        ]

    def may_have_messages_left_out(self, pg_id: str, number: int = 1) -> bool:
        """Messages with this number, or higher ones, may be among what was left out."""
        if not self.is_cut:
            return False
        info = self._groups.get(pg_id)
        return info is None or info.p2p_seq_id >= number

    def count(self, kind: Literal["send", "recv"], pg_id: str, peer: int, tag: int) -> int | None:
        """How many messages it has issued since the group was formed; None: it did not tell."""
        info = self._groups.get(pg_id)
        if info is None or info.messages is None:
            return None
        numbers = (
            each.count
            for each in info.messages
            if (each.direction, each.peer, each.tag) == (kind, peer, tag)
        )
        return next(numbers, info.p2p_base) - info.p2p_base

    def number_now(self, received: Operation) -> int:
        """Which message of its sender an open receive can still get.

        A receive from any source that was issued before may have taken the one that was meant.
        """
        key = received.pg_id, received.peer, received.tag
        count = self.count("recv", *key)
        if count is None:
            return received.p2p_seq_id
        later = sum(
            each.state == "scheduled" and each.record_id > received.record_id
            for each in self.messages("recv", *key)
        )
        base = self._groups[received.pg_id].p2p_base
        return max(received.p2p_seq_id, base + count - later)

    def _has_failed(
        self, kind: Literal["send", "recv"], pg_id: str, peer: int, tag: int, number: int
    ) -> bool:
        """Its part in this very message has failed, and was not tried again."""
        found = [
            each.state
            for each in self.operations.values()
            if each.signature.kind == kind
            and (each.pg_id, each.peer, each.tag, each.p2p_seq_id) == (pg_id, peer, tag, number)
        ]
        return found[-1:] == ["failed"]

    def has_sent(self, pg_id: str, to: int, tag: int, number: int) -> bool:
        """It has sent the message with this number, or one that is still to be taken."""
        sent = self.messages("send", pg_id, to, tag)
        count = self.count("send", pg_id, to, tag)
        if count is not None:
            is_told = count >= number - self._groups[pg_id].p2p_base
            return is_told and not self._has_failed("send", pg_id, to, tag, number)
        if sent:
            return any(each.state == "scheduled" or each.p2p_seq_id >= number for each in sent)
        return self.may_have_messages_left_out(pg_id, number)

    def has_received(self, pg_id: str, source: int, tag: int, number: int) -> bool:
        """It has asked for the message with this number, or for one that is still to come."""
        exact = self.messages("recv", pg_id, source, tag)
        of_any = self.messages("recv", pg_id, -1, tag)
        count = self.count("recv", pg_id, source, tag)
        if count is not None:
            if any(each.state == "scheduled" for each in of_any):
                return True
            is_told = count >= number - self._groups[pg_id].p2p_base
            return is_told and not self._has_failed("recv", pg_id, source, tag, number)
        if any(each.state == "scheduled" for each in (*exact, *of_any)):
            return True
        if not exact and not of_any:
            return self.may_have_messages_left_out(pg_id, number)
        # A receive from any source may have taken any number; both count from a common base.
        numbers = [max((each.p2p_seq_id for each in side), default=0) for side in (exact, of_any)]
        return sum(numbers) >= number


def is_stumble(operation: Operation) -> bool:
    """The call failed before it reached the others: a bad argument, mostly."""
    return (
        operation.state == "failed"
        and operation.waited_ns == 0
        and error_name(operation.error) != _MISMATCH_ERROR
    )
