"""A report as a card: a few lines that a student understands, the details folded.

Runs in: the notebook's process. Pure.

    Report --card--> text/plain  a terminal, an error message
                └--> text/html   a notebook, also one that is not trusted; see `html`
    Report --line--> the progress line of a cell that still runs

The order of a section: the headline, the next step and its change of the code, the ranks and their
lines, the evidence. In HTML, the answer and one short piece of evidence are open, and the rest is
folded: a projector shows the answer and the error below the card at once. Where ranks are freed,
the error says the next step, and the card does not say it again: HTML has it folded.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nbddp.controller.diagnosis import (
    TITLES,
    CodeChange,
    Finding,
    RankVerb,
    RankView,
    Report,
    late_ranks,
    left_to_timeout,
    node_sentence,
)
from nbddp.controller.trace import rows_of_views
from nbddp.line_breaks import wrapped
from nbddp.notebook.render import code_excerpt, rank_rows
from nbddp.notebook.render.html import (
    FAINT,
    FAINT_LINE,
    WIDTH,
    clean,
    duration,
    escape,
    one_line,
    shorten,
    words,
)
from nbddp.notebook.render.no_finding import no_finding
from nbddp.notebook.render.stacks import stacks
from nbddp.notebook.render.trace_table import grid
from nbddp.settings import Settings
from nbddp.wire.fault_types import ON_PURPOSE
from nbddp.wire.rank_set import NO_RANKS, RankSet

#: Findings in full; the others have only their headline.
_MAX_FINDINGS = 3
_MAX_EVERYONE = 40
_MAX_TITLE = 300
#: A range of ranks in a text, such as ``ranks 0-1``.
_RANKS = re.compile(r"\branks? \d[\d,]*-[\d,-]*\d")
# Colours of the bar at the left; they show on white and on black.
_RED, _AMBER, _BLUE = "#d1495b", "#d08a1d", "#6a8caf"
_COLOURS: Mapping[str, str] = {"Warning": _AMBER, "Notice": _BLUE}  #: by the title's first word
#: An ``<h4>`` would be in the table of contents of the notebook.
_HEADING = ' role="heading" aria-level="4"'
#: Rows of the one piece of evidence that is not folded.
_MAX_OPEN_LINES, _MAX_OPEN_ROWS = 5, 3
#: Summaries stand side by side while they are closed.
_SUMMARY = f"{FAINT};cursor:pointer;font-size:82%"
_FOLD = "display:inline-block;vertical-align:top;max-width:100%;margin:2px 8px 0 0"


def card(
    report: Report,
    *,
    acted: bool = False,
    timed_out: RankSet = NO_RANKS,
    views: Mapping[int, RankView] | None = None,
    means: str = "The stop button",
    torn: Mapping[str, RankSet] | None = None,
    is_over: bool = False,
    own_timeout_s: float = Settings.own_timeout_s,
    timeout_s: float | None = None,
) -> dict[str, str]:
    """A report as a MIME bundle.

    Args:
        report: the diagnosis.
        acted: the stuck ranks are being freed; False: the report is only shown.
        timed_out: stuck ranks that have raised since, by the timeout of their own operation.
        views: the probed state of the ranks, for the details.
        means: the control that interrupts the cell, the subject of "... frees rank 1".
        torn: ranks by operation whose tensors may hold partial results, once that is known.
        is_over: the cell has ended.
        own_timeout_s: operations with a shorter timeout of their own are left to it.
        timeout_s: the timeout of the cell, if it has ended the cell.
    """
    kinds = {finding.kind for finding in report.proven} if acted else set()
    if kinds == {"left-debugger"}:
        return _left_debugger(report.proven)
    findings = [finding for finding in report.findings if not finding.is_consequence]
    layouts = [_Layout(finding) for finding in findings[:_MAX_FINDINGS]]
    others = [_title(finding) for finding in findings[_MAX_FINDINGS:]]
    others += [_headline(finding) for finding in report.findings if finding.is_consequence]
    injected = _injected(report) if layouts else []
    layouts = layouts or [_Layout(no_finding(report, views or {}))]
    if not is_over and (late := late_ranks(report)):
        still = f"{late.describe()} still {late.verb('runs', 'run')}"
        layouts[0].title += f" (so far; {still})"
    now = next((each.now for each in report.findings if each.now), "") or _now_sentence(
        report,
        acted,
        means,
        torn or {},
        timed_out=timed_out,
        is_over=is_over,
        own_timeout_s=own_timeout_s,
        timeout_s=timeout_s,
    )
    sections = _sections(layouts, others, now)
    details = _details(report, layouts, views or {})
    first = layouts[0].finding
    is_above_error = (acted and first.has_error_below) or first.is_error or _is_raised(first)
    is_above_error |= is_over and report.explains_exits
    page = _html(sections, details, injected, is_above_error=is_above_error)
    text = _text(sections, injected, is_above_error=is_above_error)
    return {"text/plain": text, "text/html": page}


def is_told_by_error(report: Report, *, acted: bool) -> bool:
    """Whether the error of the cell says all: ranks raised, and the others waited for them.

    Args:
        report: a verdict.
        acted: whether nbddp has freed the ranks that waited.
    """
    return acted and {finding.kind for finding in report.proven} == {"first-error"}


def _is_raised(finding: Finding) -> bool:
    """Whether ranks have raised a mismatch themselves, as all of them do with ``--check``."""
    is_raised = any(each.status == "raised" for each in finding.ranks.values())
    return finding.kind == "mismatched-collective" and is_raised


def _left_debugger(findings: Sequence[Finding]) -> dict[str, str]:
    """A line for each finding about ranks that only waited for others, and were freed.

    Args:
        findings: the user has left the debugger, and nothing is wrong.
    """
    sentences = []
    for finding in findings:
        waits = {finding.ranks[rank].predicate for rank in finding.waiting if rank in finding.ranks}
        predicate = waits.pop() if len(waits) == 1 else None
        is_waiting = predicate is not None and predicate.verb is RankVerb.WAITS
        where = (predicate.spoken or predicate.rest) if predicate and is_waiting else ""
        it, were = finding.culprits.verb("it", "them"), finding.waiting.verb("was", "were")
        sentences.append(
            f"{finding.culprits.describe()} left the debugger; {finding.waiting.describe()}, "
            f"which waited for {it}{where}, {were} freed"
        )
    lines = "<br>".join(map(_unbroken, sentences))
    plain = ("\n".join(wrapped(sentence, WIDTH, indent=4)) for sentence in sentences)
    return {"text/plain": "\n".join(plain), "text/html": f'<div style="{FAINT}">{lines}</div>'}


def line(report: Report) -> str:
    """The first finding in one line: its headline, its duration, the place of the culprits."""
    if not report.findings:
        return ""
    finding = report.findings[0]
    since = "" if finding.since_s is None else f" ({duration(finding.since_s * 1e9)})"
    places = [
        (entry, entry.site)
        for entry in rank_rows.rows_of(finding.ranks, finding.culprits)
        if entry.is_culprit and entry.site is not None
    ]
    headline = _headline(finding)
    if not places:
        return f"{shorten(headline, WIDTH - len(since))}{since}"
    entry, site = places[0]
    # The headline of a notice ends with what its culprits do now.
    if entry.is_inside and not finding.proven and entry.ranks == finding.culprits:
        begin, end = ", at ", since
    else:
        begin = f"{since}; {entry.ranks.describe()} {'' if entry.is_inside else 'last '}at "
        end = ""
    # The place becomes shorter before the headline does, which names ranks and calls.
    places_of_site = (str(site), site.place, f"line {site.line}")
    rests = [*(clean(f"{begin}{place}{end}") for place in places_of_site), since]
    rest = next((each for each in rests if len(headline) + len(each) <= WIDTH), rests[1])
    return f"{shorten(headline, max(WIDTH // 2, WIDTH - len(rest)))}{rest}"


# --- content -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Section:
    """A finding, the step that it suggests, and the sentences that explain it.

    A sentence has its word beside it, such as ``Now:``.
    """

    layout: "_Layout"
    next_step: list[tuple[str, str]]  #: one sentence, or none
    change: CodeChange | None  #: the next step as a change of the code
    sentences: list[tuple[str, str]]


#: Notices about code that has run to its end: their change is one possibility. Others may be about
#: a rank that is only slow.
_WITH_POSSIBLE_CHANGE = frozenset({"samples-twice"})


class _Layout:
    """One finding, laid out."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        self.title = _title(finding)
        self.colour = _COLOURS.get(_word(finding), _RED)
        self.lines = rank_rows.rows_of(finding.ranks, finding.culprits)
        rest = self.lines[rank_rows.MAX_ROWS :]
        self.lines = self.lines[: rank_rows.MAX_ROWS]
        self.places = len({entry.site for entry in (*self.lines, *rest)})
        more = RankSet.of(rank for entry in rest for rank in entry.ranks)
        self.more = f"and {more.describe()} elsewhere" if more else ""


