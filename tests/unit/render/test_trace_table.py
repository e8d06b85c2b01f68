"""The table and the summary of a trace."""

import re
from dataclasses import replace

import msgspec
import pytest

from nbddp.controller.diagnosis.analysis import diagnose
from nbddp.controller.recovery.machine import RecoveryMachine
from nbddp.controller.state import NodeClock, SilentNode
from nbddp.controller.trace.rows import TraceRow, rows
from nbddp.notebook.render import html, trace_table
from nbddp.notebook.render.timeline_text import missing_records
from nbddp.settings import Settings
from nbddp.wire.flight_recorder import origins
from nbddp.wire.flight_recorder.schema import Failure, GroupInfo, Site
from nbddp.wire.rank_set import RankSet
from tests.support.machines import Pool
from tests.support.traces import GROUPS, LINE, MS, WORLD, by_rank, recorders


def training(count: int = 4, steps: int = 12) -> list[TraceRow]:
    """All reduce gradients; the last rank is 31 ms late in step 7."""
    group = GroupInfo.of(pg_id="w", name="0", desc="default_pg", ranks=tuple(range(count)))
    ranks = recorders(count)
    for step in range(steps):
        late = 31 if step == 6 else 0.2
        for recorder in ranks:
            at = step * 100 + (late if recorder.rank == count - 1 else 0)
            recorder.collective(at=at, end=step * 100 + late + 0.5, nbytes=350_000, group=group)
    return rows(by_rank(ranks), {"w": group})


# --- units ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0.00 ms"),
        (40_000, "0.04 ms"),
        (200_000, "0.2 ms"),
        (994_000, "1.0 ms"),
        (9_900_000, "9.9 ms"),
        (9_960_000, "10 ms"),
        (31 * MS, "31 ms"),
        (999 * MS, "999 ms"),
        (999_600_000, "1.0 s"),
        (59.9e9, "59.9 s"),
        (59.96e9, "1:00 min"),
        (125e9, "2:05 min"),
        (3725e9, "1:02:05 h"),
    ],
)
def test_duration(ns: float, text: str):
    assert html.duration(ns) == text


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (4_200_000, "4.2 MB"),
        (9_960_000, "10 MB"),
        (999_600, "1.0 MB"),
        (3e15, "3000 TB"),
    ],
)
def test_size(nbytes: float, text: str):
    assert html.size(nbytes) == text


# --- the line under a cell -----------------------------------------------------------------------


def test_summary():
    assert trace_table.summary(training()) == (
        "trace: 12 all_reduce on group 0; 4.2 MB; slowest wait 32 ms on ranks 0-2 in all_reduce #7 "
        "(cell [4], line 6), rank 3 came last"
    )


def test_the_slowest_wait_is_that_of_the_ranks_that_waited_so_long():
    ranks = recorders(4)
    waits = (6.9, 6.4, 11, 4.9)
    for recorder, waited in zip(ranks, waits, strict=True):
        at = 5.5 if recorder.rank == 1 else 0
        recorder.collective(at=at, end=12, waited=waited, nbytes=0)
    text = "trace: 1 all_reduce on group 0; slowest wait 11 ms on rank 2 in all_reduce #1 "
    assert trace_table.summary(rows(by_rank(ranks), GROUPS)) == (
        f"{text}(cell [4], line 6), rank 1 came last"
    )
    clocks = {rank: NodeClock(rank, "n", 0, 3 * MS) for rank in range(4)}
    unclear = rows(by_rank(ranks), GROUPS, clocks=clocks)
    assert trace_table.summary(unclear) == f"{text}(cell [4], line 6)"
    shown = trace_table.table(unclear)["text/plain"]
    assert shown.endswith("\nNo mark: the clocks of the nodes do not tell which rank came last.")


