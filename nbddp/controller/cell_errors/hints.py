"""Hints on errors of the user's code about the state of the pool: a fresh rank lacks a name.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Sequence
from typing import Protocol

from nbddp.controller.cell_errors import evidence
from nbddp.controller.cell_errors.lines import Line, labelled
from nbddp.controller.state import (
    LeftOut,
    MissedCell,
    Reason,
    RunOutcome,
    catch_up_command,
    keep_states_text,
    run_loops_text,
    states_of,
    used_text,
)
from nbddp.wire.flight_recorder import cell_name
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.rank_set import RankSet

#: Cells that a sentence names.
_MAX_CELLS = 8


class NameOrigins(Protocol):
    """The cells that have bound names, and that have cost ranks their variables."""

    #: Other notebooks have run cells before this one has taken the pool back.
    is_partial: bool

    def origin(self, name: str) -> int:
        """The number of the last cell that bound a name; 0: none did."""

    def before_restart(self, name: str, ranks: RankSet) -> tuple[int, ...]:
        """The cells that made and changed a name on ``ranks`` before the user restarted all ranks.

        Their numbers; first 0: the name was pushed to them then. None of them: it was not there at
        the end, or it was made since.
        """

    def missed(self, name: str, ranks: RankSet) -> MissedCell | None:
        """The last cell that bound a name and that no process of ``ranks`` has run; None: none."""

    def was_pushed_to(self, name: str, ranks: RankSet) -> bool:
        """Whether each of ``ranks``, or its earlier process, has got a name by `%ddp push`."""

    def missed_star(self, ranks: RankSet) -> int:
        """The last cell with ``import *`` that no process of ``ranks`` has run; 0: none is."""

    def fresh_since(self, rank: int) -> int:
        """The number of the cell in which this rank's process was replaced; 0: in none."""

    def left_out(self, rank: int, name: str) -> LeftOut | None:
        """Why a rank that has caught up still lacks a name; None: that is not known."""


class NoOrigins:
    """Nothing is known of the cells."""

    is_partial = False

    def origin(self, name: str) -> int:
        """Return 0."""
        return 0

    def before_restart(self, name: str, ranks: RankSet) -> tuple[int, ...]:
        """Return no cell."""
        return ()

    def missed(self, name: str, ranks: RankSet) -> MissedCell | None:
        """Return None."""
        return None

    def was_pushed_to(self, name: str, ranks: RankSet) -> bool:
        """Return False."""
        return False

    def missed_star(self, ranks: RankSet) -> int:
        """Return 0."""
        return 0

    def fresh_since(self, rank: int) -> int:
        """Return 0."""
        return 0

    def left_out(self, rank: int, name: str) -> LeftOut | None:
        """Return None."""
        return None


def hints(
    outcome: RunOutcome, error: ErrorInfo, ranks: RankSet, origins: NameOrigins
) -> list[Line]:
    """Return lines on errors of ``ranks`` that nbddp itself causes."""
    if error.ename == "NameError":
        return _of_missing_name(outcome, error.name, ranks, origins)
    if "initialize the default process group twice" in error.evalue:
        if evidence.freed_ranks(outcome)[0]:
            return [
                labelled(
                    "likely",
                    f"{ranks.describe()} {ranks.verb('has', 'have')} a default "
                    "process group, and other ranks have none",
                ),
                labelled("next", _MAKE_ANEW),
            ]
        return [
            labelled(
                "likely", "the pool, or an earlier cell, has initialised the process group already"
            ),
            labelled(
                "next",
                "leave the call out, or call dist.destroy_process_group() above it, on all ranks; "
                "%ddp start --init none leaves the first call to you",
            ),
        ]
    if evidence.NO_GROUP in error.evalue:
        return _without_group(outcome, ranks)
    return _known_limits(error)


#: A step after which every rank has a default group, whichever of them have one before.
_MAKE_ANEW = (
    "in a cell on all ranks: `if dist.is_initialized(): dist.destroy_process_group()`, then "
    "dist.init_process_group()"
)


