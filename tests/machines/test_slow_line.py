"""A host behind a line on which each packet takes 20 ms."""

import pytest

from nbddp.errors import CellError, DeadlockError
from tests.support import delayed_cable
from tests.support.polling import poll_until
from tests.support.remote_pools import ssh_pool
from tests.support.ssh_hosts import SshSite

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]
DELAY_MS = 20


def test_a_pool_with_a_host_behind_a_slow_line(site: SshSite):
    if reason := delayed_cable.reason_to_skip():
        pytest.skip(reason)
    near, far = site.add_host("n1"), site.add_host("n2", DELAY_MS)
    with ssh_pool(site, near, far, n=1) as pool:
        pool.run("t = torch.ones(3) * rank\ndist.all_reduce(t)\nprint(t.tolist())")
        assert pool.pull("t.tolist()") == [[1.0] * 3] * 2
        pool.push(large=b"x" * 3_000_000)
        assert pool.pull("len(large)") == [3_000_000] * 2

        poll_until(lambda: len(pool.snapshot.clocks) == 2)
        here, there = pool.snapshot.clocks
        # Half of the shortest round trip; both clocks are that of this machine.
        assert there.error_ns >= DELAY_MS * 10**6
        assert abs(there.offset_ns) <= there.error_ns
        assert abs(here.offset_ns) <= here.error_ns

        with pytest.raises(DeadlockError, match="Rank 0 never called barrier"):
            pool.run("if rank == 1:\n    dist.barrier()")
        with pytest.raises(CellError, match="Mismatch"):
            pool.run("dist.all_reduce(torch.ones(3 if rank else 4))")
        pool.run("dist.barrier()")
