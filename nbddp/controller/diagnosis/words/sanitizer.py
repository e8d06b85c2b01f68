"""The words of what the sanitizer found.

Runs in: the notebook's process. Pure.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.crossed_lines import CrossedLines, tensor_of
from nbddp.controller.diagnosis.phrases import Predicate, RankVerb, iteration, subject
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.report import PerRank
from nbddp.controller.diagnosis.words.shared import Words, code_of, line_of
from nbddp.wire.flight_recorder import Operation, SanitizerFinding, Site
from nbddp.wire.flight_recorder.matching import MESSAGES
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet


def buffer_in_use(cause: Cause, reports: RankReports) -> Words:
    """Memory of an operation was used before its end, or nothing has waited for the end."""
    rank, finding = next(iter(cause.finding_by_rank.items()))
    opened, ranks = finding.operation, cause.culprits
    name = _name(rank, opened, reports)
    issued = f"{name} was issued at {line_of(opened.site)}, and nothing had waited for its end"
    waits = f"Call `wait()` on {_handle(opened.site)}"
    if finding.kind == "not-awaited":
        called = f"Nothing has waited for {name}, which {ranks.describe()} called"
        if finding.has_handle:
            return Words(
                f"{called}: its result may not be there yet.",
                "the cell has ended, and a later cell may still wait.",
                f"{waits}, in the cell that uses the result.",
                code=code_of((opened.site, ranks)),
                ranks=_rows(cause, reports, f"called {name}"),
                begins_with_ranks=False,
            )
        is_message = opened.signature.kind in MESSAGES
        return Words(
            f"{called}, and nothing can: its handle was deleted.",
            "Gloo forgets the message if the other end has not come by then, and that one waits "
            "forever."
            if is_message
            else "torch fills or reads the tensors at some time, and the code cannot know when.",
            f"Keep {_handle(opened.site)}, and call its `wait()`.",
            code=code_of((opened.site, ranks)),
            ranks=_rows(cause, reports, f"called {name}"),
            begins_with_ranks=False,
        )
    # A copy would get the result, here or on other ranks of the line, and the code would not.
    needs_result = opened.signature.op in _IN_PLACE or any(
        each.needs_result for each in cause.finding_by_rank.values()
    )
    if finding.other is not None:
        other = _name(rank, finding.other, reports)
        own = "" if needs_result else ", or give each operation a tensor of its own"
        return Words(
            f"{subject(ranks)} gave memory of {name}, which was still open, to {other}.",
            f"{issued} when {line_of(finding.site)} called {other}, and one of the two writes to "
            "the memory of the other.",
            f"{waits} {_before(opened.site, finding.site, reports)}{own}.",
            code=code_of((opened.site, NO_RANKS), (finding.site, ranks)),
            ranks=_rows(cause, reports, f"called {other}"),
        )
    does, ending = _ACCESSES[finding.kind]
    copy = "" if needs_result else ", or give the operation a copy"
    function = f"'{finding.function}'"
    return Words(
        f"{subject(ranks)} {does} a tensor that {name} still {_use(finding)} ({function}).",
        f"{issued} when {line_of(finding.site)} {does} its memory; {ending}.",
        f"{waits} {_before(opened.site, finding.site, reports)}{copy}.",
        code=code_of((opened.site, NO_RANKS), (finding.site, ranks)),
        ranks=_rows(cause, reports, f"{does} it, by {function}"),
    )


def not_finite(cause: Cause, reports: RankReports) -> Words:
    """An operation was given NaN or Inf, for the first time in the cell."""
    rank, finding = next(iter(cause.finding_by_rank.items()))
    name, ranks = _name(rank, finding.operation, reports), cause.culprits
    number, when = finding.operation.collective_seq_id, iteration(finding.operation)
    at = f" at {when}{f' (#{number})' if number and '#' not in name else ''}" if when else ""
    whose = f", in the gradient of {finding.parameter}" if finding.parameter else ""
    callers = {each.caller for each in cause.finding_by_rank.values()}
    caller = callers.pop() if len(callers) == 1 and not finding.parameter else Site()
    is_here = caller.position[:2] == finding.site.position[:2]
    where = f"in {line_of(caller)}" if is_here else f"at {caller.place}"
    called = f" (called {where})" if caller.line else ""
    step = (
        f"Look at what {ranks.describe()} {ranks.verb('computes', 'compute')} before "
        f"{line_of(finding.site)}{called}."
    )
    if finding.parameter:
        step = (
            "`torch.autograd.set_detect_anomaly(True)` names the function whose backward makes it; "
            f"look at the loss of {ranks.describe()} first."
        )
    return Words(
        f"{subject(ranks)} gave {finding.value} to {name}{at}{whose}.",
        f"it was there before the call, which is the first of this cell with such a value; {name} "
        "brings it to other ranks.",
        step,
        code=code_of((finding.site, ranks), *([(caller, NO_RANKS)] if caller.line else [])),
        ranks=_rows(cause, reports, f"gave {finding.value} to {name}{at}"),
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
        else f" at {line_of(calls[ranks.ranks[0]].site)}"
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
        code=code_of(*lines),
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
        code=code_of((send.site, RankSet.of([sender])), (receive.site, RankSet.of([receiver]))),
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


#: A line that adds what the call returns to a list, and returns None itself.
_KEEPS_HANDLE = re.compile(r"\.append\(.*\b(isend|irecv|async_op)\b")
#: Operations that read a tensor on some ranks, and write it on others.
_IN_PLACE = ("broadcast", "reduce")
_ACCESSES: Mapping[str, tuple[str, str]] = {
    "write": ("wrote", "which value is sent or stays is undefined"),
    "resize": ("replaced", "the operation goes on with the memory from before"),
    "read": ("read", "the result may not have been there yet"),
}


def _name(rank: Rank, operation: Operation, reports: RankReports) -> str:
    """The operation with its group, if the ranks were asked for their groups."""
    has_groups = any(view.look is not None for view in reports.graph.views.values())
    return reports.said(rank, operation, with_group=has_groups)


def _use(finding: SanitizerFinding) -> str:
    return "writes" if finding.kind == "read" else "uses"


def _handle(opened: Site) -> str:
    """``what line 5 returns``, or the handle of a call whose line adds it to a list."""
    if _KEEPS_HANDLE.search(opened.source):
        return f"the handle that {line_of(opened)} makes"
    return f"what {line_of(opened)} returns"


def _before(opened: Site, used: Site, reports: RankReports) -> str:
    """``before line 5``, where the tensor is used; in a loop the call may stand below that line."""
    if opened.position == used.position:
        return "before the line uses the tensor again"
    is_above = used.position[:2] == opened.position[:2] and 0 < used.line < opened.line
    if is_above and used.function == opened.function and _is_in_loop(used, reports):
        return f"before {line_of(used)} runs again"
    return f"before {line_of(used)}"


def _is_in_loop(site: Site, reports: RankReports) -> bool:
    code = reports.sources(site)
    return code is not None and any(each.kind == "loop" for each in code.branches(site.line))


def _rows(cause: Cause, reports: RankReports, does: str) -> Mapping[Rank, PerRank]:
    """The line of each rank."""
    return {
        rank: replace(
            reports.rank(rank),
            predicate=Predicate(RankVerb.NONE, does),
            site=finding.site if finding.site.line else finding.operation.site,
            since_s=None,
        )
        for rank, finding in cause.finding_by_rank.items()
    }
