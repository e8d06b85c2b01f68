"""Operations of all ranks are joined into rows."""

from typing import Any

import msgspec
import pytest

from nbddp.controller.diagnosis.rank_view import RankView
from nbddp.controller.state import NodeClock
from nbddp.controller.trace.pauses import Pauses
from nbddp.controller.trace.rows import TraceRow, rows, rows_of_views, select
from nbddp.wire.flight_recorder.schema import Failure, GroupInfo, Operation, RankLook, Site
from nbddp.wire.rank_set import RankSet
from tests.support.traces import GROUPS, MS, WORLD, by_rank, recorders, three_cells

PAIR = GroupInfo.of(pg_id="3/0-1", name="3", desc="dp", ranks=(0, 1))


def one(found: list[TraceRow]) -> TraceRow:
    assert len(found) == 1
    return found[0]


# --- collectives ---------------------------------------------------------------------------------


def test_a_collective_is_one_row():
    ranks = recorders(4)
    for recorder, at in zip(ranks, (10, 12, 11, 41), strict=True):
        recorder.collective(at=at, end=42, nbytes=4_000_000)
    row = one(rows(by_rank(ranks), GROUPS))
    assert (row.kind, row.label, row.pg_name, row.pg_desc) == (
        "collective",
        "all_reduce #1",
        "0",
        "default_pg",
    )
    assert row.members == RankSet.all(4)
    assert list(row.parts) == [0, 1, 2, 3]
    assert row.spread_ns == 31 * MS
    assert row.last_rank == 3
    assert row.waited_ns == 32 * MS
    assert row.missing == RankSet()
    assert row.bandwidth_bytes_per_s == pytest.approx(4_000_000 / 1e-3)  # from rank 3 to the end


def test_rows_come_in_the_order_in_which_they_began():
    ranks = recorders(2)
    for number in range(3):
        for recorder in reversed(ranks):
            recorder.collective("barrier", at=number * 10 + recorder.rank, end=number * 10 + 5)
    assert [row.label for row in rows(by_rank(ranks), GROUPS)] == [
        "barrier #1",
        "barrier #2",
        "barrier #3",
    ]


def test_groups_have_numbers_of_their_own():
    ranks = recorders(2)
    for recorder in ranks:
        recorder.collective(at=1, end=2)
        recorder.collective(at=3, end=4, group=PAIR)
    found = rows(by_rank(ranks), {**GROUPS, PAIR.pg_id: PAIR})
    assert [(row.pg_name, row.collective_seq_id) for row in found] == [("0", 1), ("3", 1)]
    assert found[1].members == RankSet.all(2)


def test_a_group_that_is_being_made_has_its_name():
    ranks = recorders(2)
    for recorder in ranks:
        recorder.other("creation", "new_group", at=0, end=1, pg_id="3@nbddp/0@2a3070ce")
    assert one(rows(by_rank(ranks), GROUPS)).pg_name == "3"


def test_a_group_that_is_not_known_has_the_ranks_that_were_seen():
    ranks = recorders(2)
    for recorder in ranks:
        recorder.collective(at=1, end=2)
    row = one(rows(by_rank(ranks), {}))
    assert row.pg_name == WORLD.pg_id
    assert row.members == RankSet.all(2)


def test_different_operations_with_one_number_are_one_row_with_both_names():
    ranks = recorders(2)
    ranks[0].collective("all_reduce", at=1)
    ranks[1].collective("broadcast", at=2)
    row = one(rows(by_rank(ranks), GROUPS))
    assert row.label == "all_reduce | broadcast #1"


def test_a_row_has_the_origin_that_all_its_ranks_have():
    gradients = Site(line=3, origin="ddp-gradients", call="loss.backward()")
    ranks = recorders(2)
    for recorder, site in zip(ranks, (gradients, gradients), strict=True):
        recorder.collective(at=1, site=site)
    for recorder, site in zip(ranks, (gradients, Site(line=5)), strict=True):
        recorder.collective(at=2, site=site)
    labels = [row.label for row in rows(by_rank(ranks), GROUPS)]
    assert labels == ["all_reduce #1 (gradients)", "all_reduce #2"]


def test_the_sites_of_a_row_are_those_of_its_ranks():
    ranks = recorders(3)
    first, second = Site(file="c", line=3, cell=2), Site(file="c", line=5, cell=2)
    for recorder, site in zip(ranks, (first, second, first), strict=True):
        recorder.collective(at=recorder.rank, end=9, site=site)
    row = one(rows(by_rank(ranks), GROUPS))
    assert row.sites == {first: RankSet.of([0, 2]), second: RankSet.of([1])}
    assert row.site == first


# --- who is missing ------------------------------------------------------------------------------


