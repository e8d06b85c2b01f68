"""A pool is let go and taken back: it works as before, and a wrong request is refused."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from nbddp.controller.catch_up import Reason
from nbddp.controller.hub import agent_processes, attachment
from nbddp.controller.pool import CellOptions, Pool, find_kept, startup, taken_back
from nbddp.errors import BadOptionError, PoolAttachError, PoolBrokenError
from nbddp.notebook import source_check
from nbddp.settings import Settings
from nbddp.system import kept_pools
from nbddp.system.kept_pools import KnownPool
from tests.conftest import shared_pool_of
from tests.support.polling import poll_until
from tests.support.restarted_pool import RestartedPool
from tests.support.views import RecordingView, run_cell

pytestmark = pytest.mark.fresh_ranks(2)


class Holder:
    """The pool of the test at each moment; taken back at the end, also if nobody has it then."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def take_back(self, view: RecordingView | None = None) -> Pool:
        with find_kept(self.pool.pool_id) as kept:
            self.pool = Pool(
                kept.options,
                Settings(),
                lambda pool, run: view or RecordingView(),
                source_check.check_source,
                kept=kept,
            )
        return self.pool

    def close(self) -> Pool:
        if self.pool.is_stopped:
            for known in kept_pools.known_pools():
                if known.pool_id == self.pool.pool_id and known.state == "detached":
                    self.take_back()
        return self.pool


@pytest.fixture
def holder(pool: Pool, request: pytest.FixtureRequest) -> Iterator[Holder]:
    made = Holder(pool)
    yield made
    restarted = shared_pool_of(request)
    assert isinstance(restarted, RestartedPool)
    restarted.adopt(made.close())


def test_a_pool_is_let_go_and_taken_back_again_and_again(holder: Holder):
    pool = holder.pool
    run_cell(pool, "x = torch.ones(2) * rank")
    for attempt in range(3):
        assert pool.detach(None if attempt else "5min") == 300.0
        with pytest.raises(PoolBrokenError, match=f"Next: %ddp attach {pool.pool_id} takes it"):
            pool.run("x")
        with pytest.raises(PoolBrokenError):
            pool.detach()
        assert repr(pool) == "<Pool: let go>"
        pool.stop()  # has no effect, as at the end of a ``with`` block
        pool = holder.take_back()
        assert pool.left_cell is None  # it had ended, and its end was seen
        run_cell(pool, "dist.all_reduce(x)")
        pool.push(value=bytes(1 << 20))
        assert pool.pull("len(value)") == [1 << 20] * 2
    assert pool.pull("x.tolist()") == [[4.0, 4.0]] * 2
    view = run_cell(pool, "if rank == 0: dist.barrier()", check=False)
    assert type(view.error).__name__ == "DeadlockError"
    pool.restart(1)
    run_cell(pool, "dist.barrier()")
    assert pool.pull("'x' in globals()") == [True, False]
    run_cell(pool, "y = 1")
    pool.restart(1)
    result = pool.catch_up()
    assert result.copied == ("value",)  # it was pushed since
    (left,) = result.left_out
    assert (left.reason, left.names) == (Reason.NO_CELL_SINCE_ATTACH, ("x",))
    with pytest.raises(BadOptionError, match="since it was taken back"):
        pool.catch_up(1, cells=[99])
    pool.restart()
    run_cell(pool, "dist.barrier()")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(str({"nnodes": 2}), marks=pytest.mark.fresh_ranks(2, nnodes=2)),
        pytest.param(
            str({"plain": True}), marks=[pytest.mark.fresh_ranks(2, plain=True), pytest.mark.full]
        ),
    ],
)
def test_a_cell_goes_on_and_asks_its_question_again(holder: Holder, kind: str):
    del kind
    pool = holder.pool
    options = CellOptions(ranks=pool.all_ranks, execution_count=7, cell_name="cell [7]")
    run = pool.submit("print('in')\nanswer = input('name? ') if rank == 0 else ''\n", options)
    poll_until(lambda: run.put_count >= 2 * pool.world_size - 1)
    poll_until(lambda: pool.snapshot.unfinished.ranks == (0,))
    pool.detach("5min")
    assert run.outcome is not None
    assert run.outcome.goes_on
    error = str(pool.error_of(run.outcome, "cell [7]"))
    assert "was let go by %ddp detach while it ran on rank 0" in error
    view = RecordingView(["Ada"])
    pool = holder.take_back(view)
    assert pool.left_cell is not None
    assert pool.left_cell.name == "cell [7]"
    assert pool.running_cell is not None
    outcome = pool.rejoin()
    assert outcome is not None
    assert outcome.ranks("ok") == pool.all_ranks
    assert view.asked[0].prompt == "name? "
    assert pool.pull("answer", ranks=0) == "Ada"


@pytest.mark.full
def test_an_agent_that_dies_after_the_pool_was_taken_back_is_told(holder: Holder):
    holder.pool.detach("5min")
    pool = holder.take_back()
    (agent,) = {process_tree_parent(info.pid) for info in pool.ranks()}
    os.kill(agent, 9)
    poll_until(lambda: pool.snapshot.lost_agents == frozenset({0}))
    with pytest.raises(PoolBrokenError, match="the agent of node 0 ended"):
        pool.run("1")
    pool.restart()
    run_cell(pool, "dist.barrier()")
    pool.detach("5min")  # the record has the fresh agent
    run_cell(holder.take_back(), "dist.barrier()")


