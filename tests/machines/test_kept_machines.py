"""Pools on other machines that outlive their notebook, and are taken back."""

import json
import os
import platform
import re
import shutil
import signal
import socket
import threading
from pathlib import Path

import msgspec
import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from nbddp.controller.pool import find_kept, log_tails, taken_back
from nbddp.controller.state import PoolSnapshot
from nbddp.errors import BadOptionError, CellError, DeadlockError, PoolAttachError, PoolBrokenError
from nbddp.notebook.output.start_display import progress_line
from nbddp.notebook.render.status_table import survey
from nbddp.settings import Settings
from nbddp.system import kept_pools, process_tree
from nbddp.wire.channels import RemoteHubChannel
from nbddp.wire.rank_set import RankSet
from tests.support.kept_machines import Listening, known_pool, known_state, take_back
from tests.support.kept_site import Scripts
from tests.support.polling import poll_until
from tests.support.remote_pools import DEFAULTS, ssh_pool
from tests.support.ssh_hosts import SshSite
from tests.support.views import run_cell

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]


def test_agents_of_a_shell_are_let_go_and_taken_back_again_and_again(
    listening: Listening, home: Path
):
    pool = listening.start()
    run_cell(pool, "x = torch.ones(2) * rank")
    for _ in range(2):
        pool.detach("5min")
        with pytest.raises(PoolBrokenError, match=f"Next: %ddp attach {pool.pool_id} takes it"):
            pool.run("x")
        known = known_pool(pool.pool_id)
        assert known is not None
        assert (known.state, len(known.hosts)) == ("detached", 2)
        assert not list((home / ".nbddp").glob("*.json"))
        pool = listening.take_back()
        assert known_state(pool.pool_id) == "attached"
        run_cell(pool, "dist.all_reduce(x)")
        pool.push(value=bytes(1 << 20))
        assert pool.pull("len(value)") == [1 << 20] * 2
    assert pool.pull("x.tolist()") == [[2.0, 2.0]] * 2
    view = run_cell(pool, "if rank == 0: dist.barrier()", check=False)
    assert type(view.error).__name__ == "DeadlockError"
    pool.restart(1)
    run_cell(pool, "dist.barrier()")
    assert pool.pull("'x' in globals()") == [True, False]
    record = home / ".nbddp" / "kept" / pool.pool_id
    assert (record / "pool.json").stat().st_mode & 0o777 == 0o600
    assert record.stat().st_mode & 0o777 == 0o700
    pool.stop()
    assert not (home / ".nbddp").exists()


def test_a_notebook_that_was_killed_leaves_its_cell_to_the_next_one(
    listening: Listening, home: Path, scripts: Scripts
):
    first = scripts.start(
        """
pool = nbddp.start(1, nnodes=2, launcher="listen", address="127.0.0.1", keep="10min")
pool.run("x = rank + 10")
print("pool", pool.pool_id, flush=True)
pool.run('''
import time
for step in range(31):
    print("step", step)
    time.sleep(0.1)
x += 1''')
"""
    )
    agents = listening.start_agents(2, "nohup")
    first.wait_line("pool ")
    first.wait_line("[0-1] step 3")
    for agent in agents:
        agent.send_signal(signal.SIGHUP)  # the end of their terminal
    first.kill()
    second = scripts.start(
        """
import glob, os, stat
pool = nbddp.attach()
print("attached", flush=True)
print("outcome", pool.rejoin())
print("x", pool.pull("x"), flush=True)
pool.run("dist.barrier()")
time.sleep(1000)
"""
    )
    second.wait_line("outcome <RunOutcome: ranks 0-1 ok")
    assert [line for line in second.lines if "step" in line] == [
        f"[0-1] step {step}" for step in range(31)
    ]
    second.wait_line("x [11, 12]")
    refused = scripts.start("try: nbddp.attach()\nexcept Exception as e: print(e)")
    assert re.search(r" (is|are) attached. Next: %ddp pools says where", refused.finish())
    second.kill()
    third = scripts.start("pool = nbddp.attach(); print(pool.pull('x')); pool.stop()")
    assert "[11, 12]" in third.finish()
    listening.wait_for_agents()
    assert not (home / ".nbddp").exists()