def _without_group(outcome: RunOutcome, ranks: RankSet) -> list[Line]:
    """Lines on ranks that called an operation without a default group."""
    if evidence.has_rebuilt(outcome):
        return [
            labelled(
                "likely",
                f"{ranks.describe()} had no default process group any more, as after "
                "dist.destroy_process_group(). nbddp has made it again, on all ranks",
            ),
            labelled(
                "next",
                "remove what destroys the group, then run the cell again, without "
                "dist.init_process_group()",
            ),
        ]
    has = f"{ranks.describe()} {ranks.verb('has', 'have')}"
    step = "dist.init_process_group() in a cell on all ranks makes it"
    if outcome.ranks("ok", "error") - ranks:
        step = f"{_MAKE_ANEW}. A call that destroys it on some ranks only has to go"
    return [
        labelled("likely", f"{has} no default process group: it was destroyed, or never made"),
        labelled("next", step),
    ]


def _of_missing_name(
    outcome: RunOutcome, name: str, ranks: RankSet, origins: NameOrigins
) -> list[Line]:
    """Lines on a name that ranks lack."""
    if set(ranks) - set(outcome.replacements):
        return _after_restart(name, ranks, origins)
    reason = _of_fresh_ranks(outcome, name, ranks, origins)
    if reason is None:
        return _after_restart(name, ranks, origins)
    likely, step = reason
    process = "a fresh process" if len(ranks) == 1 else "fresh processes"
    since = _since(ranks, origins)
    are = ranks.verb("is", "are")
    return [
        labelled("likely", f"{ranks.describe()} {are} {process}{since}: {likely}"),
        labelled("next", step),
    ]


def _after_restart(name: str, ranks: RankSet, origins: NameOrigins) -> list[Line]:
    """Lines on a name that was there before the user restarted all ranks."""
    maker, *changers = origins.before_restart(name, ranks) or (None,)
    if maker is None:
        return []
    if not maker:
        made, step = f"{name} was pushed", f"%ddp push {name}, if this notebook still has it"
        if changers:
            made += f", and {_cells(changers)}, which changed it, ran"
            step += f"; then run {_cells(changers)} again"
    elif changers:
        made = (
            f"{cell_name(maker)}, which made {name}, and {_cells(changers)}, which changed it, ran"
        )
        step = f"run {_cells([maker, *changers])} again"
    else:
        made, step = f"{cell_name(maker)}, which made {name}, ran", f"run {cell_name(maker)} again"
    are = ranks.verb("is a fresh process", "are fresh processes")
    return [
        labelled("likely", f"{ranks.describe()} {are} since %ddp restart: {made} before it"),
        labelled("next", step),
    ]


def _cells(numbers: Sequence[int]) -> str:
    """``cells [3], [4] and [6]``, in their order; of many, the first and the last ones."""
    parts = [f"[{number}]" for number in numbers]
    if len(parts) > _MAX_CELLS:
        parts = [*parts[: _MAX_CELLS - 2], "...", parts[-1]]
        return f"cells {', '.join(parts)}"
    *most, last = parts
    return f"cells {', '.join(most)} and {last}" if most else f"cell {last}"


def _since(ranks: RankSet, origins: NameOrigins) -> str:
    """`` since cell [4]``; of ranks that were replaced at other times, each is named with its cell.

    Empty: they were replaced in no cell, as by ``%ddp restart -r``.
    """
    by_cell: dict[int, list[int]] = {}
    for rank in ranks:
        by_cell.setdefault(origins.fresh_since(rank), []).append(rank)
    if len(by_cell) == 1:
        return "".join(f" since {cell_name(cell)}" for cell in by_cell if cell)
    parts = [
        f"{RankSet.of(of_cell).describe()} since {cell_name(cell)}"
        for cell, of_cell in sorted(by_cell.items())
        if cell
    ]
    return f" ({', '.join(parts)})"


def _known_limits(error: ErrorInfo) -> list[Line]:
    """Lines on errors of torch and of the system that do not say what works instead."""
    text = error.evalue
    if text.startswith("SyncBatchNorm") and "GPU" in text:
        return [
            labelled("likely", "SyncBatchNorm of torch works on GPUs only"),
            labelled(
                "next",
                "use BatchNorm (leave convert_sync_batchnorm out) on the CPU; with GPUs: %ddp "
                "stop, then %ddp start --device cuda",
            ),
        ]
    if "EADDRINUSE" in text and "server socket" in text:
        return [
            labelled(
                "likely",
                "another process listens at this port: a rank that passes rank=0, too, or another "
                "program",
            ),
            labelled(
                "next",
                "pass rank=rank, world_size=world_size; if they are right, another port, or leave "
                "init_method out",
            ),
        ]
    if "Pair is not connected" in text and "gloo" in text:
        return [
            labelled(
                "likely",
                "perhaps this rank sends to or receives from itself: Gloo has no such connection",
            ),
            labelled("next", "if `src` or `dst` is its own rank, name the other one"),
        ]
    return []


