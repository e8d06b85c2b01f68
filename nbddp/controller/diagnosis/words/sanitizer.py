"""The words of what the sanitizer found.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping
from dataclasses import replace

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.crossed_lines import CrossedLines, tensor_of
from nbddp.controller.diagnosis.parted_replicas import PartedReplicas
from nbddp.controller.diagnosis.phrases import Predicate, RankVerb, iteration, subject
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.report import CodeLine, PerRank
from nbddp.controller.diagnosis.words.shared import Words
from nbddp.wire.flight_recorder import Operation, SanitizerFault, Site
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet, ranks_by_value


def buffer_in_use(cause: Cause, reports: RankReports) -> Words:
    """Memory of an operation was used before its end, or nothing has waited for the end."""
    rank, fault = next(iter(cause.fault_by_rank.items()))
    opened, ranks = fault.operation, cause.culprits
    name = _name(rank, opened, reports)
    issued = f"{name} was issued at {_line(opened.site)}, and nothing had waited for its end"
    waits = f"Call `wait()` on what {_line(opened.site)} returns"
    if fault.kind == "not-awaited":
        called = f"Nothing has waited for {name}, which {ranks.describe()} called"
        if fault.has_handle:
            return Words(
                f"{called}: its result may not be there yet.",
                "the cell has ended, and a later cell may still wait.",
                f"{waits}, in the cell that uses the result.",
                code=_code((opened.site, ranks)),
                ranks=_rows(cause, reports, f"called {name}"),
                begins_with_ranks=False,
            )
        is_message = opened.signature.kind in ("send", "recv")
        return Words(
            f"{called}, and nothing can: its handle was deleted.",
            "Gloo forgets the message if the other end has not come by then, and that one waits "
            "forever."
            if is_message
            else "torch fills or reads the tensors at some time, and the code cannot know when.",
            f"Keep what {_line(opened.site)} returns, and call its `wait()`.",
            code=_code((opened.site, ranks)),
            ranks=_rows(cause, reports, f"called {name}"),
            begins_with_ranks=False,
        )
    if fault.other is not None:
        other = _name(rank, fault.other, reports)
        return Words(
            f"{subject(ranks)} gave memory of {name}, which was still open, to {other}.",
            f"{issued} when {_line(fault.site)} called {other}, and one of the two writes to the "
            "memory of the other.",
            f"{waits} {_before(opened.site, fault.site)}, or give each operation a tensor of its "
            "own.",
            code=_code((opened.site, NO_RANKS), (fault.site, ranks)),
            ranks=_rows(cause, reports, f"called {other}"),
        )
    does, ending = _ACCESSES[fault.kind]
    function = f"'{fault.function}'"
    return Words(
        f"{subject(ranks)} {does} a tensor that {name} still {_use(fault)} ({function}).",
        f"{issued} when {_line(fault.site)} {does} its memory; {ending}.",
        f"{waits} {_before(opened.site, fault.site)}, or give the operation a copy.",
        code=_code((opened.site, NO_RANKS), (fault.site, ranks)),
        ranks=_rows(cause, reports, f"{does} it, by {function}"),
    )


def not_finite(cause: Cause, reports: RankReports) -> Words:
    """An operation was given NaN or Inf, for the first time in the cell."""
    rank, fault = next(iter(cause.fault_by_rank.items()))
    name, ranks = _name(rank, fault.operation, reports), cause.culprits
    number, when = fault.operation.collective_seq_id, iteration(fault.operation)
    at = f" at {when}{f' (#{number})' if number and '#' not in name else ''}" if when else ""
    whose = f", in the gradient of {fault.parameter}" if fault.parameter else ""
    step = (
        f"Look at what {ranks.describe()} {ranks.verb('computes', 'compute')} before "
        f"{_line(fault.site)}."
    )
    if fault.parameter:
        step = (
            "`torch.autograd.set_detect_anomaly(True)` names the function whose backward makes it; "
            f"look at the loss of {ranks.describe()} first."
        )
    return Words(
        f"{subject(ranks)} gave {fault.value} to {name}{at}{whose}.",
        f"it was there before the call, which is the first of this cell with such a value; {name} "
        "brings it to other ranks.",
        step,
        code=_code((fault.site, ranks)),
        ranks=_rows(cause, reports, f"gave {fault.value} to {name}{at}"),
    )


def crossed_lines(cause: Cause, reports: RankReports) -> Words:
    """Ranks called a collective at different lines, and each line at other numbers, too."""
    crossed = cause.crossed
    assert crossed is not None  # noqa: S101 - each cause of this kind has one
    calls = crossed.operation_by_rank
    if any(call.signature.kind == "send" for call in calls.values()):
        return _crossed_messages(crossed, reports)
    ordered = sorted(crossed.clusters, key=lambda ranks: (len(ranks), ranks.ranks))
    tensors = {ranks.ranks[0]: tensor_of(calls[ranks.ranks[0]]) for ranks in ordered}
    has_names = all(tensors.values())
    parts = [
        f" with '{tensors[ranks.ranks[0]]}'"
        if has_names
        else f" at {_line(calls[ranks.ranks[0]].site)}"
        for ranks in ordered
    ]
    others = (
        f"{ranks.describe()}{part}" for ranks, part in zip(ordered[1:], parts[1:], strict=True)
    )
    name = _name(*next(iter(calls.items())), reports)
    lines = [(calls[ranks.ranks[0]].site, ranks) for ranks in ordered]
    return Words(
        f"{subject(ordered[0])} called {name}{parts[0]}, {', '.join(others)}: are these values "
        "meant to be mixed?",
        "kind and shape agree. The same lines were called in another order on other ranks.",
        "Call them in the same order on all ranks. If each line is right, nothing is wrong.",
        code=_code(*lines),
        ranks={
            rank: replace(
                reports.rank(rank),
                predicate=Predicate(RankVerb.CALLED, f" {name}"),
                site=operation.site,
                since_s=None,
            )
            for rank, operation in calls.items()
        },
    )


def _crossed_messages(crossed: CrossedLines, reports: RankReports) -> Words:
    """Both ends of messages name the same tensors, in another order."""
    (sender, send), (receiver, receive) = crossed.operation_by_rank.items()
    sent_as, received_as = tensor_of(send), tensor_of(receive)
    does = {
        sender: f"sent '{sent_as}' to rank {receiver}",
        receiver: f"received '{sent_as}' as '{received_as}'",
    }
    return Words(
        f"{subject(RankSet.of([receiver]))} received '{sent_as}' of rank {sender} as "
        f"'{received_as}': are these messages meant to be in another order?",
        "shape and dtype agree, and messages pair in the order of the calls. Both ranks name the "
        "same tensors, in another order.",
        "Send and receive them in the same order, or give each its own `tag`. If each line is "
        "right, nothing is wrong.",
        code=_code((send.site, RankSet.of([sender])), (receive.site, RankSet.of([receiver]))),
        ranks={
            rank: replace(
                reports.rank(rank),
                predicate=Predicate(RankVerb.NONE, does[rank]),
                site=operation.site,
                since_s=None,
            )
            for rank, operation in crossed.operation_by_rank.items()
        },
    )


def parted_replicas(cause: Cause, reports: RankReports) -> Words:
    """The replicas of a DDP model are no longer equal."""
    parted = cause.parted
    assert parted is not None  # noqa: S101 - each cause of this kind has one
    ranks, steps = cause.culprits, parted.steps
    if not steps.optimizer:
        return _parted_by_hand(cause, parted, reports)
    when = f"after step {parted.step} of {steps.optimizer}"
    equal = f"; after step {parted.step - 1} they were equal"
    if parted.step < 2:
        equal = "; before it they were equal" if parted.step else ""
    if not parted.step:
        when = f"before the first step of {steps.optimizer}"
    reason = f"hashes of all parameters were taken with each step, and differ{equal}."
    if parted.is_beside:
        reason = (
            "hashes of buffers and of the state of the optimizer were taken at the end of the "
            "cell, and differ; the parameters are still equal."
        )
    others = parted.clusters[0] - ranks
    values = f"other values than {others.describe()}" if others else "different values"
    alone = "one of these ranks does"
    if others:
        alone = f"{ranks.describe()} {ranks.verb('does', 'do')}"
    step = (
        f"Look for what {alone} alone before {_line(parted.site)}: a backward under `no_sync()`, "
        "weights that are loaded or changed. `%ddp diff` shows by how much they differ."
    )
    if not parted.step:
        step = (
            f"Give all ranks the same weights before {_line(parted.site)}: DDP sends those of rank "
            "0 when it is made; otherwise broadcast each parameter. Then look for what "
            f"{alone} alone. `%ddp diff` shows by how much they differ."
        )
    if steps.copy_site.line and not parted.is_beside:
        copied = f"line {steps.copy_site.line}"
        reason = (
            f"{copied} added up copies of all gradients, and {_line(parted.site)} used gradients "
            f"that still held what was copied; {reason}"
        )
        step = f"Copy the result of {copied} back into the gradients before {_line(parted.site)}."
    elif parted.setting is not None:
        name, value_by_rank = parted.setting
        values_text = ", ".join(
            f"{name}={value} on {of.describe()}"
            for value, of in ranks_by_value(value_by_rank).items()
        )
        step = f"Give {steps.optimizer} the same {name} on all ranks: it had {values_text}."
    more = f" and {parted.others} more" if parted.others else ""
    late = ", at the end of the cell," if parted.is_late else ""
    return Words(
        f"{subject(ranks)} {ranks.verb('has', 'have')}{late} {values} in '{parted.tensor}'{more} "
        f"of {steps.model}: its replicas are not equal {when} in this cell.",
        reason,
        step,
        code=_code((steps.copy_site, RankSet()), (parted.site, ranks)),
        ranks={
            rank: replace(
                reports.rank(rank),
                predicate=Predicate(RankVerb.NONE, f"stepped {steps.optimizer}"),
                site=parted.site,
                since_s=None,
            )
            for rank in ranks
        },
    )


def _parted_by_hand(cause: Cause, parted: PartedReplicas, reports: RankReports) -> Words:
    """Parameters that the code updates itself are no longer equal."""
    ranks, line = cause.culprits, _line(parted.site)
    others = parted.clusters[0] - ranks
    values = f"other values than {others.describe()}" if others else "different values"
    more = f" and {parted.others} more" if parted.others else ""
    tensors = f"'{parted.tensor}'{more} of {parted.steps.model}"
    taken = "hashes of all parameters were taken before the gradients were reduced first"
    if parted.step:
        clause = (
            f"{ranks.verb('has', 'have')} {values} in {tensors} at the end of the cell, although "
            f"{line} gives all ranks the same gradients."
        )
        reason = f"{taken}, and at the end of the cell: only the latter differ."
        step = f"Make the same update on all ranks after {line}, with the same learning rate."
    else:
        clause = f"had {values} in {tensors} before {line} gave all ranks the same gradients."
        reason = f"{taken}, and differ."
        step = f"Give all ranks the same weights first: `broadcast` each parameter before {line}."
    return Words(
        f"{subject(ranks)} {clause}",
        reason,
        f"{step} `%ddp diff` shows by how much they differ.",
        code=_code((parted.site, ranks)),
        ranks={
            rank: replace(
                reports.rank(rank),
                predicate=Predicate(RankVerb.NONE, "reduced its gradients"),
                site=parted.site,
                since_s=None,
            )
            for rank in ranks
        },
    )


_ACCESSES: Mapping[str, tuple[str, str]] = {
    "write": ("wrote", "which value is sent or stays is undefined"),
    "resize": ("replaced", "the operation goes on with the memory from before"),
    "read": ("read", "the result may not have been there yet"),
}


def _name(rank: Rank, operation: Operation, reports: RankReports) -> str:
    """The operation with its group, if the ranks were asked for their groups."""
    has_groups = any(view.look is not None for view in reports.graph.views.values())
    return reports.said(rank, operation, with_group=has_groups)


def _use(fault: SanitizerFault) -> str:
    return "writes" if fault.kind == "read" else "uses"


def _line(site: Site) -> str:
    """``line 3``: the card shows its cell or file below."""
    return f"line {site.line}" if site.line else "the display of a result"


def _before(opened: Site, used: Site) -> str:
    """``before line 5``, where the tensor is used."""
    is_one = opened.position == used.position
    return "before the line uses the tensor again" if is_one else f"before {_line(used)}"


def _code(*lines: tuple[Site, RankSet]) -> list[CodeLine]:
    """The lines in their order; ranks stand beside the line that is wrong."""
    known = [CodeLine(site, ranks) for site, ranks in lines if site.line]
    known.sort(key=lambda line: line.site.position)
    is_one = len({line.site.position for line in known}) == 1
    return known[-1:] if is_one else known


def _rows(cause: Cause, reports: RankReports, does: str) -> Mapping[Rank, PerRank]:
    """The line of each rank."""
    return {
        rank: replace(
            reports.rank(rank),
            predicate=Predicate(RankVerb.NONE, does),
            site=fault.site if fault.site.line else fault.operation.site,
            since_s=None,
        )
        for rank, fault in cause.fault_by_rank.items()
    }