def test_agents_end_when_the_time_is_over(listening: Listening, home: Path, scripts: Scripts):
    first = scripts.start(
        """
pool = nbddp.start(1, nnodes=1, launcher="listen", address="127.0.0.1", keep="2s")
print("pool", pool.pool_id, flush=True)
pool.run("import time; time.sleep(1000)")
"""
    )
    (agent,) = listening.start_agents(1)
    pool_id = first.wait_line("pool ")
    children = process_tree.descendants_of(agent.pid)
    folder = home / ".nbddp" / "kept" / pool_id
    token = json.loads((folder / "pool.json").read_text())["token"]
    first.kill()
    listening.wait_for_agents()
    poll_until(lambda: all(process_tree.is_ending(pid) for pid in children))
    # Nothing on this machine is told of it; the record says when they have ended at the latest.
    assert known_state(pool_id) == "detached"
    long_ago = kept_pools.now() - 1000
    os.utime(folder / "pool.json", (long_ago, long_ago))
    record = kept_pools.read(folder)
    assert record is not None
    kept_pools.write(folder, msgspec.structs.replace(record, notebook_since=long_ago))
    os.utime(folder / "pool.json", (long_ago, long_ago))
    known = known_pool(pool_id)
    assert known is not None
    assert (known.state, known.reason) == ("ended", kept_pools.end_text("not-attached"))
    assert all(token not in path.read_text() for path in folder.iterdir())


def test_a_stranger_at_the_port_gets_nothing_and_is_named_when_the_pool_is_taken_back(
    listening: Listening,
):
    pool = listening.start()
    run_cell(pool, "x = rank + 10")
    pool.detach("5min")
    with find_kept(pool.pool_id) as kept:
        machines = kept.record.machines
    assert machines is not None
    # One that speaks another language, one with a hub of another pool, one that says nothing.
    with socket.create_server(("127.0.0.1", machines.port)) as server:
        for _ in range(3):
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 8)
        with pytest.raises(
            PoolAttachError,
            match=rf"cannot listen there: Address already in use. Next: .*"
            rf"ss -ltnp 'sport = {machines.port}'",
        ):
            listening.take_back()
        silent, _ = server.accept()
    other = RemoteHubChannel("127.0.0.1", machines.port)
    monitor = other.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
    try:
        for _ in range(2):
            assert monitor.poll(30_000)  # an agent has come, and cannot read what this hub says
            recv_monitor_message(monitor)
        assert list(other.receive()) == []
        assert not other.guests
    finally:
        monitor.close()
        other.close()
        silent.close()
    pool = listening.take_back()
    assert pool.pull("x") == [10, 11]
    run_cell(pool, "dist.barrier()")


def test_an_agent_that_ended_meanwhile_is_told(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
):
    pool = listening.start()
    run_cell(pool, "x = rank + 10")
    pool.detach("5min")
    listening.agents[0].kill()
    pool = listening.take_back(settings=Settings(node_timeout_s=3.0))
    (lost,) = poll_until(lambda: pool.snapshot.lost_agents)
    (left,) = {0, 1} - {lost}
    assert pool.pull("x", ranks=left) == left + 10
    text = survey(pool).bundle()["text/plain"]
    assert f"\n{lost}     lost with its node" in text
    assert "()" not in text  # this notebook has never known its address
    assert f"/rank{left}.log" in text
    assert f"/rank{lost}.log" not in text
    assert "./rank" not in text
    (tail,) = log_tails(pool, RankSet.of([lost]), 100)
    assert tail.problem == f"node {lost} is lost"
    with pytest.raises(PoolBrokenError, match=f"since node {lost} was given up"):
        pool.run("x")


def test_a_pool_whose_agents_are_gone_is_not_taken_back(
    listening: Listening, home: Path, monkeypatch: pytest.MonkeyPatch
):
    pool = listening.start(nodes=1)
    pool.detach("5min")
    listening.agents[0].kill()
    monkeypatch.setattr(taken_back, "_FIRST_S", 1.0)
    with pytest.raises(PoolAttachError, match="no agent of the pool has come in 1 s"):
        listening.take_back()
    shutil.rmtree(home / ".nbddp" / "kept" / pool.pool_id)


def test_a_pool_of_another_machine_is_named(listening: Listening, monkeypatch: pytest.MonkeyPatch):
    pool = listening.start(nodes=1)
    pool.detach("5min")
    with monkeypatch.context() as there:
        there.setattr(platform, "node", lambda: "login2")
        with pytest.raises(BadOptionError, match=rf"Next: %ddp attach {pool.pool_id} there"):
            listening.take_back()
        known = known_pool(pool.pool_id)
        assert known is not None
        assert (known.state, known.notebook_host) == ("elsewhere", platform.uname().node)


def test_a_notebook_that_stands_still_for_long_is_waited_for(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
):
    """A closed laptop: its clock stands, too. The agents would give an unkept pool up."""
    settings = Settings(patience_s=1.0)
    pool = listening.start(nodes=1, settings=settings, keep="5min")
    run_cell(pool, "x = 7")
    channel = pool._processes.hub._channel
    monkeypatch.setattr(channel, "beat", lambda now: None)
    threading.Event().wait(3.0)
    monkeypatch.undo()
    assert pool.pull("x") == [7]


