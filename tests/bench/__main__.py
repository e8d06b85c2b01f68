"""Runs all benchmarks, one after another, and sums up: ``python -m tests.bench [arguments]``.

The arguments go to each of them. Exit status 1 if one could not do its work; a target that was
missed is only shown.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.bench import common


def main(arguments: list[str]) -> int:
    """Run them; gives the exit status."""
    rows: list[tuple[str, ...]] = []
    failed: list[str] = []
    for file in sorted(Path(__file__).parent.glob("bench_*.py")):
        print(f"== {file.stem}", flush=True)
        facts = _run(file.stem, arguments)
        if facts is None:
            failed.append(file.stem)
            continue
        checks = [common.Check(**check) for check in facts["checks"]]
        rows += [(facts["bench"], *check.cells) for check in checks]
    print("\n== summary\n" + common.table(("", "target", "", "measured", ""), rows))
    if failed:
        print(f"could not do their work: {', '.join(failed)}")
    return 1 if failed else 0


def _run(name: str, arguments: list[str]) -> dict[str, Any] | None:
    command = [sys.executable, "-m", f"tests.bench.{name}", *arguments]
    found: dict[str, Any] | None = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith(common.JSON_PREFIX):
                found = json.loads(line.removeprefix(common.JSON_PREFIX))
    return found if process.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