def _sections(layouts: Sequence[_Layout], others: Sequence[str], now: str) -> list[_Section]:
    """The sections of a card; ``now`` is about all of them, and no next step stands twice."""
    sections: list[_Section] = []
    steps: set[str] = {""}
    findings = [layout.finding for layout in layouts]
    stuck = [number for number, each in enumerate(findings) if each.proven and each.waiting]
    last_stuck = max(stuck, default=0)
    for number, layout in enumerate(layouts):
        finding = layout.finding
        next_step = [("Next:", finding.next_step)] if finding.next_step not in steps else []
        steps.add(finding.next_step)
        is_change_shown = finding.proven or finding.kind in _WITH_POSSIBLE_CHANGE
        change = finding.change if is_change_shown else None
        sentences = [(finding.verdict, finding.reason)]
        # Rows have the numbers of nodes.
        says_more = any(part.host or part.is_whole for part in finding.nodes)
        where = node_sentence(finding.nodes) if says_more else ""
        sentences += [("", f"{where[:1].upper()}{where[1:]}." if where else "")]
        sentences += [("", _wrong_results(finding)), ("", _partial_sums(finding))]
        sentences += [("Perhaps:", text) for text in finding.suspicions]
        sentences += [("Now:", now)] if number == last_stuck else []
        with_text = [pair for pair in sentences if pair[1]]
        sections.append(_Section(layout, next_step, change, with_text))
    if others:
        sections[-1].sentences.append(("Also:", "; ".join(others)))
    return sections