def test_a_rank_that_never_came_is_missing():
    ranks = recorders(4)
    for recorder in ranks:
        recorder.collective(at=1, end=2)
    for recorder in ranks[:3]:
        recorder.collective(at=recorder.rank + 3)
    row = rows(by_rank(ranks), GROUPS)[-1]
    assert row.missing == RankSet.of([3])
    assert row.last_rank is None
    assert row.completed_ns is None
    assert row.bandwidth_bytes_per_s is None


def test_a_rank_without_records_is_missing_while_others_wait():
    ranks = recorders(4)
    ranks[0].collective(at=1)
    assert one(rows(by_rank(ranks), GROUPS)).missing == RankSet.of([1, 2, 3])


def test_a_rank_that_is_not_known_is_not_called_missing():
    ranks = recorders(4)
    for recorder in ranks[:3]:
        recorder.collective(at=1)
    assert one(rows(by_rank(ranks[:3]), GROUPS)).missing == RankSet()


def test_a_record_that_was_overwritten_is_not_missing():
    ranks = recorders(4)
    for number in range(5):
        for recorder in ranks:
            recorder.collective(at=number * 10, end=number * 10 + 1)
    lost = {**by_rank(ranks), 1: ranks[1].operations[3:]}
    found = rows(lost, GROUPS)
    assert [list(row.parts) for row in found] == [[0, 2, 3]] * 3 + [[0, 1, 2, 3]] * 2
    assert all(row.missing == RankSet() for row in found)
    assert found[0].bandwidth_bytes_per_s is None  # a rank is not known


def test_an_old_record_that_is_still_open_does_not_make_the_overwritten_ones_missing():
    ranks = recorders(4)
    for recorder in ranks:
        recorder.collective(at=0, async_op=True, end=None if recorder.rank == 1 else 1)
    for number in range(1, 5):
        for recorder in ranks:
            recorder.collective(at=number * 10, end=number * 10 + 1)
    lost = {**by_rank(ranks), 1: [ranks[1].operations[0], *ranks[1].operations[3:]]}
    assert all(row.missing == RankSet() for row in rows(lost, GROUPS))


def test_a_fresh_rank_did_not_miss_what_was_over_before():
    ranks = recorders(4)
    for recorder in ranks[:3]:
        recorder.collective(at=1, end=2)
    assert one(rows(by_rank(ranks), GROUPS)).missing == RankSet()


def test_a_freed_operation_counts_as_missed_unless_the_rank_is_fresh():
    ranks = recorders(4)
    for recorder in ranks[:3]:
        recorder.collective(at=1, end=2, failure=Failure("interrupted"))
    assert one(rows(by_rank(ranks), GROUPS)).missing == RankSet.of([3])
    assert one(rows(by_rank(ranks), GROUPS, fresh=[3])).missing == RankSet()


def test_a_number_that_a_rank_left_out_is_missing_also_when_it_went_on():
    ranks = recorders(2)
    group = GroupInfo.of(pg_id="g", name="g", ranks=(0, 1))
    for recorder in ranks:
        recorder.collective(at=1, end=2, group=group)
    ranks[0].collective(at=3, end=4, group=group, failure=Failure("raised"))
    third = [recorder.collective(at=9, end=10, group=group) for recorder in ranks]
    assert third[1].collective_seq_id == 2  # the group was made again at 3:
    moved = {
        0: ranks[0].operations,
        1: [ranks[1].operations[0], _renumbered(ranks[1].operations[1], 3)],
    }
    found = rows(moved, {"g": group})
    assert [(row.collective_seq_id, list(row.parts), row.missing.ranks) for row in found] == [
        (1, [0, 1], ()),
        (2, [0], (1,)),
        (3, [0, 1], ()),
    ]


def _renumbered(operation: Operation, number: int) -> Operation:
    return msgspec.structs.replace(operation, collective_seq_id=number)


def test_numbers_that_begin_again_are_other_rows():
    ranks = recorders(2)
    for run in ("a", "b"):
        for recorder in ranks:
            recorder._numbers.clear()
            recorder.collective(at=1 if run == "a" else 11, end=12, run_id=run)
    found = rows(by_rank(ranks), GROUPS)
    assert [list(row.parts) for row in found] == [[0, 1], [0, 1]]
    assert [row.first_ns for row in found] == [1 * MS, 11 * MS]


def test_a_failed_operation_does_not_meet_one_of_a_later_cell():
    ranks = recorders(2)
    ranks[0].collective(at=1, end=2, failure=Failure("raised"), run_id="a")
    ranks[1].collective(at=11, run_id="b")
    assert [list(row.parts) for row in rows(by_rank(ranks), GROUPS)] == [[0], [1]]


