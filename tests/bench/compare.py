"""Runs benchmarks of two checkouts in turns: ``python -m tests.bench.compare ../before -n 3``.

Both use the environment of this Python. Prints, for each series, the median of the medians of each
checkout, and their ratio: below 1, this checkout is faster. A machine that others use too changes
from minute to minute, so only runs in turns can be compared.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.bench import common

HERE = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run them; gives the exit status, 1 if a benchmark could not do its work."""
    arguments = argparse.ArgumentParser(description=__doc__, prog="python -m tests.bench.compare")
    arguments.add_argument("before", type=Path, help="the other checkout")
    arguments.add_argument("-n", type=int, default=3, help="runs of each (default: 3)")
    arguments.add_argument("--only", nargs="*", default=[], help="such as bench_trace")
    chosen = arguments.parse_args()
    if not (chosen.before / "tests" / "bench").is_dir():
        arguments.error(f"{chosen.before} has no tests/bench; legal: a checkout of nbddp")
    names = chosen.only or [
        file.stem
        for file in sorted(Path(__file__).parent.glob("bench_*.py"))
        if (chosen.before / "tests" / "bench" / file.name).exists()
    ]
    failed = 0
    rows: list[tuple[str, ...]] = []
    for name in names:
        medians: dict[tuple[str, str], dict[Path, list[float]]] = {}
        for _ in range(chosen.n):
            for checkout in (chosen.before, HERE):
                facts = _run(name, checkout)
                failed += facts is None
                for series in (facts or {"series": []})["series"]:
                    by_checkout = medians.setdefault((series["name"], series["unit"]), {})
                    by_checkout.setdefault(checkout, []).append(series["median"])
        for (series_name, unit), by_checkout in medians.items():
            if len(by_checkout) < 2:
                continue  # only one of the checkouts measures it
            before = statistics.median(by_checkout[chosen.before])
            now = statistics.median(by_checkout[HERE])
            ratio = f"{now / before:.2f}" if before else ""
            rows.append((name, series_name, f"{before:.4g} {unit}", f"{now:.4g} {unit}", ratio))
        print(common.table(("", "", "before", "now", "ratio"), rows), flush=True)
    return 1 if failed else 0


def _run(name: str, checkout: Path) -> dict[str, Any] | None:
    done = subprocess.run(
        [sys.executable, "-m", f"tests.bench.{name}"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in done.stdout.splitlines() if line.startswith(common.JSON_PREFIX)]
    if done.returncode or not found:
        print(f"{name} in {checkout} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return None
    facts: dict[str, Any] = json.loads(found[-1].removeprefix(common.JSON_PREFIX))
    return facts


if __name__ == "__main__":
    sys.exit(main())