def _of_fresh_ranks(
    outcome: RunOutcome, name: str, ranks: RankSet, origins: NameOrigins
) -> tuple[str, str] | None:
    """Why fresh ranks lack a name, and the next step; None: not because they are fresh."""
    left = origins.left_out(ranks.ranks[0], name)
    others = RankSet.of(outcome.results) - RankSet.of({*ranks, *outcome.replacements})
    if left is not None:
        return f"%ddp catchup did not make {name}, as {_why(left)}", _instead(
            left, name, ranks, others
        )
    they, have = ranks.verb("it", "they"), ranks.verb("has", "have")
    catch_up = f"{catch_up_command(ranks)} runs such cells there"
    if not origins.origin(name):
        return _without_cell(name, ranks, others, origins)
    missed = origins.missed(name, ranks)
    if missed is None:
        return None
    likely = f"{they} {have} not run {cell_name(missed.number)}, which defines {name}"
    if not missed.holders:
        return likely, f"run the cells again that define what {they} {ranks.verb('lacks', 'lack')}"
    if not set(missed.ranks).intersection(ranks):
        return likely, f"run {cell_name(missed.number)} on {ranks.describe()}, too"
    if not missed.is_ok:
        catch_up = _after_failure(missed, name, ranks, others)
    elif missed.loops:
        loops = "these are loops" if len(missed.loops) > 1 else "this is a loop"
        catch_up = (
            f"{catch_up_command(ranks, missed.loops)} runs such cells there; "
            f"{loops} with collectives, which may have to be named"
        )
    return likely, catch_up


def _without_cell(
    name: str, ranks: RankSet, others: RankSet, origins: NameOrigins
) -> tuple[str, str] | None:
    """See `_of_fresh_ranks`; no cell binds the name, at least by its own text."""
    if origins.was_pushed_to(name, ranks):
        return f"{name} was pushed before", f"%ddp push {name} -r {ranks}, if this notebook has it"
    if cell := origins.missed_star(ranks):
        they_have = ranks.verb("it has", "they have")
        likely = f"{they_have} not run {cell_name(cell)}, perhaps with {name} in its `import *`"
        return likely, f"{catch_up_command(ranks)} runs such cells there"
    if origins.is_partial:
        copy = f"{_definition(name, ranks)}{_or_copy(name, ranks, others)}"
        if others:
            copy += f"; {catch_up_command(ranks)} says how modules and optimizers keep their states"
        return f"{_NO_CELL_SINCE_ATTACH} {name}", copy
    return None  # perhaps a typo: no rank is known to have had it


def _after_failure(missed: MissedCell, name: str, ranks: RankSet, others: RankSet) -> str:
    """The next step for a name of a cell that failed and that the other ranks have from it."""
    copy = _or_copy(name, ranks, others)
    if missed.is_joint:
        return (
            f"run the lines that make {name}, and what it is made from, in a cell on all ranks: "
            f"{ranks.describe()} alone would wait there for the others; or run "
            f"{cell_name(missed.number)} again, without what made it fail"
        )
    does = "%ddp catchup does not run"
    if missed.made_by:
        does = f"%ddp catchup makes it as {cell_name(missed.made_by)} does, and does not run"
    return (
        f"{_definition(name, ranks)}{copy}. {does} {cell_name(missed.number)} again, which had "
        "failed"
    )


_NO_CELL_SINCE_ATTACH = "no cell since the pool was taken back defines"


def _definition(name: str, ranks: RankSet) -> str:
    return f"define {name} in a cell that begins with %%ddp -r {ranks}"


