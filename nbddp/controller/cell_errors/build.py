"""Builds the one error that the notebook shows from the outcome of a cell.

Runs in: the notebook's process. Pure.

Order of its text: what happened, to which ranks, during which cell, the evidence, what to do.
"""

from collections.abc import Mapping

from nbddp.controller.cell_errors import evidence, traceback_groups
from nbddp.controller.cell_errors.advice import advice
from nbddp.controller.cell_errors.exited_ranks import why_exited
from nbddp.controller.cell_errors.hints import NameOrigins, NoOrigins, hints
from nbddp.controller.cell_errors.next_steps import after_exits, sync_step
from nbddp.controller.diagnosis import describe_handled
from nbddp.controller.state import (
    MISMATCH_ERROR,
    RankResult,
    RunOutcome,
    crash_site_lines,
    describe_exit,
    exception_line,
    exit_phrase,
    meaning,
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
from nbddp.wire.faults import ON_PURPOSE
from nbddp.wire.flight_recorder import RENDEZVOUS
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.rank_set import NO_RANKS, RankSet, ranks_by_value

_LAST_LINES = 6
_RED, _OFF = "\x1b[31m", "\x1b[0m"


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
    raised = _raised(outcome)
    body = [*_injected(outcome), *traceback_groups.grouped_tracebacks(raised)]
    error = _cell_error(outcome, cell_name, log_path_by_rank, origins, body)
    has_log = any(rank in log_path_by_rank for rank in outcome.ranks("exited"))
    if error is None or not (has_log or raised):
        return error
    body = traceback_groups.grouped_tracebacks(raised, is_folded=True)
    # The lines below a traceback belong to it: without blanks, more of it stays on the screen.
    body = [*_injected(outcome), *body[: -1 if body and not body[-1] else None]]
    # Of a path JupyterLab makes a link, which opens nothing outside its root folder.
    commands = {rank: f"%ddp log {rank} shows its end" for rank in log_path_by_rank}
    folded = _cell_error(outcome, cell_name, commands, origins, body, is_brief=True)
    brief = "" if folded is None else "\n".join(folded._render_traceback_())
    return type(error)(str(error), error.by_rank, brief=brief)


def _injected(outcome: RunOutcome) -> list[str]:
    """The faults on purpose, which come before all that they may have caused."""
    return [f"{ON_PURPOSE}: {text}" for text in outcome.injected[: traceback_groups.MAX_FULL]]


def whole_tracebacks(outcome: RunOutcome) -> list[str]:
    """The tracebacks in the error of a cell with all their frames; none if nothing is folded."""
    raised = _raised(outcome)
    if not any(error.libraries for _, error in raised):
        return []
    return traceback_groups.grouped_tracebacks(raised)


def _cell_error(  # noqa: PLR0911 - one for each kind of error
    outcome: RunOutcome,
    cell_name: str,
    log_path_by_rank: Mapping[int, str],
    origins: NameOrigins | None,
    body: list[str],
    *,
    is_brief: bool = False,
) -> CellError | None:
    """The error of a cell with these tracebacks; a brief one does not repeat their message."""
    failed = outcome.ranks("error", "exited", "unfinished")
    if not failed:
        return _wrong(outcome) if outcome.is_wrong else None
    by_rank = {rank: _name_and_text(outcome.results[rank]) for rank in failed}
    exited = outcome.ranks("exited")
    if exited:
        return _exit_error(outcome, exited, cell_name, log_path_by_rank, body)
    if outcome.ended_by:
        late = outcome.ranks("unfinished").describe()
        ending = f"was ended by {outcome.ended_by} before {late} had finished"
        return CellError(_join(body, [f"{_headline('CellError')}: {cell_name} {ending}"]), by_rank)
    others = [*evidence.consequence_lines(outcome), *_states(outcome)]
    quitters = evidence.ranks_that_left_debugger(outcome)
    quit_lines = [f"{quitters.describe()} left the debugger"] if quitters else []
    states = [*others, *quit_lines]
    verdict = _verdict(outcome)
    if verdict is not None:
        kind, tail = verdict
        if evidence.was_caused_by_interrupt(outcome):
            kind, ended = _ended_by_user(outcome, cell_name)
            tail = [f"{ended}; after that, {tail[0][0].lower()}{tail[0][1:]}", *tail[1:]]
        headline = f"{_headline(kind.__name__)}: {tail[0]}"
        before, kept, step = _handling(outcome), _kept(outcome), _next_step(outcome)
        end = [*before, *kept, *step]
        if _is_whole_after_card(outcome):
            kept = kept[1:]
        step = [] if _has_step_on_card(outcome) else step
        brief = _join([headline, *before, *kept, *step]) if _is_shown_by_card(outcome) else ""
        return kind(_join(body, states, [headline, *tail[1:], *end]), by_rank, brief=brief)
    if _is_ended_by_user(outcome):
        kind, ended = _ended_by_user(outcome, cell_name)
        head = [f"{_headline(kind.__name__)}: {ended}", *_after_interrupt(outcome)]
        return kind(_join(body, states, head), by_rank)
    first = _first_failure(outcome)
    if first is None and quitters:
        head = [f"{_headline('CellInterruptedError')}: {quit_lines[0]}", *_after_interrupt(outcome)]
        brief = _join(head) if _is_shown_by_card(outcome) else ""
        return CellInterruptedError(_join(others, head), by_rank, brief=brief)
    if first is None:
        inside = outcome.ranks("unfinished")
        ending = f"ended before {inside.describe()} had finished" if inside else _why_freed(outcome)
        tail = [f"{_headline('CellError')}: {cell_name} {ending}", *_broken(outcome)]
        return CellError(_join(states, tail), by_rank)
    ranks = _ranks_with(outcome, first)
    shown = exception_line(outcome.results[ranks.ranks[0]].error or first)  # as in the traceback
    alike, said = _ranks_alike(outcome, first), shown.text and f": {shown.text}"
    if set(alike) - set(ranks):
        ranks, said = alike, traceback_groups.examples(_raised(outcome), alike)
    elif is_brief and len(ranks) == len(_raised(outcome)):
        said = ""  # the one traceback right above ends with it
    raised = f"{ranks.describe()} raised {shown.name}{_at_line(outcome, ranks)}{said}"
    tail = [f"{_headline('CellError')}: {raised}"]
    tail += [
        *_reason(outcome, ranks),
        *hints(outcome, first, ranks, origins or NoOrigins()),
        *_broken(outcome),
    ]
    return CellError(_join(body, states, tail), by_rank)


def _wrong(outcome: RunOutcome) -> CellError | None:
    """The error of a cell that ended well on all ranks, and whose records show a mismatch."""
    findings = outcome.report.findings if outcome.report is not None else ()
    mismatch = next((finding for finding in findings if finding.is_error), None)
    if mismatch is None:
        return None
    head = [f"{_headline('MismatchError')}: {mismatch.headline.rstrip('.')}"]
    next_step = advice(mismatch)
    whole = _join(head, [f"  proven    {mismatch.reason}"], next_step)
    return MismatchError(whole, brief=_join(head, next_step))


def _why_freed(outcome: RunOutcome) -> str:
    """The reason that ranks got when they were freed, where no report says more."""
    texts = (r.error.evalue.strip() for r in outcome.results.values() if r.error is not None)
    reason = next(filter(None, texts), "").partition("\n")[0]
    return f"was ended by nbddp{reason and ': '}{reason}"


def _verdict(outcome: RunOutcome) -> tuple[type[CellError], list[str]] | None:
    """The error and its lines, if a proven finding made the cell fail."""
    mismatches = outcome.raised_mismatches
    if mismatches:
        return MismatchError, evidence.mismatch_lines(mismatches, outcome.report)
    report = outcome.report
    if report is None or not report.proven or not evidence.is_cause(outcome):
        return None
    finding = report.proven[0]
    if finding.kind in ("first-error", "left-debugger"):
        return None
    is_mismatch = finding.kind == "mismatched-collective"
    return (MismatchError if is_mismatch else DeadlockError), evidence.finding_lines(finding)


def _reason(outcome: RunOutcome, raised: RankSet) -> list[str]:
    """The finding that was proven before the timeouts of these ranks expired."""
    report, results = outcome.report, outcome.results
    if report is None or not report.proven:
        return []
    if not all(evidence.is_end_of_wait(report, rank, results[rank].error) for rank in raised):
        return []
    return [f"  proven    {report.proven[0].headline.rstrip('.')}", *advice(report.proven[0])]


def _handling(outcome: RunOutcome) -> list[str]:
    """The exceptions that ranks handled when they were freed or stopped: perhaps the reason."""
    handled_by_rank = {
        rank: result.error.handling
        for rank, result in outcome.results.items()
        if result.error is not None and result.error.handling is not None
    }
    return [
        f"  before    {text}, and was here while handling it"
        for text in describe_handled(handled_by_rank)[: traceback_groups.MAX_FULL]
    ]


def _next_step(outcome: RunOutcome) -> list[str]:
    """The lines on what to change: below a long card they are what a reader sees first."""
    report = outcome.report
    is_clear = report is not None and report.proven and not outcome.rebuild_failure
    if not is_clear or report is None or evidence.was_caused_by_interrupt(outcome):
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


def _kept(outcome: RunOutcome) -> list[str]:
    if outcome.rebuild_failure or outcome.ranks("unfinished"):
        return _broken(outcome)
    groups, dead = "the process groups are ready again", outcome.dead
    findings = () if outcome.report is None else outcome.report.proven
    if any(finding.op == RENDEZVOUS for finding in findings):
        groups = "there is no default process group until init_process_group succeeds"
    if dead:
        groups = f"groups with {dead.describe()}, which exited, need %ddp restart -r {dead}"
    return [f"  kept      every variable is kept; {groups}", *_torn(outcome, "except")]


def _after_interrupt(outcome: RunOutcome) -> list[str]:
    """Lines on what is kept and what to do, after the user or the timeout has ended a cell."""
    if outcome.silent:
        return [*_torn(outcome, "partial"), f"  next      {_beside_silent(outcome)}"]
    if outcome.rebuild_failure or outcome.ranks("unfinished"):  # other lines say what to do
        return _broken(outcome)
    kept = ["  kept      every variable is kept", *_torn(outcome, "except")]
    if (outcome.report is not None or outcome.dead) and not outcome.is_plain:
        kept = _kept(outcome)
    if outcome.timed_out:
        return [*kept, "  next      give it a longer --timeout or less work, and run it again"]
    return [*kept, "  next      run the next cell, or this one again"]


def _beside_silent(outcome: RunOutcome) -> str:
    others = RankSet.of(outcome.results) - outcome.ranks("unfinished") - outcome.dead
    beside = f"; cells run on {others.describe()} meanwhile with -r {others}" if others else ""
    return f"wait for the silent node{beside}; or %ddp stop"


def _torn(outcome: RunOutcome, word: str) -> list[str]:
    """A line for each operation whose tensors may hold partial results."""
    return [
        f"  {word:<9} the tensors of {name} on {ranks.describe()}: too large to be "
        "put back, they may hold partial results"
        for name, ranks in outcome.torn.items()
    ]


def _broken(outcome: RunOutcome) -> list[str]:
    """Lines on damage: tensors with partial results, groups that could not be formed again."""
    lines = _torn(outcome, "partial")
    if not outcome.rebuild_failure:
        return lines
    return [
        *lines,
        f"  pool      the process groups could not be formed again: {outcome.rebuild_failure}",
        "  next      %ddp restart   (variables can still be pulled)",
    ]


def restarted_text(fresh: RankSet, kept: RankSet, inside: RankSet = NO_RANKS) -> str:
    """The message after fresh processes have taken the places of ranks.

    Args:
        fresh: ranks with fresh processes.
        kept: ranks that keep their processes and variables.
        inside: those of them that have not left their cell; until they do, the process groups
            cannot be formed again.
    """
    if not kept:
        return "all ranks are fresh processes: their variables are gone"
    what, whose = ("a fresh process", "its") if len(fresh) == 1 else ("fresh processes", "their")
    are = fresh.verb("is", "are")
    if inside:
        they = inside.verb("it leaves its", "they leave their")
        still = inside.verb("is", "are")
        return (
            f"{fresh.describe()} {are} {what}. {inside.describe().capitalize()} {still} still "
            f"inside a cell: the process groups are formed again when {they} cell. Next: wait, or "
            f"%ddp restart -r {inside}"
        )
    return (
        f"{fresh.describe()} {are} {what}: {whose} variables are gone, those of {kept.describe()} "
        f"are kept. Next: {sync_step(fresh, kept)}"
    )


def restart_continues_text(ranks: RankSet, kept: RankSet) -> str:
    """The message after the user has interrupted the wait for fresh processes, which still start.

    Args:
        ranks: ranks that get fresh processes.
        kept: ranks that keep their processes and variables.
    """
    many = len(ranks) > 1
    what, their, them = (
        ("fresh processes take their places", "their", "them")
        if many
        else ("a fresh process takes its place", "its", "it")
    )
    return (
        f"the wait for {ranks.describe()} was interrupted, the restart goes on: {what}, {their} "
        f"variables are gone, those of {kept.describe()} are kept. "
        f"Next: run a cell, which waits for {them}"
    )


def _exit_error(
    outcome: RunOutcome,
    exited: RankSet,
    cell_name: str,
    log_path_by_rank: Mapping[int, str],
    body: list[str],
) -> RankExitedError:
    """The error of a cell in which ranks exited."""
    by_rank = {
        rank: _name_and_text(outcome.results[rank])
        for rank in outcome.ranks("error", "exited", "unfinished")
    }
    head = _exits(outcome, exited, cell_name, log_path_by_rank)
    whole = _join(head, body, _after_exits(outcome))
    if outcome.report is None or not outcome.report.explains_exits:
        return RankExitedError(whole, by_rank)
    next_step = _after_exits(outcome)[-1:]  # below a long card it is what a reader sees first
    exit_lines = [*why_exited(outcome, exited), *_logs(exited, log_path_by_rank)]
    return RankExitedError(whole, by_rank, brief=_join(head[:1], exit_lines, body, next_step))


def _exits(
    outcome: RunOutcome,
    ranks: RankSet,
    cell_name: str,
    log_path_by_rank: Mapping[int, str],
) -> list[str]:
    while_ran = ranks.verb("while it ran", "while they ran")
    what = f"{ranks.describe()} {_end_of_all(outcome, ranks)} {while_ran} {cell_name}"
    lines = [f"{_headline('RankExitedError')}: {what}"]
    reasons: set[str] = set()
    for rank in list(ranks)[: traceback_groups.MAX_FULL]:
        result = outcome.results[rank]
        exited = result.exited
        assert exited is not None  # noqa: S101 - it is in the state "exited"
        how, guess = describe_exit(exited)
        likely = outcome.exit_calls.get(rank) or guess
        lines.append(f"  rank {rank:<4} {how}, pid {exited.pid}, {evidence.time_of(result)}")
        if meaning(exited):
            lines.append(f"  means     {meaning(exited)}")
        if likely and not outcome.injected:  # a fault on purpose is the likely reason
            lines.append(f"  likely    {likely}")
        if seen := exited.last_line:
            source = f": {seen.source}" if seen.source else ""
            lines.append(f"  seen      {exited.last_line_age_s:.1f} s before at {seen}{source}")
        lines += crash_site_lines(exited.fault)
        # Ranks that ended for one reason, such as a lost agent, have the same last output.
        is_repeated = exited.reason != "" and exited.reason in reasons
        reasons.add(exited.reason)
        printed = [] if is_repeated else exited.last_output.rstrip().splitlines()[-_LAST_LINES:]
        lines += [
            f"  {'printed' if number == 0 else '':<9} {line}" for number, line in enumerate(printed)
        ]
        if rank in log_path_by_rank:
            lines.append(f"  log       {log_path_by_rank[rank]}")
    if len(ranks) > traceback_groups.MAX_FULL:
        lines.append(f"  and {RankSet.of(list(ranks)[traceback_groups.MAX_FULL :]).describe()}")
    others = [*_states(outcome), *evidence.consequence_lines(outcome)]
    return [*lines, *(f"  others    {line}" for line in others)]


def _end_of_all(outcome: RunOutcome, ranks: RankSet) -> str:
    """``exited with SIGKILL (signal 9)``, if all these ranks ended in this way; or ``exited``."""
    exits = [outcome.results[rank].exited for rank in ranks]
    hows = {"exited" if end is None or end.reason else exit_phrase(end) for end in exits}
    return hows.pop() if len(hows) == 1 else "exited"


def _logs(ranks: RankSet, log_path_by_rank: Mapping[int, str]) -> list[str]:
    paths = [log_path_by_rank[rank] for rank in ranks if rank in log_path_by_rank]
    return [f"  log       {path}" for path in paths[: traceback_groups.MAX_FULL]]


def _after_exits(outcome: RunOutcome) -> list[str]:
    """Lines on the state of the pool and the next step, after ranks have exited."""
    facts = after_exits(outcome)
    lines = [f"  replaced  {facts.replaced}"] if facts.replaced else []
    lines += _torn(outcome, "except") if facts.keeps_others else []
    lines += [f"  pool      {facts.failure}"] if facts.failure else []
    return [*lines, f"  next      {facts.next_step}"]


def _states(outcome: RunOutcome) -> list[str]:
    """One line for each way in which the other ranks ended."""
    lines = []
    finished, inside = outcome.ranks("ok"), outcome.ranks("unfinished")
    if finished:
        lines.append(f"{finished.describe()} finished")
    if outcome.silent:
        is_asked = outcome.interrupted or outcome.timed_out
        lines.append(silence_text(outcome.silent, interrupted=is_asked))
        inside -= RankSet.of(rank for silent in outcome.silent for rank in silent.ranks)
    by_reason = ranks_by_value({rank: outcome.results[rank].stuck for rank in inside})
    for reason, stuck in by_reason.items():
        are, they_do = ("is", "it does") if len(stuck) == 1 else ("are", "they do")
        why = reason or "in C code, stopped, or in code that ignores interrupts"
        command = "%ddp restart"
        if not outcome.is_plain and len(inside) < len(outcome.results):
            command += f" -r {stuck} (the others keep their variables)"
        lines.append(
            f"{stuck.describe()} {are} still inside the cell ({why}); "
            f"if {they_do} not come back: {command}"
        )
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
    own = RankSet.of(rank for rank, _ in _raised(outcome))
    return own or RankSet.of(r for r, result in outcome.results.items() if result.error is not None)


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


def _at_line(outcome: RunOutcome, ranks: RankSet) -> str:
    """`` at cell [8], line 6``, if the errors of these ranks come from one line of a cell."""
    errors = [outcome.results[rank].error for rank in ranks]
    sites = {None if error is None else error.site for error in errors}
    places = {"" if site is None or not site.cell else site.place for site in sites}
    place = places.pop()
    return f" at {place}" if place and not places else ""


def _line(error: ErrorInfo) -> tuple[int, int] | None:
    """The cell and line, whatever file a debugger has made of the cell."""
    return None if error.site is None else (error.site.cell, error.site.line)


def _name_and_text(result: RankResult) -> tuple[str, str]:
    if result.error is not None:
        return result.error.ename, result.error.evalue
    if result.exited is not None:
        return "RankExited", describe_exit(result.exited)[0]
    return "Unfinished", "still inside the cell"


def _headline(name: str) -> str:
    return f"{_RED}{name}{_OFF}"


def _join(*parts: list[str]) -> str:
    return "\n".join(line for part in parts for line in part).strip("\n")
