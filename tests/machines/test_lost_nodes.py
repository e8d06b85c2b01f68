"""A node that is lost, and another one that takes its place."""

import pytest

from nbddp.controller.pool.pool import Pool
from nbddp.controller.state import RankState
from nbddp.errors import CellError, PoolBrokenError
from nbddp.notebook.render.status_table import survey
from nbddp.settings import Settings
from tests.support.polling import poll_until
from tests.support.remote_pools import ssh_pool
from tests.support.ssh_hosts import SshSite
from tests.support.views import begin_cell

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]
#: A busy machine is not lost so soon, and a test does not wait so long.
SOON = Settings(silent_after_s=2.0, node_timeout_s=5.0)


def check_that_all_compute(pool: Pool) -> None:
    pool.run("t = torch.ones(1) * (rank + 1)\ndist.all_reduce(t)")
    total = sum(range(1, pool.world_size + 1))
    assert pool.pull("t.item()") == [float(total)] * pool.world_size


@pytest.mark.slow  # the next test says it of a host without its cable
def test_a_spare_host_takes_the_place_of_one_without_power(site: SshSite):
    one, two, spare = site.add_host("n1"), site.add_host("n2"), site.add_host("n3")
    with ssh_pool(site, one, two, spare, n=1, nnodes=2, settings=SOON) as pool:
        pool.run("x = rank + 10")
        two.power_off()
        with pytest.raises(CellError, match="n2") as caught:
            pool.run("dist.barrier()")
        next_step = "%ddp restart -r 1 asks for another agent in the place of node 1"
        assert next_step in " ".join(str(caught.value).split())
        status = " ".join(survey(pool).bundle()["text/plain"].split())
        assert "rank 1 was lost with node 1. Next: %ddp restart -r 1 asks for another" in status

        assert "rank 1 is a fresh process" in pool.restart(1)
        assert [facts.host for facts in pool.snapshot.nodes] == ["n1", "n3"]
        check_that_all_compute(pool)
        assert pool.pull("x", ranks=0) == 10
        assert pool.pull("'x' in globals()", ranks=1) is False
        assert "lost" not in survey(pool).bundle()["text/plain"]


def test_an_agent_that_comes_back_after_it_was_replaced_lets_go(site: SshSite):
    one, two, spare = site.add_host("n1"), site.add_host("n2"), site.add_host("n3")
    with ssh_pool(site, one, two, spare, n=1, nnodes=2, settings=SOON) as pool:
        pool.run("x = rank + 10")
        cell = begin_cell(
            pool, "import time\nwhile rank == 1:\n    print('n')\n    time.sleep(0.1)"
        )
        poll_until(lambda: cell.view.text(1))
        two.set_cable(plugged=False)
        poll_until(lambda: pool.snapshot.lost_agents == {1}, 60.0)
        next_step = "%ddp restart -r 1 asks for another agent in the place of node 1"
        assert next_step in " ".join(str(cell.join(30.0).error).split())
        status = " ".join(survey(pool).bundle()["text/plain"].split())
        assert "rank 1 was lost with node 1. Next: %ddp restart -r 1 asks for another" in status
        assert "rank 1 is a fresh process" in pool.restart(1)
        assert [facts.host for facts in pool.snapshot.nodes] == ["n1", "n3"]
        check_that_all_compute(pool)
        assert pool.pull("x", ranks=0) == 10
        assert pool.pull("'x' in globals()", ranks=1) is False
        assert "lost" not in survey(pool).bundle()["text/plain"]
        assert two.processes("nbddp")  # its agent and its rank do not know
        two.set_cable(plugged=True)
        poll_until(lambda: not two.processes("nbddp"), 60.0)
        view = begin_cell(pool, "print('only', rank)\ndist.barrier()").join(30.0)
        assert view.texts() == {0: "only 0\n", 1: "only 1\n"}
        assert [info.state for info in pool.ranks()] == [RankState.IDLE] * 2
        assert pool.snapshot.lost_agents == frozenset()


@pytest.mark.slow
def test_a_host_that_comes_back_is_taken_again_and_one_that_does_not_leaves_all_as_it_is(
    site: SshSite,
):
    one, two = site.add_host("n1"), site.add_host("n2")
    with ssh_pool(site, one, two, n=1, settings=SOON) as pool:
        pool.run("x = rank + 10")
        two.set_cable(plugged=False)
        poll_until(lambda: pool.snapshot.lost_agents == {1}, 60.0)
        with pytest.raises(PoolBrokenError, match=r"(?s)in the place of node 1 \(n2\): ssh ended"):
            pool.restart(1)
        assert pool.pull("x", ranks=0) == 10
        two.set_cable(plugged=True)
        pool.restart(1)
        check_that_all_compute(pool)
        assert pool.pull("x", ranks=0) == 10


@pytest.mark.slow
def test_a_restart_of_all_replaces_a_silent_node(site: SshSite):
    one, two, spare = site.add_host("n1"), site.add_host("n2"), site.add_host("n3")
    settings = Settings(silent_after_s=2.0)
    with ssh_pool(site, one, two, spare, n=1, nnodes=2, settings=settings) as pool:
        pool.run("x = rank")
        two.set_cable(plugged=False)
        poll_until(lambda: pool.snapshot.silent_nodes == {1})
        pool.restart()
        assert [facts.host for facts in pool.snapshot.nodes] == ["n1", "n3"]
        check_that_all_compute(pool)
        assert pool.pull("'x' in globals()") == [False, False]
        two.set_cable(plugged=True)


@pytest.mark.slow
def test_another_host_takes_the_place_of_the_first_one_and_gets_the_store(site: SshSite):
    one, two, spare = site.add_host("n1"), site.add_host("n2"), site.add_host("n3")
    with ssh_pool(site, one, two, spare, n=1, nnodes=2, settings=SOON) as pool:
        pool.run("x = rank")
        one.power_off()
        poll_until(lambda: pool.snapshot.lost_agents == {0}, 60.0)
        with pytest.raises(PoolBrokenError, match=r"store .* pull x -r 1\), then %ddp restart"):
            pool.restart(0)
        assert pool.pull("x", ranks=1) == 1
        pool.restart()
        assert [facts.host for facts in pool.snapshot.nodes] == ["n3", "n2"]
        check_that_all_compute(pool)
        pool.run("import os")
        assert pool.pull("os.environ['MASTER_ADDR']") == [spare.address] * 2
