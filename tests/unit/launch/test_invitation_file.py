"""The file of an invitation: what a killed notebook leaves is no obstacle for the next one."""

import os
import platform
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nbddp.controller.launch.invitation_file import InvitationFile, remove_stale_files
from nbddp.errors import PoolStartError
from nbddp.system import process_tree
from nbddp.wire.invitation import Invitation


def invitation(pid: int, started: int, pool_id: str = "6c1591b7", host: str = "") -> Invitation:
    return Invitation(
        pool_id=pool_id,
        addresses=("tcp://127.0.0.1:5555",),
        token="t",
        server_key="s",
        public_key="p",
        secret_key="k",
        host=host or platform.node(),
        pid=pid,
        started=started,
    )


def own() -> Invitation:
    return invitation(os.getpid(), process_tree.start_time(os.getpid()))


@pytest.mark.skipif(not process_tree.IS_LINUX, reason="only Linux tells an uncollected process")
def test_a_killed_notebook_that_its_parent_has_not_collected_is_gone(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as notebook:
        its = invitation(notebook.pid, process_tree.start_time(notebook.pid), "0a1b2c3d")
        its.write(tmp_path / "0a1b2c3d.json")
        remove_stale_files(tmp_path)
        assert (tmp_path / "0a1b2c3d.json").exists()
        notebook.kill()
        os.waitid(os.P_PID, notebook.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        remove_stale_files(tmp_path)
        assert not (tmp_path / "0a1b2c3d.json").exists()


def test_the_file_of_the_pools_last_notebook_is_replaced(tmp_path: Path):
    path = tmp_path / "6c1591b7.json"
    invitation(1, 1, host="an-earlier-name-of-this-laptop").write(path)
    file = InvitationFile(tmp_path, own())
    assert file.path == path
    assert Invitation.parse(path.read_bytes()) == own()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_cannot_be_written_is_told_with_the_next_step(tmp_path: Path):
    (tmp_path / "6c1591b7.json").mkdir()
    with pytest.raises(PoolStartError, match=r"cannot be written \(.*\)\. Next: see the rights"):
        InvitationFile(tmp_path, own())