def test_the_rank_that_came_last_may_wait_longest():
    ranks = recorders(2)
    group = GroupInfo.of(pg_id="d", name="5", ranks=(0, 1))
    ranks[0].collective("broadcast", at=0, end=1, group=group, nbytes=0)
    ranks[1].collective("broadcast", at=6, end=16, group=group, nbytes=0)
    found = rows(by_rank(ranks), {"d": group})
    assert trace_table.summary(found).endswith(
        "10 ms on rank 1 in broadcast #1 (cell [4], line 6), though rank 1 came last"
    )
    clocks = {rank: NodeClock(rank, "n", 0, 1 * MS) for rank in range(2)}
    ranks = recorders(2)
    ranks[0].collective(at=0, end=20, group=group)
    ranks[1].collective(at=4, end=20, group=group)
    assert trace_table.summary(rows(by_rank(ranks), {"d": group}, clocks=clocks)).endswith(
        "though all came within 6.0 ms"
    )


def test_a_ring_with_overwritten_records_is_told_as_incomplete():
    ranks = recorders(2)
    for step in range(9):
        for recorder in ranks:
            recorder.collective(at=step, end=step + 1)
    kept = rows({recorder.rank: recorder.operations[5:] for recorder in ranks}, GROUPS)
    assert trace_table.not_kept(kept) == "; earlier operations are not kept"
    assert trace_table.not_kept(kept[1:]) == ""  # those of another cell
    whole = rows(by_rank(ranks), GROUPS)
    assert trace_table.not_kept(whole) == ""
    headline = trace_table.table(kept)["text/plain"].splitlines()[0]
    assert headline == "trace: 4 operations; earlier operations are not kept"


def test_a_call_that_was_made_again_is_no_lost_operation():
    ranks = recorders(2)
    for recorder in ranks:
        for step in range(2):
            recorder.collective(at=step, end=step + 1)
        recorder.operations[0] = msgspec.structs.replace(
            recorder.operations[0], failure=Failure("replaced")
        )
    shown = rows(by_rank(ranks), GROUPS)
    assert len(shown) == 1
    assert trace_table.not_kept(shown) == ""


def test_summary_of_nothing():
    assert trace_table.summary([]) == "trace: no operations"


def test_summary_names_groups_and_what_did_not_end():
    ranks = recorders(2)
    group = GroupInfo.of(pg_id="d", name="5", desc="dp", ranks=(0, 1))
    for recorder in ranks:
        recorder.collective("barrier", at=1, end=2, nbytes=0)
        recorder.collective("broadcast", at=3, end=4, group=group, nbytes=100)
        recorder.collective(at=5, end=6, group=group, nbytes=100, failure=Failure("raised"))
    ranks[0].collective(at=7, group=group, nbytes=100)
    found = rows(by_rank(ranks), {**GROUPS, "d": group})
    assert trace_table.summary(found) == (
        "trace: 1 barrier on group 0; 1 broadcast, 2 all_reduce on group 5 (dp); 300 B; 1 failed; "
        "1 not complete; slowest wait 1.0 ms on ranks 0-1 in barrier #1 (cell [4], line 6)"
    )


def test_summary_of_many_groups_stays_short():
    ranks = recorders(2)
    groups = {f"g{n}": GroupInfo.of(pg_id=f"g{n}", name=str(n), ranks=(0, 1)) for n in range(6)}
    for group in groups.values():
        for recorder in ranks:
            recorder.collective(at=1, end=2, waited=0, nbytes=0, group=group)
    assert trace_table.summary(rows(by_rank(ranks), groups)) == (
        "trace: 1 all_reduce on group 0; 1 all_reduce on group 1; 1 all_reduce on group 2; "
        "3 on 3 more groups"
    )


def test_summary_blames_no_rank_for_a_slow_network():
    ranks = recorders(4)
    for recorder in ranks:
        recorder.collective(at=recorder.rank, end=101)
    text = trace_table.summary(rows(by_rank(ranks), GROUPS))
    assert text.endswith("all_reduce #1 (cell [4], line 6), though all came within 3.0 ms")


