"""Explains, after a cell, that ranks have exited: the card shows it above the error.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from nbddp.controller.cell_errors import evidence
from nbddp.controller.cell_errors.exit_rows import exit_rows, predicate
from nbddp.controller.cell_errors.lines import Line, labelled, quoted
from nbddp.controller.cell_errors.next_steps import after_exits
from nbddp.controller.cell_errors.traceback_groups import MAX_FULL
from nbddp.controller.diagnosis import (
    AgentLoss,
    Finding,
    PerRank,
    Predicate,
    RankVerb,
    Report,
    exited_ranks,
)
from nbddp.controller.state import (
    LostNames,
    RankResult,
    RunOutcome,
    crash_site,
    describe_exit,
    is_given_up,
    is_of_memory,
    meaning,
    memory_then,
)
from nbddp.wire.flight_recorder import cell_name
from nbddp.wire.message_types import LostAgent
from nbddp.wire.messages import RankExited
from nbddp.wire.rank_set import Rank, RankSet

#: Names that a sentence lists for a cell, and cells.
_MAX_NAMES = 6
_MAX_CELLS = 4


def exit_report(outcome: RunOutcome, lost_names: Sequence[LostNames] = ()) -> Report:
    """Return the report of a cell with a finding about the ranks that exited, which comes first.

    Args:
        outcome: the end of the cell on each rank; some have exited.
        lost_names: the names that cells had bound on those ranks.
    """
    report = outcome.report or Report(outcome.run_id)
    others = tuple(finding for finding in report.findings if finding.kind != "dead-rank")
    return replace(report, findings=(_finding(outcome, lost_names), *others))


def without_shown(report: Report, shown: Iterable[Report]) -> Report:
    """Return the report of `exit_report` without the findings that stand on other cards."""
    on_cards = {(each.kind, each.headline) for other in shown for each in other.findings}
    findings = (
        each
        for each in report.findings
        if each.kind == "dead-rank" or (each.kind, each.headline) not in on_cards
    )
    return replace(report, findings=tuple(findings))


def why_exited(outcome: RunOutcome, ranks: RankSet) -> list[Line]:
    """Return a line for each meaning and likely reason of exits, and the line of a single rank."""
    ends = [end for rank in ranks if (end := outcome.results[rank].exited) is not None]
    is_known = all(rank in outcome.exit_calls for rank in ranks)
    means = [] if is_known else meanings(outcome, ends)
    likely = dict.fromkeys(_likely(outcome, ranks))
    lines = [labelled("means", text) for text in means]
    if not outcome.injected:  # a fault on purpose is the likely reason, and is named beside this
        lines += [labelled("likely", text) for text in likely]
    if len(ends) != 1 or is_known:
        return lines
    last = ends[0].last_operation
    is_of_cell = last is not None and last.run_id == outcome.run_id
    seen = ends[0].last_line or (last.site if last is not None and is_of_cell else None)
    had_left = any(outcome.results[rank].left_s is not None for rank in ranks)
    if seen is None or not seen.line or ends[0].fault or had_left:
        return lines
    source = f": {seen.source}" if seen.source else ""
    if ends[0].last_line is None and last is not None:
        if last.ending == "open":
            return [*lines, labelled("was at", f"{seen}{source}")]
        return [*lines, labelled("last", f"{last.label()}, {last.ending}, at {seen}{source}")]
    age = f", {ends[0].last_line_age_s:.1f} s before its end"
    return [*lines, labelled("seen", f"{seen}{source}{age}: it may have come further")]


def meanings(outcome: RunOutcome, ends: Iterable[RankExited]) -> list[str]:
    """Return what signals mean, in words, but for ranks that a fault on purpose has killed."""
    texts = (meaning(end) for end in ends if end.rank not in outcome.struck_dead)
    return list(dict.fromkeys(filter(None, texts)))


def last_sites(result: RankResult) -> list[Line]:
    """Return where a rank was seen last in the cell, and where it crashed."""
    lines, exited = [], result.exited
    if exited is None:
        return []
    if (seen := exited.last_line) and result.left_s is None:
        source = f": {seen.source}" if seen.source else ""
        lines.append(labelled("seen", f"{exited.last_line_age_s:.1f} s before at {seen}{source}"))
    for number, site in enumerate(crash_site(exited.fault)):
        lines.append(quoted(site, "called by" if number else "at"))
    return lines


def log_commands(outcome: RunOutcome, log_path_by_rank: Mapping[int, str]) -> dict[int, str]:
    """Return the commands that show logs, but for those on machines that are lost.

    Of a path JupyterLab makes a link, which opens nothing outside its root folder.

    Args:
        outcome: the end of the cell.
        log_path_by_rank: paths, ``n2:/tmp/...`` on another machine.
    """
    ends = {rank: result.exited for rank, result in outcome.results.items()}
    lost = {rank for rank, end in ends.items() if end and isinstance(end.cause, LostAgent)}
    return {
        rank: f"%ddp log {rank} shows its end"
        for rank, path in log_path_by_rank.items()
        if rank not in lost or Path(path).is_absolute()
    }


def log_lines(ranks: RankSet, log_path_by_rank: Mapping[int, str]) -> list[Line]:
    """Return a line for the log of each of these ranks."""
    paths = [log_path_by_rank[rank] for rank in ranks if rank in log_path_by_rank]
    return [quoted(path, "log") for path in paths[:MAX_FULL]]


def _finding(outcome: RunOutcome, lost_names: Sequence[LostNames]) -> Finding:
    dead = outcome.ranks("exited")
    freed = RankSet.of(
        rank
        for rank, result in outcome.results.items()
        if result.was_freed and result.exited is None and not _was_interrupted(result)
    )
    facts, exits = after_exits(outcome), exit_rows(outcome)
    first = outcome.results[dead.ranks[0]]
    end_by_rank = {r: end for r in dead if (end := outcome.results[r].exited) is not None}
    ends = list(end_by_rank.values())
    several = RankVerb.LOST if all(each.was_lost for each in ends) else RankVerb.EXITED
    how = predicate([first]).main_clause() if len(dead) == 1 else several.value[1]
    agents = {
        rank: AgentLoss(str(end.cause.node), was_given_up=is_given_up(end.cause))
        for rank, end in end_by_rank.items()
        if isinstance(end.cause, LostAgent)
    }
    words = exited_ranks(
        dead, how, facts.step.markdown, where=_crash_sites(outcome, dead), agents=agents
    )
    means = "".join(f" SIGKILL means: {text}." for text in meanings(outcome, ends))
    variables = facts.state or dead.verb("its variables are gone", "their variables are gone")
    lost = _lost(outcome.fresh, lost_names)
    return Finding(
        kind="dead-rank",
        proven=True,
        culprits=dead,
        waiting=freed,
        headline=words.headline,
        reason=f"{words.reason}{means}",
        suspicions=tuple(dict.fromkeys(_likely(outcome, dead))),
        now=" ".join(filter(None, (f"{variables}.", _partial_results(outcome), lost))),
        next_step=words.next_step,
        ranks={rank: exits.get(rank) or _rank(outcome, rank) for rank in outcome.results},
        scratch=outcome.scratch,
    )


def _partial_results(outcome: RunOutcome) -> str:
    """The sentence on tensors of ranks that live; empty: all are as they were."""
    begin = "Except: the" if after_exits(outcome).keeps_others else "The"
    findings = () if outcome.report is None else outcome.report.proven
    sentences = [
        f"{begin} tensors that {finding.op} writes on {finding.written.describe()} have new "
        "values, perhaps wrong ones."
        for finding in findings
        if finding.written
    ]
    if outcome.torn:
        named = (f"{name} on {ranks.describe()}" for name, ranks in outcome.torn.items())
        sentences.append(f"{begin} tensors of {' and of '.join(named)} may hold partial results.")
    return " ".join(sentences)


def _rank(outcome: RunOutcome, rank: Rank) -> PerRank:
    result = outcome.results[rank]
    error = result.error
    site = None if error is None else error.site
    if error is not None and _was_interrupted(result):  # perhaps it waited for no other rank
        return PerRank(rank, "raised", Predicate(RankVerb.NONE, aside=_INTERRUPTED), site)
    if evidence.is_consequence(outcome, rank):
        # nbddp freed this rank, or Gloo told it before that a peer is gone: that depends on time.
        own = evidence.lost_connection(outcome, rank)
        waited = Predicate(RankVerb.NONE, "waited", _FREED)
        return PerRank(rank, "raised", Predicate(RankVerb.NONE, own) if own else waited, site)
    if error is not None:
        return PerRank(rank, "raised", Predicate(RankVerb.RAISED, f" {error.ename}"), site)
    if result.status == "unfinished":
        return PerRank(rank, "running", Predicate(RankVerb.IS, " still inside the cell"))
    return PerRank(rank, "finished", Predicate(RankVerb.HAS_FINISHED))


def _was_interrupted(result: RankResult) -> bool:
    """Whether a rank ran Python when it was to leave the cell, and so got an interrupt."""
    error = result.error
    return result.was_freed and error is not None and error.ename == "KeyboardInterrupt"


_FREED = " and was freed", " and were freed"
_INTERRUPTED = "was interrupted", "were interrupted"


def _crash_sites(outcome: RunOutcome, dead: RankSet) -> str:
    """The line that a fatal signal hit, if one rank exited."""
    exited = outcome.results[dead.ranks[0]].exited
    if exited is None or len(dead) != 1:
        return ""
    sites = crash_site(exited.fault, is_short=True)
    return f" in {', called by '.join(sites)}" if sites else ""


def _likely(outcome: RunOutcome, dead: RankSet) -> Iterable[str]:
    for rank in dead:
        exited = outcome.results[rank].exited
        likely = "" if exited is None else describe_exit(exited)[1]
        if call := outcome.exit_calls.get(rank):
            yield call
        elif exited is not None and (freed := freed_memory(outcome, exited)):
            yield freed
        elif exited is not None and likely:
            yield f"{likely}{memory_then(exited)}"


def freed_memory(outcome: RunOutcome, exited: RankExited) -> str:
    """The line that freed memory of an open operation, if that may have ended a rank, in words.

    Empty: no sanitizer has seen such a line, or the rank has ended in another way.
    """
    # Other ranks that ran the same lines tell what this one has not told before its end.
    own = outcome.results[exited.rank].sanitizer
    reports = [own] if own is not None else [each.sanitizer for each in outcome.results.values()]
    for report in reports if is_of_memory(exited) else ():
        for finding in () if report is None else report.findings:
            if finding.kind == "resize":
                return (
                    f"{finding.site} gave other memory to a tensor that "
                    f"{finding.operation.label()} still used, as the warning says: native "
                    "code went on with memory that was freed"
                )
    return ""


def _lost(fresh: RankSet, lost_names: Sequence[LostNames]) -> str:
    """The names that fresh ranks lack: ``It lacks model, history of cell [3]``."""
    if not fresh or not lost_names:
        return ""
    cells = [
        f"{_listed(lost.names, lost.perhaps)} of {cell_name(lost.cell)}"
        for lost in lost_names[:_MAX_CELLS]
    ]
    more = "; names of more cells" if len(lost_names) > _MAX_CELLS else ""
    return f"{fresh.verb('It lacks', 'They lack')} {'; '.join(cells)}{more}."


def _listed(names: Sequence[str], perhaps: Sequence[str]) -> str:
    """``a, b``, ``a, perhaps b`` or ``a, b and more``."""
    listed = [*names, *(f"perhaps {name}" for name in perhaps)]
    return f"{', '.join(listed[:_MAX_NAMES])}{' and more' * (len(listed) > _MAX_NAMES)}"
