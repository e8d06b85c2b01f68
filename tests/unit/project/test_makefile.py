"""The commands of the Makefile."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("user", "has_option"), [("0", True), ("1000", False)])
def test_lab_starts_for_root_too(tmp_path: Path, user: str, has_option: bool):
    command = tmp_path / "id"
    command.write_text(f"#!/bin/sh\necho {user}\n")
    command.chmod(0o755)
    shown = subprocess.run(
        ["make", "-n", "lab"],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    line = next(line for line in shown.splitlines() if "jupyter-lab" in line)
    assert ("--allow-root" in line.split()) == has_option
