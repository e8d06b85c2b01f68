"""The facts about a machine: whether ranks can enter their folder."""

from pathlib import Path

import pytest

from nbddp.agent.node_facts import node_facts


def test_a_folder_that_ranks_cannot_enter_is_known_before_torch_is_imported(tmp_path: Path):
    assert node_facts("10.0.0.1").cwd_problem == ""
    assert node_facts("10.0.0.1", str(tmp_path)).cwd_problem == ""
    (tmp_path / "file").touch()
    for name, why in (("none", "No such file or directory"), ("file", "Not a directory")):
        folder = str(tmp_path / name)
        assert node_facts("10.0.0.1", folder).cwd_problem == f"{folder}: {why}"


def test_a_folder_without_permission_cannot_be_entered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    problem = node_facts("10.0.0.1", str(tmp_path)).cwd_problem
    assert problem == f"{tmp_path}: Permission denied"