# --- messages, creations, the store --------------------------------------------------------------


def test_a_send_is_with_its_recv():
    ranks = recorders(2)
    ranks[0].message("send", 1, at=1, end=9)
    ranks[0].message("send", 1, at=2, end=9, tag=5)
    ranks[1].message("recv", 0, at=8, end=9, tag=5)
    ranks[1].message("recv", 0, at=7, end=9)
    found = rows(by_rank(ranks), GROUPS)
    assert [(row.label, row.tag, row.spread_ns, row.last_rank) for row in found] == [
        ("send 0→1 #1", 0, 6 * MS, 1),
        ("send 0→1 #1 (tag 5)", 5, 6 * MS, 1),
    ]
    assert found[0].members == RankSet.all(2)


def test_messages_in_both_directions_are_two_rows():
    ranks = recorders(2)
    ranks[0].message("send", 1, at=1)
    ranks[1].message("send", 0, at=2)
    found = rows(by_rank(ranks), GROUPS)
    assert [(row.label, row.missing.ranks) for row in found] == [
        ("send 0→1 #1", (1,)),
        ("send 1→0 #1", (0,)),
    ]


def test_a_recv_alone_is_called_so():
    ranks = recorders(2)
    ranks[1].message("recv", 0, at=1)
    assert one(rows(by_rank(ranks), GROUPS)).label == "recv 0→1 #1"


def test_a_recv_from_any_rank_stands_alone():
    ranks = recorders(3)
    ranks[0].message("recv", -1, at=1)
    ranks[1].message("recv", -1, at=2)
    found = rows(by_rank(ranks), GROUPS)
    assert [(row.label, row.members.ranks) for row in found] == [
        ("recv any→0 #1", (0,)),
        ("recv any→1 #1", (1,)),
    ]


def test_creations_and_waits_for_the_store():
    ranks = recorders(2)
    for recorder in ranks:
        recorder.other(
            "creation", "new_group", at=1 + recorder.rank, end=4 + recorder.rank, pg_id=PAIR.pg_id
        )
        recorder.other("store", "store.wait", at=6, end=7, keys=("go",))
    found = rows(by_rank(ranks), {PAIR.pg_id: PAIR})
    assert [(row.kind, row.label, list(row.parts), row.pg_desc) for row in found] == [
        ("creation", "new_group", [0, 1], "dp"),
        ("store", "store.wait('go')", [0, 1], ""),
    ]
    assert found[0].last_rank == 1


# --- bandwidth -----------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"nbytes": 0}, {"failure": Failure("raised")}, {"end": None}])
def test_no_bandwidth_where_it_means_nothing(fields: dict[str, Any]):
    ranks = recorders(4)
    for recorder in ranks:
        recorder.collective(**{"at": 1, "end": 2, **fields})
    assert one(rows(by_rank(ranks), GROUPS)).bandwidth_bytes_per_s is None


def test_a_rank_that_came_alone_has_no_spread_and_is_not_last():
    ranks = recorders(1)
    ranks[0].collective(at=1, end=2, group=GroupInfo.of(pg_id="s", name="s", ranks=(0,)))
    row = one(rows(by_rank(ranks), {}))
    assert row.spread_ns is None
    assert row.last_rank is None


# --- select -----------------------------------------------------------------------------


def test_select():
    found = three_cells()
    assert [row.label for row in select(found, cell=8)] == ["all_reduce #2"]
    assert len(select(found, cell=9)) == 2
    assert [row.label for row in select(found, run_id="run-0")] == ["all_reduce #1"]
    assert [row.label for row in select(found, last=2)] == ["all_reduce #3", "send 0→1 #1"]
    assert len(select(found, ranks=RankSet.of([3]))) == 3
    assert select(found, ranks=RankSet.of([3]), last=1)[0].spread_ns == 3 * MS  # still of all
    assert select(found, last=100) == found


def test_a_row_without_a_run_has_the_cell_of_its_line():
    ranks = recorders(1)
    ranks[0].collective(at=1, end=2)
    assert one(rows(by_rank(ranks), GROUPS)).parts[0].cell == 4


def test_nothing_recorded():
    assert rows({}, {}) == []
    assert rows({0: [], 1: []}, GROUPS) == []


# --- from looks ----------------------------------------------------------------------------------


