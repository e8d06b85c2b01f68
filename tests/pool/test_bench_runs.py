"""Every benchmark runs with one tiny round. Its times mean nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import common

ROOT = Path(__file__).resolve().parents[2]
ROUND = ["-n", "1", "--warmup", "0"]
TINY = {
    "bench_cell_latency": ["--ranks", "1", "--no-ipyparallel"],
    "bench_check": ["--operations", "5"],
    "bench_diff": ["--mb", "1"],
    "bench_completion": ["--ranks", "1"],
    "bench_interrupt": ["--ranks", "2"],
    "bench_machines": ["--nodes", "2", "--per-node", "2", "--pools", "1"],
    "bench_many_ranks": ["--ranks", "2", "--nodes", "2", "--per-node", "2"],
    "bench_output_flood": ["--ranks", "2", "--lines", "100"],
    "bench_panel": ["--ranks", "2", "--seconds", "0.2"],
    "bench_recovery": [],
    "bench_recursion": [],
    "bench_render": ["--ranks", "4", "--lines", "100"],
    "bench_sanitize": ["--turns", "2"],
    "bench_start": ["--ranks", "1", "--idle-ranks", "1"],
    "bench_trace": ["--operations", "5", "--steps", "1", "--width", "8"],
    "bench_values": ["--mb", "1"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(TINY))
def test_a_benchmark_runs_and_ends_with_a_line_of_json(name: str) -> None:
    command = [sys.executable, "-m", f"tests.bench.{name}", *ROUND, *TINY[name]]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith(common.JSON_PREFIX)
    facts = json.loads(last.removeprefix(common.JSON_PREFIX))
    assert facts["series"]
    assert {"bench", "checks", "machine", "versions"} <= set(facts)


def test_this_file_runs_each_benchmark() -> None:
    found = {file.stem for file in (ROOT / "tests/bench").glob("bench_*.py")}
    assert found == set(TINY)


@pytest.mark.parametrize("name", sorted(TINY))
def test_a_benchmark_states_its_question_and_what_would_mislead(name: str) -> None:
    text = (ROOT / "tests/bench" / f"{name}.py").read_text(encoding="utf-8")
    doc = text.split('"""')[1]
    assert "?" in doc.splitlines()[0]
    assert "Misleading would be" in doc


def test_statistics() -> None:
    series = common.Series("x", "s", [float(i) for i in range(1, 201)])
    assert (series.median, series.p99, series.n) == (100.5, 198.0, 200)
    assert common.Series("x", "s", [3.0]).p99 == 3.0
    assert common.Check("x", 2.0, "s", 2.0, at_most=True).is_met
    assert not common.Check("x", 1.9, "s", 2.0, at_most=False).is_met


def test_rounds_are_interleaved_and_warm_ups_are_not_counted() -> None:
    order: list[str] = []

    def sampler(name: str) -> float:
        order.append(name)
        return float(len(order))

    samples = common.interleaved({"a": lambda: sampler("a"), "b": lambda: sampler("b")}, 2, 1)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert samples == {"a": [4.0, 5.0], "b": [3.0, 6.0]}
