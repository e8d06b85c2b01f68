"""Pools whose agents reach the notebook through a login node only, and outlive notebook and ssh."""

import os
from pathlib import Path

import pytest

from nbddp.controller.launch import lasting_ssh
from nbddp.controller.options import PoolOptions
from nbddp.settings import Settings
from nbddp.system import process_tree
from tests.support.kept_machines import take_back
from tests.support.kept_site import Scripts
from tests.support.network_hosts import HostNetwork, NetworkHost
from tests.support.polling import poll_until
from tests.support.remote_pools import DEFAULTS, start
from tests.support.ssh_hosts import SshSite, hosts_behind
from tests.support.views import begin_cell

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]


def relays(login: NetworkHost) -> list[str]:
    """The command lines of relays there."""
    return [line for line in login.processes("launch.relay") if "sh -c" not in line]


@pytest.mark.slow
def test_a_notebook_that_was_killed_leaves_its_pool_behind_the_login_node_to_the_next_one(
    site: SshSite, network: HostNetwork, home: Path, scripts: Scripts
):
    login, nodes, python = hosts_behind(site, network, home, "n1", "n2")
    first, pool_id = scripts.start_counting(
        f"launcher='ssh', hosts=['n1', 'n2'], via='login', python={str(python)!r}"
    )
    clients = process_tree.descendants_of(first.pid)
    first.kill()
    poll_until(lambda: all(process_tree.is_ending(pid) for pid in clients))
    poll_until(lambda: not relays(login))
    pool = take_back(pool_id, DEFAULTS)
    try:
        outcome = pool.rejoin()
        assert outcome is not None
        assert outcome.ranks("ok") == pool.all_ranks
        pool.detach()
        poll_until(lambda: not relays(login))
        pool = take_back(pool_id, DEFAULTS)
        assert pool.pull("x") == [11, 12]
        pool.run("dist.barrier()")
    finally:
        pool.stop()
    for host in (login, *nodes):
        poll_until(lambda host=host: not host.processes("nbddp"))  # type: ignore[misc]
    assert not (home / ".nbddp").exists()


@pytest.mark.slow
def test_hosts_behind_the_login_node_are_let_go_without_having_been_asked_to(
    site: SshSite, network: HostNetwork, home: Path
):
    login, (node,), python = hosts_behind(site, network, home, "n1")
    options = PoolOptions.checked(1, launcher="ssh", hosts=["n1"], via="login", python=str(python))
    pool = start(options, DEFAULTS)
    try:
        pool.run("x = rank + 10")
        pool.detach("5min")
        poll_until(lambda: not relays(login))
        pool = take_back(pool.pool_id, DEFAULTS)
        assert pool.pull("x") == [10]
        pool.run("dist.barrier()")
    finally:
        pool.stop()
    for host in (login, node):
        poll_until(lambda host=host: not host.processes("nbddp"))  # type: ignore[misc]


@pytest.mark.slow
def test_a_relay_comes_back_after_the_line_was_cut_for_longer_than_ssh_waits(
    site: SshSite, network: HostNetwork, home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lasting_ssh, "PATIENCE_S", 600.0)  # the old relay does not end by itself
    login, (node,), python = hosts_behind(site, network, home, "n1")
    options = PoolOptions.checked(
        1, launcher="ssh", hosts=["n1"], via="login", python=str(python), keep="10min"
    )
    others = process_tree.children_of(os.getpid())
    pool = start(options, Settings(silent_after_s=3.0, node_timeout_s=90.0))
    try:
        pool.run("x = rank + 10")
        (old,) = relays(login)
        cell = begin_cell(
            pool,
            "import time\nfor number in range(400):\n    print(number)\n    time.sleep(0.05)",
        )
        poll_until(lambda: "3\n" in cell.view.text(0))
        (client,) = process_tree.children_of(os.getpid()) - others
        login.set_cable(plugged=False)
        poll_until(lambda: process_tree.has_ended(client), 40.0)
        assert relays(login) == [old]  # it has not noticed, and holds the port
        login.set_cable(plugged=True)
        view = cell.join(90.0)
        assert view.error is None
        assert view.text(0) == "".join(f"{number}\n" for number in range(400))
        assert old not in relays(login)
        assert pool.pull("x") == [10]
        pool.run("dist.barrier()")
    finally:
        pool.stop()
    for host in (login, node):
        poll_until(lambda host=host: not host.processes("nbddp"))  # type: ignore[misc]
