"""``%ddp catchup``: gives fresh ranks the variables that they lack.

Runs in: the notebook's process, thread of the running cell.
"""

import argparse
from collections.abc import Sequence
from functools import partial

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from nbddp.controller import pool as pools
from nbddp.controller.catch_up import LeftOut, Reason
from nbddp.controller.pool import CatchUp
from nbddp.controller.state import (
    catch_up_command,
    keep_states_text,
    run_loops_text,
    states_of,
    used_text,
)
from nbddp.notebook import front_end_request, session
from nbddp.notebook.render.answer import Answer
from nbddp.notebook.render.html import words
from nbddp.wire.flight_recorder import cell_name
from nbddp.wire.rank_set import RankSet

_MAX_NAMES = 8
_MAX_FAILED_NAMES = 3
_AT_PROMPT = "changes by `run`, `retry`, `skip` or a debugger at the prompt are not repeated"
_FAULT = "a fault on purpose struck, which is not repeated"


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
        TransferInterruptedError: the user interrupted the copy of a value.
        PoolBusyError: a cell is running.
        NoPoolError: no pool is running.
    """
    pool = session.pool()
    steps = session.step_line("%ddp catchup")
    make_view = partial(session.make_view, out="nothing", steps=steps)
    count = front_end_request.execution_count(shell)
    steps.say("looks at the variables of all ranks")
    try:
        result = pools.catch_up(pool, ranks, cells, count, make_view, say=steps.say)
    finally:
        steps.end()
    display(answer(result).bundle(), raw=True)


def answer(result: CatchUp) -> Answer:
    """The lines that the verb shows: what the ranks have again, what they lack, and what to do."""
    problems = _problems(result)
    failed = list(filter(None, [_failed_before(result)]))
    lines = [_headline(result), *problems, *failed]
    if not _has_more(result) and (result.left_out or failed):  # the headline is about all others
        lacks = _still_lacking(result)
        others = [problem for problem in problems if problem not in lacks]
        lines = [*lacks, *failed, _headline(result), *others]
    lines += _random_numbers(result)
    then = "run the next cell, or the interrupted one again"
    if result.overtaken:  # again, it would change the values of the others a second time
        then = "run the next cell"
    if _is_told_elsewhere(result):
        names, cells = _elsewhere(result)
        its = f"if {result.ranks.verb('it needs', 'they need')} {names}"
        then = f"run {cells} on {result.ranks.describe()}, too, {its}; then the next cell, or the "
        then += "interrupted one again"
    lines.append(f"{'Then' if problems else 'Next'}: {then}{_unless_used(result)}.")
    return Answer(lines, _details(result), "what ran again, and what came from where")


def _headline(result: CatchUp) -> str:
    """``Rank 1 has again: model, opt and x (from cells [2], [3]), step (from rank 0).``."""
    ranks = result.ranks.describe().capitalize()
    made = dict.fromkeys([*result.synced, *result.regained])
    own = tuple(name for name in made if name not in result.in_doubt and name not in result.copied)
    by_name = dict(result.makers_by_name)
    makers = tuple(sorted({number for name in own for number in by_name.get(name, ())}))
    makers = makers or result.makers or result.cells
    part = dict(result.regained_in_part)
    shown = tuple(f"{n} (on {part[n].describe()})" if n in part else n for n in own)
    parts = [f"{_names(shown)} (from {_cells(makers)})"] if own and makers else []
    parts += [f"{_names(shown)} (from rank {result.source})"] if own and not result.cells else []
    again = tuple(name for name in result.copied if name not in result.perhaps_new)
    if again:
        parts.append(f"{_names(again)} (from rank {result.source})")
    if parts:
        again_text = f"{ranks} {result.ranks.verb('has', 'have')} again: {'; '.join(parts)}."
        more = _got(result, result.ranks.verb("It", "They"))
        return f"{again_text} {more}" if more else again_text
    if result.perhaps_new:
        return _got(result, ranks)
    if result.cells:
        return f"{ranks} ran {_cells(result.cells)} again."
    of_none = (Reason.ALONE, Reason.GONE)
    other = "other " if any(x.reason not in of_none for x in result.left_out) else ""
    lacks = result.ranks.verb("lacks", "lack")
    if result.elsewhere:
        names, cells = _elsewhere(result)
        are = "is" if len(result.elsewhere) == 1 else "are"
        return (
            f"{ranks} {lacks} no {other}variable of {result.ranks.verb('its', 'their')} cells: "
            f"{names} {are} of {cells}, which ran on other ranks only."
        )
    return f"{ranks} {lacks} no {other}variable of rank {result.source}."


def _has_more(result: CatchUp) -> bool:
    """Whether cells ran again, or something was made or given."""
    return bool(result.cells or result.synced or result.regained or result.copied)


def _got(result: CatchUp, ranks: str) -> str:
    """A sentence on copied names that the ranks perhaps never had; empty: there are none."""
    names = result.perhaps_new
    if not names:
        return ""
    cells, them = ("the cell", "it") if len(names) == 1 else ("the cells", "them")
    return (
        f"{ranks} got {_names(names)} from rank {result.source}: {cells} had failed there, perhaps "
        f"before making {them}."
    )


def _is_told_elsewhere(result: CatchUp) -> bool:
    """Whether the names of cells of other ranks are told: nothing was made again."""
    return bool(result.elsewhere) and not _has_more(result)


def _elsewhere(result: CatchUp) -> tuple[str, str]:
    """The names of cells of other ranks, and these cells."""
    names, numbers = zip(*result.elsewhere, strict=True)
    return _names(names), _cells(tuple(sorted(set(numbers))))


def _problems(result: CatchUp) -> list[str]:
    """A line for each thing that needs a step; names of cells that had failed before need none."""
    ranks = result.ranks
    names_by_cell = {left.cell: left for left in result.left_out if left.reason is Reason.FAILS_NOW}
    lines = []
    for cell, error in result.failed:
        left = names_by_cell.get(cell)
        lacks = f"{_still_lacks(left, ranks)}{_names(left.names)}: " if left else ""
        lines.append(
            f"{lacks}{cell_name(cell)} failed now: {error}{_doubts(result, cell)}. "
            f"{_after_failure(result, cell)}"
        )
    lines += _still_lacking(result)
    if result.unrepeated:
        lines.append(_unrepeated(result))
    lines += [
        f"{name} did not get the state of rank {result.source}: {error}. Next: run the cell again "
        f"that changed {name}: %ddp catchup -r {ranks} --cells CELL"
        for name, error in result.not_synced
    ]
    if result.different:
        lines.append(
            f"{_names(result.different)}: equal on the other ranks, and not here. "
            f"Next: %ddp diff {result.different[0]}"
        )
    lines += _overtaken(result)
    if result.initial:
        one = len(result.initial) == 1
        is_at = "is at its initial value" if one else "are at their initial values"
        others = result.others.describe()
        what = "has another" if len(result.others) == 1 else "have others, each its own"
        lines.append(
            f"{_names(result.initial)} {is_at}, as the cells make {'it' if one else 'them'}; "
            f"{others} {what}. Next: %ddp vars {' '.join(result.initial[:_MAX_NAMES])}, then set "
            f"{'it' if one else 'them'} in a cell that begins with %%ddp -r {ranks}"
        )
    for holders in dict.fromkeys(ranks for _, ranks in result.doubted):
        names = tuple(name for name, on in result.doubted if on == holders)
        value, ones, it = (
            ("has a value", "one", "it") if len(names) == 1 else ("have values", "ones", "them")
        )
        lines.append(
            f"{_names(names)} {value}, perhaps not the right {ones}, as on {holders.describe()} "
            f"since an earlier %ddp catchup. Next: %ddp vars {' '.join(names[:_MAX_NAMES])}, then "
            f"set {it} in a cell that begins with %%ddp -r "
            f"{RankSet.of([*ranks, *holders])}"
        )
    if result.passed_over:
        over = result.passed_over
        lines.append(
            f"{over.describe().capitalize()} {over.verb('lacks', 'lack')} names, too, and "
            f"{over.verb('has', 'have')} values of cells that ran since "
            f"{over.verb('it was', 'they were')} replaced: nothing was changed there. "
            f"Next: {catch_up_command(over)}"
        )
    return lines


def _after_failure(result: CatchUp, cell: int) -> str:
    ranks = result.ranks
    if cell in result.prompted:  # again, it would fail in the same way
        return (
            f"When it ran first, the user changed it: {_AT_PROMPT}. Next: correct the cell, and "
            "run it again on all ranks"
        )
    if cell in result.struck:
        return f"When it ran first, {_FAULT}. Next: run it again on all ranks"
    them = ranks.verb("it", "them")
    if names := [name for name, number in result.to_push if number == cell]:
        its = "it" if len(names) == 1 else "them"
        return (
            f"Next: %ddp push {' '.join(names)} -r {ranks}, if this notebook has {its}, then "
            f"{catch_up_command(ranks)}"
        )
    return f"Next: give {them} what the cell needs, then {catch_up_command(ranks)}"


def _unrepeated(result: CatchUp) -> str:
    """The line on names of cells that the user had changed at their prompt."""
    names, numbers = zip(*result.unrepeated, strict=True)
    value, ones, them = (
        ("has a value", "one", "it") if len(names) == 1 else ("have values", "ones", "them")
    )
    return (
        f"{_names(names)} {value}, perhaps not the right {ones}: in "
        f"{_not_repeated(result, sorted(set(numbers)))}. Next: %ddp vars "
        f"{' '.join(names[:_MAX_NAMES])}, then set {them} in a cell that begins with "
        f"%%ddp -r {result.ranks}"
    )


def _not_repeated(result: CatchUp, numbers: Sequence[int]) -> str:
    """``cell [2] a fault on purpose struck, which is not repeated``, for each such reason."""
    prompted = tuple(number for number in numbers if number in result.prompted)
    struck = tuple(number for number in numbers if number not in result.prompted)
    parts = [(prompted, _AT_PROMPT), (struck, _FAULT)]
    return "; in ".join(f"{_cells(cells)} {why}" for cells, why in parts if cells)


def _doubts(result: CatchUp, cell: int) -> str:
    """The names that have a value of a cell that failed, or of one that used what it makes."""
    names = tuple(name for name, number in result.doubtful if number == cell)
    if not names:
        return ""
    value, ones = ("has a value", "one") if len(names) == 1 else ("have values", "ones")
    return f"; {_names(names)} {value}, perhaps not the right {ones}"


def _overtaken(result: CatchUp) -> list[str]:
    """A line for each cell that has changed names on other ranks, and did not run again."""
    made_by = dict(result.makers_by_name)
    lines: list[str] = []
    for cell in sorted({number for _, number in result.overtaken}):
        names = [name for name, number in result.overtaken if number == cell]
        makers = {number for name in names for number in made_by.get(name, ())}
        it, is_at = ("it", "is") if len(names) == 1 else ("them", "are")
        by = f" {_cells(tuple(sorted(makers)))} made {it}" if makers else " before"
        lines.append(
            f"{_names(tuple(names))} {is_at} as{by}; {cell_name(cell)}, which did not run again, "
            f"has perhaps changed {it} since on other ranks. Next: %ddp vars "
            f"{' '.join(names[:_MAX_NAMES])}, then set "
            f"{it} in a cell that begins with %%ddp -r {result.ranks}"
        )
    return lines


def _still_lacking(result: CatchUp) -> list[str]:
    """A line for each cell whose names were not made; of one that failed, others tell."""
    ranks = result.ranks
    lines: list[str] = []
    for left in result.left_out:
        if left.reason not in (Reason.FAILED, Reason.FAILS_NOW):
            is_first = not (lines or _has_more(result))  # the ranks are named above the others
            lacks = _still_lacks(left, ranks, is_first=is_first)
            lines.append(f"{lacks}{_missing(result, left, left.ranks or ranks)}")
    return lines


def _still_lacks(left: LeftOut, ranks: RankSet, *, is_first: bool = False) -> str:
    if left.ranks or is_first:
        some = left.ranks or ranks
        return f"{some.describe().capitalize()} still {some.verb('lacks', 'lack')} "
    return f"{ranks.verb('It still lacks', 'They still lack')} "


def _missing(result: CatchUp, left: LeftOut, ranks: RankSet) -> str:
    names, cell = _names(left.names), cell_name(left.cell)
    again = catch_up_command(ranks, [left.cell])
    if left.reason is Reason.NO_CELL and left.joint:
        return (
            f"{names}: no cell defines this. Next: make it in a cell on all ranks, with what is "
            f"made from it: only all ranks together can make {_names(tuple(sorted(left.joint)))}"
        )
    if left.reason is Reason.NO_CELL and not left.copyable.issuperset(left.names):
        return (
            f"{names}: no cell defines this. Next: make it in a cell that begins with %%ddp -r "
            f"{ranks}; then nbddp.sync in one on all ranks, for a module or an optimizer"
        )
    if left.reason is Reason.NO_CELL:
        return f"{names}: no cell defines this. Next: %ddp push, if it came from the notebook"
    if left.reason is Reason.NO_CELL_SINCE_ATTACH:
        return (
            f"{names}: no cell since %ddp attach defines this, and cells before it are not known "
            f"here. Next: run those cells again, on all ranks. This sets the values of "
            f"{result.others.describe()} back, too{_keep_states(left, result.source)}"
        )
    if left.reason in (Reason.ALONE, Reason.LOOP):
        why = f": {cell} runs a loop with collectives, and makes no model or function"
        if left.reason is Reason.ALONE:
            why = f", which {cell} made on {ranks.describe()} alone"
        return f"{names}{why}. Next: {again}, to run it again"
    return _gone(left, ranks) if left.reason is Reason.GONE else _unmade(left, ranks)


def _gone(left: LeftOut, ranks: RankSet) -> str:
    """Names that no rank has any more, and the next step."""
    names, cell = _names(left.names), cell_name(left.cell)
    them = "it" if len(left.names) == 1 else "them"
    if not left.cell:
        return (
            f"{names}: no cell defines {them}, and no rank has {them} any more. Next: %ddp push "
            f"{' '.join(left.names[:_MAX_NAMES])} -r {ranks}, if it came from the notebook"
        )
    return f"{names}: no rank has {them} any more. Next: run {cell} again, which made {them}"


def _keep_states(left: LeftOut, source: int) -> str:
    """The steps that keep the states of names that the user makes again; empty: they have none."""
    names = states_of(left)
    return f". To keep the old values: {keep_states_text(names, source)}" if names else ""


def _unmade(left: LeftOut, ranks: RankSet) -> str:
    """Names of a cell that uses others which were not made, and the next step."""
    names, cell = _names(left.names), cell_name(left.cell)
    step = f"{catch_up_command(ranks, [left.cell])}, when these are there"
    step = run_loops_text(left, ranks) if left.loops else step
    return f"{names}: {cell} {used_text(left)}. Next: {step}"


def _failed(result: CatchUp) -> list[LeftOut]:
    return [left for left in result.left_out if left.reason is Reason.FAILED]


def _failed_names(result: CatchUp) -> tuple[str, ...]:
    """The names of cells that had failed before, in the order in which they are told."""
    failed = _failed(result)
    names = dict.fromkeys(name for left in failed for name in left.names)
    # Modules and optimizers come first: a user misses them most.
    states = frozenset[str]().union(*(left.with_state | left.joint for left in failed))
    return tuple(sorted(names, key=lambda name: name not in states))


def _failed_before(result: CatchUp) -> str:
    """A line on the names of cells that had failed before, if there are any."""
    failed, names = _failed(result), _failed_names(result)
    if not failed:
        return ""
    cells = tuple(sorted({left.cell for left in failed}))
    whose = "its" if len(names) == 1 else "their"
    had = f"{whose} {'cell' if len(cells) == 1 else 'cells'} had failed"
    return f"Not made again, since {had}: {_names(names, _MAX_FAILED_NAMES)} ({_cells(cells)})."


def _unless_used(result: CatchUp) -> str:
    """A condition for the next cell, if names of cells that had failed before were not made."""
    names = _failed_names(result)
    if not names:
        return ""
    it = "it" if len(names) == 1 else "them"
    return (
        f", if it does not use {_names(names, _MAX_FAILED_NAMES)}; the NameError of a cell that "
        f"does says how to make {it}"
    )


def _all_failed(result: CatchUp) -> list[str]:
    """A line for each cell that had failed before, if `_failed_before` does not name all."""
    failed = _failed(result)
    if len(_failed_names(result)) <= _MAX_FAILED_NAMES:
        return []
    return [
        f"not made again, since {cell_name(left.cell)} had failed: "
        f"{_names(left.names, len(left.names))}"
        for left in failed
    ]


def _details(result: CatchUp) -> list[str]:
    """The actions that were taken for it, and what was left out."""
    ranks, source = result.ranks, f"rank {result.source}"
    lines = _all_failed(result)
    if result.cells:
        one = len(result.cells) == 1
        what = "what it writes and prints" if one else "what they write and print"
        ran = f"{ranks.describe()} ran {_cells(result.cells)} again, with {what}"
        if result.aside:
            were = result.aside.verb("its variables are", "their variables are")
            ran += f"; {result.aside.describe()} ran along, and {were} as before"
        lines.append(ran)
        others = tuple(sorted(set(result.cells) - set(result.makers or result.cells)))
        if others:
            lines.append(
                f"{_cells(others)} ran for the others: what they use, or a seed of random numbers"
            )
    if changed := sorted({*result.prompted, *result.struck}):
        lines.append(f"in {_not_repeated(result, changed)}")
    for cell, error in result.failed_aside:
        lines.append(f"{cell_name(cell)} failed where it ran along, with no effect: {error}")
    if result.synced:
        lines.append(f"{_names(result.synced)} {_have(result.synced)} the state of {source}")
    if result.copied:
        values = "the value" if len(result.copied) == 1 else "the values"
        have = f"{_have(result.copied)} {values}"
        why = "which all other ranks have, or which was pushed to all"
        lines.append(f"{_names(result.copied)} {have} of {source}, {why}")
    if result.deleted:
        lines.append(f"deleted again, as on the other ranks: {_names(result.deleted)}")
    if result.alike_random:
        lines.append(
            f"random numbers ({_names(result.alike_random)}) go on as on {source}: all other "
            "ranks are at that point, too"
        )
    return lines


def _random_numbers(result: CatchUp) -> list[str]:
    """Lines on random numbers that ranks draw again, and on values of other ones than before."""
    whose = result.ranks.verb("Its", "Their")
    lines = []
    if result.seeding and (result.reseeded or not result.alike_random):
        which = f" ({_names(result.reseeded)})" if result.alike_random else ""
        lines.append(
            f"{whose} random numbers{which} begin again at the seed in {_cells(result.seeding)}."
        )
    if result.restarted:
        one = len(result.restarted) == 1
        begin = (
            "begins again, as its cell makes it" if one else "begin again, as their cells make them"
        )
        lines.append(f"{whose} generator{'' if one else 's'} {_names(result.restarted)} {begin}.")
    if result.drawn:
        after = "before it" if len(result.drawn) == 1 else "before them"
        have = "may have other random numbers than before"
        lines.append(f"{_names(result.drawn)} {have}: no seed comes {after}.")
    return lines


def _have(names: tuple[str, ...]) -> str:
    return "has" if len(names) == 1 else "have"


def _cells(numbers: tuple[int, ...]) -> str:
    word = "cell" if len(numbers) == 1 else "cells"
    return f"{word} {', '.join(f'[{number}]' for number in numbers)}"


def _names(names: tuple[str, ...], most: int = _MAX_NAMES) -> str:
    rest = len(names) - most
    return words([*names[:most], *([f"{rest} more"] if rest > 0 else [])])
