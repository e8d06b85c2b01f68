"""The time of the checks of a sanitized cell is told where it is much of the cell."""

import pytest

from nbddp.controller.state import RankResult, RunOutcome
from nbddp.notebook.output.sanitizer_lines import cost_line
from nbddp.wire.flight_recorder import SanitizerReport


def outcome_of(*times: tuple[float, float] | None) -> RunOutcome:
    """Of each rank the time of its checks and of its cell; None: it was not sanitized."""
    results = {
        rank: RankResult(
            rank,
            "ok",
            elapsed_s=1.0 if each is None else each[1],
            sanitizer=None if each is None else SanitizerReport(spent_ns=int(each[0] * 1e9)),
        )
        for rank, each in enumerate(times)
    }
    return RunOutcome("r", results, elapsed_s=5.0)


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
    ],
)
def test_the_line(times: list[tuple[float, float] | None], line: str):
    assert cost_line(outcome_of(*times)) == line
