"""Memory that processes keep of ended cells: ``python -m tests.growth [-n 5000] [kind ...]``.

Cells of each kind run in a fresh notebook kernel, and most kinds by a script too. Now and then all
processes collect their garbage, and what they take is read from ``/proc``. The growth over the
second half counts, since caches with a limit fill before. Exit status 1 if a limit is broken.

Misleading: with few cells the numbers say little, since pages that are touched once count as much
as what is kept.
"""

import argparse
import sys
import time
from contextlib import AbstractContextManager

from tests.bench.common import number, table
from tests.growth.driving import Driver, in_notebook, in_script
from tests.growth.kinds import KINDS
from tests.growth.measuring import ROLES, Growth, Point, growths, usage_by_role

_POINTS = 10
_LEAST_CELLS = 20


def main() -> int:
    """Measure, tell, and give the exit status."""
    arguments = _parse()
    rows: list[tuple[str, ...]] = []
    broken: list[str] = []
    for kind in KINDS:
        if arguments.kinds and kind.name not in arguments.kinds:
            continue
        ways = {"": in_notebook} if kind.is_stock else {"notebook": in_notebook}
        if kind.in_scripts and not kind.is_stock:
            ways["script"] = in_script
        for way, drive in ways.items():
            if arguments.way in ("", way) or kind.is_stock:
                name = f"{kind.name}, {way}" if way else kind.name
                cells = max(_LEAST_CELLS, int(arguments.n * kind.share))
                began = time.monotonic()
                found = _measure(drive(kind, arguments.ranks), cells)
                rows.append(_row(name, cells, (time.monotonic() - began) / cells, found))
                broken += [
                    f"{name}: {growth.role}: {what}"
                    for growth in found
                    for what in growth.broken(kind.limit_bytes(growth.role))
                ]
                print(table(_HEAD, rows[-1:]), *broken, sep="\n", end="\n\n", flush=True)
    print("bytes for each cell and process, over the second half of the cells\n")
    print(table(_HEAD, rows))
    print("\n".join(["\nbroken:", *broken]) if broken else "\nall limits are kept")
    return 1 if broken else 0


def _measure(driver: AbstractContextManager[Driver], cells: int) -> list[Growth]:
    points: list[Point] = []
    with driver as running:
        for done in range(cells + 1):
            if done % max(1, cells // _POINTS) == 0:
                points.append((done, usage_by_role(running.pid, running.collect())))
            if done < cells:
                running.run(done)
    return growths(points)


_HEAD = ("kind", "cells", "ms", *ROLES, "descriptors", "threads")


def _row(name: str, cells: int, cell_s: float, found: list[Growth]) -> tuple[str, ...]:
    by_role = {growth.role: number(growth.bytes_per_cell) for growth in found}
    return (
        name,
        str(cells),
        number(1000 * cell_s),
        *(by_role.get(role, "") for role in ROLES),
        f"{sum(growth.fds for growth in found):+}",
        f"{sum(growth.threads for growth in found):+}",
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=5000, help="cells of each kind (default: 5000)")
    parser.add_argument("--ranks", type=int, default=3, help="default: 3")
    parser.add_argument("--way", choices=("", "notebook", "script"), default="", help="one of them")
    parser.add_argument("kinds", nargs="*", help=", ".join(kind.name for kind in KINDS))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
