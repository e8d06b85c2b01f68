"""The noted runs of ``python -m tests.repeat``: which ones count, and which ones stay."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.repeat import __main__ as repeat


def run_of(target: str, commit: str = "c") -> dict[str, Any]:
    """A green run alone."""
    run = repeat.SuiteRun(commit, target, 0, 9, [], 1.0, 0, 0.5)
    return asdict(run)


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the runs; one that is made now has 5 tests."""
    path = tmp_path / "runs.json"
    monkeypatch.setattr(repeat, "_REPORTS", tmp_path)
    monkeypatch.setattr(repeat, "_NOTED", path)
    monkeypatch.setattr(repeat, "_commit", lambda: "c")

    def suite(number: int, busy: int, commit: str, target: str, tests: list[str]) -> Any:
        return repeat.SuiteRun(commit, target, busy, 5, [], 2.0, 0, 0.5)

    monkeypatch.setattr(repeat, "_suite", suite)
    return path


def repeated(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit status of a call for one run alone."""
    monkeypatch.setattr(sys, "argv", ["repeat", "--quiet", "1", "--loaded", "0", *arguments])
    return repeat.main()


def test_a_noted_run_counts_also_beside_one_of_an_earlier_version(
    noted: Path, monkeypatch: pytest.MonkeyPatch
):
    old = run_of("test", "b")
    del old["target"]
    noted.write_text(json.dumps([old, run_of("test")]))
    assert repeated(monkeypatch, "--resume") == 0
    assert run_of("test") in json.loads(noted.read_text())  # 9 tests: no other run was made


@pytest.mark.parametrize("arguments", [(), ("--resume",)])
def test_a_run_of_one_target_keeps_those_of_the_other(
    noted: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
):
    noted.write_text(json.dumps([run_of("test-full")]))
    assert repeated(monkeypatch, *arguments) == 0
    assert [run["target"] for run in json.loads(noted.read_text())] == ["test-full", "test"]
