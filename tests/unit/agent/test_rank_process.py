"""An interrupt is sent to a rank when the cell has begun."""

from pathlib import Path
from typing import Any, cast

import pytest

from nbddp.agent.rank_process import RankProcess


class Rank(RankProcess):
    """Counts its interrupts."""

    count = 0

    def interrupt(self) -> None:
        self.count += 1


@pytest.fixture
def rank() -> Rank:
    made = Rank(
        rank=0,
        pid=1,
        process=cast("Any", None),
        pipes=cast("Any", None),
        log_path=Path(),
        mark="",
        identity=b"",
    )
    made.await_begin("cell")
    return made


def test_a_cell_that_has_begun_is_interrupted_at_once(rank: Rank):
    rank.note_begun("cell")
    assert rank.count == 0
    rank.interrupt_in_cell(1.0)
    assert rank.count == 1
    rank.interrupt_if_due(100.0)
    assert rank.count == 1


def test_a_cell_that_has_not_begun_is_interrupted_when_it_has(rank: Rank):
    rank.interrupt_in_cell(1.0)
    rank.interrupt_if_due(1.2)
    assert rank.count == 0
    rank.note_begun("cell")
    assert rank.count == 1
    rank.interrupt_if_due(100.0)
    assert rank.count == 1


def test_a_rank_that_never_reports_its_begin_is_interrupted(rank: Rank):
    """The rank may hold the GIL; before its begin the signal does nothing and is sent again."""
    rank.interrupt_in_cell(1.0)
    rank.interrupt_in_cell(1.2)
    rank.interrupt_if_due(1.31)
    assert rank.count == 1
    rank.interrupt_if_due(100.0)
    assert rank.count == 1
    rank.note_begun("cell")
    assert rank.count == 2


def test_an_interrupt_is_for_one_cell(rank: Rank):
    rank.interrupt_in_cell(1.0)
    rank.await_begin("next cell")
    rank.interrupt_if_due(100.0)
    rank.note_begun("next cell")
    assert rank.count == 0


def test_an_interrupt_of_a_cell_spares_a_question_sent_before(rank: Rank):
    rank.await_begin("value")
    rank.await_begin("cell")
    rank.note_begun("value")
    rank.interrupt_in_cell(1.0)
    assert rank.count == 0
    rank.note_begun("cell")
    assert rank.count == 1
