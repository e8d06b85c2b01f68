"""PyTorch's own tests on traced and on stock groups: ``python -m tests.fidelity [--only NAME]``.

Each test of ``torch.testing._internal.distributed`` runs as a cell of a persistent pool with traced
groups, and of one with stock groups, in turns. Exit status 1 if a result differs and
``exceptions.toml`` has no entry with the reason.

Misleading: what fails on both sides counts as equal. Tests that start processes or need GPUs do.
"""

import argparse
import os
import signal
import sys
from collections import Counter

from tests.bench.common import table, versions
from tests.fidelity.judging import Compared, known, without_entry
from tests.fidelity.sides import ENVIRONMENT, Result, Side
from tests.fidelity.suites import TorchTest, all_tests


def main() -> int:
    """Run, tell, and give the exit status."""
    arguments = _parse()
    # A shell has its background jobs ignore interrupts; ranks would too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tests = _chosen(all_tests(arguments.ranks), arguments)
    traced = Side(plain=False, limit_s=arguments.limit)
    stock = Side(plain=True, limit_s=arguments.limit)
    compared: list[Compared] = []
    try:
        for number, test in enumerate(tests, 1):
            one = _compare(test, traced, stock, number)
            compared.append(one)
            _tell(one, f"{number}/{len(tests)}", verbose=arguments.verbose)
    except KeyboardInterrupt:
        print("interrupted: what follows is about the tests that have run")
    finally:
        traced.stop()
        stock.stop()
    return _summary(compared, traced, stock)


def _compare(test: TorchTest, traced: Side, stock: Side, number: int) -> Compared:
    """In turns, so that neither side always meets the warmer machine."""
    results: dict[bool, Result] = {}
    for is_traced in (number % 2 == 0, number % 2 == 1):
        results[is_traced] = (traced if is_traced else stock).run(test)
    return Compared(test.name, test.ranks, traced=results[True], stock=results[False])


def _tell(one: Compared, progress: str, *, verbose: bool) -> None:
    print(
        f"{progress:>9}  {one.name}, {one.ranks} ranks:",
        f"traced {_brief(one.traced)}, stock {_brief(one.stock)}",
        "" if one.is_equal else "  <- differs",
        flush=True,
    )
    for side, result in (("traced", one.traced), ("stock", one.stock)):
        if result.ending != "passed" and (verbose or not one.is_equal):
            print(f"--- {side}: {result.detail}", flush=True)


def _brief(result: Result) -> str:
    return f"{result.ending} ({result.seconds:.1f} s)"


def _summary(compared: list[Compared], traced: Side, stock: Side) -> int:
    entries = known()
    unexplained = without_entry(compared, entries)
    differing = [one for one in compared if not one.is_equal]
    print()
    for side, restarts in (("traced", traced.restarts), ("stock", stock.restarts)):
        print(f"{len(restarts)} pools with {side} groups had to be replaced", *restarts, sep="\n  ")
    for side in ("traced", "stock"):
        counts = Counter(getattr(one, side).ending for one in compared)
        print(f"{side}:", ", ".join(f"{count} {ending}" for ending, count in counts.items()))
    print(f"{len(compared)} tests, {len(compared) - len(differing)} equal,", end=" ")
    print(f"{len(differing)} different, {len(differing) - len(unexplained)} of them with an entry")
    print("versions:", ", ".join(f"{name} {version}" for name, version in versions().items()))
    if differing:
        head = ("test", "ranks", "traced", "stock", "why")
        print(table(head, [_row(one, entries) for one in differing]))
    idle = [one.name for one in compared if one.is_equal and one.name in entries]
    print(*(f"no difference this time, in spite of its entry: {name}" for name in idle), sep="\n")
    return 1 if unexplained else 0


def _row(one: Compared, entries: dict[str, str]) -> tuple[str, ...]:
    why = entries.get(one.name, "NO ENTRY")
    return (one.name, str(one.ranks), one.traced.ending, one.stock.ending, why)


def _chosen(tests: list[TorchTest], arguments: argparse.Namespace) -> list[TorchTest]:
    found = [
        test
        for test in tests
        if not arguments.only or any(part in test.name for part in arguments.only)
    ]
    found = found[arguments.first :: arguments.every]
    if not found:
        sys.exit(f"no test has {' or '.join(arguments.only)} in its name")
    return found


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], help="part of a test's name")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="only each K-th test")
    parser.add_argument("--first", type=int, default=0, help="leave out so many at the begin")
    parser.add_argument(
        "--ranks", type=int, nargs="+", default=[3, 4], help="where a test takes any (default: 3 4)"
    )
    parser.add_argument("--limit", type=float, default=90.0, help="seconds of a test (default: 90)")
    parser.add_argument("-v", "--verbose", action="store_true", help="show equal failures, too")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    sys.exit(main())