@pytest.mark.slow
def test_hosts_that_ssh_reaches_go_on_after_the_notebook_was_killed(
    site: SshSite, home: Path, scripts: Scripts
):
    hosts = site.add_host("n1"), site.add_host("n2")
    first, pool_id = scripts.start_counting(
        f"launcher='ssh', hosts=['n1', 'n2'], python={str(site.python)!r}"
    )
    clients = process_tree.descendants_of(first.pid)
    assert len(clients) == 2  # each ssh
    first.kill()
    poll_until(lambda: all(process_tree.is_ending(pid) for pid in clients))
    pool = take_back(pool_id, DEFAULTS)
    try:
        known = known_pool(pool_id)
        assert known is not None
        assert known.hosts == ("n1", "n2")
        outcome = pool.rejoin()
        assert outcome is not None
        assert outcome.ranks("ok") == pool.all_ranks
        assert pool.pull("x") == [11, 12]
        assert pool.log_path_by_rank[1].startswith("n2:/")
        (tail,) = log_tails(pool, RankSet.of([1]), 10_000)
        assert tail.text.splitlines()[-1] == "step 60"
        with pytest.raises(DeadlockError):
            pool.run("if rank == 1:\n    dist.barrier()")
        pool.restart(1)
        pool.run("dist.barrier()")
        pool.restart()  # the store listens again on the first host
        pool.run("dist.barrier()")
        assert "n1:/" in survey(pool).bundle()["text/plain"]
        hosts[1].power_off()
        with pytest.raises(CellError, match="n2"):
            pool.run("dist.barrier()")
    finally:
        pool.stop()
    poll_until(lambda: not hosts[0].processes("nbddp"))
    assert not (home / ".nbddp").exists()


def test_hosts_that_ssh_reaches_are_let_go_without_having_been_asked_to(site: SshSite, home: Path):
    one, two = site.add_host("n1"), site.add_host("n2")
    others = process_tree.children_of(os.getpid())
    with ssh_pool(site, one, two, n=1) as first:
        first.run("x = rank + 10")
        assert len(process_tree.children_of(os.getpid()) - others) == 2  # each ssh
        first.detach("5min")
        assert process_tree.children_of(os.getpid()) == others
        two.set_cable(plugged=False)  # no matter while nobody is there
        two.set_cable(plugged=True)
        pool = take_back(first.pool_id, DEFAULTS)
        assert pool.pull("x") == [10, 11]
        pool.run("dist.barrier()")
        pool.stop()


@pytest.mark.slow
def test_a_host_that_is_off_is_named_while_it_is_awaited(site: SshSite, home: Path):
    one, two = site.add_host("n1"), site.add_host("n2")
    seen: list[PoolSnapshot] = []
    with ssh_pool(site, one, two, n=1) as first:
        first.run("x = rank + 10")
        first.detach("5min")
        two.power_off()
        pool = take_back(first.pool_id, Settings(node_timeout_s=12.0), seen.append)
        assert pool.snapshot.lost_agents == {1}
        assert pool.pull("x", ranks=0) == 10
        pool.stop()
    assert seen[-1].waits_for == "waits for node 1 (n2), and goes on without it after 12 s"
    assert progress_line(seen[-1]) == "taking 2 ranks back ... nodes joined: 1 of 2"


@pytest.mark.slow
def test_nothing_is_left_on_a_host_when_the_time_is_over(site: SshSite, scripts: Scripts):
    one = site.add_host("n1")
    first = scripts.start(
        f"""
pool = nbddp.start(1, launcher="ssh", hosts=["n1"], python={str(site.python)!r}, keep="3s")
print("pool", pool.pool_id, flush=True)
pool.run("import time; time.sleep(1000)")
"""
    )
    first.wait_line("pool ")
    first.kill()
    poll_until(lambda: not one.processes("nbddp"))


def test_a_node_that_was_given_up_ends_when_it_is_heard_again(site: SshSite, home: Path):
    one, two = site.add_host("n1"), site.add_host("n2")
    settings = Settings(silent_after_s=1.0, node_timeout_s=3.0)
    with ssh_pool(site, one, two, n=1, settings=settings, keep="10min") as pool:
        two.set_cable(plugged=False)
        poll_until(lambda: pool.snapshot.lost_agents == frozenset({1}))
        assert two.processes("nbddp")
        two.set_cable(plugged=True)
        poll_until(lambda: not two.processes("nbddp"))
        assert pool.pull("rank", ranks=0) == 0


@pytest.mark.slow
def test_a_start_that_is_given_up_leaves_nothing_of_a_kept_pool(
    site: SshSite, home: Path, scripts: Scripts
):
    one = site.add_host("n1")
    first = scripts.start(
        f"""
nbddp.start(
    1, launcher="ssh", hosts=["n1", "nowhere.invalid"], python={str(site.python)!r}, keep="1h"
)
"""
    )
    poll_until(lambda: one.processes("nbddp"))
    first.kill()
    poll_until(lambda: not one.processes("nbddp"))
    assert not (home / ".nbddp").exists()
