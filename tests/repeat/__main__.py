"""Repeats the whole suite: ``python -m tests.repeat [--quiet N] [--loaded N] [TESTS]``.

First on the machine as it is, then beside busy processes. Each run is ``make test-full``. A test
that fails once is printed with its run; the exit status is 1 if there is one. What it printed is in
out/repeat/run-N.xml.
"""

import argparse
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

_ROOT = Path(__file__).parents[2]
_REPORTS = _ROOT / "out" / "repeat"


@dataclass(frozen=True)
class SuiteRun:
    """One run of the suite."""

    tests: int
    failures: list[str]
    minutes: float
    exit_status: int

    @property
    def is_green(self) -> bool:
        """Whether all tests ran, and none failed."""
        return self.exit_status == 0 and self.tests > 0 and not self.failures


def main() -> int:
    """Run, print, and give the exit status."""
    arguments = _parse()
    loads = [0] * arguments.quiet + [arguments.busy] * arguments.loaded
    all_green = True
    _REPORTS.mkdir(parents=True, exist_ok=True)
    for number, busy in enumerate(loads, 1):
        with _busy_processes(busy):
            run = _suite(number, arguments.tests)
        beside = f"beside {busy} busy processes" if busy else "alone"
        print(
            f"run {number}/{len(loads)}, {beside}: {run.tests} tests, {len(run.failures)} failed, "
            f"{run.minutes:.1f} min, exit status {run.exit_status}; "
            f"load {os.getloadavg()[1]:.1f}",
            *(f"  {name}" for name in run.failures),
            sep="\n",
            flush=True,
        )
        all_green &= run.is_green
    return 0 if all_green else 1


def _suite(number: int, tests: list[str]) -> SuiteRun:
    report = _REPORTS / f"run-{number}.xml"
    report.unlink(missing_ok=True)
    began = time.monotonic()
    process = subprocess.run(
        ["make", "test-full", f"TESTS=--junit-xml={report} {' '.join(tests)}"],
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
    return SuiteRun(len(cases), failures, minutes, process.returncode)


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
    parser.add_argument("tests", nargs="*", help="what to run (default: all tests)")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
