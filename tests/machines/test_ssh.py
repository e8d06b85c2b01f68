"""Pools on hosts that ssh reaches: they compute, free deadlocks, replace ranks, and end."""

import subprocess
import sys
from pathlib import Path

import pytest

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool import log_tails
from nbddp.controller.state.rank_state import RankState
from nbddp.errors import (
    BadOptionError,
    CellError,
    DeadlockError,
    PoolBrokenError,
    PoolStartError,
    RankExitedError,
)
from nbddp.notebook.magics.verbs import VERBS
from nbddp.notebook.render.status_table import survey
from nbddp.settings import Settings
from nbddp.system import process_tree
from nbddp.wire.rank_set import RankSet
from tests.support.polling import poll_until
from tests.support.remote_pools import ssh_pool, start
from tests.support.ssh_hosts import SshSite

pytestmark = [pytest.mark.full, pytest.mark.breaks_pool]


def test_a_pool_on_two_hosts(site: SshSite):
    one, two = site.add_host("n1"), site.add_host("n2")
    with ssh_pool(site, one, two) as pool:
        pool.run("import socket\nt = torch.ones(3) * rank\ndist.all_reduce(t)")
        assert pool.pull("t.tolist()") == [[6.0] * 3] * 4
        assert pool.pull("socket.gethostname()") == ["n1", "n1", "n2", "n2"]
        pool.run("import os")
        # Gloo would take 127.0.1.1, the address of the host's name.
        assert pool.pull("os.environ['GLOO_SOCKET_IFNAME']") == ["eth0"] * 4
        assert pool.pull("os.environ['MASTER_ADDR']") == [one.address] * 4
        assert pool.log_path_by_rank[3] == f"n2:{pool.ranks()[3].log_path}"
        pool.run("print('last words of', rank)")
        tails = list(log_tails(pool, RankSet.of([0, 3]), 10_000))
        assert [tail.text.splitlines()[-1] for tail in tails] == [
            "last words of 0",
            "last words of 3",
        ]
        assert "n1:/" in survey(pool).bundle()["text/plain"]
        pool.push(large=b"x" * 3_000_000)
        assert pool.pull("len(large)") == [3_000_000] * 4

        with pytest.raises(DeadlockError):
            pool.run("if rank == 1:\n    dist.barrier()")
        with pytest.raises(RankExitedError):
            pool.run(
                "import os, signal\nif rank == 3:\n    os.kill(os.getpid(), 9)\ndist.barrier()"
            )
        pool.run("dist.all_reduce(torch.ones(1))")
        for host in (one, two):
            secrets = pool._processes.hub._channel.invitation("", [], "").secret_key  # type: ignore[attr-defined]
            listing = host.run(["sh", "-c", "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ"]).stdout
            assert secrets not in listing


def test_ssh_carries_the_connection_where_hosts_cannot_reach_the_notebook(site: SshSite):
    one, two = site.add_host("n1"), site.add_host("n2")
    with ssh_pool(site, one, two, tunnel=True) as pool:
        pool.run("t = torch.ones(1)\ndist.all_reduce(t)")
        assert pool.pull("t.item()") == [4.0] * 4
        assert pool._processes.hub.nodes.facts[0].address == one.address


def test_a_host_without_power_is_lost_and_the_others_go_on(site: SshSite):
    one, two = site.add_host("n1"), site.add_host("n2")
    with ssh_pool(site, one, two, settings=Settings(node_timeout_s=5.0)) as pool:
        pool.run("x = rank")
        two.power_off()
        with pytest.raises(CellError, match="n2") as caught:
            pool.run("dist.barrier()")
        next_step = "%ddp restart -r 2-3 asks for another agent in the place of node 1"
        assert next_step in " ".join(str(caught.value).split())
        states = [info.state for info in pool.ranks()]
        assert states == [RankState.IDLE] * 2 + [RankState.EXITED] * 2
        assert pool.pull("x", ranks="0-1") == [0, 1]
        with pytest.raises(PoolBrokenError) as refused:  # there is no spare host
            pool.restart("2-3")
        assert "If n2 cannot come back: %ddp stop, which ends all ranks" in str(refused.value)
        assert "--launcher ssh --hosts n1,OTHER --python" in str(refused.value)
        assert pool.pull("x", ranks="0-1") == [0, 1]


