"""Repeats the suite: ``python -m tests.repeat [--quiet N] [--loaded N] [--full] [TESTS]``.

First on the machine as it is, then beside busy processes. Each run is ``make test``, or with
``--full`` ``make test-full``. A test that fails once is printed with its run; the exit status is 1
if there is one. What it printed is in out/repeat/run-N.xml.

All runs take some hours. ``--resume`` goes on where an earlier call was stopped: it counts the runs
of the same commit, which are noted in out/repeat/runs.json. It needs a clean checkout.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

_ROOT = Path(__file__).parents[2]
_REPORTS = _ROOT / "out" / "repeat"
_NOTED = _REPORTS / "runs.json"


@dataclass(frozen=True)
class SuiteRun:
    """One run of the suite."""

    commit: str
    target: str  #: of make: "test" or "test-full"
    busy: int  #: processes beside it
    tests: int
    failures: list[str]
    minutes: float
    exit_status: int
    load: float

    def __str__(self) -> str:
        beside = f"beside {self.busy} busy processes" if self.busy else "alone"
        counts = f"{self.tests} tests, {len(self.failures)} failed"
        times = f"{self.minutes:.1f} min, exit status {self.exit_status}; load {self.load:.1f}"
        return "\n  ".join((f"{self.target} {beside}: {counts}, {times}", *self.failures))

    @property
    def is_green(self) -> bool:
        """Whether all tests ran, and none failed."""
        return self.exit_status == 0 and self.tests > 0 and not self.failures


def main() -> int:
    """Run, print, and give the exit status."""
    arguments = _parse()
    loads = [0] * arguments.quiet + [arguments.busy] * arguments.loaded
    _REPORTS.mkdir(parents=True, exist_ok=True)
    commit = _commit()
    if arguments.resume and arguments.tests:
        print("--resume counts runs of all tests: leave out one of the two")
        return 2
    if arguments.resume and not commit:
        print("--resume needs a clean checkout: commit what `git status` lists")
        return 2
    target = "test-full" if arguments.full else "test"
    before = _noted()
    others = [run for run in before if run.get("target") != target]
    own = [run for run in before if (run.get("commit"), run.get("target")) == (commit, target)]
    noted = [SuiteRun(**run) for run in own] if arguments.resume else []
    runs = []
    for number, busy in enumerate(loads, 1):
        earlier = next((run for run in noted if run.busy == busy), None)
        if earlier is not None:
            noted.remove(earlier)
        run = earlier or _suite(number, busy, commit, target, arguments.tests)
        print(f"run {number}/{len(loads)}, {run}", flush=True)
        runs.append(run)
        if commit and not arguments.tests:
            all_runs = [*others, *map(asdict, (*runs, *noted))]
            _NOTED.write_text(json.dumps(all_runs, indent=1))
    return 0 if all(run.is_green for run in runs) else 1


def _commit() -> str:
    """Return the commit of the checkout, or "" if files differ from it."""
    if _git("status", "--porcelain"):
        return ""
    return _git("rev-parse", "HEAD")


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(
        command, cwd=_ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def _noted() -> list[dict[str, Any]]:
    """Return the runs that earlier calls have noted; old ones may lack fields of `SuiteRun`."""
    runs: list[dict[str, Any]] = json.loads(_NOTED.read_text()) if _NOTED.exists() else []
    return runs


def _suite(number: int, busy: int, commit: str, target: str, tests: list[str]) -> SuiteRun:
    """Run a target of make for a commit, as in `SuiteRun`."""
    report = _REPORTS / f"run-{number}.xml"
    report.unlink(missing_ok=True)
    began = time.monotonic()
    with _busy_processes(busy):
        process = subprocess.run(
            ["make", target, f"TESTS=--junit-xml={report} {' '.join(tests)}"],
            cwd=_ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
    minutes = (time.monotonic() - began) / 60
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    failures = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    load = os.getloadavg()[1]
    return SuiteRun(commit, target, busy, len(cases), failures, minutes, process.returncode, load)


@contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    processes = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _spin() -> None:
    while True:
        pass


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quiet", type=int, default=10, metavar="N", help="runs alone (10)")
    parser.add_argument("--loaded", type=int, default=3, metavar="N", help="runs under load (3)")
    parser.add_argument("--busy", type=int, default=6, metavar="N", help="busy processes (6)")
    parser.add_argument("--resume", action="store_true", help="count the runs of this commit")
    parser.add_argument("--full", action="store_true", help="repeat make test-full")
    parser.add_argument("tests", nargs="*", help="what to run (default: all tests)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
