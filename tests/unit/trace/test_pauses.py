"""The time at a prompt is no time of an operation."""

from nbddp.controller.trace.pauses import Pauses
from nbddp.controller.trace.rows import TraceRow, rows
from nbddp.wire.flight_recorder.schema import GroupInfo
from tests.support.traces import MS, Recorder

PAIR = GroupInfo.of(pg_id="w", name="0", ranks=(0, 1))


def waited_for_rank_1() -> list[TraceRow]:
    """Rank 0 waits from 10 ms to 60 ms for rank 1, which comes at 58 ms."""
    first, second = Recorder(0), Recorder(1)
    operations = {
        0: [
            first.collective(at=10, end=60, group=PAIR),
            first.collective(at=70, end=80, group=PAIR),
        ],
        1: [
            second.collective(at=58, end=60, group=PAIR),
            second.collective(at=72, end=80, group=PAIR),
        ],
    }
    return rows(operations, {PAIR.pg_id: PAIR})


def test_a_wait_for_a_stopped_rank_is_left_out():
    pauses = Pauses()
    pauses.add(12 * MS, 30 * MS)
    pauses.add(12 * MS, 57 * MS)  # the same stop: the user has looked before
    row, later = pauses.left_out_of(waited_for_rank_1())
    assert [part.created_ns // MS for part in row.parts.values()] == [10, 13]
    assert [part.waited_ns // MS for part in row.parts.values()] == [5, 2]
    assert row.last_rank == 1
    assert [part.waited_ns // MS for part in later.parts.values()] == [10, 8]
    assert later.first_ns == 25 * MS


def test_without_pauses_rows_stay_as_they_are():
    assert Pauses().left_out_of(waited_for_rank_1()) == waited_for_rank_1()
