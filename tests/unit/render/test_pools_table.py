"""The table of `%ddp pools`."""

from pathlib import Path

import pytest

from nbddp.notebook.render.pools_table import moment, pools_table, until_text
from nbddp.system.kept_pools import KnownPool

NOW = 1_795_600_000.0


def test_a_line_for_each_pool_and_the_reason_of_an_end():
    def known(name: str, **fields: object) -> KnownPool:
        return KnownPool(name, Path("/f"), "-n 2", 2, **fields)  # type: ignore[arg-type]

    table = pools_table(
        [
            known("aaaa", state="attached", since=NOW, until=None, pid=7),
            known("bbbb", state="attached", since=NOW, until=None, pid=8),
            known("cccc", state="detached", since=NOW, until=NOW + 10 * 86400),
            known("dddd", state="ended", since=NOW, until=None, reason="nobody attached"),
        ],
        NOW,
        7,
    )
    heading, own, other, detached, ended, reason = table.splitlines()
    assert heading.split() == ["pool", "ranks", "options", "state", "since", "until", "kernel"]
    assert own.endswith("this one")
    assert other.endswith("process 8")
    assert len(detached.split()) == 9  # ten days later: with a date
    assert "ended" in ended
    assert reason == "dddd: nobody attached"


def test_machines_are_named_and_where_a_pool_can_be_attached():
    def known(name: str, **fields: object) -> KnownPool:
        return KnownPool(name, Path("/f"), "-n 1", 2, "elsewhere", NOW, NOW, **fields)  # type: ignore[arg-type]

    table = pools_table(
        [
            known("aaaa", hosts=("n1", "n2"), notebook_host="login2"),
            known("bbbb", hosts=tuple(f"n{number}" for number in range(7))),
            known("cccc"),
        ],
        NOW,
        7,
    )
    heading, two, seven, none = table.splitlines()
    assert heading.split()[-2:] == ["kernel", "nodes"]
    assert two.endswith("on login2  n1, n2")
    assert seven.endswith("n0, n1, n2, n3 and 3 others")
    assert none.startswith("cccc")


def test_a_pool_whose_time_is_over_is_not_told_to_be_kept_until_then():
    past = KnownPool("aaaa", Path("/f"), "-n 1", 2, "detached", NOW, NOW - 1)
    assert pools_table([past], NOW, 7).splitlines()[1].endswith(", over")


@pytest.mark.parametrize(
    ("left_s", "text"),
    [
        (120.0, "{job}, when Slurm job 8 ends"),
        (7200.0, "{until}"),
        (-60.0, "{until}, if Slurm job 8 goes on"),
    ],
)
def test_a_pool_is_kept_until_its_job_ends_if_that_is_earlier(left_s: float, text: str):
    until, job_ends_at = NOW + 3600.0, NOW + left_s
    moments = {"until": moment(until, NOW), "job": moment(job_ends_at, NOW)}
    assert until_text(until, "Slurm job 8", job_ends_at, NOW) == text.format(**moments)
    assert until_text(until, "", 0.0, NOW) == moments["until"]
    pool = KnownPool(
        "aaaa",
        Path("/f"),
        "-n 1",
        2,
        "detached",
        NOW,
        until,
        job="Slurm job 8",
        job_ends_at=job_ends_at,
    )
    assert pools_table([pool], NOW, 7).splitlines()[1].endswith(text.format(**moments))
