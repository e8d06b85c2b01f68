"""The state of a pool that is taken back, while agents on other machines are awaited."""

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.taken_back import waiting_snapshot
from nbddp.notebook.output.start_display import progress_line


def test_the_nodes_that_have_not_come_are_named():
    hosts = ["n1", "n2", "n3"]
    options = PoolOptions.checked(2, launcher="ssh", hosts=hosts)

    def shown(*missing: int) -> tuple[str, str]:
        snapshot = waiting_snapshot(options, hosts, missing, 60.0)
        return progress_line(snapshot), snapshot.waits_for

    assert shown(0) == (
        "taking 6 ranks back ... nodes joined: 2 of 3",
        "waits for node 0 (n1), and goes on without it after 60 s",
    )
    assert shown(1, 2)[1] == (
        "waits for node 1 (n2) and node 2 (n3), and goes on without them after 60 s"
    )
    assert shown(0, 1, 2)[1] == "no agent has come yet; this is given up after 60 s"
