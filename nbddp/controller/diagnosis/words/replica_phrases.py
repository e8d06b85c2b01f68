"""Phrases about replicas of a model that are no longer equal.

Runs in: the notebook's process. Pure.
"""

from nbddp.controller.diagnosis.phrases import subject
from nbddp.controller.diagnosis.replica_comparison import PartedReplicas, site_of
from nbddp.controller.diagnosis.words.shared import line_of
from nbddp.wire.flight_recorder import Site
from nbddp.wire.rank_set import RankSet, ranks_by_value

DIFF = "`%ddp diff` shows by how much they differ."


def nth_step(parted: PartedReplicas, *, is_before: bool = False) -> str:
    """``the first step``, ``step 3``, ``the last 2 steps``."""
    if parted.last == 1:
        return "the last step"
    if parted.last:
        of = f"the last {parted.last} steps"
        return of if is_before and parted.step < 2 else f"step {parted.step} of {of}"
    return "the first step" if parted.step < 2 else f"step {parted.step}"


def lines_of(parted: PartedReplicas) -> str:
    """``line 4``, or ``line 4 (rank 0) and line 6 (rank 1)``: ranks may step in other lines."""
    lines = ranks_by_value({rank: line_of(site) for rank, site in parted.sites.items()})
    if len(lines) < 2 or not all(site.line for site in parted.sites.values()):
        return line_of(parted.site)
    return " and ".join(f"{line} ({ranks.describe()})" for line, ranks in lines.items())


def step_line(parted: PartedReplicas) -> str:
    """``line 4``; of a step in a function also the line that calls it."""
    if parted.caller is None:
        return lines_of(parted)
    caller, site = parted.caller, parted.site
    is_here = caller.position[:2] == site.position[:2]
    at = f"in {line_of(caller)}" if is_here else f"at {caller.place}"
    return f"{lines_of(parted)} (called {at})"


def between_steps(parted: PartedReplicas) -> str:
    """``between steps 2 and 3, both in line 4``; empty: nothing is known of the step before."""
    step = parted.step
    if step < 2 or parted.last or parted.begins_equal:
        return ""
    before, here = line_of(site_of(parted.steps, step - 1)), step_line(parted)
    if before == line_of(parted.site) and lines_of(parted) == before:
        return f"between steps {step - 1} and {step}, both in {here}"
    return f"between step {step - 1} ({before}) and step {step} ({here})"


def code_lines(parted: PartedReplicas, ranks: RankSet) -> list[tuple[Site, RankSet]]:
    """The lines in which ranks step, each with those of ``ranks``."""
    of_site = ranks_by_value({rank: site for rank, site in parted.sites.items() if site.line})
    if len(of_site) < 2:
        return [(parted.site, ranks)]
    return [
        (site, RankSet.of(rank for rank in own if rank in ranks)) for site, own in of_site.items()
    ]


def counted_steps(parted: PartedReplicas) -> str:
    """Return the ranks whose steps are counted, or the cell, as the end of a clause."""
    ranks = parted.in_common
    if parted.last:
        return " on each rank"
    return f" that {ranks.describe()} have in common" if ranks else " in this cell"


def owners(parted: PartedReplicas) -> str:
    """``Rank 1 has``, at the end of the cell, if later hashes tell the tensor."""
    is_late = parted.is_late and not parted.beside and not parted.is_after
    late = ", at the end of the cell," if is_late else ""
    return f"{subject(parted.culprits)} {parted.culprits.verb('has', 'have')}{late}"


def values(parted: PartedReplicas) -> str:
    """``other values than rank 0``, or ``different values`` without a majority."""
    others = parted.clusters[0] - parted.culprits
    return f"other values than {others.describe()}" if others else "different values"


def tensors(parted: PartedReplicas) -> str:
    """``'bias' and 2 more of Linear``."""
    more = f" and {parted.others} more" if parted.others else ""
    return f"'{parted.tensor}'{more} of {parted.steps.model}"


def odd_rank_does(parted: PartedReplicas, singular: str = "does", plural: str = "do") -> str:
    """``rank 1 does``, or ``one of these ranks does`` where none is in the minority."""
    if parted.clusters[0] - parted.culprits:
        ranks = parted.culprits
        return f"{ranks.describe()} {ranks.verb(singular, plural)}"
    return f"one of these ranks {singular}"


def number_of_steps(count: int) -> str:
    """``3 steps``, ``1 step``, ``no step``."""
    return f"{count or 'no'} {'step' if count < 2 else 'steps'}"