def test_records_that_are_missing():
    ranks = recorders(4)
    for recorder in ranks:
        recorder.collective(at=recorder.rank, end=101)
    seen = rows(by_rank(ranks[:2]), GROUPS)
    pool = RecoveryMachine(Pool(n=2, nnodes=2).start().machine, Settings(), diagnose).snapshot()
    silent = msgspec.structs.replace(pool, silent=(SilentNode(1, "h8", 12.0, 60.0),))
    rest = "whether they came last, and how long others waited for that, is not known"
    said = "the records of ranks 2-3 are missing"
    lack = missing_records(seen, silent, 20.0)
    assert lack == f"{said} (node 1 (h8) is silent for 8 s): {rest}"
    assert missing_records(seen, pool, 20.0) == f"{said} (no answer of ranks 2-3): {rest}"
    assert missing_records(rows(by_rank(ranks), GROUPS), silent, 20.0) == ""
    text = trace_table.table(seen, lack=lack)["text/plain"]
    assert "*1" not in text
    assert said in text
    assert (seen[0].last_rank, seen[0].spread_ns) == (None, None)


# --- the table -----------------------------------------------------------------------------------


def test_table_as_text():
    text = trace_table.table(training(), last=3)["text/plain"]
    assert text.splitlines() == [
        "trace: 3 of 12 operations",
        "operation       line    bytes      rate  spread  rank 0  rank 1  rank 2   rank 3  source",
        "all_reduce #10  [4]:6  350 kB  700 MB/s  0.2 ms  0.7 ms  0.7 ms  0.7 ms  *0.5 ms  "
        "dist.all_reduce(x)",
        "all_reduce #11  [4]:6  350 kB  700 MB/s  0.2 ms  0.7 ms  0.7 ms  0.7 ms  *0.5 ms  "
        "dist.all_reduce(x)",
        "all_reduce #12  [4]:6  350 kB  700 MB/s  0.2 ms  0.7 ms  0.7 ms  0.7 ms  *0.5 ms  "
        "dist.all_reduce(x)",
        "Under each rank: how long it was blocked; *: came last. Spread: from the first arrival to "
        "the last.",
    ]


def test_table_names_ranks_that_never_came():
    ranks = recorders(4)
    for recorder in ranks[:3]:
        recorder.collective(at=1)
    text = trace_table.table(rows(by_rank(ranks), GROUPS))["text/plain"]
    assert re.search(r"all_reduce #1 .* open +open +open +never", text)


@pytest.mark.parametrize("count", [1, 2, 4, 6, 8, 16, 64, 512])
def test_table_fits_any_number_of_ranks(count: int):
    bundle = trace_table.table(training(count))
    assert max(map(len, bundle["text/plain"].splitlines())) <= 100
    assert len(bundle["text/html"]) < 40_000
    assert bundle["text/plain"].count("all_reduce #") == 12
    assert count == 1 or "32 ms" in bundle["text/plain"]


@pytest.mark.parametrize("count", [4, 16])
def test_table_of_a_running_cell_names_ranks_that_have_not_come_yet(count: int):
    ranks = recorders(count)
    group = GroupInfo.of(pg_id="w", name="0", ranks=tuple(range(count)))
    for recorder in ranks[:-1]:
        recorder.collective(at=recorder.rank, group=group)
    found = rows(by_rank(ranks), {"w": group}, now_by_run={"run-4": 1000 * MS})
    text = trace_table.table(found)["text/plain"].splitlines()[2]
    assert "not yet" in text
    assert "never" not in text
    assert html.duration((count - 2) * MS) not in text, "the spread is not known yet"


def test_a_rank_that_ended_a_running_cell_without_the_call():
    ranks = recorders(4)
    group = GroupInfo.of(pg_id="w", name="0", ranks=tuple(range(4)))
    for recorder in ranks[:2]:
        recorder.collective(at=recorder.rank, group=group)
    (row,) = rows(by_rank(ranks), {"w": group}, now_by_run={"run-4": 1000 * MS})
    text = trace_table.table([replace(row, gone=RankSet.of([3]))])["text/plain"]
    assert re.search(r"not yet +ended", text)
    assert text.endswith("\nended: it ended the cell without the call.")


def test_many_ranks_are_folded():
    text = trace_table.table(training(64))["text/plain"]
    assert re.search(r"all_reduce #7 .* 0\.5 ms to 32 ms +rank 63", text)
    assert "Waits: how long the ranks were blocked" in text


def test_columns_of_some_ranks():
    bundle = trace_table.table(training(8), ranks=RankSet.of([1, 7]), last=2)
    assert bundle["text/plain"].startswith("trace: 2 of 12 operations with ranks 1,7\n")
    assert "rank 1  " in bundle["text/plain"]
    assert "rank 0" not in bundle["text/plain"]
    assert "rank 0" not in bundle["text/html"]


