"""Ranks as programs, run by a small scheduler that knows what can happen next.

Every operation is a rendezvous: a collective completes when all members have issued it, a message
when both ends have. The diagnosis sees the state of the scheduler as looks only; the true outcome
is found by running until nothing moves any more.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from nbddp.controller.diagnosis.rank_view import RankView
from nbddp.controller.diagnosis.report import RankStatus
from nbddp.wire.flight_recorder.schema import (
    GroupInfo,
    MessageCount,
    Operation,
    OperationState,
    RankLook,
    Signature,
    ThreadLook,
    Wait,
)

Kind = Literal["collective", "send", "recv", "set", "get", "wait", "backward", "raise", "die"]


@dataclass(frozen=True)
class Step:
    """One line of a program."""

    kind: Kind
    group: str = ""
    op: str = "all_reduce"
    peer: int = -1
    tag: int = 0
    is_async: bool = False
    key: str = ""


@dataclass(eq=False)
class Issued:
    """An operation that a rank has issued."""

    rank: int
    record: int
    step: Step
    seq: int
    is_done: bool = False
    state: OperationState = "scheduled"  #: as the rank has noticed
    source: int = -1  #: where a message came from

    @property
    def operation(self) -> Operation:
        step = self.step
        kind = "store" if step.kind == "get" else step.kind
        is_message = kind in ("send", "recv")
        return Operation(
            record_id=self.record,
            pg_id=step.group,
            signature=Signature(
                kind=kind,  # type: ignore[arg-type]  # those that are issued
                op=step.op if kind == "collective" else kind,
                keys=(step.key,) if step.key else (),
            ),
            state=self.state,
            collective_seq_id=0 if is_message or kind == "store" else self.seq,
            p2p_seq_id=self.seq if is_message else 0,
            peer=step.peer,
            tag=step.tag,
            async_op=step.is_async,
            run_id="run",
        )


@dataclass(eq=False)
class Thread:
    """A thread of a rank and its program."""

    name: str
    program: list[Step]
    at: int = 0
    handles: list[Issued] = field(default_factory=list)
    waits: list[Issued] = field(default_factory=list)
    is_pending: bool = False
    told: list[Issued] = field(default_factory=list)  #: what a look says that it waits for
    has_ended: bool = False

    @property
    def can_move(self) -> bool:
        return not self.has_ended and all(each.is_done for each in self.waits)


@dataclass(eq=False)
class Rank:
    """A rank and its threads."""

    rank: int
    threads: list[Thread]
    status: RankStatus = "running"
    issued: list[Issued] = field(default_factory=list)
    counts: dict[tuple[Any, ...], int] = field(default_factory=dict)
    version: int = 0

    def has_heard(self, issued: Issued) -> None:
        """It notices that an operation has ended."""
        if issued.state == "scheduled":
            issued.state = "completed"
            step = issued.step
            if step.kind == "recv" and step.peer < 0:
                # From now on it counts as a receive from this very rank.
                key = ("recv", step.group, issued.source, step.tag)
                self.counts[key] = self.counts.get(key, 0) + 1

    @property
    def position(self) -> list[tuple[int, bool]]:
        """A number that changes whenever a thread moves."""
        return [(thread.at, bool(thread.waits)) for thread in self.threads]


class World:
    """All ranks, and what is under way between them."""

    def __init__(
        self,
        groups: dict[str, tuple[int, ...]],
        programs: list[list[Step]],
        seed: int,
        *,
        others: dict[int, list[Step]] | None = None,
    ) -> None:
        self.groups = groups
        self.random = random.Random(seed)
        self.keys: set[str] = set()
        self.tells_counts = True  #: of messages; a rank with very many tags does not
        self.ranks = []
        for rank, program in enumerate(programs):
            threads = [Thread("main", program)]
            if others and rank in others:
                threads.append(Thread("other", others[rank]))
            self.ranks.append(Rank(rank, threads))

    # --- running -------------------------------------------------------------------------------

    def movable(self) -> list[tuple[Rank, Thread]]:
        return [
            (rank, thread)
            for rank in self.ranks
            if rank.status != "dead"
            for thread in rank.threads
            if thread.can_move and (thread.name != "main" or rank.status == "running")
        ]

    def run(self, steps: int | None = None) -> None:
        """Run for a number of steps, or until nothing moves."""
        while steps is None or steps > 0:
            movable = self.movable()
            if not movable:
                return
            self.move(*self.random.choice(movable))
            if steps is not None:
                steps -= 1

    def move(self, rank: Rank, thread: Thread) -> None:
        rank.version += 1
        if thread.waits:
            for each in thread.waits:
                rank.has_heard(each)
            thread.waits, thread.told, thread.is_pending = [], [], False
        elif thread.at >= len(thread.program):
            self._end(rank, thread, "finished")
        else:
            step = thread.program[thread.at]
            thread.at += 1
            self._do(rank, thread, step)

    def _end(self, rank: Rank, thread: Thread, status: RankStatus) -> None:
        thread.has_ended = True
        if thread.name == "main":
            rank.status = status

    def _do(self, rank: Rank, thread: Thread, step: Step) -> None:
        match step.kind:
            case "raise":
                self._end(rank, thread, "raised")
            case "die":
                self.notice(rank)
                rank.status = "dead"
            case "set":
                self.keys.add(step.key)
                for each in self._open():
                    each.is_done |= each.step.key in self.keys
            case "wait":
                if thread.handles:
                    thread.waits = thread.told = [thread.handles.pop(0)]
            case "backward":
                # It needs its own operations; what is open on the rank is all that can be told.
                thread.waits, thread.handles = thread.handles, []
                if thread.waits:
                    thread.is_pending = True
                    thread.told = [each for each in rank.issued if each.state == "scheduled"]
            case _:
                issued = self._issue(rank, step)
                if step.is_async:
                    thread.handles.append(issued)
                else:
                    thread.waits = thread.told = [issued]

    def _issue(self, rank: Rank, step: Step) -> Issued:
        key = (
            ("collective", step.group)
            if step.kind == "collective"
            else (step.kind, step.group, step.peer, step.tag)
        )
        rank.counts[key] = rank.counts.get(key, 0) + 1
        issued = Issued(rank.rank, len(rank.issued) + 1, step, rank.counts[key])
        rank.issued.append(issued)
        match step.kind:
            case "collective":
                self._meet(issued)
            case "get":
                issued.is_done = step.key in self.keys
            case _:
                self._match(issued)
        return issued

    def _open(self) -> list[Issued]:
        return [
            each
            for rank in self.ranks
            if rank.status != "dead"
            for each in rank.issued
            if not each.is_done
        ]

    def _meet(self, issued: Issued) -> None:
        together = [
            each
            for each in self._open()
            if (each.step.kind, each.step.group, each.seq)
            == ("collective", issued.step.group, issued.seq)
        ]
        have_all_come = {each.rank for each in together} == set(self.groups[issued.step.group])
        if have_all_come and len({each.step.op for each in together}) == 1:
            for each in together:
                each.is_done = True

    def _match(self, issued: Issued) -> None:
        """The oldest of each source; a receive from any source takes one of them."""
        step = issued.step
        candidates: dict[int, Issued] = {}
        for each in self._open():
            other = each.step
            if (other.group, other.tag) != (step.group, step.tag) or other.kind == step.kind:
                continue
            if {other.kind, step.kind} != {"send", "recv"}:
                continue
            if step.peer in (each.rank, -1) and other.peer in (issued.rank, -1):
                candidates.setdefault(each.rank, each)
        if candidates:
            partner = self.random.choice(list(candidates.values()))
            partner.is_done = issued.is_done = True
            partner.source, issued.source = issued.rank, partner.rank

    def notice(self, rank: Rank) -> None:
        """The rank checks which of its operations have ended; a dead rank does not."""
        for each in rank.issued if rank.status != "dead" else ():
            if each.is_done and each.state == "scheduled":
                rank.has_heard(each)
                rank.version += 1

    def wake(self) -> None:
        """Ranks that wait for a key that is set have received it.

        Only the store knows of keys; a verdict on them gets time to be disproved, see
        `Report.confirm_after_s`.
        """
        for rank, thread in self.movable():
            if any(each.step.kind == "get" for each in thread.waits):
                self.move(rank, thread)

    # --- what is seen --------------------------------------------------------------------------

    def look(self, rank: Rank, last: int | None = None) -> RankLook:
        """The rank's own description, with the ``last`` newest operations and all open ones."""
        cut = 0 if last is None else len(rank.issued) - last
        threads = []
        for thread in rank.threads:
            if thread.has_ended and thread.name != "main":
                continue
            kind: Literal["pending", "operation"] = "pending" if thread.is_pending else "operation"
            wait = Wait(kind=kind, record_ids=tuple(x.record for x in thread.told), since_ns=0)
            is_main = thread.name == "main"
            threads.append(
                ThreadLook(name=thread.name, is_main=is_main, wait=wait if thread.waits else None)
            )
        return RankLook(
            rank=rank.rank,
            pid=1,
            activity="running" if rank.status == "running" else "idle",
            version=rank.version,
            time_ns=1,
            run_id="run",
            threads=tuple(threads),
            groups=tuple(self._info(rank, name) for name in self.groups),
            operations=tuple(
                each.operation
                for index, each in enumerate(rank.issued)
                if index >= cut or each.state == "scheduled"
            ),
        )

    def _info(self, rank: Rank, name: str) -> GroupInfo:
        messages = tuple(
            MessageCount(direction=key[0], peer=key[2], tag=key[3], count=count)
            for key, count in rank.counts.items()
            if key[0] in ("send", "recv") and key[1] == name
        )
        return GroupInfo.of(
            pg_id=name,
            name=name,
            ranks=self.groups[name],
            collective_seq_id=rank.counts.get(("collective", name), 0),
            p2p_seq_id=max((each.count for each in messages), default=0),
            messages=messages if self.tells_counts else None,
        )

    def view(self, rank: Rank, last: int | None = None) -> RankView:
        """The state of the rank as the controller knows it."""
        look = self.look(rank, last)
        if rank.status == "dead":
            return RankView(rank=rank.rank, state="dead", operations=look.operations)
        return RankView(rank=rank.rank, state=rank.status, look=look)

    def views(self, last: int | None = None) -> dict[int, RankView]:
        return {rank.rank: self.view(rank, last) for rank in self.ranks}


def silenced(views: dict[int, RankView], ranks: Iterable[int]) -> dict[int, RankView]:
    """Living ranks that do not answer; their agents have read their records."""
    found = dict(views)
    for rank in ranks:
        view = found.get(rank)
        if view is not None and view.look is not None:
            operations = view.look.operations
            found[rank] = replace(view, state="silent", look=None, operations=operations)
    return found