@pytest.mark.full
@pytest.mark.fresh_ranks(1, nnodes=2)
def test_a_pool_is_let_go_by_the_agents_that_live(holder: Holder):
    pool = holder.pool
    run_cell(pool, "x = rank + 10")
    os.kill(process_tree_parent(pool.ranks()[1].pid), 9)
    poll_until(lambda: pool.snapshot.lost_agents == frozenset({1}))
    pool.detach("5min")
    pool = holder.take_back()
    poll_until(lambda: pool.snapshot.lost_agents == frozenset({1}))
    assert pool.ranks()[0].state.name == "IDLE"
    with pytest.raises(PoolBrokenError, match="the agent of node 1 ended"):
        pool.run("x")
    pool.restart()
    run_cell(pool, "dist.barrier()")


@pytest.mark.full
@pytest.mark.fresh_ranks(1, nnodes=2)
def test_an_agent_that_is_stopped_follows_when_it_runs_again(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
):
    pool = holder.pool
    run_cell(pool, "x = rank + 10")
    monkeypatch.setattr(startup, "_LET_GO_S", 0.5)
    agent = process_tree_parent(pool.ranks()[1].pid)
    os.kill(agent, signal.SIGSTOP)
    try:
        pool.detach("5min")
    finally:
        os.kill(agent, signal.SIGCONT)
    pool = holder.take_back()
    run_cell(pool, "dist.barrier()")
    assert pool.pull("x") == [10, 11]


def test_a_pool_whose_agent_does_not_answer_stays_and_is_let_go_later(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
):
    pool = holder.pool
    run_cell(pool, "x = rank + 10")
    (folder,) = [each.folder for each in kept_pools.known_pools() if each.pool_id == pool.pool_id]
    record = kept_pools.read(folder)
    agent = process_tree_parent(pool.ranks()[0].pid)
    # The hub would continue it, at a moment of each half second.
    monkeypatch.setattr(agent_processes.Agents, "stopped", lambda agents, now: [])
    os.kill(agent, signal.SIGSTOP)
    try:
        with monkeypatch.context() as short:
            short.setattr(startup, "_LET_GO_S", 0.3)
            with pytest.raises(PoolAttachError, match=r"agent of node 0 does not answer in 0\.3 s"):
                pool.detach("5min")
    finally:
        os.kill(agent, signal.SIGCONT)
    assert kept_pools.read(folder) == record
    pool.detach("5min")  # the late answer to the first request counts
    assert holder.take_back().pull("x") == [10, 11]


def test_an_attach_that_fails_leaves_no_descriptor_and_the_pool(
    holder: Holder, monkeypatch: pytest.MonkeyPatch
):
    run_cell(holder.pool, "x = rank + 10")
    holder.pool.detach("5min")
    before = count_descriptors()
    with monkeypatch.context() as other:
        other.setattr(attachment, "PROTOCOL_VERSION", -1)
        with pytest.raises(PoolAttachError, match="another version of nbddp"):
            holder.take_back()
    poll_until(lambda: count_descriptors() <= before)
    with monkeypatch.context() as broken:
        broken.setattr(taken_back, "resumed_pool", lambda *args, **named: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            holder.take_back()
    poll_until(lambda: count_descriptors() <= before)
    assert holder.take_back().pull("x") == [10, 11]


def count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def process_tree_parent(pid: int) -> int:
    """The agent above a rank, beyond the fork server."""

    parents = psutil.Process(pid).parents()
    agents = [each.pid for each in parents if "nbddp.agent" in " ".join(each.cmdline())]
    return int(agents[0])


@pytest.mark.parametrize(
    ("keep", "text"),
    [("soon", "not a duration"), (-1, "not a duration"), ("4", "not a duration"),
     ("90d", "up to 30d"), (True, "not a duration")],
)  # fmt: skip
def test_a_wrong_time_is_refused_and_the_pool_stays(pool: Pool, keep: Any, text: str):
    with pytest.raises(BadOptionError, match=text):
        pool.detach(keep)
    run_cell(pool, "1")


def test_pools_that_cannot_be_taken_back_are_named(monkeypatch: pytest.MonkeyPatch):
    known = KnownPool("ab12", Path("/f"), "-n 2", 2, "ended", 0.0, None)
    monkeypatch.setattr(kept_pools, "known_pools", lambda: [known])
    with pytest.raises(BadOptionError) as error:
        find_kept("zz").__enter__()
    assert str(error.value) == (
        "there is no pool 'zz' of yours on this machine, and ab12 has ended. "
        "Next: %ddp pools says why; %ddp start makes another"
    )


def test_the_names_of_pools(holder: Holder):
    name = holder.pool.pool_id
    attached = f"pool {name} is attached to process {os.getpid()}"
    with pytest.raises(BadOptionError, match=attached):
        find_kept(name).__enter__()
    with pytest.raises(BadOptionError, match="there is no pool 'zz' of yours on this machine"):
        find_kept("zz").__enter__()
    holder.pool.detach("5min")
    with pytest.raises(BadOptionError, match=f"there is no pool 'zz' .*legal: .*{name}"):
        find_kept("zz").__enter__()
    with find_kept(name[:3]) as kept:
        assert kept.options.keep == 300.0
        with pytest.raises(PoolAttachError, match="taken back by another"):
            find_kept(name).__enter__()
    (known,) = [each for each in kept_pools.known_pools() if each.pool_id == name]
    assert known.until is not None
    assert known.until - known.since == pytest.approx(300.0)