def _wrong_results(finding: Finding) -> str:
    """The ranks whose tensors a mismatched operation has written; empty: it has written none."""
    if not finding.written:
        return ""
    # Members may have called different operations.
    return (
        f"On {finding.written.describe()} the call had ended before this was found: it has written "
        "its tensors there, perhaps with wrong values."
    )


def _partial_sums(finding: Finding) -> str:
    """The ranks whose tensors a reduce may have used; empty: it has ended on no such rank."""
    if not finding.scratch:
        return ""
    ranks, their = finding.scratch.describe(), finding.scratch.verb("its tensor", "their tensors")
    return (
        f"On {ranks} reduce had ended: {their} may hold partial sums, as torch leaves them on "
        "ranks that are not the root."
    )


def _word(finding: Finding) -> str:
    """The first word of the title."""
    if finding.is_error:
        return "Mismatch"
    return TITLES[finding.kind] if finding.proven else "Notice"


def _title(finding: Finding) -> str:
    word = _word(finding)
    headline = _headline(finding)
    is_alone = not (finding.waiting or finding.culprits)
    return headline if is_alone else f"{word}: {headline}"


def _headline(finding: Finding) -> str:
    """The headline of a finding, as it stands behind a colon."""
    return shorten(one_line(finding.clause), _MAX_TITLE)


# --- text ----------------------------------------------------------------------------------------


def _text(sections: Sequence[_Section], injected: Sequence[str], *, is_above_error: bool) -> str:
    lines: list[str] = []
    for text in injected:
        lines += wrapped(text, WIDTH, indent=4)
    for section in sections:
        lines += wrapped(section.layout.title, WIDTH, indent=4)
        if not is_above_error or section is not sections[0]:
            lines += _text_sentences(section.next_step)
            lines += code_excerpt.change_text(section.change)
        for entry in section.layout.lines:
            mark = "> " if entry.is_culprit else "  "
            lines += rank_rows.text(f"  {mark}{entry.beginning}", entry)
        if section.layout.more:
            lines.append(f"    {section.layout.more}")
        lines += code_excerpt.text(section.layout.finding.code)
        lines += _text_sentences(section.sentences)
    return "\n".join(lines)


def _injected(report: Report) -> list[str]:
    """The lines that stand first on the card of a cell: what the user has caused on purpose."""
    faults = [f"{ON_PURPOSE.capitalize()}: {one_line(text)}." for text in report.injected]
    typed = (*report.left_out, *report.typed)
    skips = [f"{text[:1].upper()}{one_line(text[1:])}." for text in typed]
    lines = [*faults[:_MAX_FINDINGS], *skips[:_MAX_FINDINGS]]
    if len(faults) > _MAX_FINDINGS:
        lines.append(f"and {len(faults) - _MAX_FINDINGS} more faults on purpose")
    if len(skips) > _MAX_FINDINGS:
        lines.append(f"and {len(skips) - _MAX_FINDINGS} more commands at the prompt")
    return lines


def _text_sentences(sentences: Sequence[tuple[str, str]]) -> Iterator[str]:
    for name, text in sentences:
        whole = f"{name} {one_line(text)}".strip()
        yield from wrapped(whole, WIDTH, indent=4, first_indent=2)


# --- HTML ----------------------------------------------------------------------------------------


