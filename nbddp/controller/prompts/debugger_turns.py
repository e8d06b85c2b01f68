"""The turns of ranks whose debuggers are at a prompt: the user is asked for one rank at a time.

Runs in: the thread that waits for the cell. Pure: ``now`` comes in (monotonic seconds).

The prompt stays on a rank until the user chooses another one, or the rank goes on. After a command
the rank is awaited: its answer comes before the next prompt. A rank that waits for another one
cannot come back before the user has answered for that one, so the prompt then moves on.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from nbddp.controller.diagnosis import PerRank, Predicate, RankVerb, Report
from nbddp.controller.prompts.debugger_commands import (
    HELP,
    HELP_ALONE,
    Forward,
    ListRanks,
    ShowHelp,
    Switch,
    parse,
)
from nbddp.wire.flight_recorder import Site
from nbddp.wire.messages import InputRequest
from nbddp.wire.rank_set import Rank, RankSet, ranks_by

#: The first prompt waits this long for other ranks that may be about to come to a breakpoint.
_TOGETHER_S = 1.0
#: A rank that still runs this long after a command is left behind, if another one is at a prompt.
_PATIENCE_S = 3.0
#: The same for a rank that waits for other ranks: it may have been freed since it was seen.
_WAITING_S = 0.3
_AT_PROMPT = Predicate(RankVerb.IS, " at a prompt")


@dataclass(frozen=True)
class Turn:
    """The prompt to show next, and the lines before it."""

    request: InputRequest
    number: int  #: of the event with the request
    tells: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """The effects of a line that the user has typed."""

    replies: tuple[tuple[InputRequest, str], ...] = ()
    tells: tuple[str, ...] = ()
    wants_list: bool = False  #: show `DebuggerTurns.listing`


class DebuggerTurns:
    """The open prompts of the debuggers of one cell.

    Args:
        ranks: ranks that run the cell.
    """

    def __init__(self, ranks: RankSet) -> None:
        self._inside = set(ranks)
        #: By rank and number, because several threads of a rank may be at a prompt.
        self._open: dict[tuple[Rank, int], Turn] = {}
        self._current: Rank | None = None
        self._goes_on = ""  #: the last thing known of the current rank, while it is at no prompt
        self._ask_at = 0.0
        self._awaited: set[Rank] = set()
        self._awaited_until = 0.0
        self._moving: set[Rank] = set()  #: ranks that have not come back after a command
        self._late: dict[Rank, str] = {}  #: the line that ends the debugger of a rank that moves
        self._expected: set[Rank] = set()  #: ranks whose debuggers the user has opened one by one
        self._opened: set[Rank] = set()  #: ranks that are in such a debugger
        #: Ranks whose output is held back, so that it is shown together and in their order.
        self.gathered = RankSet()
        self._repeated: Forward | None = None  #: the command for all that an empty line repeats
        self._tells: list[str] = []
        self._meets_again = False  #: all ranks have left their prompts and may come back together
        self._has_begun = False

    @property
    def ranks(self) -> RankSet:
        """The ranks at a prompt."""
        return RankSet.of({rank for rank, _ in self._open})

    # --- what ranks do ---------------------------------------------------------------------------

    def add(self, request: InputRequest, number: int, now: float) -> str:
        """Note that a debugger asks.

        Args:
            request: of the debugger.
            number: of the event with it; see `drop`.
            now: the time.

        Returns:
            The answer, if the user has ended all debuggers before the rank had come back: it may
            have waited in a collective that only the commands of other ranks completed. Else "".
        """
        self._moving.discard(request.rank)
        if request.rank in self._late:
            return self._late.pop(request.rank)
        if not self._open:
            self._ask_at = now + _TOGETHER_S
        self._open[request.rank, request.question] = Turn(request, number)
        self._come_back(request.rank)
        # Others do not come together with a rank whose debugger the user has opened.
        is_expected = request.rank in self._expected
        if is_expected:
            self._opened.add(request.rank)
        self._expected.discard(request.rank)
        if is_expected or self._inside.issubset(self.ranks):
            self._ask_at = now
        return ""

    def expect(self, rank: Rank) -> None:
        """Note that the user has opened the debugger of this rank."""
        self._expected.add(rank)

    def leave(self, rank: Rank) -> None:
        """Note that a rank has ended the cell."""
        self._inside.discard(rank)
        self._moving.discard(rank)
        self._late.pop(rank, None)
        self._opened.discard(rank)
        self._open = {key: turn for key, turn in self._open.items() if key[0] != rank}
        if rank == self._current and rank in self._awaited:
            self._goes_on = "has ended the cell"
        self._come_back(rank)

    def note(self, report: Report | None, now: float) -> None:
        """Take from a report which ranks wait for others."""
        places = {} if report is None else report.ranks
        waits = {
            rank: place.what
            for rank, place in places.items()
            if place.predicate.verb is RankVerb.WAITS and rank not in self.ranks
        }
        if self._inside <= {*self.ranks, *waits}:
            self._ask_at = min(self._ask_at, now + _WAITING_S)
        if self._awaited and self._awaited <= waits.keys():
            self._awaited_until = min(self._awaited_until, now + _WAITING_S)
            if self._current in waits and self._current in self._awaited:
                self._goes_on = waits[self._current]

    def be_patient(self, now: float) -> None:
        """Note that the user has answered a question of the program, which may take part in it."""
        self._awaited_until = now + _PATIENCE_S

    def drop(self, up_to: int) -> list[InputRequest]:
        """Drop the prompts of events up to this number, which an interrupt has ended."""
        ended = {key: turn for key, turn in self._open.items() if turn.number <= up_to}
        self._meets_again |= bool(ended)
        self._opened -= {rank for rank, _ in ended}
        self._open = {key: turn for key, turn in self._open.items() if key not in ended}
        return [turn.request for turn in ended.values()]

    # --- what comes next -------------------------------------------------------------------------

    def due(self, now: float) -> Turn | None:
        """The turn that is due; None: no rank is at a prompt, or one is awaited."""
        when = self.due_at()
        if when is None or now < when:
            return None
        self._awaited.clear()
        self.gathered = RankSet()
        self._meets_again = False
        current = self._current
        rank = current if current is not None and current in self.ranks else self._next()
        turn = self._turn_of(rank)
        tells, self._tells = self._tells, []
        if not self._has_begun and len(self.ranks) > 1:
            tells.append(
                f"{self.ranks.describe()} are at a prompt; this is rank {rank}. Also: "
                f"`rank {self.ranks.ranks[-1]}`, `ranks`, `all c`; see `help`"
            )
        elif current not in (None, rank):
            tells.append(f"rank {current} {self._goes_on}; the prompt is on {_at(turn.request)}")
        self._has_begun = True
        self._goes_on = ""
        self._current = rank
        return Turn(turn.request, turn.number, tuple(tells))

    def due_at(self) -> float | None:
        """The time of the next turn, if nothing comes before; None: there is none."""
        if not self._open:
            return None
        if self._awaited:
            return self._awaited_until
        return 0.0 if self._current in self.ranks and not self._meets_again else self._ask_at

    def is_awaiting(self, now: float) -> bool:
        """Whether ranks that have a command of the user are expected back at their prompts."""
        return bool(self._awaited) and now < self._awaited_until

    # --- what the user says ----------------------------------------------------------------------

    def answer(self, line: str, now: float) -> Answer:
        """Take the line that the user has typed at the prompt of the last turn."""
        repeated, self._repeated = self._repeated, None
        command = parse(line) if repeated is None or line.strip() else repeated
        match command:
            case Switch(rank):
                return Answer(tells=(self._switch(rank),))
            case ListRanks():
                return Answer(wants_list=True)
            case ShowHelp():
                return Answer(tells=(self._help(),))
            case Forward():
                return Answer(self._forward(command, now))

    def close(self) -> list[InputRequest]:
        """Take all open requests: no user can be asked."""
        requests = [turn.request for turn in self._open.values()]
        self._open.clear()
        self._current = None
        return requests

    def listing(self, others: Mapping[Rank, PerRank]) -> str:
        """Return what each rank does, ranks with the same text in one line.

        Args:
            others: what ranks do that are at no prompt.
        """
        places: list[tuple[tuple[Predicate, str], Rank]] = []
        for rank in sorted({*self.ranks, *others}):
            if rank in self.ranks:
                predicate, line = _AT_PROMPT, _place(self._turn_of(rank).request.debugger)
            else:
                predicate, site = others[rank].predicate, others[rank].site
                line = "" if site is None else _place(site)
            places.append(((predicate, line), rank))
        rows = [
            (ranks.describe(), ", ".join(filter(None, (predicate.describe(len(ranks)), line))))
            for (predicate, line), ranks in ranks_by(places).items()
        ]
        width = max(len(names) for names, _ in rows)
        lines = [f"{names.ljust(width)}  {text}" for names, text in rows]
        return "\n".join([*lines, f"the prompt is on rank {self._current}"])

    # --- parts -----------------------------------------------------------------------------------

    def _forward(self, command: Forward, now: float) -> tuple[tuple[InputRequest, str], ...]:
        ranks = self.ranks if command.to_all else [self._current]
        requests = [self._turn_of(rank).request for rank in ranks if rank is not None]
        if command.asks_for_help:
            self._tells.append(self._help())
        if command.ends_debugger:
            if self._is_alone:
                self._current = None  # the prompt is with all ranks again
            self._opened -= {request.rank for request in requests}
        for request in requests:
            del self._open[request.rank, request.question]
        self._goes_on = command.leaves or "still runs"
        if command.leaves and command.to_all:
            self._late = dict.fromkeys(self._moving, command.text)
        if not command.leaves:
            self._moving |= {request.rank for request in requests}
            self._awaited = {request.rank for request in requests}
            self._awaited_until = now + _PATIENCE_S
        if command.to_all:
            self.gathered = RankSet.of(self._awaited)
            self._meets_again = not self._awaited
            self._repeated = command
        return tuple((request, command.text) for request in requests)

    def _switch(self, rank: Rank) -> str:
        if rank not in self.ranks and self._is_alone:
            return (
                f"this debugger looks at rank {self._current} alone. Next: q comes back to the "
                f"prompt of all ranks; there: rank {rank}"
            )
        if rank not in self.ranks:
            return f"rank {rank} is at no prompt; {_are(self.ranks)}"
        self._current = rank
        return f"the prompt is on {_at(self._turn_of(rank).request)}"

    @property
    def _is_alone(self) -> bool:
        """Whether the only prompt is that of a debugger opened from the prompt of all ranks."""
        return self.ranks.ranks == (self._current,) and self._current in self._opened

    def _help(self) -> str:
        return HELP_ALONE.format(rank=self._current) if self._is_alone else HELP

    def _next(self) -> Rank:
        """The next rank at a prompt in the order of ranks; after the last one the first."""
        ranks = self.ranks.ranks
        last = -1 if self._current is None else self._current
        return next((rank for rank in ranks if rank > last), ranks[0])

    def _turn_of(self, rank: Rank) -> Turn:
        """The newest prompt of a rank: that of the thread that was asked before."""
        return self._open[max(key for key in self._open if key[0] == rank)]

    def _come_back(self, rank: Rank) -> None:
        self._awaited.discard(rank)
        if not self._awaited:
            self.gathered = RankSet()


def _are(ranks: RankSet) -> str:
    return f"{ranks.describe()} {ranks.verb('is', 'are')}"


def _at(request: InputRequest) -> str:
    return f"rank {request.rank}, {_place(request.debugger)}"


def _place(site: Site | None) -> str:
    if site is None or not site.line:
        return "at an unknown line"
    return f"at {site}: `{site.source}`" if site.source else f"at {site}"
