"""Any events in any order: nothing raises, every cell ends, every request gets an answer."""

from hypothesis import given, settings
from hypothesis import strategies as st

from nbddp.controller.state.config import Config
from nbddp.controller.state.rank_state import Phase, RankState
from nbddp.controller.state.stimuli import (
    AbandonRequested,
    Configured,
    DiagnoseRequested,
    InterruptRequested,
    RestartRanksRequested,
    RestartRequested,
)
from nbddp.wire.messages import RanksStalled
from nbddp.wire.rank_set import NO_RANKS, RankSet
from tests.support.random_world import World
from tests.support.recovering import NOTHING, notice, verdict

KINDS = ("missing-rank", "first-error", "dead-rank", "mismatched-collective")


def some_ranks(data: st.DataObject, world: World) -> RankSet:
    chosen = data.draw(st.sets(st.integers(0, world.n - 1), min_size=1))
    return RankSet.of(chosen)


def step(data: st.DataObject, world: World) -> None:  # noqa: PLR0912 - one branch each
    what = data.draw(
        st.sampled_from(
            [
                *["answer"] * 6,
                *["lose an answer", "fail"],
                *["begin"] * 3,
                *["finish"] * 4,
                *["quiet", "stick", "stick"],
                *["tick"] * 3,
                *["report"] * 2,
                *["exit", "interrupt", "abandon", "diagnose", "restart ranks", "configure"],
                *["restart", "lose agent"],
            ]
        )
    )
    rank = data.draw(st.integers(0, world.n - 1))
    run_id = world.machine.active_run_id or "old"
    match what:
        case "answer" | "fail" if world.due:
            due = world.take(data.draw(st.integers(0, len(world.due) - 1)))
            (due.fail if what == "fail" and due.fail is not None else due.do)()
        case "lose an answer" if world.due:
            index = data.draw(st.integers(0, len(world.due) - 1))
            if world.due[index].what in ("look", "peek", "freed", "reformed", "ready"):
                world.due.pop(index)
        case "begin":
            world.begin(some_ranks(data, world))
        case "finish":
            world.finish(rank, data.draw(st.sampled_from(["ok", "error", "freed"])))
        case "quiet":
            world.feed(RanksStalled(node=0, ranks=tuple(some_ranks(data, world))))
        case "stick":
            world.stick(verdict(some_ranks(data, world), (), data.draw(st.sampled_from(KINDS))))
        case "tick":
            world.tick(data.draw(st.sampled_from([0.01, 0.1, 0.5, 1.0, 3.0, 25.0])))
        case "report":
            stuck = some_ranks(data, world)
            proven = verdict(stuck, stuck, data.draw(st.sampled_from(KINDS)))
            world.report = data.draw(st.sampled_from([NOTHING, notice(), proven]))
        case "exit":
            world.exit(rank)
        case "interrupt":
            world.feed(InterruptRequested(run_id))
        case "abandon":
            world.feed(AbandonRequested(run_id))
        case "diagnose":
            number = len(world.asked) + 1
            world.asked.add(number)
            world.feed(DiagnoseRequested(number, some_ranks(data, world)))
        case "restart ranks":
            number = len(world.asked) + 1
            world.asked.add(number)
            world.feed(RestartRanksRequested(number, some_ranks(data, world)))
        case "configure":
            world.feed(
                Configured(
                    Config(
                        on_deadlock=data.draw(st.sampled_from(["abort", "report"])),
                        on_death=data.draw(st.sampled_from(["respawn", "keep"])),
                    )
                )
            )
        case "restart" if world.pool.phase is Phase.UP and not world.pool.lost_agents:
            world.feed(RestartRequested())
        case "lose agent" if data.draw(st.integers(0, 4)) == 0:
            world.lose_agent(rank // world.per_node)
        case _:
            pass


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_a_pool_comes_to_rest_after_any_events(data: st.DataObject):
    n, nnodes = data.draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (2, 2)]))
    world = World(n, nnodes)
    for _ in range(data.draw(st.integers(1, 60))):
        step(data, world)
        run, snapshot = world.pool.run, world.machine.snapshot()
        assert snapshot.unfinished == (NO_RANKS if run is None else run.unfinished)
        assert snapshot.ranks == tuple(world.pool.ranks.values())
    world.drain()
    assert sorted(world.ended) == sorted(world.begun)
    assert sorted(world.answered) == sorted(world.asked)
    if world.pool.phase is Phase.UP:
        assert world.states() <= {RankState.IDLE, RankState.EXITED}
        # Living ranks can be used.
        idle = world.pool.ranks.in_state(RankState.IDLE)
        assert set(idle) == set(world.processes)
        for rank in idle:
            assert world.machine.refusal(RankSet.of([rank])) is None


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_a_pool_whose_ranks_die_is_complete_again(data: st.DataObject):
    """Ranks die at any moment, and all answers come in time: the pool is as usable as before."""
    world = World(3, 1)
    for _ in range(data.draw(st.integers(1, 3))):
        begun = world.begin(RankSet.all(3))
        for _ in range(data.draw(st.integers(0, 6))):
            if data.draw(st.booleans()) and world.due:
                world.due.pop(0).do()
            else:
                world.tick(0.01)
        world.exit(data.draw(st.integers(0, 2)))
        world.drain()
        assert begun
    assert world.machine.refusal(RankSet.all(3)) is None
    assert sorted(world.ended) == sorted(world.begun)
