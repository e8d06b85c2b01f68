"""The sentences on the time for which a pool is kept: its job may end before."""

import re
import time
from types import SimpleNamespace
from typing import Any

import pytest

from nbddp.controller.options import PoolOptions
from nbddp.controller.state import JobEnd
from nbddp.notebook import let_go_pools, session
from nbddp.notebook.magics import keep_verbs
from nbddp.notebook.render import status_table


@pytest.fixture
def pool() -> Any:
    """One that is kept for an hour, and no more of it than the sentences need."""
    return SimpleNamespace(
        pool_id="p7",
        options=PoolOptions.checked(1, keep="1h"),
        snapshot=SimpleNamespace(last_job_end=None, ranks=()),
        running_cell=None,
        detach=lambda keep: 3600.0,
    )


def ends_in(pool: Any, seconds: float) -> None:
    pool.snapshot.last_job_end = JobEnd("slurm", "8", time.monotonic() + seconds)


def test_a_start_says_that_the_job_ends_before(pool: Any):
    assert keep_verbs.kept_text(pool) == (
        "Pool p7 goes on for 1h after the end of this kernel: %ddp attach takes it back."
    )
    ends_in(pool, 120.0)
    assert re.fullmatch(
        r"Pool p7 goes on after the end of this kernel until [^,]*\d\d:\d\d, when Slurm job 8 "
        "ends: %ddp attach takes it back.",
        keep_verbs.kept_text(pool),
    )
    ends_in(pool, 7200.0)
    assert re.fullmatch(
        r"Pool p7 goes on for 1h after the end of this kernel, but only until [^,]*\d\d:\d\d, when "
        "Slurm job 8 ends: %ddp attach takes it back.",
        keep_verbs.kept_text(pool),
    )


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, r"It is kept until [^,]*\d\d:\d\d \(1h\), then it ends"),
        (120.0, r"until [^,]*\d\d:\d\d, when Slurm job 8 ends, and not for 1h, then it ends"),
        (7200.0, r"It is kept until [^,]*\d\d:\d\d \(1h\), then it ends"),
    ],
)
def test_a_detach_says_that_the_job_ends_before(
    pool: Any,
    seconds: float | None,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(session, "pool", lambda: pool)
    monkeypatch.setattr(let_go_pools, "note", lambda pool, run: None)
    monkeypatch.setattr(status_table, "count_ranks", lambda pool: "1 rank")
    monkeypatch.setattr(keep_verbs, "gone_text", lambda snapshot: "")
    if seconds is not None:
        ends_in(pool, seconds)
    keep_verbs.detach(None, keep=None)  # type: ignore[arg-type]
    assert re.search(said, " ".join(capsys.readouterr().out.split()))
