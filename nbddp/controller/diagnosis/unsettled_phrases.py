"""Puts the possible reasons of a call that was left out, or a loop that was shorter, into words.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Sequence

from nbddp.controller.diagnosis.control_flow import Branch, Exit
from nbddp.controller.diagnosis.divergence import PossibleSkip, Unsettled
from nbddp.controller.diagnosis.phrases import MAX_SOURCE, describe_branch, origin_of
from nbddp.wire.flight_recorder import Operation, Site, cell_name, shortened
from nbddp.wire.rank_set import RankSet

#: Statements, and loops, in a sentence.
_MAX_REASONS = 3
_MAX_LOOPS = 2


def unsettled_step(unsettled: Unsettled, operation: Operation, culprits: RankSet) -> str:
    """The next step where it is not known why ranks made a call fewer times.

    Args:
        unsettled: the possible reasons.
        operation: the call.
        culprits: the ranks that have made it fewer times.
    """
    runs = "come to" if operation.is_by_library else "call"
    by = f", reached by line {unsettled.caller}," if unsettled.caller else ""
    step = (
        f"Let all ranks {runs} {_called(operation)} in line {operation.site.line}{by} equally often"
    )
    ranks, here = culprits.describe(), operation.site
    skips, loops = _skips(unsettled.skips, here), _loops(unsettled, here)
    if not skips and not loops:
        return f"{step}: {ranks} {culprits.verb('has', 'have')} made fewer of these calls."
    if not skips:
        return f"{step}: look at {loops}, {_which(unsettled)} on {ranks}."
    if not unsettled.loops:
        at = f" at {unsettled.iteration}" if unsettled.iteration else ""
        return f"{step}: {ranks} left it out{at}. Look at {skips}."
    return (
        f"{step}: look at {skips}, by which {ranks} may have left it out, and at {loops}, "
        f"{_which(unsettled)} there."
    )


def unsettled_suspicion(unsettled: Unsettled, operation: Operation, culprits: RankSet) -> str:
    """``rank 0 left out all_reduce in line 6, by ..., or ... had fewer iterations there``."""
    here, ranks = operation.site, culprits.describe()
    skips, loops = _skips(unsettled.skips, here), _loops(unsettled, here)
    left_out = f"{ranks} left out {_called(operation)} in line {here.line}"
    if not skips and not loops:
        return f"{left_out} in an iteration of the loop"
    if not skips:
        return f"{loops} had fewer iterations on {ranks}"
    if not unsettled.loops:
        at = f" at {unsettled.iteration}" if unsettled.iteration else ""
        return f"{left_out}{at}, by {skips}"
    return f"{left_out}, by {skips}, or {loops} had fewer iterations there"


def _which(unsettled: Unsettled) -> str:
    return "one of which may be shorter" if len(unsettled.loops) > 1 else "which may be shorter"


def _called(operation: Operation) -> str:
    """``gradient averaging``, ``all_reduce``."""
    is_called = not operation.is_by_library
    if is_called:
        return f"{operation.signature.op}{origin_of(operation)}"
    return operation.in_words(0, has_call=False)


def _loops(unsettled: Unsettled, here: Site) -> str:
    parts = [_in(describe_branch(loop), site, here) for site, loop in unsettled.loops]
    return " or ".join(parts[-_MAX_LOOPS:])


def _skips(skips: Sequence[PossibleSkip], here: Site) -> str:
    parts = [_in(_describe(skip), skip.place, here) for skip in skips[:_MAX_REASONS]]
    return " or ".join([*parts, *["another statement there"] * (len(skips) > _MAX_REASONS)])


def _in(text: str, place: Site, here: Site) -> str:
    """A statement, with its cell or file if that is not the one of the call."""
    if place.position[:2] == here.position[:2]:
        return text
    title = cell_name(place.cell) if place.cell else place.file.replace(chr(92), "/")
    return f"{text} of {title.rpartition('/')[2]}"


def _describe(skip: PossibleSkip) -> str:
    line = f"line {skip.place.line}"
    match skip.kind:
        case "exit":
            assert skip.leaving is not None  # noqa: S101 - of this kind
            return _leaving(skip.leaving)
        case "branch":
            assert skip.branch is not None  # noqa: S101 - of this kind
            return _branch(skip.branch)
        case "way":
            return f"what calls `{skip.name}` in {line}"
        case "callers":
            lines = f" in lines {', '.join(map(str, skip.lines))}" if skip.lines else ""
            return f"the calls of `{skip.name}`{lines}"
        case "expression":
            return f"the condition in {line}"
        case "decorator" | "no_sync":
            return f"`{shortened(skip.place.source, MAX_SOURCE)}` ({line})"


def _leaving(leaving: Exit) -> str:
    if leaving.line == leaving.condition.line:  # both on one line
        return f"line {leaving.line}, `{shortened(leaving.source, MAX_SOURCE)}`"
    source = shortened(leaving.source, MAX_SOURCE)
    return f"`{source}` in line {leaving.line}, inside {describe_branch(leaving.condition)}"


def _branch(branch: Branch) -> str:
    r"""``\`if x is None:\` (line 2)``, for ``try`` its ``except``."""
    if branch.kind != "try":
        return describe_branch(branch)
    parts = [
        f"`{shortened(handler.source, MAX_SOURCE)}` (line {handler.line})"
        for handler in branch.handlers
    ]
    return " or ".join(parts)
