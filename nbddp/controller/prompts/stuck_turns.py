"""One prompt for all ranks of a cell that is deadlocked, before anybody is freed.

Runs in: the thread that waits for the cell. Pure. ``on_deadlock=debug`` opens it. Each rank asks
from a thread of its own, also a rank that is not blocked, but runs the code for which others wait,
or has ended the cell.
"""

from collections.abc import Mapping

from nbddp.controller.diagnosis import TITLES, PerRank, Predicate, Report
from nbddp.controller.prompts.step_commands import StepCommand
from nbddp.controller.prompts.step_turns import StepAnswer, StepPrompt, StepTurns
from nbddp.controller.prompts.stuck_commands import parse_stuck
from nbddp.wire.mesh_ranks import MeshesByRank
from nbddp.wire.messages import InputRequest
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet

_HINT = "no rank is freed yet: print EXPR looks at each; free ends it; help lists all commands"
_HALF_WRITTEN = "a tensor of an unfinished operation may be half written"
#: Deadlocks in which ranks wait in a collective.
_COLLECTIVE = ("missing-rank", "group-cycle", "mismatched-collective")


class StuckTurns(StepTurns):
    """The prompt for the deadlocks of one cell; its arguments are those of `StepTurns`."""

    def __init__(self, ranks: RankSet, world_size: int, meshes: MeshesByRank) -> None:
        super().__init__(ranks, world_size, meshes)
        #: A verdict is to be shown: `nbddp.controller.recovery.cell_recovery` frees nobody.
        self.is_held = False
        self._headline = ""
        self._lost: set[Rank] = set()  #: ranks whose process has ended
        self._asked = NO_RANKS  #: ranks that the last command was for

    def hold(self, report: Report) -> None:
        """Note the verdict that the next prompts are about."""
        self.is_held = True
        self._is_fresh = True
        finding = report.proven[0]
        is_written = finding.kind in _COLLECTIVE and "barrier" not in finding.op
        self._hints = (_HINT, _HALF_WRITTEN) if is_written else (_HINT,)
        self._headline = f"{TITLES[finding.kind]}: {finding.clause}."

    def leave(self, rank: Rank, now: float, *, has_failed: bool = False) -> None:
        """Note that a rank has ended the cell; it can still be asked."""
        self._inside.discard(rank)
        self._see_if_all_are_there(now)

    def lose(self, rank: Rank, now: float) -> None:
        """Note that the process of a rank has ended."""
        self._lost.add(rank)
        super().leave(rank, now)

    @property
    def are_all_stopped(self) -> bool:
        """Whether all ranks answer."""
        return set(self._ranks) - self._lost <= set(self.ranks)

    def close(self) -> list[InputRequest]:
        """Take all open requests: the ranks are freed."""
        self.is_held = False
        return super().close()

    def drop(self, up_to: int) -> list[InputRequest]:
        """Drop the requests that an interrupt has ended; it frees the ranks."""
        dropped = super().drop(up_to)
        return [*dropped, *self.close()] if dropped else []

    def due(self, now: float) -> StepPrompt | None:
        """The prompt that is due, see `StepTurns.due`; it names ranks that do not answer."""
        prompt = super().due(now)
        if prompt is None:
            return None
        late = self._asked - self.ranks
        late, self._asked = RankSet.of(set(late) - self._lost), NO_RANKS
        if not late:
            return prompt
        text = f"{late.describe()} {late.verb('has', 'have')} not answered yet"
        return StepPrompt(prompt.request, prompt.number, prompt.wants_table, (*prompt.tells, text))

    @property
    def needs_others(self) -> bool:
        """True: the requests do not say what the ranks do."""
        return True

    def table(self, others: Mapping[Rank, PerRank]) -> str:
        """Return the headline of the verdict, and below it what each rank does."""
        return f"{self._headline}\n{super().table(others)}"

    def answer(self, line: str, now: float) -> StepAnswer:
        """Take the line that the user has typed."""
        answer = super().answer(line, now)
        self._asked = RankSet.of(request.rank for request, _ in answer.replies)
        return answer

    def _parse(self, line: str) -> StepCommand:
        return parse_stuck(line, self._world_size, self._meshes)

    def _stops(self) -> list[tuple[tuple[Predicate, str], Rank]]:
        return []

    def _absent_text(self, absent: RankSet) -> str:
        return f"{absent.describe()} cannot be asked; {self.ranks.describe()} can"
