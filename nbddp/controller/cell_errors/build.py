"""Builds the one error that the notebook shows from the outcome of a cell.

Runs in: the notebook's process. Pure.

Order of its text: what happened, to which ranks, during which cell, the evidence, what to do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nbddp.controller.cell_errors import evidence, traceback_groups
from nbddp.controller.cell_errors.advice import advice
from nbddp.controller.cell_errors.exit_headline import before_end, ended_as, exit_headline
from nbddp.controller.cell_errors.exited_ranks import (
    freed_memory,
    last_sites,
    log_commands,
    log_lines,
    meanings,
    why_exited,
)
from nbddp.controller.cell_errors.hints import NameOrigins, NoOrigins, hints
from nbddp.controller.cell_errors.lines import (
    Line,
    displayed_text,
    labelled,
    plain_text,
    quoted,
)
from nbddp.controller.cell_errors.next_steps import after_exits, beside_silent, still_inside
from nbddp.controller.diagnosis import describe_handled
from nbddp.controller.state import (
    MISMATCH_ERROR,
    RankResult,
    RunOutcome,
    describe_exit,
    exception_line,
    silence_text,
)
from nbddp.errors import (
    CellError,
    CellInterruptedError,
    CellTimeoutError,
    DeadlockError,
    MismatchError,
    RankExitedError,
)
from nbddp.wire.flight_recorder import RENDEZVOUS
from nbddp.wire.message_types import ErrorInfo, ExitCause
from nbddp.wire.rank_set import RankSet, ranks_by, ranks_by_value

_LAST_LINES = 6
#: Errors of other kinds in a headline.
_MAX_OTHERS = 2


@dataclass(frozen=True)
class _ErrorText:
    """The kind of an error, and its lines; one of them has the name of the error."""

    kind: type[CellError]
    lines: list[Line]
    brief: list[Line]  #: for IPython, below a card that has told the rest; empty: all lines


def cell_error(
    outcome: RunOutcome,
    cell_name: str,
    log_path_by_rank: Mapping[int, str],
    origins: NameOrigins | None = None,
) -> CellError | None:
    """Build the error of a cell.

    The headline is the first that applies: a rank exited, operations do not match, a rank raised,
    ranks waited for each other, the timeout or an interrupt ended the cell. IPython shows the
    frames of libraries folded, and the command that shows a log; the text of the error has all
    frames, and the paths of logs.

    Args:
        outcome: the end of the cell on each rank.
        cell_name: ``cell [3]``, for sentences.
        log_path_by_rank: the log files of ranks, for those that exited.
        origins: the cells that have bound names; None: they are not known.

    Returns:
        The error, to be raised by the caller; None if the cell ended well on all ranks.
    """
    whole = _error_text(outcome, cell_name, log_path_by_rank, origins, _tracebacks(outcome))
    if whole is None:
        return None
    commands = log_commands(outcome, log_path_by_rank)
    folded = _tracebacks(outcome, is_folded=True)
    shown = _error_text(outcome, cell_name, commands, origins, folded, is_brief=True) or whole
    return whole.kind(
        plain_text(whole.lines),
        {
            rank: _name_and_text(outcome.results[rank])
            for rank in outcome.ranks("error", "exited", "unfinished")
        },
        displayed=displayed_text(shown.brief or shown.lines),
        headline=next(line.plain for line in whole.lines if line.name),
    )


def _tracebacks(outcome: RunOutcome, *, is_folded: bool = False) -> list[Line]:
    tracebacks = traceback_groups.grouped_tracebacks(_raised(outcome), is_folded=is_folded)
    # The lines below a traceback belong to it: without blanks, more of it stays on the screen.
    if is_folded and tracebacks and not tracebacks[-1].text:
        tracebacks.pop()
    return tracebacks


def whole_tracebacks(outcome: RunOutcome) -> list[str]:
    """The tracebacks in the error of a cell with all their frames; none if nothing is folded."""
    raised = _raised(outcome)
    if not any(error.libraries for _, error in raised):
        return []
    return [line.plain for line in traceback_groups.grouped_tracebacks(raised)]


def _error_text(  # noqa: PLR0911 - one for each kind of error
    outcome: RunOutcome,
    cell_name: str,
    log_path_by_rank: Mapping[int, str],
    origins: NameOrigins | None,
    tracebacks: list[Line],
    *,
    is_brief: bool = False,
) -> _ErrorText | None:
    """The text of an error with these tracebacks; a brief one does not repeat their message."""
    if not outcome.ranks("error", "exited", "unfinished"):
        return _wrong(outcome) if outcome.is_wrong else None
    exited = outcome.ranks("exited")
    if exited:
        faults = evidence.fault_lines(outcome, is_brief=is_brief)
        return _exit_error(outcome, exited, cell_name, log_path_by_rank, (faults, tracebacks))
    body = [*evidence.fault_lines(outcome, is_brief=is_brief), *tracebacks]
    if outcome.ended_by:
        late = outcome.ranks("unfinished").describe()
        ending = f"was ended by {outcome.ended_by} before {late} had finished"
        if outcome.goes_on:
            ending = (
                f"was let go by {outcome.ended_by} while it ran on {late}. Next: the handle that "
                "%ddp attach gives shows its end"
            )
        return _text(CellError, f"{cell_name} {ending}", body)
    others = [*evidence.consequence_lines(outcome), *_states(outcome)]
    quitters = evidence.ranks_that_left_debugger(outcome)
    left = f"{quitters.describe()} left the debugger"
    states = [*others, *([Line(left)] if quitters else [])]
    verdict = _verdict(outcome)
    if verdict is not None:
        kind, proof = verdict
        headline = proof.headline
        if callers := evidence.called_after_interrupt(outcome):
            kind, ended = _ended_by_user(outcome, cell_name)
            headline = f"{ended}; {evidence.then(callers, outcome, proof)}"
        before = [*_handling(outcome), *evidence.timeout_lines(outcome)]
        kept, step = _kept(outcome), _next_step(outcome)
        whole = [*proof.lines, *before, *kept, *step]
        if _is_whole_after_card(outcome):
            kept = kept[1:]
        step = [] if _has_step_on_card(outcome) else step
        below = [*before, *kept, *step]
        return _text(
            kind, headline, [*body, *states], whole, below if _is_shown_by_card(outcome) else None
        )
    if _is_ended_by_user(outcome):
        kind, ended = _ended_by_user(outcome, cell_name)
        return _text(kind, ended, [*body, *states], _after_interrupt(outcome))
    first = _first_failure(outcome)
    if first is None and quitters:
        after = _after_interrupt(outcome)
        in_brief = after if _is_shown_by_card(outcome) else None
        return _text(CellInterruptedError, left, others, after, in_brief)
    if first is None:
        inside = outcome.ranks("unfinished")
        ending = f"ended before {inside.describe()} had finished" if inside else _why_freed(outcome)
        return _text(CellError, f"{cell_name} {ending}", states, _broken(outcome))
    ranks = _ranks_with(outcome, first)
    shown = exception_line(outcome.results[ranks.ranks[0]].error or first)  # as in the traceback
    alike, said = _ranks_alike(outcome, first), shown.text and f": {shown.text}"
    if set(alike) - set(ranks):
        ranks, said = alike, traceback_groups.examples(_raised(outcome), alike)
    elif is_brief and len(ranks) == len(_raised(outcome)):
        said = ""  # the one traceback right above ends with it
    at_line = evidence.at_line(outcome.results[rank].error for rank in ranks)
    said += _others(outcome, ranks, first)
    raised = f"{ranks.describe()} raised {shown.name}{at_line}{said}"
    tail = [
        *_reason(outcome, ranks),
        *hints(outcome, first, ranks, origins or NoOrigins()),
        *_broken(outcome),
    ]
    return _text(CellError, raised, [*body, *states], tail)


def _text(
    kind: type[CellError],
    headline: str,
    before: list[Line],
    after: list[Line] | None = None,
    after_in_brief: list[Line] | None = None,
) -> _ErrorText:
    """The text of an error with lines before and after its headline.

    Args:
        kind: of the error.
        headline: what happened.
        before: tracebacks, and what other ranks did.
        after: evidence, what is kept and what to do.
        after_in_brief: the lines that follow the headline below a card; None: none tells the rest.
    """
    line = Line(headline, name=kind.__name__)
    brief = [] if after_in_brief is None else [line, *after_in_brief]
    return _ErrorText(kind, [*before, line, *(after or [])], brief)


def _wrong(outcome: RunOutcome) -> _ErrorText | None:
    """The error of a cell that ended well on all ranks, and whose records show a mismatch."""
    findings = outcome.report.findings if outcome.report is not None else ()
    mismatch = next((finding for finding in findings if finding.is_error), None)
    if mismatch is None:
        return None
    step = advice(mismatch)
    whole = [labelled("proven", mismatch.reason), *step]
    return _text(MismatchError, mismatch.headline.rstrip("."), [], whole, step)


def _why_freed(outcome: RunOutcome) -> str:
    """The reason that ranks got when they were freed, where no report says more."""
    texts = (r.error.evalue.strip() for r in outcome.results.values() if r.error is not None)
    reason = next(filter(None, texts), "").partition("\n")[0]
    return f"was ended by nbddp{reason and ': '}{reason}"


def _verdict(outcome: RunOutcome) -> tuple[type[CellError], evidence.Proof] | None:
    """The error and its evidence, if a proven finding made the cell fail."""
    mismatches = outcome.raised_mismatches
    if mismatches:
        return MismatchError, evidence.proof_of_mismatch(mismatches, outcome.report)
    report = outcome.report
    if report is None or not report.proven or not evidence.is_cause(outcome):
        return None
    finding = report.proven[0]
    if finding.kind in ("first-error", "left-debugger"):
        return None
    is_mismatch = finding.kind == "mismatched-collective"
    return (MismatchError if is_mismatch else DeadlockError), evidence.proof_of(finding)


def _reason(outcome: RunOutcome, raised: RankSet) -> list[Line]:
    """The finding that was proven before the timeouts of these ranks expired."""
    report, results = outcome.report, outcome.results
    if report is None or not report.proven:
        return []
    if not all(evidence.is_end_of_wait(report, rank, results[rank].error) for rank in raised):
        return []
    finding = report.proven[0]
    return [labelled("proven", finding.headline.rstrip(".")), *advice(finding)]


def _handling(outcome: RunOutcome) -> list[Line]:
    """The exceptions that ranks handled when they were freed or stopped: perhaps the reason."""
    handled_by_rank = {
        rank: result.error.handling
        for rank, result in outcome.results.items()
        if result.error is not None and result.error.handling is not None
    }
    was_here = ", and was here while handling it", ", and were here while handling it"
    texts = describe_handled(handled_by_rank, was_here)
    return [labelled("before", text) for text in texts[: traceback_groups.MAX_FULL]]


def _next_step(outcome: RunOutcome) -> list[Line]:
    """The lines on what to change: below a long card they are what a reader sees first."""
    report = outcome.report
    is_clear = report is not None and report.proven and not outcome.rebuild_failure
    if not is_clear or report is None:
        return []
    return advice(report.proven[0])


def _is_shown_by_card(outcome: RunOutcome) -> bool:
    """Whether the card of the report says all that the error says, and more."""
    return (
        outcome.report is not None
        and not outcome.ranks("unfinished")
        and all(error.ename == MISMATCH_ERROR for _, error in _raised(outcome))
    )


def _has_step_on_card(outcome: RunOutcome) -> bool:
    """Whether the card could not leave the next step to an error below it."""
    proven = () if outcome.report is None else outcome.report.proven
    return bool(proven) and not proven[0].has_error_below


def _is_whole_after_card(outcome: RunOutcome) -> bool:
    """Whether the card says that ranks were freed and the pool is whole again."""
    was_freed = any(result.was_freed for result in outcome.results.values())
    return was_freed and not outcome.dead and not outcome.rebuild_failure


def _is_ended_by_user(outcome: RunOutcome) -> bool:
    """Whether an interrupt or the timeout came before any rank raised, and so caused the errors."""
    return (outcome.interrupted or outcome.timed_out) and not outcome.raised_before


def _ended_by_user(outcome: RunOutcome, cell_name: str) -> tuple[type[CellError], str]:
    if outcome.timed_out:
        limit = "" if outcome.timeout_s is None else f" of {outcome.timeout_s:g} s"
        return CellTimeoutError, f"{cell_name} ran longer than its --timeout{limit}"
    return CellInterruptedError, f"{cell_name} was interrupted"


def _kept(outcome: RunOutcome) -> list[Line]:
    if outcome.rebuild_failure or outcome.ranks("unfinished"):
        return _broken(outcome)
    groups, dead = "the process groups are ready again", outcome.dead
    findings = () if outcome.report is None else outcome.report.proven
    if any(finding.op == RENDEZVOUS for finding in findings):
        groups = "there is no default process group until init_process_group succeeds"
    if dead:
        groups = f"groups with {dead.describe()}, which exited, need %ddp restart -r {dead}"
    lost = [*evidence.wrong_results(findings), *evidence.partial_results(outcome, "except")]
    return [labelled("kept", f"every variable is kept; {groups}"), *lost]


def _after_interrupt(outcome: RunOutcome) -> list[Line]:
    """Lines on what is kept and what to do, after the user or the timeout has ended a cell."""
    if outcome.rebuild_failure or outcome.ranks("unfinished"):  # other lines say what to do
        return _broken(outcome)
    kept = [
        labelled("kept", "every variable is kept"),
        *evidence.partial_results(outcome, "except"),
    ]
    if (outcome.report is not None or outcome.dead) and not outcome.is_plain:
        kept = _kept(outcome)
    if outcome.timed_out:
        return [
            *kept,
            labelled("next", "give it a longer --timeout or less work, and run it again"),
        ]
    return [*kept, labelled("next", "run the next cell, or this one again")]


def _broken(outcome: RunOutcome) -> list[Line]:
    """Lines on damage: tensors with partial results, groups that could not be formed again."""
    lines = evidence.partial_results(outcome, "partial")
    if outcome.silent:
        return [*lines, labelled("next", beside_silent(outcome))]
    if not outcome.rebuild_failure:
        return lines
    return [
        *lines,
        labelled(
            "pool", f"the process groups could not be formed again: {outcome.rebuild_failure}"
        ),
        labelled("next", "%ddp restart   (variables can still be pulled)"),
    ]


def _exit_error(
    outcome: RunOutcome,
    exited: RankSet,
    cell_name: str,
    log_path_by_rank: Mapping[int, str],
    before: tuple[list[Line], list[Line]],
) -> _ErrorText:
    """The text of the error of a cell in which ranks exited.

    Args:
        outcome: the end of the cell.
        exited: the ranks that exited.
        cell_name: ``cell [3]``.
        log_path_by_rank: see `cell_error`.
        before: the lines on faults on purpose, and the tracebacks.
    """
    faults, tracebacks = before
    headline = exit_headline(outcome, exited, cell_name)
    after = _after_exits(outcome)
    below = [*_exits(outcome, exited, log_path_by_rank), *tracebacks, *after]
    text = _text(RankExitedError, headline, faults, below)
    if outcome.report is None or not outcome.report.explains_exits:
        return text
    exit_lines = [*why_exited(outcome, exited), *log_lines(exited, log_path_by_rank)]
    # Below a long card the next step is what a reader sees first.
    last = [*_torn_after_exits(outcome), *after[-1:]]
    in_brief = _text(RankExitedError, headline, faults, [*exit_lines, *tracebacks, *last])
    return replace(text, brief=in_brief.lines)


def _exits(
    outcome: RunOutcome,
    ranks: RankSet,
    log_path_by_rank: Mapping[int, str],
) -> list[Line]:
    """The evidence on the ends of ranks, and what the others did."""
    lines = []
    causes: set[ExitCause] = set()
    for rank in list(ranks)[: traceback_groups.MAX_FULL]:
        result = outcome.results[rank]
        exited = result.exited
        assert exited is not None  # noqa: S101 - it is in the state "exited"
        how, guess = describe_exit(exited)
        likely = outcome.exit_calls.get(rank) or freed_memory(outcome, exited) or guess
        end = f"{how}{f', pid {exited.pid}' * bool(exited.pid)}, {evidence.time_of(result)}"
        lines.append(labelled(f"rank {rank}", end))
        if before := before_end(outcome, [rank]):
            site = ended_as(outcome, rank)[1]
            lines.append(labelled("before", f"it {before}{f', at {site}' if site else ''}"))
        lines += [labelled("means", text) for text in meanings(outcome, [exited])]
        if likely and not outcome.injected:  # a fault on purpose is the likely reason
            lines.append(labelled("likely", likely))
        lines += last_sites(result)
        # Ranks that ended for one cause, such as a lost agent, have the same last output.
        is_repeated = exited.cause in causes
        if exited.cause is not None:
            causes.add(exited.cause)
        printed = [] if is_repeated else exited.last_output.rstrip().splitlines()[-_LAST_LINES:]
        lines += [
            quoted(line, "printed" if number == 0 else " ") for number, line in enumerate(printed)
        ]
        if rank in log_path_by_rank:
            lines.append(quoted(log_path_by_rank[rank], "log"))
    if len(ranks) > traceback_groups.MAX_FULL:
        more = RankSet.of(list(ranks)[traceback_groups.MAX_FULL :])
        lines.append(Line(f"  and {more.describe()}"))
    others = [*_states(outcome), *evidence.consequence_lines(outcome)]
    return [*lines, *(labelled("others", line.text) for line in others)]


def _after_exits(outcome: RunOutcome) -> list[Line]:
    """Lines on the state of the pool and the next step, after ranks have exited."""
    facts = after_exits(outcome)
    lines = [labelled("replaced", facts.replaced)] if facts.replaced else []
    lines += _torn_after_exits(outcome)
    lines += [labelled("pool", facts.failure)] if facts.failure else []
    return [*lines, labelled("next", str(facts.step))]


def _torn_after_exits(outcome: RunOutcome) -> list[Line]:
    """Lines on tensors of the ranks that live, below a line that says what they keep, if any."""
    label = "except" if after_exits(outcome).keeps_others else "partial"
    findings = outcome.report.proven if outcome.report else ()
    return [*evidence.wrong_results(findings, label), *evidence.partial_results(outcome, label)]


def _states(outcome: RunOutcome) -> list[Line]:
    """One line for each way in which the other ranks ended."""
    lines = []
    finished, inside = outcome.ranks("ok"), outcome.ranks("unfinished")
    if finished:
        lines.append(Line(f"{finished.describe()} finished"))
    if outcome.silent:
        is_asked = outcome.interrupted or outcome.timed_out
        lines.append(Line(silence_text(outcome.silent, interrupted=is_asked)))
        inside -= RankSet.of(rank for silent in outcome.silent for rank in silent.ranks)
    by_reason = ranks_by_value({rank: outcome.results[rank].stuck for rank in inside})
    of_all = RankSet.of(outcome.results)
    for reason, stuck in by_reason.items():
        lines.append(Line(still_inside(outcome, stuck, reason, is_all=inside == of_all)))
    return lines


def _raised(outcome: RunOutcome) -> list[tuple[int, ErrorInfo]]:
    """Errors that are the ranks' own, the first one first."""
    quitters = evidence.ranks_that_left_debugger(outcome)
    failures = [
        (result.failed_at_ns, rank, result.error)
        for rank, result in outcome.results.items()
        if result.error is not None
        and rank not in quitters
        and not evidence.is_consequence(outcome, rank)
    ]
    return [(rank, error) for _, rank, error in sorted(failures, key=lambda failure: failure[:2])]