def test_the_end_of_the_notebook_ends_everything_on_all_hosts(site: SshSite, tmp_path: Path):
    one, two = site.add_host("n1"), site.add_host("n2")
    script = tmp_path / "notebook.py"
    script.write_text(
        "import nbddp, time\n"
        f"pool = nbddp.start(1, launcher='ssh', hosts=['n1', 'n2'], python={str(site.python)!r})\n"
        "pool.run('import time')\nprint('up', flush=True)\ntime.sleep(600)\n"
    )
    notebook = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE)
    assert notebook.stdout is not None
    assert notebook.stdout.readline() == b"up\n"
    assert one.processes("nbddp")
    clients = process_tree.descendants_of(notebook.pid)
    assert len(clients) == 2  # each ssh
    notebook.kill()
    notebook.wait()
    notebook.stdout.close()
    for host in (one, two):
        poll_until(lambda host=host: not host.processes("nbddp"))  # type: ignore[misc]
    poll_until(lambda: all(process_tree.is_ending(pid) for pid in clients))


def test_a_host_that_ssh_does_not_reach_is_named_with_the_words_of_ssh(site: SshSite):
    one = site.add_host("n1")
    options = PoolOptions.checked(
        1, launcher="ssh", hosts=["n1", "nowhere.invalid"], python=str(site.python)
    )
    with pytest.raises(
        PoolStartError,
        match=r"(?s)the agent on nowhere.invalid never came: "
        r"ssh ended with exit code 255 and said: .*resolve",
    ):
        start(options)
    poll_until(lambda: not one.processes("nbddp"))


def test_hosts_with_slots_stand_in_a_file(site: SshSite, tmp_path: Path):
    hosts = [site.add_host("n1"), site.add_host("n2")]
    file = tmp_path / "hosts"
    file.write_text("# as for mpirun\nn1 slots=2\nn2 slots=2 max_slots=4\n")
    line = f"--launcher ssh --hostfile {file} --python {site.python}"
    pool = start(PoolOptions.checked(**vars(VERBS["start"].parser.read(line))))
    try:
        pool.run("import socket\nt = torch.ones(1) * rank\ndist.all_reduce(t)")
        assert pool.pull("(socket.gethostname(), t.item())") == [
            (host, 6.0) for host in ("n1", "n1", "n2", "n2")
        ]
    finally:
        pool.stop()
    for host in hosts:
        poll_until(lambda host=host: not host.processes("nbddp"))  # type: ignore[misc]


def test_a_python_without_packages_is_named_with_the_command_that_installs_them(
    site: SshSite, tmp_path: Path
):
    one = site.add_host("n1")
    bare = tmp_path / "bare"
    bare.write_text(
        f'#!/bin/sh\nPYTHONPATH={Path(__file__).parents[2]} exec {sys.executable} -S "$@"\n'
    )
    bare.chmod(0o755)
    options = PoolOptions.checked(1, launcher="ssh", hosts=["n1"], python=str(bare))
    with pytest.raises(
        PoolStartError,
        match=rf"the agent on n1 never came: {bare} on n1 lacks the package msgspec, which nbddp "
        rf"needs. Next: (if `.* says .*, )?`ssh n1 '{bare} -m venv nbddp-env && "
        r"nbddp-env/bin/python -m pip install .* torch==",
    ):
        start(options)
    poll_until(lambda: not one.processes("nbddp"))


def test_a_folder_that_a_host_lacks_is_named_with_the_host(site: SshSite, tmp_path: Path):
    site.add_host("n1")
    two = site.add_host("n2")
    folder = tmp_path / "disk" / "work"
    folder.mkdir(parents=True)
    assert two.run(["mount", "-t", "tmpfs", "tmpfs", str(folder.parent)]).returncode == 0
    options = PoolOptions.checked(
        1, launcher="ssh", hosts=["n1", "n2"], python=str(site.python), cwd=str(folder)
    )
    said = rf"--cwd cannot be entered on n2: {folder}: No such file or directory\. Next: a folder"
    with pytest.raises(PoolStartError, match=said):
        start(options)


def test_fewer_hosts_than_nodes_are_refused():
    options = PoolOptions.checked(1, launcher="ssh", hosts=["a"], nnodes=2)
    with pytest.raises(BadOptionError, match="there is 1 host for 2 nodes; legal: --hosts a,HOST"):
        start(options)
