"""The next step after a rank has raised in a cell, and was killed before the cell ended."""

from dataclasses import replace

import msgspec
import pytest

from nbddp.wire.rank_set import RankSet
from tests.support.cell_errors import cell_error, died, freed, ok, raised, report, site, text

STRUCK = "rank 2 was killed, cell [7], line 5, step 1"


def test_the_error_that_a_rank_had_raised_before_it_was_killed_is_to_be_fixed_too():
    error = raised(2).error
    assert error is not None
    error = msgspec.structs.replace(error, site=site(3, "raise ValueError"))
    killed = msgspec.structs.replace(died(2), error=error, left_s=0.5)
    fresh = RankSet.of([2])
    message = text(cell_error(freed(0), ok(1), killed, fresh=fresh, is_plain=False))
    assert (
        "  next      Fix the ValueError of rank 2 at cell [7], line 3, and remove what ended rank "
        "2. Then run %ddp catchup to give" in message
    )
    message = text(
        cell_error(freed(0), ok(1), killed, fresh=fresh, is_plain=False, injected=(STRUCK,))
    )
    assert "Fix the ValueError of rank 2 at cell [7], line 3. Then run %ddp catchup" in message
    stopped = msgspec.structs.replace(
        killed, error=msgspec.structs.replace(error, ename="KeyboardInterrupt")
    )
    message = text(cell_error(freed(0), ok(1), stopped, fresh=fresh, is_plain=False))
    assert "  next      Remove what ended rank 2. Then run" in message


@pytest.mark.parametrize(
    ("step", "words"),
    [("Call it on all ranks.", "and call it on all"), ("DDP is to wrap it.", "and DDP is to wrap")],
)
def test_a_step_that_begins_with_a_name_keeps_its_capitals(step: str, words: str):
    error = raised(2).error
    aborted = msgspec.structs.replace(
        died(2, exit_code=-6, printed="Received data size doesn't match expected size"),
        error=error,
        left_s=0.5,
    )
    judged = report("mismatched-collective")
    judged = replace(judged, findings=(replace(judged.findings[0], next_step=step),))
    message = text(
        cell_error(freed(0), ok(1), aborted, fresh=RankSet.of([2]), is_plain=False, report=judged)
    )
    assert f", {words}" in " ".join(message.split())
