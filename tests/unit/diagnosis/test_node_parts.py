"""The nodes of the ranks that a finding is about."""

import pytest

from nbddp.controller.diagnosis import PerRank, PoolNodes, Predicate, RankVerb, Report
from nbddp.controller.diagnosis.node_parts import node_sentence
from nbddp.wire.rank_set import RankSet
from tests.support.findings import finding

#: Eight nodes of eight ranks.
NODES = PoolNodes({node: range(8 * node, 8 * node + 8) for node in range(8)}, {})
NAMED = PoolNodes({node: range(2 * node, 2 * node + 2) for node in range(3)}, {0: "a", 2: "c"})


@pytest.mark.parametrize(
    ("nodes", "ranks", "sentence"),
    [
        (NODES, range(24, 32), "ranks 24-31 are all ranks of node 3"),
        (NODES, [25], "rank 25 is on node 3"),
        (NODES, [25, 27], "ranks 25,27 are on node 3"),
        (NODES, range(8, 24), "ranks 8-23 are all ranks of node 1 and node 2"),
        (NODES, range(8, 64), "ranks 8-63 are all ranks of nodes 1-7"),
        (NODES, [9, 16, 17], "rank 9 is on node 1 and ranks 16-17 on node 2"),
        (NODES, range(8, 48, 8), "ranks 8,16,24,32,40 are on nodes 1-5"),
        (NODES, range(0, 64, 8), ""),
        (NODES, range(64), ""),
        (NODES, [], ""),
        (NAMED, [0, 5], "rank 0 is on node 0 (a) and rank 5 on node 2 (c)"),
        (NAMED, [0, 1], "ranks 0-1 are all ranks of node 0 (a)"),
        (NAMED, [0, 2, 4], "rank 0 is on node 0 (a), rank 2 on node 1 and rank 4 on node 2 (c)"),
        (PoolNodes({0: range(8)}, {}), [1], ""),
    ],
    ids=repr,
)
def test_the_nodes_of_ranks_are_one_sentence(nodes: PoolNodes, ranks: list[int], sentence: str):
    assert node_sentence(nodes.parts(ranks)) == sentence


def test_of_a_mismatch_of_all_ranks_those_that_called_otherwise_are_told():
    calls = {rank: "broadcast" if rank in (2, 3) else "all_reduce" for rank in range(6)}
    places = [
        PerRank(rank, "running", Predicate(RankVerb.CALLED, f" {op}")) for rank, op in calls.items()
    ]
    wrong = finding(range(6), [], places, kind="mismatched-collective")
    (told,) = Report("r", (wrong,)).with_nodes(NAMED).findings
    assert node_sentence(told.nodes) == "ranks 2-3 are all ranks of node 1"
    assert [part["is_whole"] for part in told.to_dict()["nodes"]] == [True]


def test_the_culprits_are_told():
    missing = finding([2], range(6), [])
    (told,) = Report("r", (missing,)).with_nodes(NAMED).findings
    assert [part.ranks for part in told.nodes] == [RankSet.of([2])]


def test_each_rank_has_its_node():
    places = [PerRank(rank, "running", Predicate(RankVerb.CALLED, " barrier")) for rank in range(6)]
    report = Report("r", (finding([2], range(6), places),))
    (told,) = report.with_nodes(NAMED).findings
    assert [place.node for place in told.ranks.values()] == [0, 0, 1, 1, 2, 2]
    (alone,) = report.with_nodes(PoolNodes({0: range(6)}, {})).findings
    assert {place.node for place in alone.ranks.values()} == {-1}
