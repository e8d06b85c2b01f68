"""IPython gets few frames of a recursion, however deep it was."""

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
from IPython.core.ultratb import FormattedTB

from nbddp.rank.cells.recursions import ShortRecursions, shortened


def deeper(depth: int) -> None:
    if depth:
        deeper(depth - 1)
    raise ValueError("bottom")


def odd(depth: int) -> None:
    even(depth - 1)


def even(depth: int) -> None:
    if not depth:
        raise ValueError("bottom")
    odd(depth - 1)


def raised(call: Callable[[int], None], depth: int) -> types.TracebackType:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 1000)
    try:
        with pytest.raises(ValueError, match="bottom") as caught:
            call(depth)
    finally:
        sys.setrecursionlimit(before)
    return caught.tb


def frames(traceback: types.TracebackType | None) -> list[types.FrameType]:
    found = []
    while traceback is not None:
        found.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return found


@pytest.mark.parametrize(("call", "most"), [(deeper, 12), (even, 22)])
def test_the_number_of_frames_does_not_grow_with_the_depth(call: Callable[[int], None], most: int):
    whole = raised(call, 4000)
    short, left_out = shortened(whole)
    assert len(frames(short)) == most
    assert len(frames(whole)) == most + sum(left_out.values()) == 4002  # it is unchanged
    assert frames(short)[:6] == frames(whole)[:6]
    assert frames(short)[-5:] == frames(whole)[-5:]


def test_a_traceback_without_a_deep_recursion_is_the_same():
    traceback = raised(deeper, 8)
    assert shortened(traceback) == (traceback, {})


def written(traceback: types.TracebackType, *, shortens: bool) -> tuple[str, list[int]]:
    writer: Any = FormattedTB("Context", theme_name="nocolor") if _HAS_THEMES else FormattedTB()
    given: list[int] = []
    get_records = writer.get_records

    def noted(etb: types.TracebackType, *options: Any) -> Any:
        given.append(len(frames(etb)))
        return get_records(etb, *options)

    writer.get_records = noted
    if shortens:
        ShortRecursions(writer)
    parts = writer.structured_traceback(ValueError, ValueError("bottom"), traceback, 0)
    return "\n".join(map(str, parts)), given


_HAS_THEMES = "theme_name" in FormattedTB.__init__.__code__.co_varnames


@pytest.mark.parametrize("call", [deeper, even])
def test_ipython_writes_the_same_text_of_it(call: Callable[[int], None]):
    traceback = raised(call, 600)
    text, given = written(traceback, shortens=True)
    assert given < [30]
    assert (text, [602]) == written(traceback, shortens=False)
    assert "skipping similar frames" in text
