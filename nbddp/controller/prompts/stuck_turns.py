"""One prompt for all ranks of a cell that is deadlocked, before anybody is freed.

Runs in: the thread that waits for the cell. Pure. ``on_deadlock=debug`` opens it. Each rank asks
from a thread of its own, also a rank that is not blocked, but runs the code for which others wait,
or has ended the cell.
"""

from collections.abc import Mapping
from dataclasses import replace

from msgspec import structs

from nbddp.controller.diagnosis import TITLES, PerRank, Report
from nbddp.controller.prompts.operation_rows import OperationRow
from nbddp.controller.prompts.step_turns import PromptKind, StepAnswer, StepPrompt, StepTurns
from nbddp.controller.prompts.stuck_commands import parse_stuck
from nbddp.wire.mesh_ranks import MeshesByRank
from nbddp.wire.messages import InputRequest
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet, ranks_by_value
from nbddp.wire.step_replies import RUNS

_HINT = "no rank is freed yet: print EXPR looks at each; free ends it; help lists all commands"
_HALF_WRITTEN = "a tensor of an unfinished operation may be half written"
#: Deadlocks in which ranks wait in a collective.
_COLLECTIVE = ("missing-rank", "group-cycle", "mismatched-collective")
_AT_DEADLOCK = PromptKind(parse_stuck, (_HINT,), are_stopped=False)


class StuckTurns:
    """The prompt for the deadlocks of one cell; its arguments are those of `StepTurns`."""

    def __init__(self, ranks: RankSet, world_size: int, meshes: MeshesByRank) -> None:
        self._turns = StepTurns(ranks, world_size, meshes, _AT_DEADLOCK)
        #: A verdict is to be shown: `nbddp.controller.recovery.cell_recovery` frees nobody.
        self.is_held = False
        self._headline = ""
        self._prompt = ""
        self._asked = NO_RANKS  #: ranks that the last command was for
        self._finished: dict[Rank, str] = {}  #: with the class of the error; empty: none
        self._shows_values = False  #: the last command was about values

    def hold(self, report: Report) -> None:
        """Note the verdict that the next prompts are about."""
        self.is_held = True
        finding = report.proven[0]
        is_written = finding.kind in _COLLECTIVE and "barrier" not in finding.op
        self._turns.renew((_HINT, _HALF_WRITTEN) if is_written else (_HINT,))
        self._prompt = f"({TITLES[finding.kind].lower()}) "
        self._headline = f"{TITLES[finding.kind]}: {finding.clause}."

    # --- what ranks do ---------------------------------------------------------------------------

    def add(self, request: InputRequest, number: int, now: float) -> None:
        """See `StepTurns.add`."""
        self._turns.add(request, number, now)

    def leave(self, rank: Rank, now: float, failure: str = "") -> None:
        """Note that a rank has ended the cell; it can still be asked.

        Args:
            rank: the rank.
            now: the time.
            failure: the class of its error; empty: it has ended well.
        """
        self._finished[rank] = failure
        self._turns.finish(rank, now)

    def lose(self, rank: Rank, now: float) -> None:
        """Note that the process of a rank has ended."""
        self._finished.pop(rank, None)
        self._turns.leave(rank, now, "")

    def drop(self, up_to: int) -> list[InputRequest]:
        """Drop the requests that an interrupt has ended; it frees the ranks."""
        dropped = self._turns.drop(up_to)
        return [*dropped, *self.close()] if dropped else []

    def close(self) -> list[InputRequest]:
        """Take all open requests: the ranks are freed."""
        self.is_held = False
        return self._turns.close()

    @property
    def gathered(self) -> RankSet:
        """See `StepTurns.gathered`."""
        return self._turns.gathered

    @property
    def finished(self) -> RankSet:
        """Ranks that have ended the cell, and can still be asked."""
        return RankSet.of(self._finished)

    # --- what comes next -------------------------------------------------------------------------

    def due(self, now: float) -> StepPrompt | None:
        """The prompt that is due, see `StepTurns.due`.

        It names ranks that do not answer, and those whose answer is not from inside the cell.
        """
        prompt = self._turns.due(now)
        if prompt is None:
            return None
        asked, self._asked = set(self._asked), NO_RANKS
        late = RankSet.of(asked & set(self._turns.absent))
        tells = []
        if self._shows_values and asked - self._finished.keys():
            tells = self._from_after(RankSet.of(asked & self._finished.keys() - set(late)))
        if late:
            tells.append(f"{late.describe()} {late.verb('has', 'have')} not answered yet")
        request = structs.replace(prompt.request, prompt=self._prompt)
        return replace(prompt, request=request, tells=(*prompt.tells, *tells))

    def _from_after(self, ranks: RankSet) -> list[str]:
        """Say that the values of ranks are from after the cell."""
        tells = []
        by_failure = ranks_by_value({rank: self._finished[rank] for rank in ranks})
        for failure, some in by_failure.items():
            end = (
                f"raised {failure}" if failure else f"{some.verb('has', 'have')} finished the cell"
            )
            values = some.verb("its value is", "their values are")
            tells.append(
                f"{some.describe()} {end}: {values} from after {'that' if failure else 'it'}"
            )
        return tells

    def due_at(self) -> float | None:
        """See `StepTurns.due_at`."""
        return self._turns.due_at()

    @property
    def needs_others(self) -> bool:
        """See `StepTurns.needs_others`."""
        return self._turns.needs_others

    def table(self, others: Mapping[Rank, PerRank]) -> str:
        """Return the headline of the verdict, and below it what each rank does."""
        return f"{self._headline}\n{self._turns.table(others)}"

    def rows(self, others: Mapping[Rank, PerRank]) -> tuple[OperationRow, ...]:
        """See `StepTurns.rows`."""
        return self._turns.rows(others)

    def answer(self, line: str, now: float) -> StepAnswer:
        """Take the line that the user has typed."""
        answer = self._turns.answer(line, now)
        if answer.frees is not None:
            self.is_held = False
        self._asked = RankSet.of(request.rank for request, _ in answer.replies)
        self._shows_values = any(reply.verb in RUNS for _, reply in answer.replies)
        return answer