def _html(
    sections: Sequence[_Section], details: str, injected: Sequence[str], *, is_above_error: bool
) -> str:
    """The card.

    Args:
        sections: the findings; the first one is open, the others are folded below their titles.
        details: HTML of more folded parts.
        injected: what the user has caused on purpose, which comes first.
        is_above_error: the error below the card says what to change, and what the ranks keep.
    """
    first, *others = sections
    evidence, folded = _evidence(first, is_above_error=is_above_error)
    answer = [] if is_above_error else _answer(first)
    colour = _BLUE if injected else first.layout.colour
    parts = [f'<div style="margin:2px 0">{_unbroken(text)}</div>' for text in injected]
    parts += [f"<div>{_heading(first)}</div>", *answer, evidence, folded]
    for section in others:
        body = "".join([*_answer(section), *_whole_evidence(section)])
        parts.append(
            f'<details style="border-top:{FAINT_LINE};margin-top:4px;padding-top:2px">'
            f'<summary style="cursor:pointer">{_heading(section)}</summary>{body}</details>'
        )
    return (
        f'<div style="border-left:4px solid {colour};padding:2px 0 2px 12px;'
        f'margin:6px 0;max-width:900px;line-height:1.4">{"".join(parts)}{details}</div>'
    )


def _heading(section: _Section) -> str:
    return f"<b{_HEADING}>{_unbroken(section.layout.title)}</b>"


def _answer(section: _Section) -> Iterator[str]:
    yield from _html_sentences(section.next_step, "font-weight:bold")
    yield code_excerpt.change_html(section.change)


def _rows(layout: _Layout) -> str:
    more = f'<div style="{FAINT}">{escape(layout.more)}</div>' if layout.more else ""
    return f"{rank_rows.html(layout.lines)}{more}"


def _whole_evidence(section: _Section) -> Iterator[str]:
    yield _rows(section.layout)
    yield code_excerpt.html(section.layout.finding.code)
    yield from _html_sentences(section.sentences, FAINT)


def _evidence(section: _Section, *, is_above_error: bool) -> tuple[str, str]:
    """The evidence that is open, and what is folded; a notice, above no error, is open."""
    layout, finding = section.layout, section.layout.finding
    if not finding.proven:
        return "".join(_whole_evidence(section)), ""
    rows, code = _rows(layout), code_excerpt.html(finding.code)
    change = section.change
    # A long change in the error below has the lines of the code, and is to stay on the screen.
    has_long_change = change is not None and len(change.lines) > _MAX_OPEN_LINES
    has_open_change = change is not None and (has_long_change or not is_above_error)
    is_code_open = not has_open_change and 0 < len(finding.code) <= _MAX_OPEN_LINES
    is_short = len(layout.lines) <= _MAX_OPEN_ROWS and not layout.more
    are_rows_open = not has_open_change and not is_code_open and is_short
    hidden = {"Proven:", "Perhaps:", *(["Now:"] if is_above_error else [])}
    shown_sentences = [pair for pair in section.sentences if pair[0] not in hidden]
    folded_sentences = [pair for pair in section.sentences if pair[0] in hidden]
    shown = [rows * are_rows_open, code * is_code_open, *_html_sentences(shown_sentences, FAINT)]
    folded = ""
    if inside := rows * (not are_rows_open) + code * (not is_code_open):
        ranks, places = len(finding.ranks), layout.places
        where = f"{ranks} rank{'s' * (ranks != 1)}, {places} place{'s' * (places != 1)}"
        folded += _folded(f"Where each rank is ({where})", inside)
    answer = "".join(_answer(section)) if is_above_error else ""
    if folded_sentences or answer:
        name = "Why, and what now" if is_above_error else "Why"
        folded += _folded(name, answer + "".join(_html_sentences(folded_sentences, FAINT)))
    return "".join(shown), folded


def _html_sentences(sentences: Sequence[tuple[str, str]], style: str) -> Iterator[str]:
    """A line for each; ``style`` is that of the word in front."""
    for name, text in sentences:
        word = f'<span style="{style}">{escape(name)}</span> ' if name else ""
        yield f'<div style="margin:2px 0">{word}{_with_code(text)}</div>'


