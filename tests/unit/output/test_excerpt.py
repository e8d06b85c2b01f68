"""An excerpt of a growing text: its head, its tail, and exact counts of the lines between."""

from itertools import groupby
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from nbddp.notebook.output.excerpt import LINE_CHARS, TAIL, Excerpt, Limit


class Skipped(NamedTuple):
    """Text of which only the amount is known."""

    lines: int
    chars: int


Piece = str | Skipped


@st.composite
def skips(draw: st.DrawFn) -> Skipped:
    lines = draw(st.integers(0, 3))
    return Skipped(lines, lines + draw(st.integers(0 if lines else 1, 50)))


LINES = st.one_of(
    st.text("ab", max_size=5),
    st.sampled_from([LINE_CHARS - 1, LINE_CHARS, LINE_CHARS + 1, 3 * LINE_CHARS]).map("x".__mul__),
)
TEXTS = st.lists(st.one_of(LINES, LINES, LINES, skips()), max_size=40)
CHARS = st.one_of(st.integers(0, 20), st.integers(0, 3 * LINE_CHARS), st.just(10**9))
LIMITS = st.builds(Limit, st.integers(0, 8), CHARS)


def fed(head: Limit, tail: Limit, text: list[Piece], at_once: int = 3) -> Excerpt:
    """The lines between two skips come at once, or one by one."""
    excerpt = Excerpt(head, tail)
    for is_skip, pieces in groupby(text, key=lambda piece: isinstance(piece, Skipped)):
        if is_skip:
            for skipped in pieces:
                excerpt.skip(*skipped)
        else:
            lines = [piece for piece in pieces if isinstance(piece, str)]
            for start in range(0, len(lines), at_once):
                excerpt.add(lines[start : start + at_once])
    return excerpt


def contents(excerpt: Excerpt) -> tuple[object, ...]:
    return (
        excerpt.head, list(excerpt.tail), excerpt.lines, excerpt.chars, excerpt.left_out_lines,
        excerpt.left_out_chars,
    )  # fmt: skip


def fits(lines: list[str], limit: Limit) -> bool:
    """A tail holds only the end of a longer line."""
    chars = sum(min(len(line), LINE_CHARS) + 1 for line in lines)
    return len(lines) <= limit.lines and chars <= limit.chars


def of_whole(head: Limit, tail: Limit, text: list[Piece]) -> tuple[object, ...]:
    """The expected excerpt, made from the whole text."""
    first: list[str] = []
    for piece in text:
        if isinstance(piece, Skipped) or len(first) == head.lines:
            break
        if sum(len(line) + 1 for line in [*first, piece]) > head.chars:
            break
        first.append(piece)
    rest: list[str] = []  # since lines are missing
    for piece in text[len(first) :]:
        if isinstance(piece, str):
            rest.append(piece)
        elif piece.lines:
            rest = []
    while len(rest) > 1 and not fits(rest, tail):
        del rest[0]
    lines = sum(piece.lines if isinstance(piece, Skipped) else 1 for piece in text)
    chars = sum(piece.chars if isinstance(piece, Skipped) else len(piece) + 1 for piece in text)
    kept = sum(len(line) + 1 for line in first) + sum(min(len(r), LINE_CHARS) + 1 for r in rest)
    last = [line if len(line) <= LINE_CHARS else f"...{line[-LINE_CHARS:]}" for line in rest]
    return first, last, lines, chars, lines - len(first) - len(last), chars - kept


@given(LIMITS, LIMITS, TEXTS, st.integers(1, 20))
@example(Limit(9, 4), Limit(9, 4), ["ab", "", "cd", ""], 1)  # both are full to the character
@example(Limit(9, 2), Limit(9), ["ab", ""], 1)  # the second line would fit into the head
def test_head_tail_and_counts_are_those_of_the_whole_text(
    head: Limit, tail: Limit, text: list[Piece], at_once: int
):
    assert contents(fed(head, tail, text, at_once)) == of_whole(head, tail, text)


@given(LIMITS, LIMITS, TEXTS)
def test_memory_is_bounded(head: Limit, tail: Limit, text: list[Piece]):
    excerpt = fed(head, tail, text)
    assert min(head.less([f"{line}\n" for line in excerpt.head])) >= 0
    assert len(excerpt.tail) <= max(1, tail.lines)
    assert len(excerpt.tail) <= 1 or fits(list(excerpt.tail), tail)
    assert all(len(line) <= LINE_CHARS + len("...") for line in excerpt.tail)


@given(LIMITS, TEXTS, TEXTS)
def test_the_ends_of_two_texts_become_the_end_of_both(
    tail: Limit, text: list[Piece], later: list[Piece]
):
    excerpt = fed(Limit(0), tail, text)
    excerpt.extend(fed(Limit(0), tail, later))
    assert contents(excerpt) == contents(fed(Limit(0), tail, [*text, *later]))


@given(LIMITS, LIMITS, LIMITS, LIMITS, TEXTS)
def test_a_shorter_excerpt_is_made_from_a_longer_one(
    head: Limit, tail: Limit, more_head: Limit, more_tail: Limit, text: list[Piece]
):
    longer = fed(_sum(head, more_head), _sum(tail, more_tail), text)
    shorter = Excerpt(head, tail)
    shorter.extend(longer)
    assert contents(shorter) == contents(fed(head, tail, text))


def _sum(limit: Limit, more: Limit) -> Limit:
    return Limit(limit.lines + more.lines, limit.chars + more.chars)


@given(st.text("ab\n", max_size=200), st.integers(1, 5))
def test_lines_before_the_last_ones_of_a_chunk_are_only_counted(text: str, limit: int):
    excerpt, whole = Excerpt(Limit(0), Limit(limit)), Excerpt(Limit(0), Limit(limit))
    lines, chars = excerpt.skip_all_but_the_end(text)
    assert (excerpt.lines, excerpt.chars) == (lines, chars)
    assert text[chars:].count("\n") <= limit + 1
    excerpt.add(text[chars:].split("\n")[:-1])
    whole.add(text.split("\n")[:-1])
    assert contents(excerpt) == contents(whole)


def test_a_chunk_without_line_ends_is_hardly_read():
    excerpt = Excerpt(Limit(0), TAIL)
    excerpt.add(["before"])
    assert excerpt.skip_all_but_the_end("x" * 10**6) == (0, 10**6 - 64 * 1024)
    excerpt.add(["x" * 64 * 1024])
    assert list(excerpt.tail) == ["before", f"...{'x' * LINE_CHARS}"]
    assert (excerpt.left_out_lines, excerpt.left_out_chars) == (0, 10**6 - LINE_CHARS)
