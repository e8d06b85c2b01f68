"""The parts that all benchmarks share: rounds, statistics, a table, one line of JSON.

Nothing here asserts a time. A target is printed beside what was measured; only work that was not
done (a line that is missing, a wrong sum) ends a benchmark with an error.
"""

import argparse
import importlib.metadata
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

#: The line of JSON begins with this, so that `tests.bench.__main__` finds it.
JSON_PREFIX = "JSON "
_PACKAGES = ("nbddp", "torch", "pyzmq", "ipython", "ipykernel", "msgspec", "ipyparallel")


@dataclass(frozen=True)
class Series:
    """Samples of one thing, all in ``unit``."""

    name: str
    unit: str
    samples: list[float]

    @property
    def n(self) -> int:
        return len(self.samples)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def p99(self) -> float:
        """The percentile by nearest rank: with fewer than 100 samples, the largest."""
        return sorted(self.samples)[math.ceil(0.99 * self.n) - 1]


@dataclass(frozen=True)
class Check:
    """A target of the project and what was measured for it."""

    what: str
    measured: float
    unit: str
    target: float
    at_most: bool

    @property
    def is_met(self) -> bool:
        return self.measured <= self.target if self.at_most else self.measured >= self.target

    @property
    def cells(self) -> tuple[str, str, str, str]:
        sign = "<=" if self.at_most else ">="
        met = "met" if self.is_met else "MISSED"
        return self.what, f"{sign} {self.target:,g} {self.unit}", number(self.measured), met


@dataclass
class Report:
    """The results of one benchmark."""

    bench: str
    series: list[Series] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, unit: str, samples: list[float]) -> Series:
        """Samples to print; gives the series for further use."""
        self.series.append(Series(name, unit, samples))
        return self.series[-1]

    def at_most(self, what: str, measured: float, unit: str, target: float) -> None:
        """A target from above."""
        self.checks.append(Check(what, measured, unit, target, at_most=True))

    def at_least(self, what: str, measured: float, unit: str, target: float) -> None:
        """A target from below."""
        self.checks.append(Check(what, measured, unit, target, at_most=False))

    def show(self) -> None:
        """Print the tables and the line of JSON."""
        rows = [(s.name, number(s.median), number(s.p99), s.unit, str(s.n)) for s in self.series]
        print(table(("", "median", "p99", "unit", "n"), rows))
        if self.checks:
            print("\n" + table(("target", "", "measured", ""), [c.cells for c in self.checks]))
        for name, value in self.notes.items():
            print(f"{name}: {value}")
        print(JSON_PREFIX + json.dumps(self._facts()), flush=True)

    def _facts(self) -> dict[str, Any]:
        return {
            "bench": self.bench,
            "series": [
                {"name": s.name, "unit": s.unit, "median": s.median, "p99": s.p99, "n": s.n}
                for s in self.series
            ],
            "checks": [asdict(check) for check in self.checks],
            "notes": self.notes,
            "machine": machine(),
            "versions": versions(),
        }


def machine() -> dict[str, Any]:
    """The machine and the versions on which the numbers depend."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "load_1_min": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that matter."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")


# --- measuring ---------------------------------------------------------------------------------


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """``work`` as something that gives the seconds it took."""

    def run() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return run


def interleaved(
    samplers: Mapping[str, Callable[[], float]], rounds: int, warmup: int
) -> dict[str, list[float]]:
    """Take one sample of each in turn, round after round, every other round backwards.

    A disturbance of the machine then affects all of them, not one.
    """
    found: dict[str, list[float]] = {name: [] for name in samplers}
    for index in range(warmup + rounds):
        order = list(samplers) if index % 2 == 0 else list(samplers)[::-1]
        for name in order:
            sample = samplers[name]()
            if index >= warmup:
                found[name].append(sample)
    return found


def pss_bytes(pids: list[int]) -> int:
    """Memory of processes: their own, and of what they share their part (`smaps_rollup`)."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def descendants() -> list[int]:
    """Every process below this one: of a pool, all but the notebook's side."""
    return [child.pid for child in psutil.Process().children(recursive=True)]


def ms(seconds: list[float]) -> list[float]:
    """The seconds in milliseconds."""
    return [1000 * sample for sample in seconds]


# --- command line and text ---------------------------------------------------------------------


def parser(doc: str | None, rounds: int, warmup: int) -> argparse.ArgumentParser:
    """The arguments that all benchmarks have."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("-n", type=int, default=rounds, help=f"rounds (default: {rounds})")
    made.add_argument(
        "--warmup", type=int, default=warmup, help=f"rounds not counted (default: {warmup})"
    )
    return made


def number(value: float) -> str:
    """Three digits that matter."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Columns as wide as they need to be."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = []
    for row in (head, *rows):
        first, *rest = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
