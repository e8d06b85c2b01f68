"""Lines of a cell at which no code begins."""

import warnings

import pytest

from nbddp.controller.state import why_not_at_line

CODE = """# first
x = (
    1,
    rank,
)

def f():
    return await_it()

await f()
"""


@pytest.mark.parametrize(
    ("number", "why"),
    [
        (1, "line 1 is the line of %%ddp; the first line that runs is line 3"),
        (2, "line 2 is a comment; the next line that runs is line 3"),
        (6, "line 6 begins no code; the next line that runs is line 8"),
        (7, "line 7 is blank; the next line that runs is line 8"),
        (10, "line 10 is blank; the next line that runs is line 11"),
        (12, "the cell has 11 lines"),
        *((line, "") for line in (3, 5, 8, 9, 11)),
    ],
)
def test_a_line_without_code_has_a_reason(number: int, why: str):
    assert why_not_at_line(number, CODE, 2) == why


def test_a_line_above_the_line_of_the_magic():
    assert why_not_at_line(1, "x = 1", 3) == (
        "line 1 stands above the code; the first line that runs is line 3"
    )


def test_the_lines_of_code_that_is_no_python_are_not_known():
    assert not why_not_at_line(2, "%time x = 1\n!ls", 2)
    assert why_not_at_line(4, "%time x = 1\n!ls", 2) == "the cell has 3 lines"


def test_the_warnings_about_code_are_left_to_the_ranks():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        why = why_not_at_line(3, "x = 1 is 1\n# more", 2)
    assert why == "line 3 is a comment; no later line runs"


def test_the_lines_of_code_that_is_nested_too_deeply_are_not_known():
    assert not why_not_at_line(2, f"{'(' * 9000}{')' * 9000}\n", 2)
    assert not why_not_at_line(2, f"x = {'-' * 100_000}1\n", 2)