def test_rows_from_descriptions_of_the_ranks():
    ranks = recorders(4)
    for recorder in ranks[:3]:
        recorder.collective(at=1)

    def look(rank: int) -> RankLook:
        operations = tuple(ranks[rank].operations)
        return RankLook(
            rank=rank,
            pid=1,
            activity="running",
            version=1,
            time_ns=9,
            groups=(WORLD,),
            operations=operations,
        )

    views = {
        0: RankView(0, "running", look=look(0)),
        1: RankView(1, "silent", operations=tuple(ranks[1].operations)),  # as its agent read them
        2: RankView(2, "silent"),
        3: RankView(3, "finished", look=look(3)),
    }
    row = one(rows_of_views(views))
    assert list(row.parts) == [0, 1]
    assert row.missing == RankSet.of([3])  # of rank 2 nothing is known
    assert row.gone == RankSet.of([3])
    assert row.pg_desc == "default_pg"


# --- clocks of several machines ------------------------------------------------------------------


def test_times_of_another_machine_are_moved_to_the_clock_of_the_notebook():
    ranks = recorders(2)
    ahead = 100_000 * 1_000_000_000
    ranks[0].collective(at=10, end=42)
    ranks[1].collective(at=30, end=43)
    ranks[0].collective(at=50)
    views = {}
    for rank, operations in by_rank(ranks).items():
        shift = ahead * rank
        moved = tuple(
            msgspec.structs.replace(
                each,
                time_created_ns=each.time_created_ns + shift,
                time_completed_ns=each.time_completed_ns and each.time_completed_ns + shift,
            )
            for each in operations
        )
        look = RankLook(
            rank=rank,
            pid=1,
            activity="running",
            version=1,
            time_ns=60 * MS + shift,
            run_id="r1",
            operations=moved,
        )
        views[rank] = RankView(rank=rank, state="running", look=look)
    first, second = rows_of_views(views, clock_by_rank={1: NodeClock(1, "n2", ahead, 0)})
    assert (first.first_ns, first.spread_ns, first.completed_ns) == (10 * MS, 20 * MS, 43 * MS)
    assert second.parts[0].completed_ns is None
    uncorrected = rows_of_views(views)
    assert uncorrected[0].spread_ns == 20 * MS + ahead


def test_a_pause_of_a_rank_of_another_machine_is_moved_too():
    here, there = Pauses(), Pauses(lambda: {1: 1_000})
    here.add_of(0, 10, 20)
    there.add_of(1, 1_010, 20)
    assert there._spans == here._spans


def test_a_call_that_was_made_anew_is_one_part():
    (recorder,) = recorders(1)
    recorder.collective(at=1, end=2)
    (first,) = recorder.operations
    replaced = msgspec.structs.replace(
        first,
        record_id=first.record_id + 9,
        state="failed",
        failure=Failure("replaced", "Replaced: its call was made again"),
    )
    assert [row.label for row in rows({0: [replaced]}, GROUPS)] == []
    assert len(rows({0: [replaced, first]}, GROUPS)) == 1


@pytest.mark.parametrize(
    ("times", "errors_ms", "last", "error_ms"),
    [
        ((0, 5.5, 0, 5), (), 1, 0),  # one clock
        ((0, 5.5, 0, 5), (1.3, 0.3), None, 1.6),  # rank 3, on the other node, perhaps came later
        ((0, 5.5, 0, 3), (1.3, 0.3), 1, 1.6),
        ((0, 1.4, 0, 0), (1.3, 0.3), None, 1.6),
        ((5, 5.5, 0, 0), (1.3, 0.3), 1, 1.6),  # ranks 0 and 1 have one clock
        ((0, 0, 5, 5), (1.3, 0.3), 2, 1.6),
    ],
)
def test_a_rank_came_last_if_the_clocks_tell_it(
    times: tuple[float, ...], errors_ms: tuple[float, ...], last: int | None, error_ms: float
):
    clocks = {
        rank: NodeClock(rank // 2, "n", 0, round(errors_ms[rank // 2] * MS))
        for rank in (range(4) if errors_ms else ())
    }
    ranks = recorders(4)
    for recorder, at in zip(ranks, times, strict=True):
        recorder.collective(at=at, end=9)
    [row] = rows(by_rank(ranks), GROUPS, clocks=clocks)
    assert (row.last_rank, row.is_order_unclear) == (last, last is None)
    assert row.spread_error_ns == error_ms * MS


def test_ranks_of_one_other_machine_have_one_clock():
    ranks = recorders(4)
    for recorder in ranks:
        recorder.collective(at=recorder.rank / 10, end=9)
    clock = NodeClock(0, "n", 0, 5 * MS)
    [row] = rows(by_rank(ranks), GROUPS, clocks=dict.fromkeys(range(4), clock))
    assert (row.last_rank, row.spread_error_ns) == (3, 0)
    [row] = rows(by_rank(ranks), GROUPS, clocks=dict.fromkeys(range(3), clock))
    assert (row.last_rank, row.spread_error_ns) == (None, 5 * MS)  # rank 3 has the notebook's