@pytest.mark.parametrize(("count", "wraps"), [(2, True), (3, False), (8, False), (64, True)])
def test_the_source_wraps_where_it_is_in_sight(count: int, wraps: bool):
    page = trace_table.table(training(count), ranks=RankSet.of(range(count)))["text/html"]
    assert ("overflow-wrap:anywhere" in page) == wraps


def test_a_cell_without_operations():
    bundle = trace_table.table(training(), cell=9)
    assert bundle["text/plain"] == "trace: no operations of cell [9] are known"
    assert "of cell [9]" in bundle["text/html"]


def test_groups_are_named_only_where_there_are_several():
    ranks = recorders(2)
    group = GroupInfo.of(pg_id="d", name="5", desc="dp", ranks=(0, 1))
    for recorder in ranks:
        recorder.collective(at=1, end=2)
    assert "group" not in trace_table.table(rows(by_rank(ranks), GROUPS))["text/plain"]
    for recorder in ranks:
        recorder.collective(at=3, end=4, group=group)
    found = trace_table.table(rows(by_rank(ranks), {**GROUPS, "d": group}))["text/plain"]
    assert "5 (dp)" in found


def test_a_table_that_is_too_wide_keeps_its_waits_and_last_ranks():
    ranks = recorders(4)
    long = msgspec.structs.replace(LINE, origin="FSDP, parameters of one layer of many")
    failure = Failure("freed", "freed")
    for recorder in ranks:
        at = 1.5 * recorder.rank
        recorder.collective("all_gather_into_tensor_coalesced", at=at, end=9, site=long)
        recorder.collective(
            "reduce_scatter_tensor", at=at + 10, end=91 + at, failure=failure, site=long
        )
    found = trace_table.table(rows(by_rank(ranks), GROUPS))["text/plain"]
    _, head, first, second, legend = found.splitlines()
    assert head.split()[-2:] == ["last", "rank"]
    assert first.endswith("rank 3")
    assert "freed after 81 ms" in second
    assert "spread" not in head
    assert legend == "Waits: how long the ranks were blocked."


def test_text_of_users_is_escaped():
    ranks = recorders(1)
    evil = Site(file="x", line=1, cell=4, source="a<b and '&' \x1b[31m</td><script>")
    ranks[0].collective("all<b>", at=1, end=2, site=evil)
    bundle = trace_table.table(rows(by_rank(ranks), GROUPS))
    assert "<script" not in bundle["text/html"]
    assert "&lt;/td&gt;" in bundle["text/html"]
    assert "all&lt;b&gt;" in bundle["text/html"]
    assert "\x1b" not in bundle["text/html"] + bundle["text/plain"]


def test_html_keeps_to_what_untrusted_notebooks_let_through():
    found = trace_table.table(training())["text/html"]
    assert not re.search(r"<(?:style|script|svg|iframe)|on\w+=|var\(|currentColor|\dch\b", found)


def test_files_are_named_without_their_folder():
    ranks = recorders(2)
    for recorder in ranks:
        site = Site(file="/home/me/train.py", line=30 + recorder.rank, source="step()")
        recorder.collective(at=recorder.rank, end=9, site=site)
    assert "train.py:30 +1" in trace_table.table(rows(by_rank(ranks), GROUPS))["text/plain"]
    assert LINE not in rows(by_rank(ranks), {WORLD.pg_id: WORLD})[0].sites


def test_what_nbddp_does_by_itself_is_left_out_or_told_in_words():
    (own,) = recorders(1)
    sync = msgspec.structs.replace(LINE, source="", origin=origins.RANDOM_NUMBERS)
    own.other("creation", "init_process_group", at=0, end=1, site=Site(), run_id="")
    own.other("creation", "new_group", at=2, end=3)
    own.collective("broadcast", at=4, end=5, site=sync)
    shown = trace_table.table(rows(by_rank([own]), GROUPS))
    assert shown["text/plain"].startswith("trace: 2 operations\n")
    assert "new_group" in shown["text/plain"]
    assert "broadcast #1 (random numbers)" in shown["text/plain"]
