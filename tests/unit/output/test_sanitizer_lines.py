"""The time of the checks of a sanitized cell is told where it is much of the cell."""

import pytest

from nbddp.controller.state import RankResult, RunOutcome
from nbddp.notebook.output.sanitizer_lines import cost_line
from nbddp.wire.flight_recorder import SanitizerReport

#: The time of the checks, and of the cell, and of the checks after it.
_Times = tuple[float, ...]


def outcome_of(*times: _Times | None) -> RunOutcome:
    """The times of each rank; None: it was not sanitized."""
    results = {
        rank: RankResult(
            rank,
            "ok",
            elapsed_s=1.0 if each is None else each[1],
            sanitizer=None if each is None else _report(each[0], *each[2:]),
        )
        for rank, each in enumerate(times)
    }
    return RunOutcome("r", results, elapsed_s=5.0)


def _report(spent_s: float, after_s: float = 0.0) -> SanitizerReport:
    return SanitizerReport(spent_ns=int(spent_s * 1e9), after_ns=int(after_s * 1e9))


@pytest.mark.parametrize(
    ("times", "line"),
    [
        ([None, None], ""),
        ([(0.4, 0.5)], ""),
        ([(1.5, 60.0)], ""),
        (
            [(1.5, 4.0), (2.5, 5.0)],
            "--sanitize took 2.5 s of the 5.0 s of this cell (rank 1)",
        ),
        (
            [(1.75, 1.0, 1.5)],
            "--sanitize took 0.2 s of the 1.0 s of this cell and 1.5 s after it (rank 0)",
        ),
        ([(1.5, 1.0, 6.0)], ""),
    ],
)
def test_the_line(times: list[_Times | None], line: str):
    assert cost_line(outcome_of(*times)) == line
