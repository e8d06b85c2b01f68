"""The state of each rank in the running cell, from the events of the cell.

Runs in: the thread that waits for the cell. Pure.
"""

from nbddp.controller.cell_errors import is_consequence
from nbddp.controller.diagnosis import PerRank, RankVerb, Report
from nbddp.controller.state import MISMATCH_ERROR, RankResult, RunOutcome
from nbddp.errors import CollectiveAbortedError
from nbddp.notebook.render.html import clean, shorten
from nbddp.notebook.render.rank_strip import Chip, ChipState
from nbddp.wire.flight_recorder import LEFT_DEBUGGER
from nbddp.wire.messages import RankAt, RankExited, RunFinished
from nbddp.wire.rank_set import RankSet

_MAX_NOTE = 24
_AT_PROMPT = (ChipState.PROMPT, ChipState.ASKED)
#: In a pool of at most this many ranks, a card or the one error says how each of them ended.
_FEW_RANKS = 4


class RankStates:
    """One chip for each rank of a cell.

    Args:
        ranks: ranks that run the cell.
    """

    def __init__(self, ranks: RankSet) -> None:
        self._chip_by_rank = {rank: Chip(RankSet((rank,)), ChipState.RUNS) for rank in ranks}
        self._place_by_rank: dict[int, str] = {}
        self._over: set[int] = set()  # ranks that have left the cell

    @property
    def chips(self) -> list[Chip]:
        """The chips in the order of ranks."""
        return [chip for _, chip in sorted(self._chip_by_rank.items())]

    def finish(self, event: RunFinished) -> None:
        """Note that a rank has finished the cell, or raised."""
        if event.error is None:
            self._end(event.rank, ChipState.DONE)
        elif event.error.ename == CollectiveAbortedError.__name__:
            self._end(event.rank, ChipState.FREED)
        else:
            self._end(event.rank, ChipState.RAISED, event.error.ename)

    def exit(self, event: RankExited) -> None:
        """Note that the process of a rank has ended."""
        self._end(event.rank, ChipState.DEAD)

    def ask(self, rank: int) -> None:
        """Note that a rank is at a prompt: it asks the user, or will when its turn comes."""
        self._put(rank, ChipState.PROMPT)

    def turn(self, rank: int) -> None:
        """Note that the prompt of a rank is the one that the user sees now."""
        self._put(rank, ChipState.ASKED)

    def answer(self, rank: int) -> None:
        """Note that a rank is at no prompt any more."""
        self._put(rank, ChipState.RUNS, self._place_by_rank.get(rank, ""))

    def move(self, event: RankAt) -> None:
        """Note where a rank is: its iteration, or its line."""
        line = f"line {event.line}" if event.line else ""
        note = ", ".join(map(str, event.iteration)) or line
        self._place_by_rank[event.rank] = note
        chip = self._chip_by_rank.get(event.rank)
        if chip is not None and chip.state is ChipState.RUNS:
            self._put(event.rank, ChipState.RUNS, note)

    def diagnose(self, report: Report | None) -> None:
        """Take the places of ranks from a report; None: they run again."""
        for rank, chip in self._chip_by_rank.items():
            if chip.state in _AT_PROMPT:
                continue
            place = None if report is None else report.ranks.get(rank)
            if place is not None and place.predicate.verb is RankVerb.WAITS:
                self._put(rank, ChipState.WAITS, _note(place))
            else:
                note = self._place_by_rank.get(rank) or _note(place)
                self._put(rank, ChipState.RUNS, note)

    def _end(self, rank: int, state: ChipState, note: str = "") -> None:
        self._put(rank, state, note)
        self._over.add(rank)

    def _put(self, rank: int, state: ChipState, note: str = "") -> None:
        if rank in self._chip_by_rank and rank not in self._over:
            short = shorten(clean(note), _MAX_NOTE)
            self._chip_by_rank[rank] = Chip(RankSet((rank,)), state, short)


def ends(outcome: RunOutcome, *, has_card: bool) -> list[Chip]:
    """Return how each rank ended a cell, if that is worth a row.

    Args:
        outcome: the end of the cell.
        has_card: whether a card names the ranks.

    Returns:
        The chips in the order of ranks; none if all ranks ended alike, or if there are few of them
        and the card or the error below says the same.
    """
    errors = [result.error for result in outcome.results.values() if result.error is not None]
    if any(error.ename == MISMATCH_ERROR for error in errors):
        return []  # the card has the calls; which ranks raised, and which still waited, is chance
    chips = all_ends(outcome)
    kinds = {(chip.state, chip.note) for chip in chips}
    bad = [state for state, _ in kinds if state is not ChipState.DONE]
    is_told = len(chips) <= _FEW_RANKS and (has_card or len(bad) == 1)
    return [] if len(kinds) < 2 or is_told else chips


def all_ends(outcome: RunOutcome) -> list[Chip]:
    """Return how each rank ended a cell, in the order of ranks."""
    wrong = _wrong_calls(outcome)
    return [
        wrong.get(rank) or _end(outcome, each) for rank, each in sorted(outcome.results.items())
    ]


def _wrong_calls(outcome: RunOutcome) -> dict[int, Chip]:
    """Ranks that never called what others waited for, or called it with other arguments.

    Which ranks of a mismatch raised, and which still waited, is chance: those with the call of the
    majority have waited.
    """
    states: dict[int, tuple[ChipState, str]] = {}
    status_by_rank = {rank: result.status for rank, result in outcome.results.items()}
    for finding in () if outcome.report is None else outcome.report.proven:
        name = f"{finding.op} ({finding.origin})" if finding.origin else finding.op
        if finding.kind == "missing-rank":
            ended = [rank for rank in finding.culprits if status_by_rank.get(rank) == "ok"]
            states |= dict.fromkeys(ended, (ChipState.MISSED, name))
        elif finding.kind == "mismatched-collective":
            concerned = {*finding.culprits, *finding.waiting, *finding.ranks}
            failed = [rank for rank in concerned if status_by_rank.get(rank) == "error"]
            wrong = set(finding.culprits)
            states |= {
                rank: (ChipState.MISMATCHED, f"in {name}")
                if rank in wrong
                else (ChipState.FREED, "")
                for rank in failed
            }
    return {rank: Chip(RankSet((rank,)), *state) for rank, state in states.items()}


def _end(outcome: RunOutcome, result: RankResult) -> Chip:
    name = "" if result.error is None else result.error.ename
    note = ""
    match result.status:
        case "ok":
            state = ChipState.DONE
        case "exited":
            state = ChipState.DEAD
        case "unfinished" if any(result.rank in each.ranks for each in outcome.silent):
            state = ChipState.NOT_HEARD
        case "unfinished":
            state = ChipState.GIVEN_UP
        case "error" if result.was_freed and not (outcome.interrupted or outcome.timed_out):
            state = ChipState.FREED  # also of a wait in Python, which a signal ends
        case "error" if name == "KeyboardInterrupt":
            state = ChipState.INTERRUPTED
        case "error" if name == LEFT_DEBUGGER:
            state, note = ChipState.INTERRUPTED, "in the debugger"
        case "error" if is_consequence(outcome, result.rank):
            state = ChipState.FREED
        case "error":
            state, note = ChipState.RAISED, shorten(clean(name), _MAX_NOTE)
    return Chip(RankSet((result.rank,)), state, note)


def _note(place: PerRank | None) -> str:
    site = None if place is None else place.waits_at or place.site
    return f"line {site.line}" if site is not None and site.line else ""
