"""Phrases for `parted_replicas`: lines, steps and values of the ranks whose replicas differ.

Runs in: the notebook's process. Pure.
"""

from nbddp.controller.diagnosis.phrases import subject
from nbddp.controller.diagnosis.replica_comparison import PartedReplicas, minority, site_of
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


def differ(parted: PartedReplicas, late: str = "", verb: tuple[str, str] = ("has", "have")) -> str:
    """``Rank 1 has other values than ranks 0,2 in 'bias' and 2 more of Linear``.

    Each rank is named for the tensors in which it differs: ``Rank 3 has other values than ranks 0-2
    in 'weight' of Linear, rank 2 other values than ranks 0-1,3 in 'bias'``.

    Args:
        parted: the replicas.
        late: when they had these values, between commas; if later hashes tell the tensor, that is
            the end of the cell.
        verb: for one rank, and for several.
    """
    model = f" of {parted.steps.model}"
    if parted.is_late and not parted.beside and not parted.is_after:
        late = ", at the end of the cell,"
    (name, others, clusters), *rest = _parts(parted)
    ranks, values = _values(clusters)
    text = f"{subject(ranks)} {ranks.verb(*verb)}{late} {values} in {_named(name, others)}{model}"
    for name, others, clusters in rest[:1]:
        ranks, values = _values(clusters)
        text += f", {ranks.describe()} {values} in {_named(name, others)}"
    left = sum(1 + others for _, others, _ in rest[1:])
    return text + (f"; {left} more differ in other ways" if left else "")


def _parts(parted: PartedReplicas) -> list[tuple[str, int, tuple[RankSet, ...]]]:
    """The first tensor, the number of others and the ranks with equal values, of each part."""
    if parted.parts and not parted.beside:
        return [(each.first, each.count - 1, each.clusters) for each in parted.parts]
    return [(parted.tensor, parted.others, parted.clusters)]


def _values(clusters: tuple[RankSet, ...]) -> tuple[RankSet, str]:
    """The ranks that differ, and their ``other values than rank 0``, or ``different values``."""
    ranks, others = sides(clusters)
    if others:
        return ranks, f"other values than {others.describe()}"
    equal = [each.describe() for each in clusters if len(each) > 1]
    among = f" (equal on {' and on '.join(equal)})" if equal else ""
    return ranks, f"different values{among}"


def sides(clusters: tuple[RankSet, ...]) -> tuple[RankSet, RankSet]:
    """The ranks that differ from others, and these: of two equally large sides, the second.

    The others are empty if more sides are as large, or all ranks differ.
    """
    if len(clusters) == 2 and len(clusters[0]) == len(clusters[1]) > 1:
        return clusters[0], clusters[1]
    odd = minority(clusters)
    return odd, clusters[0] - odd


def _named(name: str, others: int) -> str:
    return f"'{name}' and {others} more" if others else f"'{name}'"


def tensors(parted: PartedReplicas) -> str:
    """``'bias' and 2 more of Linear``."""
    return f"{_named(parted.tensor, parted.others)} of {parted.steps.model}"


def odd_ranks(parted: PartedReplicas) -> str:
    """The ranks that perhaps do something alone.

    ``rank 1``; ``one of these ranks``; ``ranks 0,2 or ranks 1,3``, where no side is larger; ``rank
    3 or rank 2``, where each differs in other tensors.
    """
    parts = _parts(parted)
    odd = [minority(clusters) for _, _, clusters in parts]
    has_majorities = all(clusters[0] - minority(clusters) for _, _, clusters in parts)
    if has_majorities and len(parts) <= 2:
        return " or ".join(dict.fromkeys(ranks.describe() for ranks in odd))
    clusters = parted.clusters
    if len(parts) == 1 and len(clusters) == 2 and len(clusters[0]) > 1:
        return " or ".join(ranks.describe() for ranks in clusters)
    return "one of these ranks" if parted.all_differ else "some of these ranks"


def new_optimizers(parted: PartedReplicas) -> str:
    """``rank 0 steps with another optimizer since its step 3``."""
    since = ranks_by_value(parted.new_optimizers)
    texts = [
        f"{ranks.describe()} {ranks.verb('steps', 'step')} with another optimizer since "
        f"{ranks.verb('its', 'their')} step {step}"
        for step, ranks in since.items()
    ]
    return " and ".join(texts)


def optimizer_names(parted: PartedReplicas, conjunction: str = "and") -> str:
    """``SGD and Adam``; with "or", where perhaps not each rank has stepped each of them."""
    return f" {conjunction} ".join(parted.classes)


def number_of_steps(count: int) -> str:
    """``3 steps``, ``1 step``, ``no step``."""
    return f"{count or 'no'} {'step' if count < 2 else 'steps'}"
