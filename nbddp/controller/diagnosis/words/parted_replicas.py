"""The words about replicas of a model that are no longer equal.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping
from dataclasses import replace

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.divergence_phrases import sole_reason
from nbddp.controller.diagnosis.phrases import Predicate, RankVerb, subject
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.replica_comparison import PartedReplicas, length
from nbddp.controller.diagnosis.report import PerRank
from nbddp.controller.diagnosis.words.replica_phrases import (
    DIFF,
    code_lines,
    differ,
    number_of_steps,
    odd_ranks,
    optimizer_names,
    tensors,
)
from nbddp.controller.diagnosis.words.replicas_in_step import before_step, in_step
from nbddp.controller.diagnosis.words.shared import Words, code_of, line_of
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet, ranks_by_value


def parted_replicas(cause: Cause, reports: RankReports) -> Words:
    """The replicas of a model are no longer equal."""
    parted = cause.parted
    assert parted is not None  # noqa: S101 - each cause of this kind has one
    # After a later step whose gradients were averaged, the early one is not the reason.
    is_early = bool(parted.steps.early_site.line) and not parted.beside
    if parted.is_before or parted.alone is not None:
        words = before_step(parted)
    elif is_early and not (parted.classes and parted.step):
        words = _stepped_early(parted)
    elif not parted.classes:
        words = _by_hand(parted)
    elif parted.is_of_end:
        words = _in_turns(parted)
    elif parted.step_counts:
        words = _other_counts(parted, reports)
    elif parted.without_tensor:
        words = _other_tensors(parted)
    elif parted.beside:
        words = _beside(parted)
    elif parted.is_after:
        words = _after_last_step(parted)
    else:
        words = in_step(parted)
    return replace(words, ranks=_rows(parted, reports, cause.culprits))


def _other_counts(parted: PartedReplicas, reports: RankReports) -> Words:
    """Ranks have stepped a DDP model unequally often."""
    steps, line = parted.steps, line_of(parted.site)
    counts, stepped = parted.step_counts, optimizer_names(parted, "or")
    (count, odd), *rest = sorted(
        ranks_by_value(counts).items(), key=lambda each: (len(each[1]), each[0])
    )
    others = ", ".join(f"{ranks.describe()} made {number or 'none'}" for number, ranks in rest)
    fewest = min(counts.values())
    fewer = RankSet.of(rank for rank, number in counts.items() if number == fewest)
    if not parted.is_late:
        before = f"after step {parted.step - 1}" if parted.step > 1 else "before the first step"
        reason = (
            f"hashes of all parameters were taken with each step: those {before} of each rank are "
            f"equal, those after its step {parted.step} differ."
        )
    else:
        reason = "hashes of all parameters were taken at the end of the cell, and differ"
        reason += (
            f"; after {number_of_steps(parted.equal_steps)} of all ranks they were equal."
            if (parted.equal_steps)
            else "."
        )
    own = ""
    if fewest and steps.states:  # a broadcast of weights sends no momentum
        own = (
            f" If steps of one rank alone are meant, give all ranks the same weights and the same "
            f"state of {optimizer_names(parted)} ('{steps.states[0]}') after them."
        )
    # An optimizer may have stepped another model there.
    of_model = "" if fewest else f" for {steps.model}"
    keeps = f"keeps {fewer.describe()} from {line}"
    sole = sole_reason(reports.sources(parted.site), parted.site.line)
    if sole:
        other_model = "" if fewest else ", or its optimizer has the parameters of another model"
        reasons = f"perhaps {sole} {keeps}{other_model}"
    else:
        other_model = "" if fewest else ", or for an optimizer with the parameters of another model"
        reasons = f"look for a condition, a `continue` or a `break` that {keeps}{other_model}"
    return Words(
        f"{subject(odd)} made {number_of_steps(count)} of {stepped}{of_model} in this cell, "
        f"{others}: the replicas of {steps.model} are not equal.",
        reason,
        f"Let all ranks step equally often: {reasons}.{own} {DIFF}",
        code=code_of((parted.site, RankSet.of(rank for rank in counts if counts[rank] > fewest))),
    )


def _in_turns(parted: PartedReplicas) -> Words:
    """The replicas differ at the end of a cell whose ranks step in different iterations."""
    line, followers = line_of(parted.site), parted.followers
    made = ", ".join(
        f"{ranks.describe()} made {number_of_steps(count)}{' each' if len(ranks) > 1 else ''}"
        for count, ranks in ranks_by_value(parted.step_counts).items()
    )
    where = ", in different iterations" if followers else ""
    reason = "hashes of all parameters were taken at the end of the cell, and differ"
    again = (
        "broadcast each parameter from the rank that stepped, after each step of "
        f"{line}, also after the last one. {DIFF}"
    )
    if followers:
        reason += (
            f"; the first step of {followers.describe()} began with weights that another rank "
            "had after a step"
        )
        step = f"{again[0].upper()}{again[1:]}"
    elif parted.is_unpaired and len(set(parted.step_counts.values())) == 1:
        step = (
            "Let all ranks step the same parameters in the same iterations, with optimizers that "
            f"have the same settings and the same state. {DIFF}"
        )
    elif parted.is_unpaired:
        optimizer = optimizer_names(parted)
        state = f", and the same state of {optimizer}," if parted.steps.states else ""
        step = (
            f"Give all ranks the same weights{state} after steps that some of them make alone, or "
            f"let all ranks step equally often. {DIFF}"
        )
    else:
        step = (
            "Give all ranks the same weights before their first steps, and let them step equally "
            f"often. If they take turns, {again}"
        )
    return Words(
        f"{differ(parted)}: {made} of {optimizer_names(parted, 'or')} in this cell{where}.",
        f"{reason}.",
        step,
        code=code_of(
            *code_lines(parted, RankSet.of(r for r, n in parted.step_counts.items() if n))
        ),
    )


def _other_tensors(parted: PartedReplicas) -> Words:
    """The optimizer of some ranks has other parameters of a DDP model."""
    steps, without = parted.steps, parted.without_tensor
    has = without.verb("has", "have")
    return Words(
        f"{subject(without)} {has} an optimizer without '{parted.tensor}' of {steps.model}, which "
        "those of the other ranks step: its replicas are not equal at the end of the cell.",
        "hashes of all parameters were taken at the end of the cell, and differ; so do the lists "
        "of parameters that optimizers have stepped.",
        f"Give {optimizer_names(parted)} the same parameters on all ranks, where it is made. If "
        "ranks share them, broadcast each after the step, from the rank that steps it.",
        code=code_of((parted.site, without)),
    )


def _after_last_step(parted: PartedReplicas) -> Words:
    """A DDP model was changed after the last step."""
    optimizer, count = optimizer_names(parted), length(parted.steps) - 1
    clause = f"its replicas were equal after the last step of {optimizer}"
    taken = "with each step"
    if parted.steps.later_steps:
        taken = f"with each of the first {count} steps"
        clause = f"its replicas were equal after step {count} of {optimizer}"
    if not parted.is_stepped:
        clause = f"{optimizer} does not step it"
    elif parted.steps.later_steps:
        return Words(
            f"{differ(parted)} at the end of the cell: {clause}.",
            f"hashes of all parameters were taken {taken}, and are equal; those at the end of the "
            "cell differ.",
            f"Divide the cell into several, each with at most {count} steps: the next one tells "
            f"the step after which they differ. {DIFF}",
            code=code_of((parted.site, parted.culprits)),
        )
    return Words(
        f"{differ(parted)} at the end of the cell: {clause}.",
        f"hashes of the parameters that {optimizer} steps were taken {taken}, and are "
        "equal; those of all parameters, at the end of the cell, differ.",
        f"Look for weights that change without {optimizer}, perhaps only on {odd_ranks(parted)}, "
        f"also after the last step of {line_of(parted.site)}. {DIFF}",
        code=code_of((parted.site, parted.culprits)),
    )


def _beside(parted: PartedReplicas) -> Words:
    """Buffers, or the state of the optimizer, differ; the parameters are equal."""
    steps, line = parted.steps, line_of(parted.site)
    if parted.lost_by:
        return _lost_state(parted)
    if parted.beside == "state":
        step = (
            f"Look for what changes the state of {parted.optimizer} on "
            f"{parted.culprits.describe()}, also after {line}: a state that is loaded, or is "
            "changed by hand."
        )
        what = "the states of the optimizer"
    elif steps.is_ddp:
        step = (
            "This model was made with `broadcast_buffers=False`: each rank keeps what its own "
            "forward passes, perhaps of earlier cells, have left in the buffers. Leave that out, "
            "or give all ranks the same buffers before they are used."
        )
        what = "the buffers that this cell has not changed"
    else:
        step = (
            "Give all ranks the same buffers, by `broadcast` or an average: forward passes, "
            "perhaps of earlier cells, have left those of their own data in them."
        )
        what = "the buffers that this cell has not changed"
    return Words(
        f"{differ(parted, ', at the end of the cell,')}: its parameters are still equal.",
        f"hashes of {what} were taken at the end of the cell, and differ.",
        f"{step} {DIFF}",
        code=code_of((parted.site, parted.culprits)),
    )


def _lost_state(parted: PartedReplicas) -> Words:
    """The optimizers of some ranks have lost a state that those of others keep."""
    optimizer, line, ranks = parted.optimizer, line_of(parted.site), parted.lost_by
    return Words(
        f"{subject(ranks)} {ranks.verb('has', 'have')}, at the end of the cell, no "
        f"{tensors(parted)}, which {optimizer} has on {parted.clusters[0].describe()}: its "
        "parameters are still equal.",
        f"{optimizer} had it on {ranks.describe()} after the first step of this cell, and has it "
        "no more at the end.",
        f"Look for what empties the state of {optimizer} on {ranks.describe()}, also after {line}: "
        "`state.clear()`, or a `load_state_dict()` of an optimizer that has not stepped. Give all "
        f"ranks the same state. {DIFF}",
        code=code_of((parted.site, ranks)),
    )


def _stepped_early(parted: PartedReplicas) -> Words:
    """An optimizer has stepped before the gradients were added up."""
    steps, early, line = parted.steps, line_of(parted.steps.early_site), line_of(parted.site)
    taken = "hashes of all parameters were taken before that step, and at the end of the cell"
    averaging, first = f"which is at {line}, ", ""
    if parted.classes:  # then the site is that of a later step
        taken = "hashes of all parameters were taken with each later step"
        reason, averaging = f"{taken}, and differ.", ""
    elif parted.step:
        reason = f"{taken}: only the latter differ."
    else:
        reason = f"{taken}: both differ."
        first = " Before the first step, give all ranks the same weights."
    return Words(
        f"{differ(parted)}: {early} stepped the optimizer "
        "before the gradients of this step were added up.",
        reason,
        f"Step after the averaging of the gradients, {averaging}in each iteration.{first} {DIFF}",
        code=code_of((steps.early_site, parted.culprits), (parted.site, NO_RANKS)),
    )


def _by_hand(parted: PartedReplicas) -> Words:
    """Parameters that the code updates itself are no longer equal."""
    ranks = parted.culprits
    # Of a long cell, the record may be gone.
    line = line_of(parted.site) if parted.site.line else "the all_reduce of the gradients"
    taken = "hashes of all parameters were taken before the gradients were reduced first"
    if parted.step:
        clause = (
            f"{differ(parted)} at the end of the cell, although {line} gives all ranks the same "
            "gradients."
        )
        reason = f"{taken}, and at the end of the cell: only the latter differ."
        step = f"Make the same update on all ranks after {line}, with the same learning rate."
    else:
        clause = (
            f"{differ(parted, verb=('had', 'had'))} before {line} gave all ranks the same "
            "gradients."
        )
        reason = f"{taken}, and differ."
        step = f"Give all ranks the same weights first: `broadcast` each parameter before {line}."
    return Words(clause, reason, f"{step} {DIFF}", code=code_of((parted.site, ranks)))


def _rows(
    parted: PartedReplicas, reports: RankReports, culprits: RankSet
) -> Mapping[Rank, PerRank]:
    """The line of each rank."""
    optimizer, counts = parted.optimizer, parted.step_counts
    does = f"stepped {optimizer}" if optimizer else "added up the gradients of all ranks"
    does_by_rank = {
        rank: f"made {number_of_steps(count)} of {optimizer_names(parted, 'or')}"
        for rank, count in counts.items()
    }
    does_by_rank |= {
        rank: f"stepped another {parted.optimizers.get(rank, parted.optimizer)} since step {step}"
        for rank, step in parted.new_optimizers.items()
    }
    does_by_rank |= {rank: f"stepped {name}" for rank, name in parted.optimizers.items()}
    sites = {rank: parted.sites.get(rank, parted.site) for rank in counts or culprits}
    if parted.alone is not None:
        alone = parted.alone
        sites = {**parted.sites, **dict.fromkeys(alone.ranks, alone.site)}
        does_by_rank |= dict.fromkeys(alone.ranks, f"stepped {alone.optimizer} alone")
    return {
        rank: replace(
            reports.rank(rank),
            predicate=Predicate(RankVerb.NONE, does_by_rank.get(rank, does)),
            site=site if site.line and counts.get(rank, 1) else None,
            since_s=None,
        )
        for rank, site in sites.items()
    }
