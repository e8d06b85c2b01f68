"""The facts about a machine: whether ranks can enter their folder."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nbddp.agent.node_facts import node_facts

_NOBODY = 65534


def test_a_folder_that_ranks_cannot_enter_is_known_before_torch_is_imported(tmp_path: Path):
    assert node_facts("10.0.0.1").cwd_problem == ""
    assert node_facts("10.0.0.1", str(tmp_path)).cwd_problem == ""
    (tmp_path / "file").touch()
    for name, why in (("none", "No such file or directory"), ("file", "Not a directory")):
        folder = str(tmp_path / name)
        assert node_facts("10.0.0.1", folder).cwd_problem == f"{folder}: {why}"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users reach: the temporary folder of a run of the tests is private."""
    with tempfile.TemporaryDirectory(prefix="nbt-", dir="/tmp") as name:
        yield Path(name)


@contextmanager
def as_a_user() -> Iterator[None]:
    """Be no root, who can enter all folders."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize(
    ("mode", "said"),
    [(0o666, "{}: Permission denied"), (0o000, "{}: Permission denied"), (0o111, "")],
)
def test_a_folder_without_permission_cannot_be_entered(open_folder: Path, mode: int, said: str):
    open_folder.chmod(mode)
    try:
        with as_a_user():
            problem = node_facts("10.0.0.1", str(open_folder)).cwd_problem
        assert problem == said.format(open_folder)
    finally:
        open_folder.chmod(0o700)


def test_a_package_whose_metadata_is_empty_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its version would be None, and no hub would decode the message."""
    folder = tmp_path / "torch-2.0.0.dist-info"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert node_facts("10.0.0.1").torch == ""
