"""``%ddp stop``: what it says of nodes that it cannot reach."""

from msgspec import structs

from nbddp.controller.state import AgentExited, PoolSnapshot, SilentNode
from nbddp.notebook.magics.pool_verbs import stopped_text, unheard_lines
from nbddp.wire.message_types import AgentEnd, NodeFacts
from tests.support.recovering import Pool

FACTS = NodeFacts(
    host="n1",
    address="10.0.0.1",
    cpus=2,
    machine_cpus=2,
    python="3.12",
    torch="2.9",
    nbddp="0.1",
    gpus=0,
)


def two_nodes(end: AgentEnd | None = None, *silent: SilentNode) -> PoolSnapshot:
    pool = Pool(2, nnodes=2)
    if end is not None:
        pool.feed(AgentExited(1, end))
    nodes = tuple(structs.replace(FACTS, host=host) for host in ("n1", "n2"))
    return structs.replace(pool.machine.snapshot(), nodes=nodes, silent=silent)


def test_a_node_that_was_given_up_perhaps_runs_on_for_as_long_as_it_is_kept():
    given_up = two_nodes(AgentEnd("silent", 60, "n2"))
    assert unheard_lines(given_up, 600.0) == [
        "node 1 (n2) had been given up: perhaps its ranks run on there, and end 10min after its "
        "agent heard of this notebook last (--keep)"
    ]
    assert unheard_lines(given_up, 0.0) == [
        "node 1 (n2) had been given up: perhaps its ranks run on there, and end when its agent "
        "finds that this notebook is gone, or has heard nothing for a while"
    ]


def test_a_silent_node_is_told_and_one_that_has_ended_is_not():
    [line] = unheard_lines(two_nodes(None, SilentNode(1, "n2", 1.0, 60.0)), 600.0)
    assert line.startswith("nothing is heard of node 1 (n2): its ranks end when it is reached")
    assert line.endswith("or 10min after its agent heard of this notebook last (--keep)")
    assert unheard_lines(two_nodes(AgentEnd("exited", 1)), 600.0) == []


def test_a_stop_counts_no_rank_that_it_did_not_end():
    assert stopped_text(two_nodes()) == "stopped: 4 ranks"
    assert stopped_text(two_nodes(), ", and more") == "stopped: 4 ranks, and more"
    for lost in (
        two_nodes(AgentEnd("silent", 60, "n2")),
        two_nodes(AgentEnd("exited", 1)),
        two_nodes(None, SilentNode(1, "n2", 1.0, 60.0)),
    ):
        assert stopped_text(lost) == "stopped: ranks 0-1"
    gone = structs.replace(two_nodes(), silent=tuple(SilentNode(n, "n", 1.0, 60.0) for n in (0, 1)))
    assert stopped_text(gone) == "stopped: the pool; no rank was left that could be reached"
