"""The sentence of a start on pools that wait for a kernel."""

from pathlib import Path

import pytest

from nbddp.notebook.magics.keep_verbs import others_text
from nbddp.system import kept_pools
from nbddp.system.kept_pools import KnownPool


@pytest.mark.parametrize(("left_s", "is_told"), [(60.0, True), (-1.0, False)])
def test_a_pool_whose_time_is_over_does_not_go_on(
    left_s: float,
    is_told: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    until = kept_pools.now() + left_s
    pool = KnownPool("p7", Path("/nowhere"), "-n 2", 2, "detached", 0.0, until)
    monkeypatch.setattr(kept_pools, "detached_pools", lambda: [pool])
    assert ("Pool p7 (-n 2) goes on without a kernel until" in others_text()) == is_told


def test_several_pools_have_one_sentence(monkeypatch: pytest.MonkeyPatch):
    pools = [
        KnownPool(f"p{number}", Path("/nowhere"), "-n 2", 2, "detached", 0.0, None)
        for number in range(6)
    ]
    monkeypatch.setattr(kept_pools, "detached_pools", lambda: pools)
    assert others_text() == (
        "Pools p0, p1, p2, p3 and 2 more go on without a kernel, as %ddp pools says: %ddp stop, "
        "then %ddp attach NAME takes one back."
    )
