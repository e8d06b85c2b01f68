"""One prompt for all ranks that have stopped before an operation.

Runs in: the thread that waits for the cell. Pure: ``now`` comes in (monotonic seconds).

The prompt comes when all ranks that were let go have stopped again, ended the cell, or wait for a
rank that is stopped; or after some seconds. Before it there is a table of what each rank is about
to do, ranks at the same place in one row.
"""

import itertools
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from nbddp.controller.diagnosis import (
    GroupRef,
    PerRank,
    Predicate,
    RankVerb,
    Report,
    describe_arguments,
    describe_call,
    iteration,
    place,
)
from nbddp.controller.prompts.operation_rows import OperationRow, OperationRows
from nbddp.controller.prompts.step_commands import (
    Compare,
    EndCell,
    Free,
    Hold,
    Look,
    Send,
    Sight,
    StepCommand,
    Tell,
    parse,
)
from nbddp.controller.prompts.step_refusals import (
    held_text,
    mismatch_lines,
    not_stopped_text,
    refusal,
)
from nbddp.wire.flight_recorder import Operation
from nbddp.wire.mesh_ranks import MeshesByRank
from nbddp.wire.messages import InputRequest
from nbddp.wire.rank_set import Rank, RankSet, ranks_by
from nbddp.wire.step_replies import RUNS, StepReply, StepVerb

#: A rank that still runs after this time is shown as it is, if another one has stopped.
_PATIENCE_S = 3.0
#: The first rank that stops is shown no earlier than this: others may be about to.
_TOGETHER_S = 1.0
#: The same, if all ranks that were let go wait for others: one may have been freed meanwhile.
_WAITING_S = 0.3


#: After these replies the program goes on.
_LETS_GO = (StepVerb.STEP, StepVerb.UNTIL, StepVerb.CONTINUE, StepVerb.SKIP)
_HINT = "step does these operations; print EXPR looks at each rank; help lists all commands"


@dataclass(frozen=True)
class PromptKind:
    """The difference between a prompt before operations and one at a deadlock."""

    parse: Callable[[str, int, MeshesByRank], StepCommand]  #: reads the lines of the user
    hints: tuple[str, ...]  #: lines after the first table
    are_stopped: bool  #: the requests say where their ranks have stopped


#: The prompt for ranks that have stopped before operations.
BEFORE_OPERATIONS = PromptKind(parse, (_HINT,), are_stopped=True)


@dataclass(frozen=True)
class StepPrompt:
    """The prompt to show next."""

    request: InputRequest  #: of the lowest rank that has stopped
    number: int  #: of the event with the newest request
    wants_table: bool  #: show `StepTurns.table` first
    tells: tuple[str, ...] = ()  #: lines after the table


@dataclass(frozen=True)
class StepAnswer:
    """The effects of a line that the user has typed."""

    replies: tuple[tuple[InputRequest, StepReply], ...] = ()
    tells: tuple[str, ...] = ()
    wants: Sight | None = None  #: show this; None: nothing
    ends_cell: bool = False
    frees: Free | None = None  #: free ranks that are held by a deadlock
    compares: tuple[str, RankSet] | None = None  #: an expression, and ranks at the prompt