def _or_copy(name: str, ranks: RankSet, others: RankSet) -> str:
    """``, or copy it ...``; empty: no rank has it."""
    if not others:
        return ""
    return (
        f", or copy it if it is data and the same on all ranks: {name} = %ddp pull {name} -r "
        f"{others.ranks[0]}, then %ddp push {name} -r {ranks}"
    )


def _why(left: LeftOut) -> str:
    cell = f"{cell_name(left.cell)}, which defines it,"
    match left.reason:
        case Reason.NO_CELL | Reason.GONE:
            is_gone = left.reason is Reason.GONE
            return "no rank had it any more" if is_gone else "no cell defines it"
        case Reason.NO_CELL_SINCE_ATTACH:
            return f"{_NO_CELL_SINCE_ATTACH} it"
        case Reason.FAILED:
            return f"{cell} had failed"
        case Reason.FAILS_NOW:
            return f"{cell} failed when it ran again"
        case Reason.LOOP | Reason.ALONE:
            is_alone = left.reason is Reason.ALONE
            did = "did so on no other rank" if is_alone else "runs a loop with collectives"
            return f"{cell} {did}"
        case Reason.NEEDS:
            return f"{cell} {used_text(left)}"


def _instead(left: LeftOut, name: str, ranks: RankSet, others: RankSet) -> str:
    """The next step in place of another %ddp catchup, which would do the same."""
    if left.reason is Reason.GONE:
        push = f"%ddp push {name} -r {ranks}, if this notebook has it"
        return f"run {cell_name(left.cell)} again, which made it" if left.cell else push
    if left.reason in (Reason.LOOP, Reason.ALONE):
        return f"{catch_up_command(ranks, [left.cell])}, to run it again"
    if name in left.joint and left.reason not in (Reason.FAILS_NOW, Reason.NEEDS):
        return _made_on_all(name, left, ranks, others)
    if left.loops:
        return run_loops_text(left, ranks)
    step = _definition(name, ranks)
    if name not in left.copyable:
        return _made_there(left, name, ranks, others)
    return f"{step}{_or_copy(name, ranks, others)}"


#: The end of a step that makes an object.
_STATES = "and modules and optimizers get the state of the other ranks, as by nbddp.sync"


def _made_on_all(name: str, left: LeftOut, ranks: RankSet, others: RankSet) -> str:
    """The next step for a name that a rank cannot make alone, such as a DDP model.

    Args:
        name: the name.
        left: has all names of the cell that are such, and those that `nbddp.sync` takes.
        ranks: the ranks that lack it.
        others: the ranks that have it.
    """
    names = [name, *sorted(left.joint.union(states_of(left)) - {name})]
    them = "them" if len(names) > 1 else "it"
    step = (
        f"run the lines that make {_listed(names)}, and what is made from {them}, "
        f"in a cell on all ranks: {ranks.describe()} alone would wait there for the others"
    )
    states = [each for each in names if each in left.with_state]
    if not states or not others:
        return f"{step}. The old values are lost with that, unless you load a checkpoint"
    return f"{step}. To keep the old values: {keep_states_text(states, others.ranks[0])}"


def _made_there(left: LeftOut, name: str, ranks: RankSet, others: RankSet) -> str:
    """The next step for a name that no copy replaces.

    A copy of an optimizer steps copies of the parameters, and so the model would learn nothing.
    """
    its = ranks.verb("it", "them")
    if left.reason is Reason.FAILS_NOW:
        return (
            f"give {its} what {cell_name(left.cell)} needs, then {catch_up_command(ranks)}: it "
            f"makes {name} there, {_STATES}"
        )
    if left.reason is Reason.NEEDS:
        return (
            f"{catch_up_command(ranks, [left.cell])}, when what this cell uses is there: it "
            f"makes {name} there, {_STATES}"
        )
    if name in left.definitions:
        return f"import or {_definition(name, ranks)}"
    names = [name]
    if name in left.with_state:  # what all ranks must make has a step of its own
        names = [each for each in states_of(left) if each not in left.joint]
    step = f"run the lines that make {_listed(names)} in a cell that begins with %%ddp -r {ranks}"
    if name not in left.with_state:
        return step
    source = f", src={others.ranks[0]}" if others else ""
    return f"{step}, then nbddp.sync({', '.join(names)}{source}) in one on all ranks"


def _listed(names: Sequence[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
