"""Other processes of the machine see nothing of a pool."""

import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nbddp.controller.pool.pool import Pool
from tests.support.pool_processes import agent_of, folder_of, listening, processes_of
from tests.support.views import run_cell


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_only_listening_sockets_are_of_torch_and_on_the_loopback(pool: Pool):
    run_cell(pool, "dist.barrier()")
    addresses = listening(processes_of(pool))
    assert addresses  # the store, at least
    loopback = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
    assert {address.partition(":")[0] for address in addresses} <= loopback


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.fresh_ranks(2, init="none")
def test_only_the_store_listens_without_a_process_group(pool: Pool):
    agent = agent_of(pool)
    [address] = listening([agent, *agent.children(recursive=True)])
    port = pool.pull("__import__('os').environ['MASTER_PORT']", ranks=0)
    assert address == f"0100007F:{int(port):04X}"


def test_the_folder_belongs_to_its_owner_only(pool: Pool):
    folder = folder_of(pool)
    assert folder.name.startswith("nbddp-")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    names = {path.name for path in folder.iterdir()}
    assert {"hub-0.sock", "agent-0.sock", "rank0.log", "rank1.log"} <= names
    assert "agent-0.json" not in names  # it held the token; the agent has removed it
    logs = [path for path in folder.iterdir() if path.name.startswith("rank")]
    assert {stat.S_IMODE(path.stat().st_mode) for path in logs} == {0o600}


def test_the_token_is_in_no_command_line_and_no_environment(pool: Pool):
    token = pool._processes.hub.trust._token.encode()
    for process in processes_of(pool)[1:]:
        base = Path(f"/proc/{process.pid}")
        for name in ("cmdline", "environ"):
            assert token not in (base / name).read_bytes()


def test_logs_hold_the_whole_output(pool: Pool):
    run_cell(pool, "print('a line for the log of rank', rank)")
    for rank, path in pool.log_path_by_rank.items():
        assert f"a line for the log of rank {rank}\n" in Path(path).read_text(errors="replace")


OTHER = """
import nbddp, os
with nbddp.start(1) as pool:
    pool.run("mine = 'other'")
    print(pool.pull("mine", ranks=0), pool.pool_id, flush=True)
    input()
"""


def test_two_processes_have_two_pools(pool: Pool):
    run_cell(pool, "mine = 'first'")
    with subprocess.Popen(
        [sys.executable, "-c", OTHER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        value, pool_id = other.stdout.readline().split()
        assert value == "other"
        assert pool_id != pool.pool_id
        assert pool.pull("mine") == ["first", "first"]
        other.communicate("\n", timeout=20)
    assert other.returncode == 0
    assert run_cell(pool, "mine").result() == "'first'"


def test_a_file_named_torch_in_the_working_folder_is_not_taken_by_the_agent(
    fresh_pool: Callable[..., Pool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "zmq.py").write_text("raise RuntimeError('the wrong zmq')\n")
    monkeypatch.chdir(tmp_path)
    assert run_cell(fresh_pool(1), "1").result() == "1"
