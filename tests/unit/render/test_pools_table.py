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
