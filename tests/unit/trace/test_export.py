"""A trace is exported in formats that other programs read."""

import json

from nbddp.controller.trace.export import chrome_trace, trace_records
from nbddp.controller.trace.rows import rows
from nbddp.wire.rank_set import RankSet
from tests.support.traces import MS, by_rank, recorders, three_cells


def test_records_are_flat():
    found = trace_records(three_cells())
    assert len(found) == 13
    assert json.loads(json.dumps(found)) == found
    assert all(entry.keys() == found[0].keys() for entry in found)
    last = found[7]
    assert (last["row"], last["rank"], last["cell"], last["op"]) == (1, 3, 8, "all_reduce")
    assert last["created_ns"] == 13 * MS
    assert last["arrived_after_ns"] == last["spread_ns"] == 3 * MS
    assert last["last_rank"] == 3
    assert last["source"] == "dist.all_reduce(x)"
    assert found[-1]["completed_ns"] is None


def test_records_of_some_ranks():
    assert {entry["rank"] for entry in trace_records(three_cells(), RankSet.of([1, 2]))} == {1, 2}


def test_nothing_recorded():
    assert trace_records([]) == []
    assert chrome_trace([])["traceEvents"] == []


# --- Chrome trace --------------------------------------------------------------------------------


def test_chrome_has_a_named_track_for_each_rank():
    trace = chrome_trace(three_cells())
    json.dumps(trace)
    events = trace["traceEvents"]
    names = [e for e in events if e["ph"] == "M" and e["name"] == "process_name"]
    assert [(e["pid"], e["args"]["name"]) for e in names] == [
        (rank, f"rank {rank}") for rank in range(4)
    ]
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == 13
    assert {e["tid"] for e in slices} == {1}
    first = slices[0]
    assert (first["ts"], first["dur"], first["name"]) == (0.0, 5000.0, "all_reduce #1")
    assert first["args"]["site"] == "cell [4], line 6"
    assert slices[-1]["name"] == "send 0→1 #1 (not complete)"


def test_slices_of_one_track_do_not_overlap():
    ranks = recorders(1)
    for at, end in ((0, 10), (1, 11), (2, 5), (10, 12), (11, 13)):
        ranks[0].collective(at=at, end=end, async_op=True)
    slices = [e for e in chrome_trace(rows(by_rank(ranks), {}))["traceEvents"] if e["ph"] == "X"]
    assert [e["tid"] for e in slices] == [1, 2, 3, 1, 2]


def test_arrows_lead_from_the_last_rank_into_the_slices_of_the_others():
    events = chrome_trace(three_cells())["traceEvents"]
    arrows = [e for e in events if e["ph"] in "sf"]
    assert len(arrows) == 3 * 3 * 2
    for start, finish in zip(arrows[::2], arrows[1::2], strict=True):
        assert (start["ph"], finish["ph"], finish["bp"]) == ("s", "f", "e")
        assert start["id"] == finish["id"]
        assert start["pid"] == 3
        [target] = [
            e
            for e in events
            if e["ph"] == "X"
            and (e["pid"], e["tid"]) == (finish["pid"], finish["tid"])
            and e["ts"] <= finish["ts"] < e["ts"] + e["dur"]
        ]
        assert target["name"] == finish["name"]
    assert len({e["id"] for e in arrows}) == 9


def test_the_arrow_of_a_message_leads_to_its_recv():
    ranks = recorders(2)
    ranks[0].message("send", 1, at=5, end=9)
    ranks[1].message("recv", 0, at=1, end=9)
    arrows = [e for e in chrome_trace(rows(by_rank(ranks), {}))["traceEvents"] if e["ph"] in "sf"]
    assert [(e["ph"], e["pid"], e["ts"]) for e in arrows] == [("s", 0, 4000.0), ("f", 1, 4000.0)]


def test_chrome_of_some_ranks_has_no_arrow_to_a_left_out_rank():
    events = chrome_trace(three_cells(), RankSet.of([0, 1]))["traceEvents"]
    assert {e["pid"] for e in events} == {0, 1}
    assert [e for e in events if e["ph"] in "sf"] == []
