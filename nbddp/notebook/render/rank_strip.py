"""The ranks of a running cell as one row of chips: which rank runs, waits, has raised, is done.

Runs in: the notebook's process. Pure.

The row has one place and one height: only its colours and signs change. No state is told by its
colour alone. When ranks have ended in several ways, a row with words stays in the saved output:

    ranks  0-4 ✓ done  5 ✗ raised ValueError  6-7 ◌ waited
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import groupby

from nbddp.notebook.render.html import WIDTH, escape, one_line
from nbddp.wire.rank_set import RankSet, ranks_by

#: More ranks than this have one chip for neighbours in the same state, or for all of them.
_MAX_CHIPS = 64
#: Characters of the numbers on a chip.
_MAX_NUMBERS = 40
#: With more chips than this, words are in the line below, and notes in titles: the row is full.
_MAX_WORDS = 4
#: Characters of words and notes beyond which the notes are left out: chips would be cut.
_MAX_TEXT = 76
#: More chips than this stand in two rows, which fit on a projector at 150 %.
_MAX_ROW = 16
_COLUMNS = 32
_END_STYLE = "font-family:monospace;font-size:12px;line-height:1.7;padding-left:8px"
#: Chips that are too wide are cut, not wrapped: the row keeps its height.
_ROW_STYLE = "font-family:monospace;font-size:12px;line-height:18px;padding-left:8px;display:flex"
_DENSE_STYLE = (
    "font-family:monospace;font-size:9px;line-height:16px;padding-left:8px;display:grid;"
    f"grid-template-columns:repeat({_COLUMNS},minmax(0,1fr));gap:1px"
)
_CUT = "min-width:0;overflow:hidden;white-space:nowrap"
_DENSE_CHIP = "border:1px solid rgba(128,128,128,0.5);border-radius:2px;text-align:center"
#: Without words a chip is never cut.
_NARROW = "padding:0 3px;margin-right:2px;flex:none"
_CHIP_STYLE = (
    "display:inline-block;border:1px solid rgba(128,128,128,0.5);border-radius:3px;padding:0 5px;"
    "margin-right:4px"
)


class ChipState(Enum):
    """The looks of a state of a rank: its sign, its word, its background and its meaning."""

    RUNS = ("▸", "runs", "", "")
    WAITS = ("◌", "waits", "rgba(200,160,0,0.22)", "")
    PROMPT = ("?", "at a prompt", "rgba(80,140,220,0.15)", "")
    ASKED = ("?◂", "asks you now", "rgba(80,140,220,0.35)", "the prompt below is its own")
    DONE = ("✓", "done", "rgba(60,160,80,0.20)", "")
    RAISED = ("✗", "raised", "rgba(220,50,60,0.35)", "an exception ended the cell there")
    MISSED = ("✗", "never called", "rgba(220,50,60,0.35)", "other ranks waited for this call")
    MISMATCHED = ("✗", "mismatch", "rgba(220,50,60,0.35)", "its call differs from the others")
    FREED = ("◌", "waited", "rgba(200,160,0,0.22)", "for other ranks, and was freed")
    DEAD = ("†", "dead", "rgba(220,50,60,0.35)", "its process has ended")
    INTERRUPTED = ("■", "interrupted", "rgba(200,160,0,0.22)", "")
    GIVEN_UP = ("…", "given up", "rgba(220,50,60,0.35)", "it did not leave the cell")
    NOT_HEARD = ("~", "not heard", "rgba(200,160,0,0.22)", "its node is silent; it may go on there")

    @property
    def sign(self) -> str:
        """One character, or two."""
        return self.value[0]

    @property
    def word(self) -> str:
        """The same as a verb or an adjective."""
        return self.value[1]

    @property
    def background(self) -> str:
        """A colour that lets the page through: it suits light and dark themes."""
        return self.value[2]

    @property
    def meaning(self) -> str:
        """More than the word says; empty: nothing."""
        return self.value[3]


@dataclass(frozen=True)
class Chip:
    """A rank, or neighbours in one state."""

    ranks: RankSet
    state: ChipState
    note: str = ""  #: the line or the operation: ``all_reduce, line 4``

    @property
    def numbers(self) -> str:
        """Its ranks, behind the word "ranks"."""
        return self.ranks.numbers(_MAX_NUMBERS)

    @property
    def title(self) -> str:
        """A phrase for readers who point at the chip, and for screen readers."""
        note = f", {self.note}" if self.note else ""
        meaning = f" ({self.state.meaning})" if self.state.meaning else ""
        return f"{self.ranks.describe()}: {self.state.word}{note}{meaning}"


def html(chips: Sequence[Chip]) -> str:
    """Return the row as HTML: one line, or two of many chips.

    Args:
        chips: one for each rank, in order.
    """
    shown = _shown(chips)
    is_dense, has_words = len(shown) > _MAX_ROW, len(shown) <= _MAX_WORDS
    has_notes = has_words and sum(map(len, map(_words, shown))) <= _MAX_TEXT
    row = "".join(
        _html(chip, has_words=has_words, has_notes=has_notes, is_dense=is_dense) for chip in shown
    )
    style = _DENSE_STYLE if is_dense else _ROW_STYLE
    return f'<div role="list" aria-label="ranks" style="{style}">{row}</div>'


def blank(count: int) -> str:
    """Return a row without chips that is as high as that of ``count`` ranks."""
    is_dense = min(count, _MAX_CHIPS) > _MAX_ROW
    rows = -(-min(count, _MAX_CHIPS) // _COLUMNS) if is_dense else 1
    style, chip = (_DENSE_STYLE, _DENSE_CHIP) if is_dense else (_ROW_STYLE, _CHIP_STYLE)
    chip = f"{chip};border-color:transparent;grid-column:1/-1"
    row = f'<span style="{chip}">&nbsp;</span>' * rows
    return f'<div aria-hidden="true" style="{style}">{row}</div>'


def legend(chips: Sequence[Chip]) -> str:
    """Return ``▸ runs  ◌ waits`` for the line below the row; empty: the row has words.

    Args:
        chips: see `html`.
    """
    if len(_shown(chips)) <= _MAX_WORDS:
        return ""
    states = dict.fromkeys(chip.state for chip in chips)
    return "  ".join(f"{state.sign} {state.word}" for state in states)


def _shown(chips: Sequence[Chip]) -> Sequence[Chip]:
    """The chips of a row, which stand in two lines at most."""
    if len(chips) <= _MAX_CHIPS:
        return chips
    joined = list(_joined(replace(chip, note="") for chip in chips))
    if len(joined) <= _MAX_CHIPS:
        return joined
    by_state = ranks_by((chip.state, rank) for chip in chips for rank in chip.ranks)
    return [Chip(ranks, state) for state, ranks in by_state.items()]


def ends(chips: Sequence[Chip]) -> Mapping[str, str]:
    """Return the row that stays: how each rank has ended, as plain text and as HTML.

    Args:
        chips: one for each rank, in order.
    """
    shown = list(_joined(chips))
    if len(_text(shown)) > WIDTH:
        ranks_by_end: dict[tuple[ChipState, str], list[int]] = {}
        for chip in chips:
            ranks_by_end.setdefault(_end(chip), []).extend(chip.ranks)
        shown = [Chip(RankSet.of(ranks), *end) for end, ranks in ranks_by_end.items()]
    return {
        "text/plain": _text(shown),
        "text/html": (
            f'<div role="list" aria-label="how the ranks ended" style="{_END_STYLE}">ranks '
            f"{''.join(_end_html(chip) for chip in shown)}</div>"
        ),
    }


def _text(chips: Iterable[Chip]) -> str:
    return "  ".join(["ranks", *(one_line(f"{chip.numbers} {_words(chip)}") for chip in chips)])


def _end(chip: Chip) -> tuple[ChipState, str]:
    return chip.state, chip.note


def _words(chip: Chip) -> str:
    """``✗ raised ValueError``."""
    return f"{chip.state.sign} {chip.state.word} {chip.note}".rstrip()


def _end_html(chip: Chip) -> str:
    colour = f";background-color:{chip.state.background}" if chip.state.background else ""
    return (
        f'<span role="listitem" title="{escape(chip.title)}" style="{_CHIP_STYLE}{colour}">'
        f"<b>{chip.numbers}</b> "
        f"{escape(_words(chip))}</span> "
    )


def _joined(chips: Iterable[Chip]) -> Iterator[Chip]:
    """Make one chip of neighbours in the same state."""
    for (state, note), group in groupby(chips, key=_end):
        yield Chip(RankSet.of(rank for chip in group for rank in chip.ranks), state, note)


def _html(chip: Chip, *, has_words: bool, has_notes: bool, is_dense: bool) -> str:
    colour = f";background-color:{chip.state.background}" if chip.state.background else ""
    word = f" {chip.state.word}" if has_words else ""
    if has_notes and chip.note:
        word += f' <span style="opacity:0.8">{escape(chip.note)}</span>'
    style = _DENSE_CHIP if is_dense else f"{_CHIP_STYLE};text-overflow:ellipsis"
    if not has_words and not is_dense:
        style = f"{_CHIP_STYLE};{_NARROW}"
    blank = "" if is_dense else " "
    return (
        f'<span role="listitem" title="{escape(chip.title)}" style="{style};{_CUT}{colour}">'
        f"<b>{chip.numbers}</b>{blank}{chip.state.sign}{word}</span>"
    )
