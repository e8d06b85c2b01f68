"""A kept pool whose time is over: its agents end, and another try finds none."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from nbddp.controller.hub import attach_machines
from nbddp.controller.pool import kept_pool
from nbddp.errors import BadOptionError, PoolAttachError
from nbddp.system import kept_pools
from nbddp.system.kept_pools import KnownPool
from nbddp.wire.channels import RemoteHubChannel


def known(name: str, left_s: float | None, **fields: Any) -> KnownPool:
    until = None if left_s is None else kept_pools.now() + left_s
    return KnownPool(name, Path(name), "-n 2", 2, "detached", 1.0, until, **fields)


def test_a_pool_whose_time_is_over_is_taken_back_by_name_only():
    over, waits, local = known("a1", -5.0), known("b2", 100.0), known("c3", None)
    assert kept_pool._choose([over, waits], None) is waits
    assert kept_pool._choose([over, local], None) is local
    assert kept_pool._choose([over, waits], "a") is over
    with pytest.raises(BadOptionError, match="needs the name of a pool; legal:\n  b2  -n 2, w"):
        kept_pool._choose([over, waits, local], None)
    with pytest.raises(BadOptionError, match=r"and a1 has no time left\. Next: %ddp pools"):
        kept_pool._choose([over], None)


def test_an_attach_without_a_name_tells_the_pools_apart():
    since = kept_pools.now() - 480.0
    hosts = ("n1", "n2", "n3", "n4", "n5")
    here = KnownPool("c3", Path("c3"), "-n 4", 4, "detached", since - 7200.0, None)
    there = structs.replace(
        here, pool_id="b2", described="-n 2 --launcher ssh", since=since, hosts=hosts
    )
    with pytest.raises(BadOptionError) as caught:
        kept_pool._choose([there, here], None)
    assert str(caught.value).splitlines()[1:] == [
        "  b2  -n 2 --launcher ssh, without a kernel for 8 min, on n1, n2, n3, n4 and 1 more",
        "  c3  -n 4, without a kernel for 2 h",
    ]


@pytest.mark.parametrize(
    ("left_s", "words"),
    [
        (-5.0, "the time for which they wait is over: an agent ends then, with its ranks. Next: "),
        (100.0, "their machines are off, they were ended, or do not reach this one. Next: try ag"),
    ],
)
def test_no_other_try_is_advised_when_the_time_is_over(left_s: float, words: str):
    channel = RemoteHubChannel("127.0.0.1")
    with pytest.raises(PoolAttachError, match=r"no agent of the pool has come in 0\.2 s") as caught:
        attach_machines(
            channel,
            "t",
            [("h", 1)],
            keep_s=1.0,
            until=kept_pools.now() + left_s,
            first_s=0.2,
            all_s=0.2,
        )
    assert words in str(caught.value)
