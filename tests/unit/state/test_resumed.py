"""The state of a pool that ran without a hub, as its agents tell of it."""

from typing import Any

from msgspec.structs import replace

from nbddp.controller.state import (
    AgentExited,
    EndRun,
    Phase,
    RankState,
    RestartRequested,
    joining_ranks,
    kept_cell,
    resumed_pool,
)
from nbddp.settings import Settings
from nbddp.wire.message_types import AgentEnd, KeptRank, NodeFacts
from nbddp.wire.messages import (
    AgentAttached,
    AgentHello,
    Execute,
    RankExited,
    RanksStopped,
    RunFinished,
    StartStore,
)
from nbddp.wire.rank_set import RankSet
from tests.support.machines import make_spec

OLD = Execute(run_id="old", code="1\n", execution_count=1, first_line=1)
NEW = Execute(run_id="new", code="2\n", execution_count=2, first_line=1)


def kept(rank: int, **fields: Any) -> KeptRank:
    known: dict[str, Any] = {
        "pid": 100 + rank,
        "is_ready": True,
        "device": "cpu",
        "backend": "gloo",
    }
    return KeptRank(rank=rank, **(known | fields))


def attached(node: int, *ranks: KeptRank, **fields: Any) -> AgentAttached:
    return AgentAttached(
        number="n",
        version=1,
        token="t",
        node=node,
        pid=1,
        pool=make_spec(2, 2),
        master_addr="127.0.0.1",
        master_port=5,
        store_is_lost=False,
        ranks=ranks,
        **({"run": None} | fields),
    )


def resumed(*agents: AgentAttached, host: str = "127.0.0.1") -> Any:
    return resumed_pool(agents, kept_cell(agents), Settings(), 100.0, host=host, port=0)


def store_after_restart(pool: Any) -> StartStore:
    """The request for a store after a restart of all ranks."""
    pool.handle(RestartRequested(), 200.0)
    actions = [action for node in (0, 1) for action in pool.handle(RanksStopped(node=node), 201.0)]
    (request,) = [each.request for each in actions if isinstance(each.request, StartStore)]
    return request


def states(pool: Any) -> list[str]:
    return [info.state.name for info in pool.ranks.values()]


def test_ranks_without_a_cell_take_one():
    pool = resumed(attached(0, kept(0), kept(1)), attached(1, kept(2), kept(3)))
    assert pool.phase is Phase.UP
    assert pool.master == ("127.0.0.1", 5)
    assert pool.refusal(RankSet.all(4)) is None
    assert pool.ranks[3].pid == 103
    assert pool.next_deadline() is None


def test_ranks_are_in_their_cell_and_its_end_is_the_end_of_the_cell():
    agents = [
        attached(0, kept(0, run_id="new"), kept(1, run_id="new"), run=NEW, run_age_s=3.0),
        attached(1, kept(2), kept(3), run=OLD, run_age_s=30.0),
    ]
    assert kept_cell(agents) == NEW
    pool = resumed(*agents)
    assert pool.run.ranks == RankSet.of([0, 1])
    assert pool.run.began == 97.0
    actions = []
    for rank in (0, 1):
        finished = RunFinished(run_id="new", rank=rank, elapsed_s=1.0, error=None)
        actions += pool.handle(finished, 101.0)
    (end,) = actions
    assert isinstance(end, EndRun)
    assert end.outcome.elapsed_s == 1.0  # not up to the moment at which this hub was told
    assert pool.refusal(RankSet.all(4)) is None


def test_a_rank_that_died_before_the_attach_died_when_its_agent_noticed_it():
    pool = resumed(
        attached(0, kept(0), kept(1, run_id="new"), run=NEW, run_age_s=15.0),
        attached(1, kept(2), kept(3)),
    )
    died = RankExited(rank=1, pid=101, exit_code=5, out_of_memory=False, last_output="", age_s=13.0)
    ends = [each for each in pool.handle(died, 101.0) if isinstance(each, EndRun)]
    (end,) = ends
    assert end.outcome.results[1].elapsed_s == 3.0
    assert end.outcome.elapsed_s == 3.0


def test_a_rank_that_is_still_in_an_older_cell_is_late():
    pool = resumed(
        attached(0, kept(0, run_id="old"), kept(1, run_id="new"), run=NEW),
        attached(1, kept(2), kept(3)),
    )
    assert pool.run.ranks == RankSet.of([1])
    pool.handle(RunFinished(run_id="new", rank=1, elapsed_s=1.0, error=None), 101.0)
    assert pool.late(RankSet.all(4)) == RankSet.of([0])


def test_ranks_that_start_or_have_no_process_or_no_agent():
    agents = [attached(0, kept(0, is_ready=False, joins=True), kept(1, pid=0, joins=True))]
    pool = resumed(*agents)
    assert states(pool) == ["STARTING", "EXITED", "EXITED", "EXITED"]
    assert pool.ranks.in_state(RankState.STARTING) == RankSet.of([0])
    assert joining_ranks(agents) == RankSet.of([0])


def test_the_cell_of_an_agent_that_was_lost_is_no_cell():
    pool = resumed(attached(0, kept(0), kept(1), run=NEW))
    assert pool.run is None


def test_a_later_store_is_on_the_machine_that_is_node_0_then():
    facts = NodeFacts(
        host="n1", address="10.0.0.1", python="3", torch="2", nbddp="1", cpus=1, machine_cpus=1,
        gpus=0,
    )  # fmt: skip
    agents = (
        attached(0, kept(0), kept(1), facts=facts),
        attached(1, kept(2), kept(3), facts=replace(facts, host="n2", address="10.0.0.2")),
    )
    assert store_after_restart(resumed(*agents, host="")).host == "10.0.0.1"
    pool = resumed(*agents, host="")
    pool.handle(AgentExited(0, AgentEnd("silent", 60, "n1")), 100.0)
    hello = AgentHello(version=1, token="t", node=0, pid=9, host="n3", address="10.0.0.3")
    pool.handle(hello, 101.0)
    assert store_after_restart(pool).host == "10.0.0.3"


def test_a_rank_whose_node_was_lost_meanwhile_is_in_the_cell_that_it_was_sent():
    in_cell = {"run_id": "new"}
    pool = resumed(attached(0, kept(0, **in_cell), kept(1, **in_cell), run=NEW, run_age_s=15.0))
    assert pool.run.ranks == RankSet.all(4)
    lost = AgentExited(1, AgentEnd("not-known"))
    assert not [each for each in pool.handle(lost, 100.0) if isinstance(each, EndRun)]
    assert states(pool) == ["BUSY", "BUSY", "EXITED", "EXITED"]
    actions = []
    for rank in (0, 1):
        finished = RunFinished(run_id="new", rank=rank, elapsed_s=6.0, error=None)
        actions += pool.handle(finished, 101.0)
    (end,) = [each for each in actions if isinstance(each, EndRun)]
    assert end.outcome.ranks("exited") == RankSet.of([2, 3])
    assert end.outcome.elapsed_s == 6.0  # when the node was lost is not known


def test_a_rank_whose_node_was_lost_is_in_no_cell_that_it_was_not_sent():
    for execute in (replace(NEW, ranks=(0,)), replace(NEW, dead=(2, 3))):
        pool = resumed(attached(0, kept(0, run_id="new"), kept(1), run=execute, run_age_s=15.0))
        assert pool.run.ranks == RankSet.of([0])
        assert states(pool) == ["BUSY", "IDLE", "EXITED", "EXITED"]
