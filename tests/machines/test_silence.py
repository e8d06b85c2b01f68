"""A node of which nothing is heard for a while: the notebook stays usable."""

import pytest

from nbddp.errors import CellInterruptedError, PoolBrokenError
from nbddp.notebook.render.status_table import survey
from nbddp.settings import Settings
from tests.support.polling import poll_until
from tests.support.remote_pools import ssh_pool
from tests.support.ssh_hosts import SshSite
from tests.support.views import begin_cell

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]
#: Less than any limit after which nbddp gives something up.
SOON_S = 10.0


def test_an_interrupt_and_a_restart_come_back_while_a_node_is_silent(site: SshSite):
    one, two = site.add_host("n1"), site.add_host("n2")
    with ssh_pool(site, one, two, n=1, settings=Settings(silent_after_s=2.0)) as pool:
        cell = begin_cell(pool, "import time\ntime.sleep(600)")
        two.set_cable(plugged=False)
        poll_until(lambda: pool.snapshot.silent_nodes == {1})
        assert f"1 n2 ({two.address}), silent for " in survey(pool).bundle()["text/plain"]
        pool.interrupt()
        error = cell.join(SOON_S).error
        assert isinstance(error, CellInterruptedError)
        assert "node 1 (n2) is silent for " in str(error)
        assert "it gets the interrupt when it is heard again, or is given up at 60 s" in str(error)

        pool.run("x = 7", ranks=[0])
        assert pool.pull("x", ranks=0) == 7
        for rank in (0, 1):
            with pytest.raises(PoolBrokenError, match=r"not restarted.*node 1 \(n2\) is silent"):
                pool.restart(rank)
        with pytest.raises(PoolBrokenError, match=r"node 1 \(n2\) is silent for"):
            pool.run("dist.barrier()")

        two.set_cable(plugged=True)
        poll_until(lambda: not pool.snapshot.silent and not pool.unfinished, 60.0)
        poll_until(lambda: {info.state.name for info in pool.ranks()} == {"IDLE"})
        pool.run("dist.barrier()")
        assert pool.pull("'x' in globals()") == [True, False]