class StepTurns:
    """The stops of one cell.

    Args:
        ranks: ranks that run the cell.
        world_size: number of ranks of the pool.
        meshes: the meshes that each rank has reported, of which ``-r`` may choose ranks.
        kind: of the prompt.
    """

    def __init__(
        self,
        ranks: RankSet,
        world_size: int,
        meshes: MeshesByRank,
        kind: PromptKind = BEFORE_OPERATIONS,
    ) -> None:
        self._ranks = ranks
        self._kind = kind
        self._inside = set(ranks)  #: ranks that have not ended the cell
        self._awaited = set(ranks)  #: ranks that can still be asked
        self._failures: dict[Rank, str] = {}  #: what ranks have raised; empty: they have exited
        self._world_size = world_size
        self._meshes = meshes
        #: By rank and number of the question, because several threads of a rank may stop.
        self._open: dict[tuple[Rank, int], tuple[InputRequest, int]] = {}
        self._due_at = 0.0
        self._waiting: set[Rank] = set()
        self._noticed: set[Rank] = set()  #: ranks that the last notice says to wait
        self._commands = itertools.count(1)
        self._held: set[Rank] = set()  #: ranks that only commands with ``-r`` let go
        self._debugged: set[Rank] = set()  #: ranks whose debugger is open
        #: Ranks that had not stopped when ``continue`` let all ranks go.
        self._continued: set[Rank] = set()
        #: The places of ranks that an interrupt has found at their stops.
        self._interrupted: dict[Rank, str] = {}
        #: The group and the number of the collective up to which ranks go by ``until``.
        self._aims: dict[Rank, tuple[str, int]] = {}
        #: The stops at which ranks were told to `retry`, until they go on.
        self._retried: dict[Rank, Operation] = {}
        self._rows = OperationRows()
        self._is_fresh = True  #: a table is due
        self._hints = kind.hints  #: lines that were not shown yet
        #: Ranks whose output is held back, so that it is shown together and in their order.
        self.gathered = RankSet()

    @property
    def ranks(self) -> RankSet:
        """The ranks that have stopped."""
        return RankSet.of({rank for rank, _ in self._open})

    @property
    def absent(self) -> RankSet:
        """The ranks that can still be asked, and have not stopped."""
        return RankSet.of(self._awaited - set(self.ranks))

    @property
    def needs_others(self) -> bool:
        """Whether `table` needs to know what ranks do that do not say it themselves."""
        return bool(self.absent or self._failures) or not self._kind.are_stopped

    # --- what ranks do ---------------------------------------------------------------------------

    def add(self, request: InputRequest, number: int, now: float) -> StepReply | None:
        """Note that a rank has stopped.

        Args:
            request: of the rank.
            number: of the event with it; see `drop`.
            now: the time.

        Returns:
            The answer, if ``continue`` has let all ranks go before the rank had stopped: it was
            inside an operation. None: the user is asked.
        """
        if request.rank in self._continued:
            if not request.break_points and request.mismatch is None:
                return StepReply(StepVerb.CONTINUE)
            self._continued.discard(request.rank)
        if not self._open:
            together_s = _TOGETHER_S if self._due_at else _PATIENCE_S
            self._due_at = max(self._due_at, now + together_s)
        self._open[request.rank, request.question] = request, number
        if request.stop is not None:
            self._rows.stop(request.rank, request.stop)
            self._aims.pop(request.rank, None)
        self._waiting.discard(request.rank)
        self._debugged.discard(request.rank)
        self._release(request.rank)
        self._see_if_all_are_there(now)
        return None

    def leave(self, rank: Rank, now: float, failure: str | None = None) -> None:
        """Note that a rank has ended the cell, and cannot be asked.

        Args:
            rank: the rank.
            now: the time.
            failure: the class of its error; empty: it has exited; None: it has ended well.
        """
        if failure is not None:
            self._failures[rank] = failure
            self._aims.pop(rank, None)
            self.be_patient(now)  # ranks that wait for it are freed, and may be at their stop
        self._inside.discard(rank)
        self._waiting.discard(rank)
        self._awaited.discard(rank)
        self._rows.leave(rank, has_failed=failure is not None)
        self._open = {key: stop for key, stop in self._open.items() if key[0] != rank}
        self._debugged.discard(rank)
        self._release(rank)
        self._see_if_all_are_there(now)

    def be_patient(self, now: float) -> None:
        """Note that a rank goes on from its debugger, or has failed: others may end the cell."""
        self._due_at = max(self._due_at, now + _PATIENCE_S)
        self._see_if_all_are_there(now)

    def finish(self, rank: Rank, now: float) -> None:
        """Note that a rank has ended the cell, and can still be asked."""
        self._inside.discard(rank)
        self._see_if_all_are_there(now)

    def renew(self, hints: tuple[str, ...]) -> None:
        """Make a table due, with these lines after it."""
        self._is_fresh = True
        self._hints = hints

    def note(self, report: Report | None, now: float) -> None:
        """Take from a report which ranks wait for others."""
        places = {} if report is None else report.ranks
        self._noticed = {
            rank for rank, place in places.items() if place.predicate.verb is RankVerb.WAITS
        }
        self._waiting = self._noticed - set(self.ranks)
        are_there = self._inside <= {*self.ranks, *self._waiting}
        if self._waiting and are_there and not self._failures:
            self._due_at = min(self._due_at, now + _WAITING_S)

    def drop_notice(self) -> bool:
        """Whether the last notice is wrong by now: a rank that waited has stopped, or has ended.

        The notice that takes it back comes too late: nothing is shown while the user is asked.
        """
        is_old = not self._noticed <= self._waiting
        self._noticed &= self._waiting
        return is_old

    def drop(self, up_to: int) -> list[InputRequest]:
        """Drop the stops of events up to this number, which an interrupt has ended."""
        dropped = [request for request, number in self._open.values() if number <= up_to]
        for request in dropped:
            del self._open[request.rank, request.question]
        return dropped

    def note_interrupt(self) -> None:
        """Note that the cell is interrupted: KeyboardInterrupt is raised in the stopped ranks."""
        if not self._interrupted:
            stops = ((request.rank, request.stop) for request in self._requests())
            self._interrupted = {rank: place(stop.site) for rank, stop in stops if stop is not None}

    def caught(self, ranks: RankSet) -> tuple[str, ...]:
        """Return lines on ranks whose code has caught the interrupt; ``ranks`` have ended well."""
        by_place = ranks_by((self._interrupted.get(rank, ""), rank) for rank in ranks)
        return tuple(
            f"{some.describe()} ran on after the interrupt: it raised KeyboardInterrupt in "
            f"{where}, and the cell's code caught it. Next: catch Exception, which does not "
            "include KeyboardInterrupt, or raise it again"
            for where, some in by_place.items()
            if where
        )

    def end_groups(self, pg_ids: Collection[str]) -> list[InputRequest]:
        """Drop the stops before operations of groups whose ranks are freed: they raise errors."""
        dropped = [
            request
            for request, _ in self._open.values()
            if request.stop is not None and request.stop.pg_id in pg_ids
        ]
        for request in dropped:
            del self._open[request.rank, request.question]
        return dropped

    # --- what comes next -------------------------------------------------------------------------

    def due(self, now: float) -> StepPrompt | None:
        """The prompt that is due; None: no rank has stopped, or another one is awaited."""
        when = self.due_at()
        if when is None or now < when:
            return None
        self.gathered = RankSet()
        request = self._open[min(self._open)][0]
        number = max(number for _, number in self._open.values())
        wants_table, self._is_fresh = self._is_fresh, False
        hints, self._hints = self._hints, ()
        again = self._again() if wants_table else ()
        return StepPrompt(request, number, wants_table, (*again, *hints))

    def _again(self) -> tuple[str, ...]:
        """A line on ranks that a break point stops in the same place again, if there are any."""
        ranks = RankSet.of(
            request.rank
            for request in self._requests()
            if request.break_points
            and request.stop is not None
            and _is_again(request.stop, self._retried.get(request.rank))
        )
        if not ranks:
            return ()
        return (
            f"{ranks.describe()} {ranks.verb('stops', 'stop')} at the same operation again: "
            "`retry` made the call again, and step issues it",
        )

    def due_at(self) -> float | None:
        """The time of the next prompt, if nothing comes before; None: there is none."""
        return None if not self._open or self._debugged else self._due_at

    def table(self, others: Mapping[Rank, PerRank]) -> str:
        """Return what each rank does, ranks with the same text in one row.

        Args:
            others: what ranks do that have not stopped.
        """
        places = self._stops()
        for rank in sorted({*others, *self._ranks} - {rank for _, rank in places}):
            other = others.get(rank)
            has_failed = other is not None and other.status in ("raised", "dead")
            if rank not in self._inside and not has_failed:
                places.append(((self._end_of(rank), ""), rank))
            elif other is None:
                places.append(((Predicate(RankVerb.RUNS), ""), rank))
            else:
                places.append(((other.predicate, place(other.site)), rank))
        by_place = ranks_by(sorted(places, key=lambda pair: pair[1]))
        rows = [
            (ranks.describe(), predicate.describe(len(ranks)), where)
            for (predicate, where), ranks in by_place.items()
        ]
        names, middles = (max(len(row[column]) for row in rows) for column in (0, 1))
        return "\n".join(
            f"{name.ljust(names)}  {text.ljust(middles)}  {where}".rstrip()
            for name, text, where in rows
        )

    def _end_of(self, rank: Rank) -> Predicate:
        """How a rank has ended the cell."""
        failure = self._failures.get(rank)
        if failure is None:
            return Predicate(RankVerb.HAS_FINISHED)
        return Predicate(RankVerb.RAISED, f" {failure}") if failure else Predicate(RankVerb.EXITED)

    def rows(self, others: Mapping[Rank, PerRank]) -> tuple[OperationRow, ...]:
        """Return the last operations, with the progress of each rank; ``others`` as for `table`."""
        waiting = {
            rank
            for rank, other in others.items()
            if other.predicate.verb is RankVerb.WAITS and rank in self._inside
        }
        return self._rows.rows(waiting)

    def missed(self, ask: Callable[[], Mapping[Rank, Mapping[str, int]]]) -> tuple[str, ...]:
        """Return lines on collectives that ``until`` has named, and that never came.

        Args:
            ask: gives the number of the last collective of each group, by the ``pg_id``, on each
                rank, if it is needed; ranks and groups may be left out.
        """
        numbers = ask() if self._aims else {}
        ends = ranks_by(
            ((number, numbers.get(rank, {}).get(pg_id, 0)), rank)
            for rank, (pg_id, number) in sorted(self._aims.items())
        )
        return tuple(
            f"until {number}: {ranks.describe()} ended the cell before it"
            + (f"; the last collective of the group was #{last}" if last else "")
            for (number, last), ranks in ends.items()
        )

    def _stops(self) -> list[tuple[tuple[Predicate, str], Rank]]:
        """Return what each stopped rank is about to do, and where."""
        if not self._kind.are_stopped:
            return []
        return [
            (_at(request, is_held=request.rank in self._held), request.rank)
            for request, _ in self._open.values()
        ]

    # --- what the user says ----------------------------------------------------------------------

    def answer(  # noqa: PLR0911 - one per command
        self, line: str, now: float
    ) -> StepAnswer:
        """Take the line that the user has typed."""
        match self._kind.parse(line, self._world_size, self._meshes):
            case Look(sight):
                tells = mismatch_lines(self._requests()) if sight is Sight.WAITS else ()
                return StepAnswer(wants=sight, tells=tells)
            case Hold(ranks, is_over):
                return self._hold(ranks, is_over=is_over)
            case EndCell():
                return StepAnswer(ends_cell=True)
            case Free() as free:
                leave = StepReply(StepVerb.LEAVE)
                return StepAnswer(tuple((request, leave) for request in self.close()), frees=free)
            case Compare(expression, ranks):
                return self._compare(expression, self.ranks if ranks is None else ranks)
            case Tell(text):
                return StepAnswer(tells=(text,))
            case Send(reply, ranks):
                return self._send(reply, ranks, now)

    def close(self) -> list[InputRequest]:
        """Take all open requests: no user can be asked."""
        requests = self._requests()
        self._open.clear()
        return requests

    def _requests(self) -> list[InputRequest]:
        return [request for request, _ in self._open.values()]

    def _compare(self, expression: str, ranks: RankSet) -> StepAnswer:
        absent = RankSet.of(set(ranks) - set(self.ranks))
        if absent:
            return StepAnswer(tells=(self._absent_text(absent),))
        return StepAnswer(compares=(expression, ranks))

    def _hold(self, ranks: RankSet, *, is_over: bool) -> StepAnswer:
        self._held = self._held - set(ranks) if is_over else self._held | set(ranks)
        self._continued -= self._held
        held = RankSet.of(self._held)
        if not held:
            return StepAnswer(tells=("no rank is held",))
        return StepAnswer(
            tells=(
                f"{held.describe()} {held.verb('is', 'are')} held: only a command with -r, or "
                f"release, lets {held.verb('it', 'them')} go",
            )
        )

    def _send(self, reply: StepReply, chosen: RankSet | None, now: float) -> StepAnswer:
        lets_go = reply.verb in _LETS_GO
        ranks = self.ranks if chosen is None else chosen
        if lets_go and chosen is None:
            ranks = RankSet.of(set(ranks) - self._held)
            if not ranks:
                return StepAnswer(tells=(held_text(self.ranks),))
        absent = RankSet.of(set(ranks) - set(self.ranks))
        if absent:
            return StepAnswer(tells=(self._absent_text(absent),))
        if why := refusal(reply, [each for each in self._requests() if each.rank in ranks]):
            return StepAnswer(tells=(why,))
        if reply.verb in RUNS:
            reply = replace(reply, count=next(self._commands))
        self._is_fresh = lets_go or reply.verb is StepVerb.RETRY
        keys = [key for key in sorted(self._open) if key[0] in ranks]
        if not lets_go:  # one thread of each rank says it
            keys = list({rank: (rank, number) for rank, number in reversed(keys)}.values())
        requests = [self._open.pop(key)[0] for key in sorted(keys)]
        if reply.verb is StepVerb.CONTINUE and chosen is None:
            self._continued = set(self.absent) - self._held - self._aims.keys()
        for request in requests:
            self._note_reply(request, reply)
        self._due_at = now + _PATIENCE_S
        if reply.verb is StepVerb.DEBUG:
            self._debugged.update(ranks)
        elif not lets_go:
            self.gathered = ranks
        return StepAnswer(replies=tuple((request, reply) for request in requests))

    def _note_reply(self, request: InputRequest, reply: StepReply) -> None:
        """Note what a stopped rank does next."""
        if reply.verb in _LETS_GO:
            self._rows.let_go(request.rank, reply.verb)
            self._retried.pop(request.rank, None)
        elif reply.verb is StepVerb.RETRY:
            self._rows.take_back(request.rank)
            if request.stop is not None:
                self._retried.setdefault(request.rank, request.stop)
        if reply.verb is StepVerb.UNTIL and request.stop is not None:
            self._aims[request.rank] = request.stop.pg_id, reply.count

    def _absent_text(self, absent: RankSet) -> str:
        if not self._kind.are_stopped:
            return f"{absent.describe()} cannot be asked; {self.ranks.describe()} can"
        return not_stopped_text(absent, self.ranks)

    def _release(self, rank: Rank) -> None:
        if rank in self.gathered:
            self.gathered = RankSet.of(set(self.gathered) - {rank})

    def _see_if_all_are_there(self, now: float) -> None:
        if self._awaited <= {rank for rank, _ in self._open}:
            self._due_at = now


