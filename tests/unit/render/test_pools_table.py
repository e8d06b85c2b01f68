"""The table of `%ddp pools`."""

from pathlib import Path

from nbddp.notebook.render.pools_table import pools_table
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
