"""The tracebacks of several ranks, each that differs once.

Runs in: the notebook's process. Pure; a part of `nbddp.controller.cell_errors.build`.
"""

import re
from collections.abc import Sequence

from nbddp.controller.state.exit_text import one_line
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.rank_set import RankSet

#: Tracebacks shown in full; the others get a line each.
MAX_FULL = 4
#: Messages beside one traceback.
_MAX_MESSAGES = 16
_BOLD, _OFF = "\x1b[1m", "\x1b[0m"
#: Ranks have equal objects at other addresses, or at the same ones, by chance.
_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,}\b")

Raised = Sequence[tuple[int, ErrorInfo]]


def told(raised: Raised) -> list[str]:
    """Errors of ranks, the first one first.

    Equal ones are told once, whatever addresses are in them. Of those that were raised at the same
    place with other messages there is one traceback, and a line for each message.
    """
    families: dict[tuple[str, str], dict[str, list[int]]] = {}
    errors = dict(raised)
    for rank, error in raised:
        text = steady(error.evalue)
        frames = steady("\n".join(error.traceback))
        before, found, after = frames.rpartition(text) if text else (frames, "", "")
        frames = f"{before}\0{after}" if found else frames
        families.setdefault((error.ename, frames), {}).setdefault(text, []).append(rank)
    lines: list[str] = []
    for number, family in enumerate(families.values()):
        first, *others = sorted(sorted(ranks) for ranks in family.values())
        if number < MAX_FULL:
            name = RankSet.of(first).describe()
            lines += [f"{_BOLD}{name}{_OFF}", *errors[first[0]].traceback, ""]
            lines += _messages(others, errors)
        else:
            lines += [
                f"{RankSet.of(ranks).describe()}: {one_line(errors[ranks[0]])}"
                for ranks in (first, *others)[:_MAX_MESSAGES]
            ]
    return lines


def steady(text: str) -> str:
    """Without what is another one in each process."""
    return _ADDRESS.sub("0x…", text)


def _messages(groups: Sequence[Sequence[int]], errors: dict[int, ErrorInfo]) -> list[str]:
    """Of ranks that raised something at the place of others."""
    if not groups:
        return []
    whole = RankSet.of(rank for ranks in groups for rank in ranks)
    head = f"{_BOLD}{whole.describe()} at the same place{_OFF}"
    by_line: dict[str, list[int]] = {}
    for ranks in groups:
        by_line.setdefault(one_line(errors[ranks[0]]), []).extend(ranks)
    if len(by_line) == 1:
        return [f"{head}: {next(iter(by_line))}", ""]
    found = list(by_line.items())
    lines = [f"  {RankSet.of(ranks).describe():<9} {line}" for line, ranks in found[:_MAX_MESSAGES]]
    more = RankSet.of(rank for _, ranks in found[_MAX_MESSAGES:] for rank in ranks)
    if more:
        lines.append(f"  {more.describe()} with other messages")
    return [head, *lines, ""]
