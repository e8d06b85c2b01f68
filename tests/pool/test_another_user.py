"""The view of another user of the machine on a pool, and attacks by that user."""

import os
import pwd
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from nbddp.controller.pool.pool import Pool
from tests.support.pool_processes import agent_of, folder_of, listening, processes_of
from tests.support.views import run_cell

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user"),
]


def as_nobody(do: Callable[[], object]) -> str:
    """The result of ``do`` in a process of another user; the name of the error if it is denied."""
    read, write = os.pipe()
    nobody = pwd.getpwnam("nobody")
    pid = os.fork()
    if pid == 0:
        said = "died"
        try:
            os.setgroups([])
            os.setgid(nobody.pw_gid)
            os.setuid(nobody.pw_uid)
            said = str(do())
        except BaseException as error:  # noqa: BLE001 - all of it is an answer
            said = type(error).__name__
        finally:
            os.write(write, said.encode()[:60_000])
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(pid, 0)
    return said


def test_folder_sockets_and_logs(pool: Pool):
    folder = folder_of(pool)
    assert as_nobody(lambda: os.listdir(folder)) == "PermissionError"  # noqa: PTH208
    for name in ("hub-0.sock", "agent-0.sock"):

        def dial(path: Path = folder / name) -> None:
            with socket.socket(socket.AF_UNIX) as dialed:
                dialed.connect(str(path))

        assert as_nobody(dial) == "PermissionError"
    assert as_nobody((folder / "rank0.log").read_text) == "PermissionError"


def test_memory_and_processes(pool: Pool):
    run_cell(pool, "secret = b's' * 5_000_000")
    assert [len(each) for each in pool.pull("secret")] == [5_000_000] * 2  # in shared memory
    for process in processes_of(pool)[1:]:
        base = Path(f"/proc/{process.pid}")
        for name in ("environ", "mem", "maps", "stack"):
            assert as_nobody((base / name).read_bytes) in ("PermissionError", "died")
        assert as_nobody(lambda: os.listdir(base / "fd")) == "PermissionError"  # noqa: B023, PTH208
        assert as_nobody(lambda: os.kill(process.pid, 0)) == "PermissionError"  # noqa: B023
        # A command line is public: it tells where things are, and no secret.
        assert pool._processes.hub.trust._token not in (base / "cmdline").read_text()


def ports(agent: psutil.Process) -> list[int]:
    """Ports on which a process that the agent has started listens."""
    processes = [agent, *agent.children(recursive=True)]
    return sorted({int(address.rpartition(":")[2], 16) for address in listening(processes)})


def dials(port: int) -> bool:
    with socket.socket() as dialed:
        dialed.settimeout(0.5)
        try:
            dialed.connect(("127.0.0.1", port))
        except OSError:
            return False
        with suppress(OSError):
            dialed.sendall(os.urandom(4096))
        return True


@pytest.mark.fresh_ranks(3)
@pytest.mark.parametrize("when", ["made", pytest.param("formed again", marks=pytest.mark.full)])
def test_only_the_port_of_the_store_accepts_connections(pool: Pool, when: str):
    run_cell(pool, "group = dist.new_group([0, 2])")
    if when == "formed again":
        run_cell(pool, "if rank == 1:\n    dist.barrier()", timeout=30, check=False)
    store = int(pool.pull("__import__('os').environ['MASTER_PORT']", ranks=0))
    new = ports(agent_of(pool))
    assert len(new) == 1 + 3 + 2, "the store, and each member of each group"
    found = as_nobody(lambda: [port for port in new if dials(port)])
    assert found == str([store])
    run_cell(pool, "dist.barrier()\nif rank != 1:\n    dist.barrier(group)")
    pool.restart(ranks=[1])
    run_cell(pool, "dist.barrier()\nanother = dist.new_group()\ndist.barrier(another)")


def test_garbage_at_the_store_harms_no_rank(pool: Pool):
    store = int(pool.pull("__import__('os').environ['MASTER_PORT']", ranks=0))
    assert as_nobody(lambda: [dials(store) for _ in range(50)]).count("True") == 50
    run_cell(pool, "dist.barrier()\ngroup = dist.new_group()\ndist.barrier(group)")
    run_cell(pool, "dist.destroy_process_group(group)\ndel group")


def test_the_store_is_open_to_every_user(pool: Pool):
    """See docs/security.md; if this fails, torch protects the store, and the text must change."""
    import torch.distributed as dist

    port = int(pool.pull("__import__('os').environ['MASTER_PORT']", ranks=0))

    def write() -> str:
        store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]  # missing in torch's own types
        store.set("of nobody", "x")
        return str(store.num_keys() > 1 and store.delete_key("of nobody"))

    assert as_nobody(write) == "True"
    run_cell(pool, "dist.barrier()\ngroup = dist.new_group()\ndist.barrier(group)")
    run_cell(pool, "dist.destroy_process_group(group)\ndel group")
