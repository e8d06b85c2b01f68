"""Other threads read the state of a pool from a snapshot that never changes."""

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from nbddp.controller.diagnosis.analysis import diagnose
from nbddp.controller.recovery.machine import RecoveryMachine
from nbddp.controller.state.exit_text import gone_text
from nbddp.controller.state.job_ends import JobEnd
from nbddp.controller.state.rank_state import RankState
from nbddp.controller.state.snapshot import PoolSnapshot
from nbddp.controller.state.stimuli import AgentExited, Tick
from nbddp.notebook.render.status_notes import store_notes
from nbddp.settings import Settings
from nbddp.wire.message_types import AgentEnd, NodeFacts
from nbddp.wire.rank_set import NO_RANKS, RankSet
from tests.support.examples import plain_example
from tests.support.machines import Pool

_PACKAGE = Path(__file__).parents[3] / "nbddp"


def snapshot(pool: Pool) -> PoolSnapshot:
    return RecoveryMachine(pool.machine, Settings(), diagnose).snapshot()


def test_an_unchanged_pool_gives_an_equal_snapshot_of_the_same_parts():
    pool = Pool().start()
    before = snapshot(pool)
    pool.feed(Tick(), after_s=1.0)
    after = snapshot(pool)
    assert after == before
    assert after.ranks is before.ranks


def test_a_snapshot_never_changes():
    pool = Pool().start()
    before = snapshot(pool)
    run_id = pool.run()
    pool.finished(0, run_id)
    assert before.summary() == "2 idle"
    assert snapshot(pool).summary() == "1 idle, 1 busy"
    with pytest.raises(AttributeError):
        before.ranks[0].state = RankState.BUSY  # type: ignore[misc]


def test_a_snapshot_tells_who_is_inside_the_cell():
    pool = Pool(n=3).start()
    assert snapshot(pool).unfinished == NO_RANKS
    run_id = pool.run("0,2")
    pool.finished(2, run_id)
    now = snapshot(pool)
    assert (now.run_id, now.unfinished) == (run_id, RankSet.of([0]))
    assert now.in_state(RankState.BUSY, RankState.EXITED) == RankSet.of([0])
    assert now.in_state(RankState.IDLE) == RankSet.of([1, 2])


def test_a_rank_that_was_lost_with_its_node_has_not_exited():
    pool = Pool(n=2, nnodes=2).start()
    pool.feed(AgentExited(1, AgentEnd("silent", 60, "n1"), ""))
    now = snapshot(pool)
    assert gone_text(now) == "ranks 2-3 were lost, since node 1 was given up"
    assert now.summary() == "2 idle, 2 lost"


def test_the_end_of_a_job_is_told_while_a_node_of_it_lives():
    facts = plain_example(NodeFacts)
    nodes = tuple(msgspec.structs.replace(facts, job=job) for job in ("1", "1", "2"))
    ends = tuple(JobEnd("slurm", job, 600.0) for job in ("1", "2"))
    whole = msgspec.structs.replace(snapshot(Pool().start()), nodes=nodes, job_ends=ends)
    for lost, told in (((), "12"), ((0,), "12"), ((0, 1), "2"), ((0, 1, 2), "")):
        after = msgspec.structs.replace(whole, lost_agents=frozenset(lost))
        assert [end.job for end in after.living_job_ends] == list(told)


def test_the_last_end_is_that_which_no_living_node_outlives():
    facts = plain_example(NodeFacts)
    nodes = tuple(msgspec.structs.replace(facts, job=job) for job in ("1", "2", "3"))
    ends = JobEnd("slurm", "1", 600.0), JobEnd("slurm", "2", 900.0)
    whole = msgspec.structs.replace(snapshot(Pool().start()), nodes=nodes, job_ends=ends)
    assert whole.last_job_end is None  # node 2 may go on
    for lost, last in (({2}, ends[1]), ({1, 2}, ends[0]), ({0, 1, 2}, None)):
        after = msgspec.structs.replace(whole, lost_agents=frozenset(lost))
        assert after.last_job_end == last


def test_the_lost_store_is_told_while_a_rank_lives():
    pool = Pool().start()
    pool.machine.store_is_lost = True
    assert "existing groups still work" in store_notes(snapshot(pool))[0]
    whole = snapshot(pool)
    without_0 = msgspec.structs.replace(whole, lost_agents=frozenset((0,)))
    assert "lost with node 0: the other ranks can form no group" in store_notes(without_0)[0]
    ended = [msgspec.structs.replace(info, state=RankState.EXITED) for info in whole.ranks]
    assert store_notes(msgspec.structs.replace(whole, ranks=tuple(ended))) == []


def test_only_the_hub_reads_the_state_that_it_owns():
    owned = {"machine", "recovery", "_machine", "_recovery"}
    assert list(attributes(_PACKAGE / "controller/hub/hub_thread.py", owned))
    found = [
        f"{path.relative_to(_PACKAGE)}:{line}"
        for path in _PACKAGE.rglob("*.py")
        if "controller/hub" not in path.as_posix()
        for line in attributes(path, owned)
    ]
    assert found == []


def attributes(path: Path, names: set[str]) -> Iterator[int]:
    """The lines of code that read or write an attribute with one of these names."""
    source = path.read_text(encoding="utf-8")
    if not any(f".{name}" in source for name in names):  # the parser takes long
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in names:
            yield node.lineno
