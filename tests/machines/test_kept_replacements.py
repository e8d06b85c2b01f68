"""Lost nodes of pools that outlive their notebook: another agent takes the place of one."""

import pytest

from nbddp.settings import Settings
from tests.support.kept_machines import Listening, known_pool, take_back
from tests.support.polling import poll_until
from tests.support.pool_processes import agent_of
from tests.support.remote_pools import ssh_pool
from tests.support.ssh_hosts import SshSite
from tests.support.views import run_cell

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool, pytest.mark.usefixtures("home")]


@pytest.mark.slow
def test_another_agent_takes_the_place_of_a_lost_one_and_is_kept_like_the_others(
    listening: Listening,
):
    pool = listening.start()
    run_cell(pool, "x = rank + 10")
    pool.detach("5min")
    pool = listening.take_back()
    for agent in listening.agents:
        if agent.pid == agent_of(pool, 1).pid:
            agent.kill()
    poll_until(lambda: pool.snapshot.lost_agents == {1}, 100.0)
    listening.start_agents(1)
    assert "rank 1 is a fresh process" in pool.restart(1)
    run_cell(pool, "dist.barrier()")
    pool.detach("5min")
    pool = listening.take_back()
    assert pool.snapshot.lost_agents == frozenset()
    assert pool.pull("'x' in globals()") == [True, False]
    run_cell(pool, "dist.barrier()")


@pytest.mark.slow
def test_a_spare_host_takes_the_place_of_a_lost_one_after_an_attach(site: SshSite):
    one, two, spare = site.add_host("n1"), site.add_host("n2"), site.add_host("n3")
    soon = Settings(silent_after_s=2.0, node_timeout_s=8.0)
    with ssh_pool(site, one, two, spare, n=1, nnodes=2, settings=soon, keep="10min") as first:
        first.run("x = rank + 10")
        first.detach()
        pool = take_back(first.pool_id, soon)
        two.set_cable(plugged=False)
        poll_until(lambda: pool.snapshot.lost_agents == {1}, 60.0)
        assert "rank 1 is a fresh process" in pool.restart(1)
        pool.run("dist.barrier()")
        assert pool.pull("x", ranks=0) == 10
        two.set_cable(plugged=True)  # its agent was given up, and another one has its place
        poll_until(lambda: not two.processes("nbddp"), 60.0)
        known = known_pool(pool.pool_id)
        assert known is not None
        assert known.hosts == ("n1", "n3")
        pool.detach()
        pool = take_back(first.pool_id, soon)
        pool.run("dist.barrier()")
        pool.stop()
