"""Groups the tracebacks of several ranks: equal ones are shown once.

Runs in: the notebook's process. Pure; a part of `nbddp.controller.cell_errors.build`.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest

from nbddp.controller.cell_errors.lines import Line, labelled, quoted
from nbddp.controller.state import error_summary, exception_line
from nbddp.wire.flight_recorder import ExceptionLine
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.rank_set import RankSet, ranks_by_value

#: Tracebacks shown in full; the others get a line each.
MAX_FULL = 4
#: Libraries that a line on folded frames names.
_MAX_LIBRARIES = 3
#: Messages beside one traceback.
_MAX_MESSAGES = 16
#: More messages than this that are this short stand in one line.
_MAX_ROWS, _MAX_SHORT = 3, 12
#: Messages in the last line of an error, and the length of each.
_MAX_EXAMPLES = 3
_MAX_EXAMPLE = 80
_BOLD, _OFF = "\x1b[1m", "\x1b[0m"
#: Equal objects of two ranks have the same address only by chance.
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")

Raised = Sequence[tuple[int, ErrorInfo]]


def grouped_tracebacks(raised: Raised, *, is_folded: bool = False) -> list[Line]:
    """The lines that show the errors of ranks.

    Errors that are equal up to addresses appear once. Errors with the same place and other messages
    share one traceback, with a line for each message.

    Args:
        raised: ranks and their errors, the earliest error first.
        is_folded: frames of libraries in a row have one line.
    """
    families: dict[tuple[str, str], dict[str, list[int]]] = {}
    errors = dict(raised)
    for rank, error in raised:
        text = without_addresses(error.evalue)
        frames = without_addresses("\n".join(error.traceback))
        before, message, after = frames.rpartition(text) if text else (frames, "", "")
        frames = f"{before}\0{after}" if message else frames
        families.setdefault((error.ename, frames), {}).setdefault(text, []).append(rank)
    lines: list[Line] = []
    for number, family in enumerate(families.values()):
        first, *others = sorted(sorted(ranks) for ranks in family.values())
        if number < MAX_FULL:
            name = RankSet.of(first).describe(in_full=True)
            error = errors[first[0]]
            shown = _folded(error, first[0]) if is_folded else error.traceback
            lines += map(quoted, (f"{_BOLD}{name}{_OFF}", *shown, ""))
            lines += _messages(others, errors)
        else:
            lines += [
                quoted(f"{RankSet.of(ranks).describe()}: {error_summary(errors[ranks[0]])}")
                for ranks in (first, *others)[:_MAX_MESSAGES]
            ]
    return lines


def _folded(error: ErrorInfo, rank: int) -> Iterator[str]:
    """The parts of a traceback; frames of libraries in a row are one."""
    parts = zip_longest(error.traceback, error.libraries, fillvalue="")
    rows = [
        (is_library, list(row))
        for is_library, row in groupby(parts, key=lambda part: bool(part[1]))
    ]
    for number, (is_library, row) in enumerate(rows):
        if not is_library:
            *texts, last = (text for text, _ in row)
            yield from texts
            # No blank line between a frame and the line on the frames that it called.
            yield last.removesuffix("\n") if rows[number + 1 :] else last
            continue
        names = [library for _, library in row]
        frames = "1 frame" if len(names) == 1 else f"{len(names)} frames"
        different = list(dict.fromkeys(names))
        others = " and others" if len(different) > _MAX_LIBRARIES else ""
        libraries = f"{', '.join(different[:_MAX_LIBRARIES])}{others}"
        yield f"… {frames} of {libraries}: see %ddp output -r {rank}\n"


def without_addresses(text: str) -> str:
    """Return ``text`` with a placeholder for memory addresses, which differ between processes."""
    return _ADDRESS.sub("0x…", text)


def examples(raised: Raised, ranks: RankSet) -> str:
    """`` (`check(rank)`): bad 2 on rank 2, bad 3 on rank 3``: a line and its different messages."""
    errors = dict(raised)
    sites = [errors[rank].site for rank in ranks]
    source = next((site.source for site in sites if site is not None and site.source), "")
    text_by_rank = {
        rank: without_addresses(exception_line(errors[rank]).text).rstrip(".") for rank in ranks
    }
    messages = [
        f"{_cut(text) or 'no text'} on {those.describe()}"
        for text, those in ranks_by_value(text_by_rank).items()
    ]
    listed = [*messages[:_MAX_EXAMPLES], *(["..."] if len(messages) > _MAX_EXAMPLES else [])]
    return f"{source and f' (`{_cut(source)}`)'}: {', '.join(listed)}"


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_EXAMPLE else f"{text[: _MAX_EXAMPLE - 3]}..."


def _messages(groups: Sequence[Sequence[int]], errors: dict[int, ErrorInfo]) -> list[Line]:
    """Lines on ranks that raised other messages at the same place."""
    if not groups:
        return []
    all_ranks = RankSet.of(rank for ranks in groups for rank in ranks)
    head = f"{_BOLD}{all_ranks.describe()} at the same place{_OFF}"
    shown = {
        rank: ExceptionLine(line.name, line.text)
        for ranks in groups
        for line in [exception_line(errors[ranks[0]])]
        for rank in ranks
    }
    pairs = list(ranks_by_value(shown).items())
    if len(pairs) == 1:
        return [quoted(f"{head}: {pairs[0][0].summary}"), quoted("")]
    names = {line.name for line, _ in pairs}
    texts = [line.text for line, _ in pairs]
    if len(names) == 1 and len(pairs) > _MAX_ROWS and max(map(len, texts)) <= _MAX_SHORT:
        listed = [*texts[:_MAX_MESSAGES], *(["..."] if len(texts) > _MAX_MESSAGES else [])]
        # Front ends break a long line inside a number.
        return [Line(f"{head}: {names.pop()}: {', '.join(listed)}"), quoted("")]
    lines = [labelled(ranks.describe(), line.summary) for line, ranks in pairs[:_MAX_MESSAGES]]
    more = RankSet.of(rank for _, ranks in pairs[_MAX_MESSAGES:] for rank in ranks)
    if more:
        lines.append(Line(f"  {more.describe()} with other messages"))
    return [quoted(head), *lines, quoted("")]