def _with_code(text: str) -> str:
    """Escape a text; the parts between backquotes become code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return _unbroken(text)
    return "".join(
        f"<code>{escape(part)}</code>" if n % 2 else _unbroken(part) for n, part in enumerate(parts)
    )


def _unbroken(text: str) -> str:
    """Escape a text, whose lines do not break at the hyphen in "ranks 0-1"."""
    return _RANKS.sub(r'<span style="white-space:nowrap">\g<0></span>', escape(text))


def _details(report: Report, layouts: Sequence[_Layout], views: Mapping[int, RankView]) -> str:
    """The folded parts: the last operations, the place of every rank, the stacks."""
    parts = []
    pg_ids = {layout.finding.group.pg_id for layout in layouts if layout.finding.group}
    rows = [
        row
        for row in rows_of_views(views)
        if any(part.run_id == report.run_id for part in row.parts.values())
    ]
    table = grid(rows, pg_ids)
    if table is not None:
        parts.append(_folded("Last operations", table.html()))
    everyone = rank_rows.rows_of(report.ranks, RankSet(), _MAX_EVERYONE, with_peers=True)
    has_more = any(layout.more for layout in layouts) or any(entry.peers for entry in everyone)
    if has_more or len(everyone) > len(layouts[0].lines):
        rest = len(everyone) - _MAX_EVERYONE
        more = f"<div>and {rest} more</div>" if rest > 0 else ""
        body = rank_rows.html(everyone[:_MAX_EVERYONE]) + more
        parts.append(_folded("All ranks", body))
    if views:
        parts.append(_folded("Stacks", stacks(views)["text/html"]))
    return "".join(parts)


def _folded(summary: str, body: str) -> str:
    return (
        f'<details style="{_FOLD}"><summary style="{_SUMMARY}">'
        f"{escape(summary)}</summary>{body}</details>"
    )


# --- the next event ------------------------------------------------------------------------------


def _now_sentence(
    report: Report,
    acted: bool,
    means: str,
    torn: Mapping[str, RankSet],
    *,
    timed_out: RankSet,
    is_over: bool,
    own_timeout_s: float,
    timeout_s: float | None,
) -> str:
    """The sentence behind ``Now:``, about the ranks that wait; empty if no rank waits."""
    waiting = report.stuck or RankSet.of(r for finding in report.findings for r in finding.waiting)
    if not waiting:
        return ""
    if acted:
        waiting = RankSet.of((*waiting, *_mismatched(report)))
    is_one = len(waiting) == 1
    ranks = waiting.describe()
    if acted:
        # The process of a dead rank is gone: whether the next cell runs depends on more.
        then = ", and the next cell runs" * all(f.kind != "dead-rank" for f in report.findings)
        freed = RankSet.of(rank for rank in waiting if rank not in timed_out)
        is_freed = f"{freed.describe()} is" if len(freed) == 1 else f"{freed.describe()} are"
        if not freed:
            is_freed = "ranks that have come since are"
        their_place = "its line" if len(freed) == 1 else "their lines"
        by_timeout = left_to_timeout(timed_out, report.earliest_timeout_ms)
        return (
            f"{by_timeout}{is_freed} freed: an exception is raised in {their_place}. "
            f"{'It keeps' if is_one else 'They keep'} every variable{_partial_results(torn)}{then}."
        )
    limit_ms, left_ms = report.earliest_timeout_ms, report.earliest_timeout_left_ms
    has_limit = limit_ms is not None and left_ms is not None and limit_ms <= own_timeout_s * 1e3
    limit, left = duration((limit_ms or 0) * 1e6), duration(max(0, left_ms or 0) * 1e6)
    if is_over:
        is_own = has_limit and timeout_s is None
        by = f"the operation was left to its own timeout of {limit}, and " if is_own else ""
        why = "" if timeout_s is None else f": it ran longer than its --timeout of {timeout_s:g} s"
        return f"{by}the cell has ended{why}."
    keeps = f"{'keeps' if is_one else 'keep'} every variable{_partial_results(torn)}"
    stop = f"{means} frees {ranks}, which {keeps}."
    if not report.verdict:
        return f"nothing is interrupted, the cell may still go on. {stop}"
    if has_limit:
        return f"the operation ends by its own timeout of {limit}, in {left}. {stop}"
    return f"nothing is interrupted. {stop}"


def _mismatched(report: Report) -> list[int]:
    """Ranks whose calls do not match: those that raised, and those that waited and are freed.

    A rank on which the call has ended is freed only if it waits elsewhere.
    """
    return [
        rank
        for finding in report.proven
        if finding.kind == "mismatched-collective"
        for rank, each in finding.ranks.items()
        if each.predicate.verb is RankVerb.CALLED
        and each.status != "finished"
        and rank not in finding.written
        and rank not in finding.scratch
    ]


def _partial_results(torn: Mapping[str, RankSet]) -> str:
    """The exception behind "every variable": tensors that may hold partial results."""
    if not torn:
        return ""
    operations = words(f"{name} on {ranks.describe()}" for name, ranks in torn.items())
    return f", but the tensors of {operations} may hold partial results"
