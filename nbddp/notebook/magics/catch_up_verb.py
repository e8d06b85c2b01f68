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
_MAX_FAILED_NAMES = 3


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
    """The lines that the verb prints; the last one says what works now, and what to do."""
    ranks, source = result.ranks, f"rank {result.source}"
    if not result.cells and not result.left_out:
        lacks = ranks.verb("lacks", "lack")
        return f"{ranks.describe()} {lacks} no variable of {source}. Next: run the next cell"
    lines = []
    if result.cells:
        what = (
            "what it writes and prints" if len(result.cells) == 1 else "what they write and print"
        )
        ran = f"{ranks.describe()} ran {_cells(result.cells)} again, with {what}"
        if result.aside:
            were = result.aside.verb("its variables are", "their variables are")
            ran += f"; {result.aside.describe()} ran along, and {were} as before"
        lines.append(ran)
    if result.synced:
        lines.append(f"{_names(result.synced)} {_have(result.synced)} the state of {source}")
    if result.copied:
        values = "the value" if len(result.copied) == 1 else "the values"
        have = f"{_have(result.copied)} {values}"
        lines.append(f"{_names(result.copied)} {have} of {source}, which the other ranks have, too")
    if result.deleted:
        lines.append(f"deleted again, as on the other ranks: {_names(result.deleted)}")
    lines += _random(result)
    lines += [
        f"{name} did not get the state of {source}: {error}. Next: run the cell again that changed "
        f"{name}: %ddp catchup -r {ranks} --cells CELL"
        for name, error in result.not_synced
    ]
    lines += [
        f"{cell_name(cell)} failed now: {error}. Next: give {ranks.verb('it', 'them')} what the "
        f"cell needs, then %ddp catchup -r {ranks}"
        for cell, error in result.failed
    ]
    lines += [f"not made again: {_missing(left, ranks)}" for left in _problems(result)]
    if result.different:
        lines.append(
            f"equal on the other ranks, and not here: {_names(result.different)}. "
            f"Next: %ddp diff {result.different[0]}"
        )
    return "\n".join([*lines, *_failed_before(result), _end(result)])


def _end(result: CatchUp) -> str:
    """Return a line: ``All 4 ranks have model and optimizer: run the training cell again.``."""
    lacks = [name for left in _problems(result) for name in left.names]
    wrong = dict.fromkeys([*lacks, *(name for name, _ in result.not_synced), *result.different])
    names = _names(result.synced) if result.synced else "the variables of these cells"
    what = f"All {len(result.ranks) + len(result.others)} ranks have {names}"
    then = "run the training cell again" if result.synced else "run the next cell"
    if not wrong and not result.failed:
        return f"{_again(result) if result.left_out else what}: {then}."
    still = f"{result.ranks.describe()} still {result.ranks.verb('differs', 'differ')}"
    but = f"{still} in {_names(tuple(wrong))}" if wrong else f"{_cells(_failed(result))} failed"
    do = f"do what stands above, then {then}"
    return f"{what}; {but}: {do}." if result.synced else f"{but[0].upper()}{but[1:]}: {do}."


def _again(result: CatchUp) -> str:
    """What the ranks have, though they lack names of cells that had failed."""
    has, source = result.ranks.verb("has", "have"), f"rank {result.source}"
    ranks = result.ranks.describe().capitalize()
    if result.synced:
        them = "it" if len(result.synced) == 1 else "them"
        return f"{ranks} {has} {_names(result.synced)} again, as {source} has {them}"
    if result.cells:
        return f"{ranks} {has} the variables of {_cells(result.cells)} again"
    return f"{ranks} {result.ranks.verb('lacks', 'lack')} no other variable of {source}"


def _problems(result: CatchUp) -> list[LeftOut]:
    """The missing names that need a step: not those of cells that had failed before."""
    return [left for left in result.left_out if left.reason is not Reason.FAILED]


def _failed_before(result: CatchUp) -> list[str]:
    """A line on the names of cells that had failed before, if there are any."""
    failed = [left for left in result.left_out if left.reason is Reason.FAILED]
    if not failed:
        return []
    names = tuple(dict.fromkeys(name for left in failed for name in left.names))
    cells = tuple(sorted({left.cell for left in failed}))
    whose = "its" if len(names) == 1 else "their"
    had = f"{whose} {'cell' if len(cells) == 1 else 'cells'} had failed"
    listed = _names(names, _MAX_FAILED_NAMES)
    return [f"not made again, since {had}: {listed} ({_cells(cells)})"]


def _failed(result: CatchUp) -> tuple[int, ...]:
    return tuple(cell for cell, _ in result.failed)


def _random(result: CatchUp) -> list[str]:
    """A line on the random numbers that come next, where cells have seeded them."""
    ranks, source = result.ranks, f"rank {result.source}"
    if result.alike_random:
        return [
            f"random numbers ({_names(result.alike_random)}) go on as on {source}: all other "
            "ranks are at that point, too"
        ]
    if not result.seeding:
        return []
    draws = ranks.verb("draws its own", "draw their own")
    since = f"from the seed in {_cells(result.seeding)}"
    return [f"random numbers: {ranks.describe()} {draws}, {since}"]


def _missing(left: LeftOut, ranks: RankSet) -> str:
    names, cell = _names(left.names), cell_name(left.cell)
    match left.reason:
        case Reason.NO_CELL:
            return f"{names}: no cell defines this. Next: %ddp push, if it came from the notebook"
        case Reason.FAILS_NOW | Reason.FAILED:  # the latter has a line of its own
            return (
                f"{names}: {cell}, which defines this, failed now. "
                "Next: correct it and run it on all ranks"
            )
        case Reason.LOOP:
            return (
                f"{names}: {cell} is a loop with collectives. "
                f"Next: %ddp catchup -r {ranks} --cells {left.cell}, to run it again"
            )
        case Reason.NEEDS:
            return (
                f"{names}: {cell} uses names that were not made again. "
                f"Next: %ddp catchup -r {ranks} --cells {left.cell}, when these are there"
            )


def _have(names: tuple[str, ...]) -> str:
    return "has" if len(names) == 1 else "have"


def _cells(numbers: tuple[int, ...]) -> str:
    word = "cell" if len(numbers) == 1 else "cells"
    return f"{word} {', '.join(f'[{number}]' for number in numbers)}"


def _names(names: tuple[str, ...], most: int = _MAX_NAMES) -> str:
    rest = len(names) - most
    return words([*names[:most], *([f"{rest} more"] if rest > 0 else [])])