def ranks_to_debug(outcome: RunOutcome) -> RankSet:
    """The ranks whose own errors made the cell fail; without any, all ranks that raised."""
    alive = {rank: each for rank, each in outcome.results.items() if each.exited is None}
    own = RankSet.of(rank for rank, _ in _raised(outcome) if rank in alive)
    return own or RankSet.of(rank for rank, each in alive.items() if each.error is not None)


def _first_failure(outcome: RunOutcome) -> ErrorInfo | None:
    return next((error for _, error in _raised(outcome)), None)


def _ranks_with(outcome: RunOutcome, error: ErrorInfo) -> RankSet:
    return RankSet.of(
        rank
        for rank, result in outcome.results.items()
        if result.error is not None
        and result.error.ename == error.ename
        and traceback_groups.without_addresses(result.error.evalue)
        == traceback_groups.without_addresses(error.evalue)
    )


def _ranks_alike(outcome: RunOutcome, first: ErrorInfo) -> RankSet:
    """Ranks whose own error has the same type and line, whatever its text."""
    return RankSet.of(
        rank
        for rank, error in _raised(outcome)
        if error.ename == first.ename and _line(error) == _line(first) is not None
    )


def _others(outcome: RunOutcome, told: RankSet, first: ErrorInfo) -> str:
    """``; rank 0 raised ValueError``: the own errors of ranks beside those that are told."""
    names = [(error.ename, rank) for rank, error in _raised(outcome) if rank not in told]
    parts = [
        f"{ranks.describe()} raised {name}{' too' * (name == first.ename)}"
        for name, ranks in ranks_by(names).items()
        if name != "KeyboardInterrupt"
    ]
    more = ["others raised other errors"] * (len(parts) > _MAX_OTHERS)
    text = ", ".join([*parts[:_MAX_OTHERS], *more])
    return f"; {text}" if text else ""


def _line(error: ErrorInfo) -> tuple[int, int] | None:
    """The cell and line, whatever file a debugger has made of the cell."""
    return None if error.site is None else (error.site.cell, error.site.line)


def _name_and_text(result: RankResult) -> tuple[str, str]:
    if result.error is not None:
        return result.error.ename, result.error.evalue
    if result.exited is not None:
        return "RankExited", describe_exit(result.exited)[0]
    return "Unfinished", "still inside the cell"
