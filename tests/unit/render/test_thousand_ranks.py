"""Views of 1,024 ranks on 128 nodes: as short as those of few ranks."""

from msgspec.structs import replace

from nbddp.controller.trace.rows import rows
from nbddp.controller.values import compare
from nbddp.notebook.render import diagnosis_card, diff_report, timeline
from nbddp.notebook.render.node_lines import node_lines
from nbddp.notebook.render.status_table import Row, Survey
from nbddp.wire.flight_recorder import GroupInfo
from nbddp.wire.message_types import NodeFacts
from nbddp.wire.values.value_questions import Leaf, Tree
from tests.support.looks import Ranks
from tests.support.traces import LINE, by_rank, recorders

RANKS, PER_NODE = 1024, 8


def test_the_status_is_a_row_for_each_state():
    found = [
        Row(rank, "waits", place="cell [3], line 1", node=rank // PER_NODE, pid=1000 + rank)
        for rank in range(RANKS)
    ]
    found[77] = Row(77, "does not answer", node=9, is_odd=True)
    logs = [f"n{rank // PER_NODE}:/x/rank{rank}.log" for rank in range(RANKS)]
    text = Survey("pool", found, logs, []).bundle()["text/plain"].splitlines()
    assert len(text) == 5
    assert text[2].startswith("77 ")
    assert text[3].split()[:3] == ["0-76,78-1023", "waits", "0-127"]
    assert text[4] == "logs: n0:/x/rank0.log to n127:/x/rank1023.log; %ddp log RANK shows one"


def _facts(node: int) -> NodeFacts:
    return NodeFacts(
        host=f"n{node}", address=f"10.0.0.{node}", python="3", torch="2", nbddp="0", cpus=8,
        machine_cpus=8, gpus=0,
    )  # fmt: skip


def test_of_many_nodes_those_that_stand_out_are_named():
    nodes = [_facts(node) for node in range(RANKS // PER_NODE)]
    assert node_lines(nodes, {3: 6.0}, {9: ": it was silent for 60 s"}) == [
        "128 nodes: n0 to n127; 3 n3 (10.0.0.3), silent for 6 s; "
        "9 n9 (10.0.0.9), lost: it was silent for 60 s"
    ]
    [all_silent] = node_lines(nodes, dict.fromkeys(range(128), 6.0), {})
    assert all_silent.endswith("; and 112 more")
    assert node_lines(nodes[:2], {}, {}) == ["nodes: 0 n0 (10.0.0.0); 1 n1 (10.0.0.1)"]
    assert node_lines(nodes[:2], {}, {}, unanswered={1}, silent_after_s=5.0) == [
        "nodes: 0 n0 (10.0.0.0); 1 n1 (10.0.0.1), does not answer: after 5 s nbddp says whether it "
        "is silent"
    ]
    assert node_lines(nodes[:2], {}, {}, behind={1: "is heard, but"}, unanswered={1}) == [
        "nodes: 0 n0 (10.0.0.0); 1 n1 (10.0.0.1), is heard, but"
    ]
    silent = node_lines(nodes[:2], {1: 6.0}, {}, unanswered={1}, silent_after_s=5.0)
    assert silent == ["nodes: 0 n0 (10.0.0.0); 1 n1 (10.0.0.1), silent for 6 s"]
    assert node_lines([], {}, {}) == []
    unknown = [replace(nodes[0], address="")]
    assert node_lines(unknown, {}, {0: ": why"}) == ["nodes: 0 n0, lost: why"]


def test_a_card_names_a_whole_node_by_its_range():
    pool = Ranks(RANKS)
    for state in pool.states:
        if 64 <= state.rank < 128:
            state.finished()
        else:
            state.blocked("all_reduce", line=1)
    report = pool.diagnose()
    assert report.findings[0].headline == (
        "Ranks 64-127 never called all_reduce; ranks 0-63,128-1023 wait for them."
    )
    card = diagnosis_card.card(report, views=pool.views(), acted=True)
    assert len(card["text/plain"].splitlines()) < 12
    assert len(card["text/html"]) < 6000


def test_a_timeline_draws_few_rows_and_names_the_late_rank():
    group = GroupInfo.of("w", "0", "default_pg", ranks=range(RANKS))
    ranks = recorders(RANKS)
    for step in range(10):
        for recorder in ranks:
            at = step * 100 + 40 * (recorder.rank == RANKS - 1)
            recorder.collective(at=at, end=step * 100 + 50, group=group, site=LINE)
    bundle = timeline.timeline(rows(by_rank(ranks), {"w": group}), "timeline")
    assert "rank 1023 always came last" in bundle["text/plain"]
    assert len(bundle["text/plain"].splitlines()) < 12
    assert len(bundle["text/html"]) < 100_000


def test_a_diff_names_the_odd_ranks():
    def tree(digest: str) -> Tree:
        leaf = Leaf(path=".w", what="float32 (2,)", digest=digest, is_tensor=True)
        return Tree(leaves=(leaf,))

    trees = {rank: tree("b" if rank == 700 else "a") for rank in range(RANKS)}
    difference = compare.compare("model", trees)
    assert diff_report.verdict(difference) == "ranks 0-699,701-1023 agree; rank 700 differs"
    assert len(diff_report.bundle(difference)["text/html"]) < 6000
