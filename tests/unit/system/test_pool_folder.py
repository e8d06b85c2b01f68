"""Folders of ended pools are removed, and no others."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from nbddp.errors import PoolStartError
from nbddp.system import pool_folder

_DAY_S = 24 * 60 * 60


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    made = tmp_path / "nbddp-fresh"
    made.mkdir()
    return made


def make(parent: Path, name: str, *, age_s: float = 2 * _DAY_S, is_pool: bool = True) -> Path:
    made = parent / name
    made.mkdir()
    (made / "rank0.log").write_text("why")
    if is_pool:
        os.close(pool_folder.hold(made))
    now = parent.stat().st_mtime
    for path in (*made.iterdir(), made):
        os.utime(path, (now - age_s, now - age_s))
    return made


def test_the_folder_of_a_killed_pool_is_removed_after_a_day(fresh: Path):
    old = make(fresh.parent, "nbddp-old")
    young = make(fresh.parent, "nbddp-young", age_s=_DAY_S / 2)
    pool_folder.remove_stale_folders(fresh)
    assert not old.exists()
    assert (young / "rank0.log").exists()  # its logs may say why
    assert fresh.exists()


def test_a_pool_that_lives_keeps_its_folder_however_old_it_is(fresh: Path):
    living = make(fresh.parent, "nbddp-living")
    fd = pool_folder.hold(living)
    pool_folder.remove_stale_folders(fresh)
    assert (living / "rank0.log").exists()
    os.close(fd)
    pool_folder.remove_stale_folders(fresh)
    assert not living.exists()


def test_a_log_that_is_still_written_is_young(fresh: Path):
    living = make(fresh.parent, "nbddp-living")
    (living / "rank0.log").write_text("now")
    pool_folder.remove_stale_folders(fresh)
    assert living.exists()


def test_a_folder_of_the_user_is_left_alone(fresh: Path, tmp_path: Path):
    mine = make(fresh.parent, "nbddp-my-logs", is_pool=False)
    pool = make(tmp_path / "nbddp-fresh", "elsewhere")
    (fresh.parent / "nbddp-link").symlink_to(pool)
    (fresh.parent / "nbddp-file").write_text("mine")
    pool_folder.remove_stale_folders(fresh)
    assert (mine / "rank0.log").exists()
    assert (pool / "rank0.log").exists()
    assert (fresh.parent / "nbddp-file").exists()


def test_a_named_folder_takes_the_place_of_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    own = Path(tempfile.mkdtemp(prefix="nbt-", dir="/tmp"))
    monkeypatch.setenv("NBDDP_POOLS_DIR", str(own))
    assert pool_folder.parents() == [str(own)]
    assert pool_folder.make().parent == own
    shutil.rmtree(own)
    with pytest.raises(PoolStartError, match=rf": No such file .*Next: mkdir -p {own}$"):
        pool_folder.make()
    monkeypatch.setenv("NBDDP_POOLS_DIR", str(tmp_path / ("x" * 100)))
    with pytest.raises(PoolStartError, match="to a folder with a shorter path"):
        pool_folder.make()


def test_a_named_folder_with_a_long_path_is_told_with_its_length(monkeypatch: pytest.MonkeyPatch):
    own = f"/tmp/{'p' * 60}"
    monkeypatch.setenv("NBDDP_POOLS_DIR", own)
    with pytest.raises(PoolStartError) as error:
        pool_folder.make()
    assert str(error.value) == (
        f"no pool can be made in NBDDP_POOLS_DIR={own}: its path has 65 bytes, and that of a "
        "folder for sockets at most 51. Next: set NBDDP_POOLS_DIR to a folder with a shorter path"
    )


def test_a_named_folder_may_begin_with_the_home(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.delenv("NBDDP_POOLS_DIR", raising=False)
    assert pool_folder.where() == "on this machine"
    monkeypatch.setenv("NBDDP_POOLS_DIR", "~/pools")
    assert pool_folder.parents() == ["/home/me/pools"]
    assert pool_folder.where() == "in NBDDP_POOLS_DIR=/home/me/pools"
