"""The words about replicas that are not equal before or after a step of their optimizer.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping

from nbddp.controller.diagnosis.phrases import subject
from nbddp.controller.diagnosis.replica_comparison import PartedReplicas
from nbddp.controller.diagnosis.words.replica_phrases import (
    DIFF,
    between_steps,
    code_lines,
    counted_steps,
    differ,
    lines_of,
    new_optimizers,
    nth_step,
    odd_ranks,
    optimizer_names,
    sides,
    step_line,
)
from nbddp.controller.diagnosis.words.shared import Words, code_of, line_of
from nbddp.wire.flight_recorder import Site
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet, ranks_by_value


def in_step(parted: PartedReplicas) -> Words:
    """The parameters differ after a step, or before the first one."""
    steps, line = parted.steps, lines_of(parted)
    optimizer = "its optimizer" if parted.optimizers else optimizer_names(parted)
    when = f"after step {parted.step} of {optimizer}"
    if parted.last:
        when = f"after {nth_step(parted)} of {optimizer}"
    equal = f"; after step {parted.step - 1} they were equal"
    if parted.step < 2 or parted.begins_equal:
        equal = "; before it they were equal" if parted.step else ""
    if not parted.step:
        when = f"before the first step of {optimizer}"
    when += counted_steps(parted)
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
    elif parted.new_optimizers:
        others = RankSet.of(rank for rank in parted.sites if rank not in parted.new_optimizers)
        reason += (
            " The optimizer of each step was noted: this one of "
            f"{others.describe()} is an earlier one."
        )
        when += f", and {new_optimizers(parted)}"
        step = _new_optimizer_advice(parted)
    elif parted.optimizers:
        classes = ranks_by_value(parted.optimizers).items()
        texts = [f"{name} on {ranks.describe()}" for name, ranks in classes]
        step = f"Give all ranks the same optimizer: it was {', '.join(texts)}."
    elif parted.setting is not None:
        name, values = _setting(parted.setting)
        step = f"Give {optimizer_names(parted)} the same {name} on all ranks: it had {values}."
    return Words(
        f"{differ(parted)}: its replicas are not equal {when}.",
        reason,
        step,
        code=code_of(
            (steps.copy_site, NO_RANKS),
            *code_lines(parted, parted.culprits),
            (parted.caller or Site(), NO_RANKS),
        ),
    )


def before_step(parted: PartedReplicas) -> Words:
    """The parameters, or the states of the optimizer, differ before a step, or since one alone."""
    steps, alone, line = parted.steps, parted.alone, lines_of(parted)
    is_before = parted.is_before or not parted.step
    nth = nth_step(parted, is_before=is_before)
    when = "before" if is_before else "after"
    before = f"{when} {nth} of {optimizer_names(parted)}{counted_steps(parted)}"
    names = parted.states[:1]
    more = f" and {len(parted.states) - 1} more" if parted.states[1:] else ""
    state = f"'{names[0]}'{more} of {steps.model}" if names else ""
    clause, code = "", code_lines(parted, NO_RANKS if alone else parted.culprits)
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
        odd, others = sides(parted.clusters)
        has = f"different states of {parted.optimizer}"
        if others:
            has = f"another state of {parted.optimizer} than {others.describe()}"
        what = f"{subject(odd)} {odd.verb('has', 'have')} {has}, {state},"
        reason = (
            f"hashes were taken before and after {line}: before it the parameters were equal, and "
            "these states were not; after it the parameters differ, too."
        )
        step = f"Give all ranks the same state of {parted.optimizer}: {again}."
    elif not is_before:
        what = differ(parted)
        reason = (
            "hashes of all parameters were taken with each step, and differ; after step "
            f"{parted.step - 1} they were equal."
        )
        both = f", and the same state of {optimizer_names(parted)}," if steps.states else ""
        step = f"Look whether all ranks have the same weights{both} {after}. {DIFF}"
    else:
        what = differ(parted)
        reason = f"hashes of all parameters were taken before {line}, and differ"
        if alone is not None and parted.is_before:
            ranks = alone.ranks.describe()
            reason += f"; '{parted.tensor}' of {ranks} was still as {line_of(alone.site)} left it"
        reason += "."
        step = f"Give all ranks the same weights {after}: `broadcast` each parameter"
        step += f", also '{parted.tensor}'." if alone and parted.is_before else "."
        if state:
            step += f" The state of {parted.optimizer} differs, too: {again}."
        step += f" {DIFF}"
    return Words(f"{what} {before}{clause}.", reason, step, code=code_of(*code))


def _setting(setting: tuple[str, Mapping[Rank, str]]) -> tuple[str, str]:
    """The name of a setting, and ``lr=0.1 on rank 0, lr=0.2 on rank 1``."""
    name, value_by_rank = setting
    values = (
        f"{name}={value} on {of.describe()}" for value, of in ranks_by_value(value_by_rank).items()
    )
    return name, ", ".join(values)


def _new_optimizer_advice(parted: PartedReplicas) -> str:
    """Return the next step, if some ranks have another optimizer than before."""
    values = ""
    if parted.optimizers:
        classes = ranks_by_value(parted.optimizers).items()
        values = "; it was " + ", ".join(f"{name} on {ranks.describe()}" for name, ranks in classes)
    elif parted.setting is not None:
        values = f"; it had {_setting(parted.setting)[1]}"
    return (
        "Let all ranks change to another optimizer in the same iteration, or none, and give it "
        f"the same settings and the same state on all ranks{values}. {DIFF}"
    )


def _advice(parted: PartedReplicas) -> str:
    """Return the next step, if nothing but the step of the optimizer is known."""
    line, since = step_line(parted), between_steps(parted)
    averaged = f"gradients that were not averaged before {line}, or were changed after that"
    ways = (
        "a forward through `model.module`, or one that leaves out parameters without "
        "`find_unused_parameters=True`, a forward or backward under `no_sync()`, a hook or "
        "`dist.reduce` that does not give each rank the sum"
        if parted.steps.is_ddp
        else "a backward after the averaging, `dist.reduce`, which gives one rank the sum"
    )
    if not parted.step:
        if parted.was_equal:
            return (
                "Look for what changes the weights between the first backward pass of this cell "
                f"and {line}. {DIFF}"
            )
        # The constructor of DDP has made them equal.
        gives = "" if parted.steps.is_ddp else "by `broadcast`, "
        return (
            f"Give all ranks the same weights before {line}, {gives}or look for what changes them "
            f"before. {DIFF}"
        )
    if parted.all_differ and len(parted.clusters) > 2:
        return (
            f"Look for {averaged}, on all ranks: {ways}, noise that each rank draws for itself. "
            f"{DIFF}"
        )
    if parted.all_differ:
        return (
            f"Look for {averaged}: {ways}; or for weights that one of these ranks loads or "
            f"changes{since and f' {since}'}. {DIFF}"
        )
    return (
        f"Look for what perhaps only {odd_ranks(parted)} did {since or f'before {line}'}: a "
        "forward or backward under `no_sync()`, gradients or weights that are changed, weights "
        "that are loaded. Or look for lines that give each rank its own values: data, random "
        f"numbers, weights that `p.add_(e)` and `p.sub_(e)` put back only nearly. {DIFF}"
    )
