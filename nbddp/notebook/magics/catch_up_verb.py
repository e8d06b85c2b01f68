"""``%ddp catchup``: gives fresh ranks the variables that they lack.

Runs in: the notebook's process, thread of the running cell.
"""

import argparse
from functools import partial

from IPython.core.interactiveshell import InteractiveShell

from nbddp.controller import pool as pools
from nbddp.controller.catch_up import LeftOut, Reason
from nbddp.controller.pool import CatchUp
from nbddp.notebook import session
from nbddp.notebook.render.html import words
from nbddp.wire.flight_recorder import cell_name
from nbddp.wire.rank_set import RankSet

_MAX_NAMES = 8


def cell_numbers(text: str) -> list[int]:
    """Read numbers of cells: ``3,5``.

    Raises:
        argparse.ArgumentTypeError: the text is no such list.
    """
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of cells, such as 3 or 3,5")
    return [int(part) for part in parts]


def catch_up(shell: InteractiveShell, *, ranks: str | None, cells: list[int]) -> None:
    """Give fresh ranks the variables that they lack.

    Args:
        shell: gives the number of the cell.
        ranks: the ranks that lack variables; None: those that took the place of others.
        cells: numbers of cells that run again in any case.

    Raises:
        BadOptionError: there are no fresh ranks, no other ranks, or no such cell.
        CellError: a cell was interrupted, or cost a rank.
        PoolBusyError: a cell is running.
        NoPoolError: no pool is running.
    """
    pool = session.pool()
    make_view = partial(session.make_view, out="nothing")
    count = session.execution_count(shell)
    print(describe(pools.catch_up(pool, ranks, cells, count, make_view)))


def describe(result: CatchUp) -> str:
    """The lines that the verb prints."""
    ranks, source = result.ranks, f"rank {result.source}"
    if not result.cells and not result.left_out:
        return f"{ranks.describe()} {ranks.verb('lacks', 'lack')} no variable of {source}"
    lines = []
    if result.cells:
        ran = f"{ranks.describe()} ran {_cells(result.cells)} again"
        if result.aside:
            were = result.aside.verb("its variables are", "their variables are")
            ran += f"; {result.aside.describe()} took part aside, and {were} as before"
        lines.append(ran)
    if result.synced:
        have = "has" if len(result.synced) == 1 else "have"
        lines.append(f"{_names(result.synced)} {have} the state of {source}")
    if result.copied:
        have = "has the value" if len(result.copied) == 1 else "have the values"
        lines.append(f"{_names(result.copied)} {have} of {source}, which the other ranks have, too")
    lines += [
        f"{name} did not get the state of {source}: {error}. Next: run the cell again that changed "
        f"{name}: %ddp catchup -r {ranks} --cells CELL"
        for name, error in result.not_synced
    ]
    lines += [f"{cell_name(cell)} failed now: {error}" for cell, error in result.failed]
    lines += [f"not made again: {_missing(left, ranks)}" for left in result.left_out]
    if result.different:
        lines.append(
            f"equal on the other ranks, and not here: {_names(result.different)}. "
            f"Next: %ddp diff {result.different[0]}"
        )
    return "\n".join(lines)


def _missing(left: LeftOut, ranks: RankSet) -> str:
    names, cell = _names(left.names), cell_name(left.cell)
    match left.reason:
        case Reason.NO_CELL:
            return f"{names}: no cell defines this. Next: %ddp push, if it came from the notebook"
        case Reason.FAILED:
            return f"{names}: {cell}, which defines this, has failed"
        case Reason.FAILS_NOW:
            return f"{names}: {cell}, which defines this, failed now"
        case Reason.LOOP:
            return (
                f"{names}: {cell} is a loop with collectives. "
                f"Next: %ddp catchup -r {ranks} --cells {left.cell}, to run it again"
            )
        case Reason.NEEDS:
            return f"{names}: {cell} uses names that were not made again"


def _cells(numbers: tuple[int, ...]) -> str:
    word = "cell" if len(numbers) == 1 else "cells"
    return f"{word} {', '.join(f'[{number}]' for number in numbers)}"


def _names(names: tuple[str, ...]) -> str:
    rest = len(names) - _MAX_NAMES
    return words([*names[:_MAX_NAMES], *([f"{rest} more"] if rest > 0 else [])])
