"""The headline about ranks that exited: inside the cell, or after their part of it.

Runs in: the notebook's process. Pure; a part of `nbddp.controller.cell_errors.build`.
"""

from collections.abc import Sequence

from nbddp.controller.cell_errors import evidence
from nbddp.controller.diagnosis import RankVerb
from nbddp.controller.state import RankResult, RunOutcome, exit_phrase
from nbddp.wire.flight_recorder import Site
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.rank_set import Rank, RankSet


def exit_headline(outcome: RunOutcome, exited: RankSet, cell_name: str) -> str:
    """``rank 2 exited with SIGKILL (signal 9) while it ran cell [7]``.

    Or ``rank 2 raised ValueError at cell [7], line 3; its process exited with SIGKILL (signal 9)
    3.8 s later, after its part of the cell``.

    Args:
        outcome: the end of the cell.
        exited: ranks whose processes have ended.
        cell_name: ``cell [7]``.
    """
    left = RankSet.of(rank for rank in exited if outcome.results[rank].left_s is not None)
    inside, end = exited - left, end_of_all(outcome, exited)
    if not left:
        return f"{exited.describe()} {end} {_while_ran(outcome, exited)} {cell_name}"
    if not inside:
        return _after_part(outcome, left, end, cell_name)
    their = left.verb("its", "their")
    return (
        f"{exited.describe()} {end}: {inside.describe()} {_while_ran(outcome, inside)} "
        f"{cell_name}, {left.describe()} after {their} part of it"
    )


def end_of_all(outcome: RunOutcome, ranks: RankSet) -> str:
    """``exited with SIGKILL (signal 9)``, if all these ranks ended in this way; or ``exited``.

    ``were lost``: with their nodes; perhaps their processes still run.
    """
    exits = [outcome.results[rank].exited for rank in ranks]
    if all(end is not None and end.was_lost for end in exits):
        return ranks.verb(*RankVerb.LOST.value)
    hows = {"exited" if end is None or end.cause else str(exit_phrase(end)) for end in exits}
    return hows.pop() if len(hows) == 1 else "exited"


def own_error(outcome: RunOutcome, rank: Rank) -> ErrorInfo | None:
    """The error that the user's code raised on a rank before its process ended; None: none."""
    result = outcome.results[rank]
    if evidence.has_left_debugger(result) or evidence.is_consequence(outcome, rank):
        return None
    return result.error


def ended_as(outcome: RunOutcome, rank: Rank) -> tuple[str, Site | None]:
    """How a rank had ended the cell before its process ended: ``raised ValueError``, and its line.

    Empty: it was inside.
    """
    result = outcome.results[rank]
    if result.left_s is None:
        return "", None
    if error := own_error(outcome, rank):
        return f"raised {error.ename}", error.site
    return f"{'finished' if result.error is None else 'left'} the cell", None


def before_end(outcome: RunOutcome, ranks: Sequence[Rank]) -> str:
    """``had raised ValueError 3.8 s before``: how ranks had ended the cell alike; empty: inside."""
    results = [outcome.results[rank] for rank in ranks]
    ended = ended_as(outcome, ranks[0])[0]
    if not ended:
        return ""
    return f"had {ended}" + (f" {_gap(results)} before" if _are_times_known(results) else "")


def _after_part(outcome: RunOutcome, ranks: RankSet, end: str, cell_name: str) -> str:
    """The headline on ranks that had all ended the cell."""
    errors = [error for rank in ranks if (error := own_error(outcome, rank)) is not None]
    names = {error.ename for error in errors}
    if len(names) != 1 or len(errors) < len(ranks):
        is_ok = all(outcome.results[rank].error is None for rank in ranks)
        had = "had finished" if is_ok else "had left"
        return f"{ranks.describe()} {end} after {ranks.verb('it', 'they')} {had} {cell_name}"
    results = [outcome.results[rank] for rank in ranks]
    whose = ranks.verb("its process", "their processes")
    if all(each.exited is not None and each.exited.was_lost for each in results):
        whose = ranks.verb("it", "they")
    raised = f"raised {names.pop()}{evidence.at_line(errors)}"
    return (
        f"{ranks.describe()} {raised}; {whose} {end} {_later(results)}, after "
        f"{ranks.verb('its', 'their')} part of the cell"
    )


def _later(results: Sequence[RankResult]) -> str:
    """``3.8 s later``: between the ends of cell and process."""
    return f"{_gap(results)} later" if _are_times_known(results) else "later"


def _are_times_known(results: Sequence[RankResult]) -> bool:
    return all(each.is_time_known for each in results)


def _gap(results: Sequence[RankResult]) -> str:
    return evidence.range_of([max(0.0, each.elapsed_s - (each.left_s or 0.0)) for each in results])


def _while_ran(outcome: RunOutcome, exited: RankSet) -> str:
    """``while it ran``; ``in or after``: it may have ended the cell before its node was lost.

    ``during``: it was lost with its node, which perhaps never got the cell.
    """
    if not any(outcome.results[rank].is_time_known for rank in exited):
        return "in or after"
    ends = [outcome.results[rank].exited for rank in exited]
    if all(end is not None and end.was_lost for end in ends):
        return "during"
    return exited.verb("while it ran", "while they ran")
