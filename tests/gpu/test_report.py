"""The report of the GPU trials. Needs no GPU."""

import json
from pathlib import Path

from tests.gpu import report


def test_a_readable_report(tmp_path: Path):
    trials = [
        report.Trial("a[x]", "passed", 1.25, seen={"start": "1 s", "left|right": "2"}),
        report.Trial("b", "failed", 0.5, reason="E: one\ntwo"),
        report.Trial("c", "skipped", 0.0, reason="no GPU", seen={}),
    ]
    path = report.write(tmp_path / "new", {"mode": "on CUDA", "GPUs": []}, trials)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert lines[2] == "1 passed, 1 failed, 1 skipped"
    assert "- GPUs: none" in lines
    assert lines[-3:] == [
        "| a[x] | passed | 1.2 | start: 1 s; left\\|right: 2 |",
        "| b | failed | 0.5 | E: one two |",
        "| c | skipped | 0.0 | no GPU |",
    ]
    found = json.loads((tmp_path / "new" / "report.json").read_text(encoding="utf-8"))
    assert [trial["outcome"] for trial in found["trials"]] == ["passed", "failed", "skipped"]
