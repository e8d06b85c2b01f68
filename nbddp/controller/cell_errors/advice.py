"""The last lines of an error: what to change, and the change as a small diff.

Runs in: the notebook's process. Pure; a part of `nbddp.controller.cell_errors.build`.
"""

from collections.abc import Sequence

from nbddp.controller.cell_errors.lines import Line, labelled, quoted
from nbddp.controller.diagnosis import ChangedLine, CodeChange, Finding, marked_lines
from nbddp.wire.flight_recorder import cell_name

#: Lines of a diff; the card has all of them.
_MAX_LINES = 12
#: Two lines of JupyterLab on a projector at 150 %: what differs is often at the end of a line.
_WIDTH = 164
#: Front ends show red and green on the red of an error with too little contrast to be read.
_BOLD, _OFF = "\x1b[1m", "\x1b[22m"


def advice(finding: Finding) -> list[Line]:
    """The next step of a finding and its change of the code; none if it has no next step."""
    if not finding.next_step:
        return []
    return [labelled("next", finding.next_step), *map(quoted, _diff(finding.change))]


def _diff(change: CodeChange | None) -> list[str]:
    if change is None:
        return []
    rows = [_row(mark, source) for mark, source in marked_lines(_without_end(change.lines))]
    if len(rows) > _MAX_LINES:
        hidden = len(rows) - _MAX_LINES + 1
        rows = [*rows[: _MAX_LINES - 1], f"      ... and {hidden} more lines, on the card"]
    place = cell_name(change.cell) if change.cell else change.file
    return [f"    {place}, for example", *rows]


def _without_end(lines: Sequence[ChangedLine]) -> Sequence[ChangedLine]:
    """The lines up to the one behind the last that changes: the error is to stay on the screen."""
    last = max(n for n, line in enumerate(lines) if line.change != "same")
    return lines[: last + 2]


def _row(mark: str, source: str) -> str:
    line = f"      {mark} {source}".rstrip()
    line = line if len(line) <= _WIDTH else f"{line[: _WIDTH - 1]}…"
    return f"{_BOLD}{line}{_OFF}" if mark == "+" else line
