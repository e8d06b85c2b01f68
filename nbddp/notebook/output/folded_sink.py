"""Long output of a cell: its head as it came, then a window on its end, and the rest folded.

Runs in: the thread that waits for the cell. A sink in front of another one.

    text --> the first lines --> stream
         └-> all later lines --> one display: its last lines, updated in place; in the end
                                 <details> with the rest above them

Output above that display does not move while text streams in, and the display keeps its height. If
ranks differ, the first and the last lines of each rank are shown (`fair_excerpt`).
"""

import re
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nbddp.notebook.output import fair_excerpt
from nbddp.notebook.output.excerpt import HEAD, TAIL
from nbddp.notebook.output.sinks import Live, Sink
from nbddp.notebook.render.colours import tint_of
from nbddp.notebook.render.html import (
    PRE_STYLE,
    SUMMARY_STYLE,
    details,
    escape,
    preformatted,
    size,
    without_codes,
)
from nbddp.wire.messages import Stream
from nbddp.wire.rank_set import RankSet

#: Fewer lines than this are not folded.
_MIN_HIDDEN = 10
_MAX_NOTICES = 4
#: The window on the end changes at most this often.
_INTERVAL_S = 0.15
_SINGLE = re.compile(r"\[(\d+)\]")


class FoldedSink:
    """A sink that shows text beyond the first lines in one display, and passes on the rest.

    Args:
        sink: shows the first lines, and all displays.
        block_id: the start of display ids; no other view has it.
        is_labelled: whether lines begin with the ranks that printed them.
    """

    def __init__(self, sink: Sink, block_id: str, *, is_labelled: bool = False) -> None:
        self._sink = sink
        self._block_id = block_id
        self._is_labelled = is_labelled
        self.notices: set[str] = set()  #: lines about left out text: they stay in sight
        self._blocks = 0
        self._head_room = HEAD
        self._lines: list[str] = []  # of the open block
        self._shown_lines = 0  # of it, so far
        self._shown_at = 0.0

    # --- Sink ------------------------------------------------------------------------------------

    def text(self, stream: Stream, text: str) -> None:
        """See `Sink.text`."""
        if not self._lines:
            head, text = self._split(text)
            if head:
                self._sink.text(stream, head)
        if text:
            self._lines += text.removesuffix("\n").split("\n")
            self.refresh(time.monotonic())

    def display(
        self, data: Mapping[str, Any], metadata: Mapping[str, Any], display_id: str | None,
        update: bool,
    ) -> None:  # fmt: skip
        """See `Sink.display`."""
        if not update:
            self.close()
        self._sink.display(data, metadata, display_id, update)

    def clear(self) -> None:
        """See `Sink.clear`."""
        self._lines, self._shown_lines = [], 0
        self.begin_new_head()
        self._sink.clear()

    def live(self, live: Live) -> bool | None:
        """See `Sink.live`."""
        return self._sink.live(live)

    # --- the open block --------------------------------------------------------------------------

    def refresh(self, now: float) -> None:
        """Show the last lines if there are new ones, and the interval has passed."""
        if len(self._lines) > self._shown_lines and now - self._shown_at >= _INTERVAL_S:
            self._show(window(self._lines, is_labelled=self._is_labelled))
            self._shown_at = now

    def begin_new_head(self) -> None:
        """Close the open block, and show the next lines at once: the cell asks the user."""
        self.close()
        self._head_room = HEAD

    def close(self) -> None:
        """Fold the open block; later lines begin a new one."""
        if self._lines:
            self._show(folded(self._lines, is_labelled=self._is_labelled, notices=self.notices))
            self._lines, self._shown_lines = [], 0

    def _show(self, bundle: dict[str, str]) -> None:
        is_new = self._shown_lines == 0
        self._blocks += is_new
        display_id = f"{self._block_id}-{self._blocks}"
        self._sink.display(bundle, {}, display_id, not is_new)
        self._shown_lines = len(self._lines)

    def _split(self, text: str) -> tuple[str, str]:
        """Return the part that still belongs to the head, and the rest."""
        if min(self._head_room) <= 0:
            return "", text
        lines = [f"{line}\n" for line in text.removesuffix("\n").split("\n")]
        head, rest = fair_excerpt.head(lines, self._head_room, is_labelled=self._is_labelled)
        self._head_room = self._head_room.less(head)
        return "".join(head), "".join(rest)


def window(lines: Sequence[str], *, is_labelled: bool = False) -> dict[str, str]:
    """Return the last lines of a block that still grows, as a MIME bundle."""
    tail = fair_excerpt.window(lines, TAIL.lines, is_labelled=is_labelled)
    hidden = len(lines) - len(tail)
    note = f"... {hidden:,} more lines" if hidden else ""
    padding = [""] * (min(len(lines), TAIL.lines) - len(tail))  # the height stays equal
    return {
        "text/plain": "\n".join([*([note] if note else []), *tail]),
        "text/html": (
            f'<div style="{SUMMARY_STYLE}">{note or "&nbsp;"}</div>'
            f"{printed_html([*padding, *tail], is_coloured=True)}"
        ),
    }


def folded(
    lines: Sequence[str],
    tail_lines: int = TAIL.lines,
    *,
    is_labelled: bool = False,
    notices: Collection[str] = (),
) -> dict[str, str]:
    """Return all lines as a MIME bundle, the last ones open; its text form has only the last.

    Args:
        lines: printed lines.
        tail_lines: number of last lines that stay open.
        is_labelled: whether lines begin with the ranks that printed them.
        notices: lines, without labels, that stay open.
    """
    hidden, tail = fair_excerpt.tail(lines, tail_lines, is_labelled=is_labelled)
    if len(hidden) < _MIN_HIDDEN:
        return {"text/plain": "\n".join(lines), "text/html": printed_html(lines, is_coloured=True)}
    amount = f"{len(hidden):,} more lines, {size(sum(len(line) + 1 for line in hidden))}"
    by_rank = fair_excerpt.amounts(hidden) if is_labelled else ""
    if by_rank:
        amount += f" ({by_rank})"
    in_sight = tuple(notices)
    shown = [*[line for line in hidden if line.endswith(in_sight)][-_MAX_NOTICES:], *tail]
    return {
        "text/plain": "\n".join([f"... {amount}", *shown]),
        "text/html": details(amount, printed_html(hidden)) + printed_html(shown, is_coloured=True),
    }


def printed_html(lines: Sequence[str], *, is_coloured: bool = False) -> str:
    """Return printed lines as HTML, with the label of a single rank on its colour."""
    escaped = [escape(without_codes(line)) for line in lines]
    if is_coloured:
        escaped = [_coloured(line) for line in escaped]
    return preformatted("\n".join(escaped), PRE_STYLE)


def _coloured(line: str) -> str:
    label = _SINGLE.match(line)
    if label is None:
        return line
    style = tint_of(RankSet((int(label[1]),)))
    return f'<b style="{style}">{label[0]}</b>{line[label.end() :]}'
