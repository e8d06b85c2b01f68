"""Puts a divergence into words: the next step, the suspicion, the lines of code to look at.

Runs in: the notebook's process. Pure.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from nbddp.controller.diagnosis.absent_values import absent_value, with_zeros
from nbddp.controller.diagnosis.assigned_names import AssignedName
from nbddp.controller.diagnosis.code_places import find_place, names_in
from nbddp.controller.diagnosis.control_flow import Branch, Code, Exit, Sources
from nbddp.controller.diagnosis.divergence import Divergence, PossibleSkip, Unsettled, is_of_ranks
from nbddp.controller.diagnosis.guarded_calls import left_after_error
from nbddp.controller.diagnosis.helper_barriers import HelperCall
from nbddp.controller.diagnosis.iterations import loops_around
from nbddp.controller.diagnosis.loop_lengths import LoopLength
from nbddp.controller.diagnosis.loop_phrases import left_out_call, left_out_step, length_step
from nbddp.controller.diagnosis.phrases import (
    MAX_SOURCE,
    capitalized,
    describe_branch,
    origin_of,
    quote_branch,
)
from nbddp.controller.diagnosis.report import CodeChange, CodeLine
from nbddp.controller.diagnosis.unsettled_phrases import unsettled_step, unsettled_suspicion
from nbddp.wire.flight_recorder import LoopVariable, Operation, Site, shortened
from nbddp.wire.rank_set import RankSet

_BREAK = re.compile(r"\bbreak\s*(?:#|$)")
#: The ranks at each place, and the reason.
Places: TypeAlias = Sequence[tuple[RankSet, Divergence]]


def describe_leaving(leaving: Exit) -> str:
    r"""``\`continue\` in line 8, inside \`if rank == 2:\` (line 7)``."""
    if leaving.line == leaving.condition.line:  # both on one line
        return f"line {leaving.line}, `{shortened(leaving.source, MAX_SOURCE)}`"
    inside = describe_branch(leaving.condition)
    return f"`{shortened(leaving.source, MAX_SOURCE)}` in line {leaving.line}, inside {inside}"


def describe_assigned(assigned: AssignedName) -> str:
    r"""``rank 1 changed \`grad\` in line 4, inside \`if rank == 1:\` (line 3)``."""
    line, inside = _place(assigned.place), describe_branch(assigned.place.branches[-1])
    if not assigned.ranks:
        verb = "changes" if assigned.is_change else "is assigned"
        return f"`{assigned.name}` {verb} in {line}, inside {inside}, perhaps not on all ranks"
    verb = "changed" if assigned.is_change else "assigned"
    return f"{assigned.ranks.describe()} {verb} `{assigned.name}` in {line}, inside {inside}"


def next_step(
    places: Places, operation: Operation, culprits: RankSet, change: CodeChange | None = None,
    length: LoopLength | None = None, *, skipped: LoopVariable | None = None,
    is_of_all: bool = True,
) -> str:  # fmt: skip
    """The change of the code after which the culprits make the call.

    Args:
        places: the lines that ranks have not come to.
        operation: the operation in which the others wait.
        culprits: ranks that have not called it.
        change: the change of the code that is shown with it; None: none is known.
        length: why the loop around the line is shorter on the culprits; None: it has none.
        skipped: the iteration in which the culprits left it out; None: that is not known.
        is_of_all: the group of the operation has all ranks.
    """
    if len(places) > 1:
        inside = differing_lines(places).removesuffix(".") or "The ranks wait at different lines"
        return f"{inside}: let every rank, {culprits.describe()} too, make one call."
    ((_, divergence),) = places
    line = _place(divergence) if _is_at(divergence, operation) else f"{_call(divergence)},"
    if step := _uneven_step(divergence, operation, culprits, is_of_all=is_of_all):
        return step
    if len(divergence.branches) > 1 or any(b.kind == "condition" for b in divergence.branches):
        if divergence.branches[0].line == divergence.site.line:
            line = f"the call in {_place(divergence)}"
        inside = _inside_step(divergence, culprits, can_move=change is not None)
        return f"{capitalized(line)} is {inside}"
    if change is not None and (divergence.exits or divergence.branches):
        return _changed_step(divergence, operation, culprits, change, skipped)
    if divergence.branches or divergence.loop is None:
        return _handled_step(divergence, culprits)
    return _loop_step(
        divergence, divergence.loop, operation, culprits, change=change, length=length,
        is_of_all=is_of_all,
    )  # fmt: skip


def helper_step(helper: HelperCall, culprits: RankSet) -> str:
    """The next step where a function that acts once, such as ``save``, has the collective."""
    divergence, operation = helper.divergence, helper.operation
    inside, name = describe_branch(divergence.branches[0]), helper.function.name
    is_here = divergence.site.position[:2] == operation.site.position[:2]
    place = f"line {operation.site.line}" if is_here else operation.site.place
    runs = f"so that {culprits.describe()} {culprits.verb('calls', 'call')} it, too"
    if helper.is_barrier:
        return (
            f"Keep {helper.call} inside {inside}. Move the {operation.signature.op} ({place}) out "
            f"of `{name}`, to a line after the `if` block, {runs}."
        )
    return (
        f"{capitalized(_call(divergence))}, is inside {inside}, and `{name}` calls "
        f"{operation.signature.op} ({place}). Move that call out of `{name}` and of the `if`, "
        f"{runs}; the rest of `{name}` may stay inside."
    )


def _uneven_step(
    divergence: Divergence, operation: Operation, culprits: RankSet, *, is_of_all: bool
) -> str:
    """The next step where ranks have made a call in more iterations; empty: that is not proven."""
    if divergence.is_extra:
        return _extra_step(divergence, operation)
    if divergence.unsettled is not None:
        return unsettled_step(divergence.unsettled, operation, culprits)
    if divergence.left_out is not None:
        return left_out_step(divergence, divergence.left_out, operation)
    if divergence.is_repeated and divergence.exits:
        return _leaving_step(
            divergence, operation, can_move=divergence.is_certain, is_of_all=is_of_all
        )
    return ""


def _changed_step(
    divergence: Divergence, operation: Operation, culprits: RankSet, change: CodeChange,
    skipped: LoopVariable | None,
) -> str:  # fmt: skip
    """The next step that the change of a skipped call shows."""
    if divergence.branches:
        return _guarded_step(divergence, culprits, skipped)
    if any("ReduceOp.MAX" in line.source for line in change.lines):
        return _together_step(divergence, culprits, skipped)
    return _leaving_step(divergence, operation, can_move=True)


def _guarded_step(divergence: Divergence, culprits: RankSet, skipped: LoopVariable | None) -> str:
    """The next step where all ranks can skip a call if one of them raises before it."""
    at = f" at {skipped}" if skipped else ""
    caught = culprits.verb("its exception", "their exceptions")
    return (
        f"{capitalized(culprits.describe())} skipped {_place(divergence)}{at}: "
        f"{_handlers(divergence.branches[0])} perhaps caught {caught}. Let all ranks skip it "
        "together."
    )


def _together_step(divergence: Divergence, culprits: RankSet, skipped: LoopVariable | None) -> str:
    """The next step where all ranks can skip a call if one of them does."""
    leaving, at = divergence.exits[0], f", at {skipped}" if skipped else ""
    the = "" if leaving.line == leaving.condition.line else "the "
    return (
        f"{capitalized(culprits.describe())} took {the}{describe_leaving(leaving)}{at}. Let all "
        f"ranks skip {_place(divergence)} together."
    )


def _handled_step(divergence: Divergence, culprits: RankSet) -> str:
    """The next step where an ``except`` may have kept ranks from the call."""
    if not divergence.branches:
        return f"Let {culprits.describe()} run {_call(divergence)}, too."
    handlers = _handlers(divergence.branches[0])
    does = culprits.verb("skips", "skip")
    return (
        f"Look at {handlers}: perhaps it swallows an exception of {culprits.describe()}, which "
        f"then {does} {_call(divergence)}. {_uncover(divergence.branches[0])} to see that "
        "exception; all ranks must make the call, or none."
    )


def _uncover(branch: Branch) -> str:
    """The change by which an exception is seen that a ``try`` or a ``with suppress`` takes."""
    is_with = any(handler.line == branch.line for handler in branch.handlers)
    return "Take that `with` away" if is_with else "Put `raise` first in its body"


def _handlers(branch: Branch) -> str:
    r"""``\`except Exception:\` (line 7)``."""
    parts = [
        f"`{shortened(handler.source, MAX_SOURCE)}` (line {handler.line})"
        for handler in branch.handlers
    ]
    return " or ".join(parts)


def _loop_step(
    divergence: Divergence, loop: Branch, operation: Operation, culprits: RankSet,
    *, change: CodeChange | None, length: LoopLength | None, is_of_all: bool,
) -> str:  # fmt: skip
    """The next step where ranks have not come to the call in some iterations of a loop."""
    if len(divergence.exits) == 1:
        return _leaving_step(divergence, operation, is_of_all=is_of_all)
    if length is not None and not divergence.exits:
        return length_step(divergence, loop, length, culprits, change)
    return f"Let every rank run {_call(divergence)}, in each iteration of {describe_branch(loop)}."


def _inside_step(divergence: Divergence, culprits: RankSet, *, can_move: bool) -> str:
    """The branches, and what to do about them."""
    inside = f"inside {' and '.join(map(describe_branch, divergence.branches))}"
    if len(divergence.branches) > 1:
        return f"{inside}: let {culprits.describe()} run it, too, or move it out."
    (branch,) = divergence.branches
    if branch.line == divergence.site.line:
        inside = f"inside {quote_branch(branch)}"
    if branch.operator:
        inside = f"behind the `{branch.operator}` of {quote_branch(branch)}"
        if not is_of_ranks(branch):
            return f"{inside}: let all ranks decide alike, or call it in a line before the `if`."
        runs = f"so that {culprits.describe()} {culprits.verb('runs', 'run')} it, too"
        return f"{inside}: call it in a line before the `if`, {runs}."
    if not is_of_ranks(branch):
        value = absent_value(divergence.code, divergence.site.line, branch, skips=False)
        step = "let all ranks decide alike, or move it out"
        if value is not None:
            zeros = f"{with_zeros(value)}, before the `if`, so that all ranks make the call"
            step = f"{zeros}, or let all ranks decide alike"
        return f"{inside}: {step}."
    if not can_move and branch.line != divergence.site.line:
        return f"{inside}: let {culprits.describe()} run it, too, with all that it needs."
    return (
        f"{inside}: move it out, so that {culprits.describe()} {culprits.verb('runs', 'run')} it, "
        "too."
    )


def _extra_step(divergence: Divergence, operation: Operation) -> str:
    """The next step where an earlier call was made by some ranks only."""
    callers, others = _callers(divergence)
    return (
        f"{extra_call_step(divergence, operation)} Since then, calls of {callers.describe()} have "
        f"met other calls of {others.describe()}: do not trust the results."
    )


def extra_call_step(divergence: Divergence, operation: Operation) -> str:
    """The next step where some ranks have made a call, or called its function, more often."""
    callers, others = _callers(divergence)
    inside = f", inside {describe_branch(divergence.branches[0])}" if divergence.branches else ""
    name = f"{operation.signature.op}{origin_of(operation)}"
    run = "run" if operation.is_by_library else "call"
    return (
        f"{capitalized(_call(divergence))}, has called {name} more often on {callers.describe()} "
        f"than on {others.describe()}{inside}: {run} it on all ranks, or not at all."
    )


def _callers(divergence: Divergence) -> tuple[RankSet, RankSet]:
    """The ranks that have made a call more often than the others, and these."""
    fewest = min(divergence.calls.values())
    others = RankSet.of(rank for rank, count in divergence.calls.items() if count == fewest)
    return RankSet.of(divergence.calls) - others, others


def _leaving_step(
    divergence: Divergence, operation: Operation, *, can_move: bool = False, is_of_all: bool = True
) -> str:
    """The next step where a `continue`, `break` or `return` skips the call on some ranks."""
    leaving = divergence.exits[0]
    condition, exit_text = leaving.condition, describe_leaving(leaving)
    is_one_line = leaving.line == condition.line
    the = "" if is_one_line else "the "
    calls = divergence.calls.values()
    is_repeated = operation.iteration or loops_around(divergence.code, divergence.site.line)
    when = ", in the same iteration" if is_repeated or max(calls, default=0) > 1 else ""
    together = f"Let all ranks take {the}{exit_text}{when}"
    if condition.source.startswith("except"):
        # An exception before the call would skip it wherever the call moves.
        has_device = is_of_all and bool(divergence.site.cell)
        how = left_after_error(divergence.code, divergence.site.line, leaving) * has_device
        return f"{together}{how or ', or none of them'}."
    can_move = can_move and not _is_behind(leaving, divergence)
    # A rank that has left the loop would still miss the call in later iterations.
    can_move = can_move and not loops_around(divergence.code, leaving.line)
    can_move = (leaving.is_continue or can_move) and not _is_made_between(leaving, divergence)
    if operation.is_by_library or not can_move:
        # A backward without the step after it would make the ranks' models differ.
        how = _shared_break(leaving) if is_of_all else ""
        return f"{together}{how or ', or none of them'}."
    is_here = _is_at(divergence, operation)
    call = f"Call {operation.signature.op}" if is_here else f"Run {_place(divergence)}"
    if not is_one_line:
        branch = describe_branch(condition.other or condition)
        exit_text = f"{branch}, whose `{shortened(leaving.source, MAX_SOURCE)}` skips it"
    value = absent_value(divergence.code, divergence.site.line, condition, skips=True)
    if value is not None and not is_of_ranks(condition):
        return (
            f"{capitalized(with_zeros(value))}, before {exit_text}, so that all ranks make the "
            "call, or let all ranks skip it there."
        )
    return f"{call} before {exit_text}, or let all ranks skip it there."


def _is_behind(leaving: Exit, divergence: Divergence) -> bool:
    """Whether a rank makes the call before it leaves: in the condition, or above it."""
    return leaving.condition.line >= divergence.site.line


def _is_made_between(leaving: Exit, divergence: Divergence) -> bool:
    """Whether the call has a name that is assigned between it and the exit above it."""
    code, line = divergence.code, divergence.site.line
    place = find_place(code, line)
    made = {
        node.id
        for statement in code.statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and leaving.line < node.lineno < line
    }
    return place is not None and bool(made & names_in(place.statement))


def _shared_break(leaving: Exit) -> str:
    """The two lines by which all ranks take a `break` together; empty: it is none, or has no `if`.

    The sum of their flags is the same on all ranks, and so is the decision.
    """
    test = leaving.condition.test
    if test is None or not _BREAK.search(leaving.source):
        return ""
    condition = ast.unparse(test)
    flag = f"1.0 if {condition if len(condition) <= MAX_SOURCE else '...'} else 0.0"
    is_elif = leaving.condition.source.startswith("elif")
    which, word = ("first `if`", "elif") if is_elif else ("`if`", "if")
    return (
        f": put `stop = torch.tensor({flag}, device=device)` and `dist.all_reduce(stop)` above "
        f"the {which}, and `{word} stop: break` in its place"
    )


def skipped_step(ranks: RankSet) -> str:
    """The next step where ranks left out a call in some iterations of a loop.

    Args:
        ranks: the ranks that left it out.
    """
    return (
        f"Look for a `continue`, `break`, `if` or `except` by which {ranks.describe()} left "
        "out a call in an earlier iteration, or for a loop with more iterations on the others."
    )


def sole_reason(code: Code | None, line: int) -> str:
    """The one statement that may keep a rank from a line in a loop; empty: several, or none."""
    if code is None:
        return ""
    reasons = [
        describe_branch(branch) if branch.kind == "condition" else _handlers(branch)
        for branch in code.branches(line)
        if branch.kind != "loop"
    ]
    reasons += [describe_leaving(leaving) for leaving in code.exits(line)]
    return reasons[0] if len(reasons) == 1 else ""


def suspicions(places: Places, operation: Operation, culprits: RankSet) -> Iterator[str]:
    """Sentences without a period on what kept the culprits from the call."""
    if len(places) > 1:
        return
    ((_, divergence),) = places
    for leaving in divergence.exits[:2]:
        later = " in later iterations" * _is_behind(leaving, divergence)
        skipped = f"skips {_place(divergence)}{later} on {culprits.describe()}"
        yield f"{describe_leaving(leaving)}, {skipped}"
    calls = _calls(divergence)
    counted = [f"{_times(count)} on {ranks.describe()}" for count, ranks in calls.items()]
    name = f"{operation.signature.op}{origin_of(operation)}"
    called = f": {_place(divergence)} has called {name} {', '.join(counted)}"
    called = called if len(calls) > 1 else ""
    if [branch.kind for branch in divergence.branches] == ["try"]:
        yield (
            f"{_handlers(divergence.branches[0])} has swallowed an exception, which skipped "
            f"{_place(divergence)} on {culprits.describe()}{called}"
        )
    elif divergence.unsettled is not None:
        yield f"{unsettled_suspicion(divergence.unsettled, operation, culprits)}{called}"
    elif divergence.left_out is not None:
        yield f"{left_out_call(divergence, divergence.left_out, operation)}{called}"
    elif divergence.loop is not None and not divergence.exits:
        split = ", as if the data is split unevenly" * divergence.is_over_data
        loop = describe_branch(divergence.loop)
        yield f"{loop} had fewer iterations on {culprits.describe()}{split}{called}"


def excerpt(places: Places, operation: Operation, sources: Sources) -> list[CodeLine]:
    """The lines that explain it, and the line of the call, with the ranks that are there."""
    if len(places) > 1:
        return differing_excerpt(places)
    ((waiting, divergence),) = places
    lines = differing_excerpt([(RankSet() if divergence.is_extra else waiting, divergence)])
    if divergence.unsettled is not None:
        return _with_reasons(lines, divergence.unsettled, sources)
    if _is_at(divergence, operation):
        return lines
    call = [_line(operation.site, sources(operation.site), operation.site.line, waiting)]
    if divergence.site.position[:2] == operation.site.position[:2]:
        return sorted({line.site.line: line for line in (*lines, *call)}.values(), key=_number)
    return [*call, *lines] if divergence.is_inner else [*lines, *call]


def _with_reasons(
    lines: Sequence[CodeLine], unsettled: Unsettled, sources: Sources
) -> list[CodeLine]:
    """The line of a call, with those of all possible reasons."""
    places = [(skip.place, line) for skip in unsettled.skips for line in _lines_of_skip(skip)]
    places += [(site, line) for site, loop in unsettled.loops for line in loop.headers]
    more = [_line(site, sources(site), line, RankSet()) for site, line in places]
    by_position = {each.site.position: each for each in (*more, *lines)}
    return [by_position[key] for key in sorted(by_position)]


def _lines_of_skip(skip: PossibleSkip) -> tuple[int, ...]:
    if skip.branch is not None:
        return skip.branch.headers
    if skip.leaving is not None:
        return (*skip.leaving.condition.headers, skip.leaving.line)
    if skip.kind == "callers":
        return skip.lines
    return (skip.place.line,)


def differing_excerpt(places: Places) -> list[CodeLine]:
    """The lines of different calls with the branches around them, and the ranks there."""
    lines: dict[tuple[str, int, int], CodeLine] = {}
    for ranks, divergence in places:
        site = divergence.site
        for number in divergence.lines:
            key = (*site.position[:2], number)
            here = ranks if number == site.line else RankSet()
            if key in lines:
                here = RankSet.of((*lines[key].ranks, *here))
            lines[key] = _line(site, divergence.code, number, here)
    return [lines[key] for key in sorted(lines)]


def _line(site: Site, code: Code | None, number: int, ranks: RankSet) -> CodeLine:
    """A line of a cell or file; without its code, only that of the site is known."""
    source = site.source if code is None else code.source(number)
    return CodeLine(Site(site.file, number, site.function, source, site.cell), ranks)


def _number(line: CodeLine) -> int:
    return line.site.line


def _is_at(divergence: Divergence, operation: Operation) -> bool:
    """Whether the divergence is around the call itself, not around a caller of its function."""
    return divergence.site.position == operation.site.position


def _place(divergence: Divergence) -> str:
    """``line 4``, ``line 4 of helpers.py``."""
    site = divergence.site
    file = "" if site.cell else f" of {site.file.replace(chr(92), '/').rpartition('/')[2]}"
    return f"line {site.line}{file}"


def _call(divergence: Divergence) -> str:
    return f"{_place(divergence)}, `{shortened(divergence.site.source, MAX_SOURCE)}`"


def _calls(divergence: Divergence) -> dict[int, RankSet]:
    """The ranks by the number of their calls, the fewest first."""
    counts = sorted(set(divergence.calls.values()))
    return {
        count: RankSet.of(rank for rank, calls in divergence.calls.items() if calls == count)
        for count in counts
    }


def _times(count: int) -> str:
    return f"{count} time{'s' * (count != 1)}"


def differing_lines(places: Places) -> str:
    r"""``Line 4 (rank 0) is inside \`if rank == 0:\` (line 3).``; empty without a branch."""
    parts = [
        f"{_place(divergence)} ({ranks.describe()}) is {_within(divergence.branches[-1])}"
        for ranks, divergence in places
        if divergence.branches
    ][:3]
    return f"{capitalized(', '.join(parts))}." if parts else ""


def _within(branch: Branch) -> str:
    r"""``inside \`if rank == 0:\` (line 3)``."""
    where = f"behind the `{branch.operator}` of" if branch.operator else "inside"
    return f"{where} {describe_branch(branch)}"
