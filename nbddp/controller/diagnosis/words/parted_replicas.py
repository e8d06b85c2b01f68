"""The words about replicas of a model that are no longer equal.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping
from dataclasses import replace

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.divergence_phrases import sole_reason
from nbddp.controller.diagnosis.parted_replicas import PartedReplicas
from nbddp.controller.diagnosis.phrases import Predicate, RankVerb, subject
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.report import PerRank
from nbddp.controller.diagnosis.words.shared import Words, code_of, line_of
from nbddp.wire.flight_recorder import Site
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet, ranks_by_value

_DIFF = "`%ddp diff` shows by how much they differ."


def parted_replicas(cause: Cause, reports: RankReports) -> Words:
    """The replicas of a model are no longer equal."""
    parted = cause.parted
    assert parted is not None  # noqa: S101 - each cause of this kind has one
    # After a later step whose gradients were averaged, the early one is not the reason.
    is_early = bool(parted.steps.early_site.line) and not parted.beside
    if parted.is_before or parted.alone is not None:
        words = _before_step(parted)
    elif is_early and not (parted.steps.optimizer and parted.step):
        words = _stepped_early(parted)
    elif not parted.steps.optimizer:
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
        words = _in_step(parted)
    return replace(words, ranks=_rows(parted, reports, cause.culprits))


def _in_step(parted: PartedReplicas) -> Words:
    """The parameters differ after a step, or before the first one."""
    steps, line = parted.steps, _lines(parted)
    optimizer = "its optimizer" if parted.optimizers else steps.optimizer
    when = f"after step {parted.step} of {optimizer}"
    if parted.last:
        when = f"after {_nth(parted)} of {optimizer}"
    equal = f"; after step {parted.step - 1} they were equal"
    if parted.step < 2 or parted.begins_equal:
        equal = "; before it they were equal" if parted.step else ""
    if not parted.step:
        when = f"before the first step of {optimizer}"
    when += _in_common(parted)
    reason = f"hashes of all parameters were taken with each step, and differ{equal}."
    if parted.was_equal and not parted.step:
        reason = (
            "hashes of all parameters were taken with each step, and differ; when gradients were "
            "sent first they were equal."
        )
    step = _advice(parted)
    if parted.tensor in steps.left_out:
        added = line_of(steps.copy_site) if steps.copy_site.line else "the cell"
        rest = len(steps.left_out) - 1
        more = f" and {rest} more" if rest else ""
        reason = (
            f"{added} added up the gradients of other parameters of these layers before {line}, "
            f"and not that of '{parted.tensor}'; {reason}"
        )
        step = (
            "If it is not meant, add up the gradients of all parameters: "
            f"{added} leaves out '{steps.left_out[0]}'{more}."
        )
    elif steps.copy_site.line and not steps.left_out:
        copied = f"line {steps.copy_site.line}"
        reason = (
            f"{copied} added up copies of all gradients, and {line} used gradients "
            f"that still held what was copied; {reason}"
        )
        step = f"Copy the result of {copied} back into the gradients before {line}."
    elif parted.optimizers:
        classes = ranks_by_value(parted.optimizers).items()
        texts = [f"{name} on {ranks.describe()}" for name, ranks in classes]
        step = f"Give all ranks the same optimizer: it was {', '.join(texts)}."
    elif parted.setting is not None:
        name, value_by_rank = parted.setting
        values_text = ", ".join(
            f"{name}={value} on {of.describe()}"
            for value, of in ranks_by_value(value_by_rank).items()
        )
        step = f"Give {steps.optimizer} the same {name} on all ranks: it had {values_text}."
    return Words(
        f"{_who(parted)} {_values(parted)} in {_tensors(parted)}: its replicas are not equal "
        f"{when}.",
        reason,
        step,
        code=code_of((steps.copy_site, RankSet()), *_code(parted, parted.culprits)),
    )


def _nth(parted: PartedReplicas, *, is_before: bool = False) -> str:
    """``the first step``, ``step 3``, ``the last 2 steps``."""
    if parted.last == 1:
        return "the last step"
    if parted.last:
        of = f"the last {parted.last} steps"
        return of if is_before and parted.step < 2 else f"step {parted.step} of {of}"
    return "the first step" if parted.step < 2 else f"step {parted.step}"


def _lines(parted: PartedReplicas) -> str:
    """``line 4``, or ``line 4 (rank 0) and line 6 (rank 1)``: ranks may step in other lines."""
    lines = ranks_by_value({rank: line_of(site) for rank, site in parted.sites.items()})
    if len(lines) < 2 or not all(site.line for site in parted.sites.values()):
        return line_of(parted.site)
    return " and ".join(f"{line} ({ranks.describe()})" for line, ranks in lines.items())


def _code(parted: PartedReplicas, ranks: RankSet) -> list[tuple[Site, RankSet]]:
    """The lines in which ranks step, each with those of ``ranks``."""
    of_site = ranks_by_value({rank: site for rank, site in parted.sites.items() if site.line})
    if len(of_site) < 2:
        return [(parted.site, ranks)]
    return [
        (site, RankSet.of(rank for rank in own if rank in ranks)) for site, own in of_site.items()
    ]


def _in_common(parted: PartedReplicas) -> str:
    """Which steps are counted."""
    ranks = parted.in_common
    if parted.last:
        return " on each rank"
    return f" that {ranks.describe()} have in common" if ranks else " in this cell"


def _before_step(parted: PartedReplicas) -> Words:
    """The parameters, or the states of the optimizer, differ before a step, or since one alone."""
    steps, alone, line = parted.steps, parted.alone, _lines(parted)
    is_before = parted.is_before or not parted.step
    nth = _nth(parted, is_before=is_before)
    when = "before" if is_before else "after"
    before = f"{when} {nth} of {steps.optimizer}{_in_common(parted)}"
    names = parted.states[:1]
    more = f" and {len(parted.states) - 1} more" if parted.states[1:] else ""
    state = f"'{names[0]}'{more} of {steps.model}" if names else ""
    clause, code = "", _code(parted, NO_RANKS if alone else parted.culprits)
    if alone is not None:
        clause = (
            f": {alone.ranks.describe()} alone stepped {alone.optimizer} before that, "
            f"in {line_of(alone.site)}"
        )
        code.insert(0, (alone.site, alone.ranks))
    after = f"after {line_of(alone.site)}" if alone else f"before {line}"
    again = (
        f"clear it on all ranks (`optimizer.state.clear()`), send the `state_dict()` of the "
        f"optimizer by `broadcast_object_list`, or make a new optimizer, {after}"
    )
    if not parted.tensor:
        others = parted.clusters[0] - parted.culprits
        has = f"different states of {steps.optimizer}"
        if others:
            has = f"another state of {steps.optimizer} than {others.describe()}"
        what = f"{_who(parted)} {has}, {state},"
        reason = (
            f"hashes were taken before and after {line}: before it the parameters were equal, and "
            "these states were not; after it the parameters differ, too."
        )
        step = f"Give all ranks the same state of {steps.optimizer}: {again}."
    elif not is_before:
        what = f"{_who(parted)} {_values(parted)} in {_tensors(parted)}"
        reason = (
            "hashes of all parameters were taken with each step, and differ; after step "
            f"{parted.step - 1} they were equal."
        )
        both = f", and the same state of {steps.optimizer}," if steps.states else ""
        step = f"Look whether all ranks have the same weights{both} {after}. {_DIFF}"
    else:
        what = f"{_who(parted)} {_values(parted)} in {_tensors(parted)}"
        reason = f"hashes of all parameters were taken before {line}, and differ"
        if alone is not None and parted.is_before:
            ranks = alone.ranks.describe()
            reason += f"; '{parted.tensor}' of {ranks} was still as {line_of(alone.site)} left it"
        reason += "."
        step = f"Give all ranks the same weights {after}: `broadcast` each parameter"
        step += f", also '{parted.tensor}'." if alone and parted.is_before else "."
        if state:
            step += f" The state of {steps.optimizer} differs, too: {again}."
        step += f" {_DIFF}"
    return Words(f"{what} {before}{clause}.", reason, step, code=code_of(*code))


def _advice(parted: PartedReplicas) -> str:
    """What to look for, if nothing but the step is known."""
    line = _lines(parted)
    averaged = f"gradients that were not averaged before {line}, or were changed after that"
    ways = (
        "a forward through `model.module`, a backward under `no_sync()`, a hook or `dist.reduce` "
        "that does not give each rank the sum"
        if parted.steps.is_ddp
        else "a backward after the averaging, `dist.reduce`, which gives one rank the sum"
    )
    if not parted.step:
        if parted.was_equal:
            return (
                "Look for what changes the weights between the first backward pass of this cell "
                f"and {line}. {_DIFF}"
            )
        # The constructor of DDP has made them equal.
        gives = "" if parted.steps.is_ddp else "by `broadcast`, "
        return (
            f"Give all ranks the same weights before {line}, {gives}or look for what changes them "
            f"before. {_DIFF}"
        )
    if parted.all_differ and len(parted.clusters) > 2:
        return (
            f"Look for {averaged}, on all ranks: {ways}, noise that each rank draws for itself. "
            f"{_DIFF}"
        )
    if parted.all_differ:
        return (
            f"Look for {averaged}: {ways}; or for weights that one of these ranks loads or "
            f"changes. {_DIFF}"
        )
    return (
        f"Look for what {_alone(parted)} alone before {line}: a backward under `no_sync()`, "
        f"gradients or weights that are changed, weights that are loaded. {_DIFF}"
    )


def _other_counts(parted: PartedReplicas, reports: RankReports) -> Words:
    """Ranks have stepped a DDP model unequally often."""
    steps, line = parted.steps, line_of(parted.site)
    counts = parted.step_counts
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
            f"; after {_steps(parted.equal_steps)} of all ranks they were equal."
            if (parted.equal_steps)
            else "."
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
        f"{subject(odd)} made {_steps(count)} of {steps.optimizer}{of_model} in this cell, "
        f"{others}: the replicas of {steps.model} are not equal.",
        reason,
        f"Let all ranks step equally often: {reasons}. {_DIFF}",
        code=code_of((parted.site, RankSet.of(rank for rank in counts if counts[rank] > fewest))),
    )


def _in_turns(parted: PartedReplicas) -> Words:
    """The replicas differ at the end of a cell whose ranks step in different iterations."""
    line, followers = line_of(parted.site), parted.followers
    made = ", ".join(
        f"{ranks.describe()} made {_steps(count)}{' each' if len(ranks) > 1 else ''}"
        for count, ranks in ranks_by_value(parted.step_counts).items()
    )
    where = ", in different iterations" if followers else ""
    reason = "hashes of all parameters were taken at the end of the cell, and differ"
    again = (
        "broadcast each parameter from the rank that stepped, after each step of "
        f"{line}, also after the last one. {_DIFF}"
    )
    if followers:
        reason += (
            f"; the first step of {followers.describe()} began with weights that another rank "
            "had after a step"
        )
        step = f"{again[0].upper()}{again[1:]}"
    elif parted.is_unpaired:
        optimizer = parted.steps.optimizer
        state = f", and the same state of {optimizer}," if parted.steps.states else ""
        step = (
            f"Give all ranks the same weights{state} after steps that some of them make alone, or "
            f"let all ranks step equally often. {_DIFF}"
        )
    else:
        step = (
            "Give all ranks the same weights before their first steps, and let them step equally "
            f"often. If they take turns, {again}"
        )
    return Words(
        f"{_who(parted)} {_values(parted)} in {_tensors(parted)}: {made} of "
        f"{parted.steps.optimizer} in this cell{where}.",
        f"{reason}.",
        step,
        code=code_of(*_code(parted, RankSet.of(r for r, n in parted.step_counts.items() if n))),
    )


def _steps(count: int) -> str:
    """``3 steps``, ``1 step``, ``no step``."""
    return f"{count or 'no'} {'step' if count < 2 else 'steps'}"


def _other_tensors(parted: PartedReplicas) -> Words:
    """The optimizer of some ranks has other parameters of a DDP model."""
    steps, without = parted.steps, parted.without_tensor
    has = without.verb("has", "have")
    return Words(
        f"{subject(without)} {has} an optimizer without '{parted.tensor}' of {steps.model}, which "
        "those of the other ranks step: its replicas are not equal at the end of the cell.",
        "hashes of all parameters were taken at the end of the cell, and differ; so do the lists "
        "of parameters that optimizers have stepped.",
        f"Give {steps.optimizer} the same parameters on all ranks, where it is made. If ranks "
        "share them, broadcast each after the step, from the rank that steps it.",
        code=code_of((parted.site, without)),
    )


def _after_last_step(parted: PartedReplicas) -> Words:
    """A DDP model was changed after the last step."""
    optimizer = parted.steps.optimizer
    clause = f"its replicas were equal after the last step of {optimizer}"
    if not parted.is_stepped:
        clause = f"{optimizer} does not step it"
    return Words(
        f"{_who(parted)} {_values(parted)} in {_tensors(parted)} at the end of the cell: {clause}.",
        f"hashes of the parameters that {optimizer} steps were taken with each step, and are "
        "equal; those of all parameters, at the end of the cell, differ.",
        f"Look for weights that {_alone(parted, 'changes', 'change')} alone without {optimizer}, "
        f"also after the last step of {line_of(parted.site)}. {_DIFF}",
        code=code_of((parted.site, parted.culprits)),
    )


def _beside(parted: PartedReplicas) -> Words:
    """Buffers, or the state of the optimizer, differ; the parameters are equal."""
    steps, line = parted.steps, line_of(parted.site)
    if parted.beside == "state":
        step = (
            f"Look for what changes the state of {steps.optimizer} on "
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
        f"{_who(parted)}, at the end of the cell, {_values(parted)} in {_tensors(parted)}: its "
        "parameters are still equal.",
        f"hashes of {what} were taken at the end of the cell, and differ.",
        f"{step} {_DIFF}",
        code=code_of((parted.site, parted.culprits)),
    )


def _stepped_early(parted: PartedReplicas) -> Words:
    """An optimizer has stepped before the gradients were added up."""
    steps, early, line = parted.steps, line_of(parted.steps.early_site), line_of(parted.site)
    taken = "hashes of all parameters were taken before that step, and at the end of the cell"
    averaging, first = f"which is at {line}, ", ""
    if steps.optimizer:  # then the site is that of a later step
        taken = "hashes of all parameters were taken with each later step"
        reason, averaging = f"{taken}, and differ.", ""
    elif parted.step:
        reason = f"{taken}: only the latter differ."
    else:
        reason = f"{taken}: both differ."
        first = " Before the first step, give all ranks the same weights."
    return Words(
        f"{_who(parted)} {_values(parted)} in {_tensors(parted)}: {early} stepped the optimizer "
        "before the gradients of this step were added up.",
        reason,
        f"Step after the averaging of the gradients, {averaging}in each iteration.{first} {_DIFF}",
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
            f"{ranks.verb('has', 'have')} {_values(parted)} in {_tensors(parted)} at the end of "
            f"the cell, although {line} gives all ranks the same gradients."
        )
        reason = f"{taken}, and at the end of the cell: only the latter differ."
        step = f"Make the same update on all ranks after {line}, with the same learning rate."
    else:
        clause = (
            f"had {_values(parted)} in {_tensors(parted)} before {line} gave all ranks the same "
            "gradients."
        )
        reason = f"{taken}, and differ."
        step = f"Give all ranks the same weights first: `broadcast` each parameter before {line}."
    return Words(
        f"{subject(ranks)} {clause}", reason, f"{step} {_DIFF}", code=code_of((parted.site, ranks))
    )


def _who(parted: PartedReplicas) -> str:
    """``Rank 1 has``, at the end of the cell, if later hashes tell the tensor."""
    is_late = parted.is_late and not parted.beside and not parted.is_after
    late = ", at the end of the cell," if is_late else ""
    return f"{subject(parted.culprits)} {parted.culprits.verb('has', 'have')}{late}"


def _values(parted: PartedReplicas) -> str:
    others = parted.clusters[0] - parted.culprits
    return f"other values than {others.describe()}" if others else "different values"


def _tensors(parted: PartedReplicas) -> str:
    more = f" and {parted.others} more" if parted.others else ""
    return f"'{parted.tensor}'{more} of {parted.steps.model}"


def _alone(parted: PartedReplicas, singular: str = "does", plural: str = "do") -> str:
    """``rank 1 does``, or ``one of these ranks does`` where none is in the minority."""
    if parted.clusters[0] - parted.culprits:
        ranks = parted.culprits
        return f"{ranks.describe()} {ranks.verb(singular, plural)}"
    return f"one of these ranks {singular}"


def _rows(
    parted: PartedReplicas, reports: RankReports, culprits: RankSet
) -> Mapping[Rank, PerRank]:
    """The line of each rank."""
    optimizer, counts = parted.steps.optimizer, parted.step_counts
    does = f"stepped {optimizer}" if optimizer else "added up the gradients of all ranks"
    does_by_rank = {rank: f"made {_steps(count)} of {optimizer}" for rank, count in counts.items()}
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