def _at(request: InputRequest, *, is_held: bool) -> tuple[Predicate, str]:
    """Return what a stopped rank is about to do, and where."""
    stop = request.stop
    assert stop is not None  # noqa: S101 - see `CellWait`
    signature = stop.signature
    shown = {
        "input_sizes": signature.input_sizes,
        "output_sizes": signature.output_sizes and not signature.input_sizes,
        "reduce_op": signature.reduce_op,
        "root": signature.root >= 0,
    }
    fields = [field for field, is_there in shown.items() if is_there]
    call = describe_arguments(signature, fields)
    where = f" at {iteration(stop)}" if stop.iteration else ""
    numbers = ", ".join(map(str, request.break_points))
    points = "break point" if len(request.break_points) == 1 else "break points"
    reason = f" ({points} {numbers})" if numbers else ""
    held = "held " if is_held else ""
    info = request.group
    group = ""
    if info is not None:
        group = f" in {GroupRef.of(info).label}"
    text = f"{held}before {stop.label(has_call=False)}{call}{group}{where}{reason}"
    if request.mismatch is not None:
        other = request.mismatch
        call = describe_call(other.theirs.signature, other.fields)
        text = f"{text}; rank {other.peer} called {call}"
    return Predicate(RankVerb.NONE, text), place(stop.site)


def _is_again(stop: Operation, retried: Operation | None) -> bool:
    """Whether the call of a retry has stopped in the place of the other; False: it made none."""
    return (
        retried is not None
        and stop.pg_id == retried.pg_id
        and stop.collective_seq_id == retried.collective_seq_id
        and stop.p2p_seq_id == retried.p2p_seq_id
        and stop.time_created_ns != retried.time_created_ns
    )
