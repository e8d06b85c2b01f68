"""The state of the pool after ranks have exited or were restarted, and the next step.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from nbddp.controller.cell_errors.evidence import at_line
from nbddp.controller.cell_errors.exit_headline import own_error
from nbddp.controller.cell_errors.lines import Line, displayed_text, labelled, plain_text
from nbddp.controller.state import RunOutcome, is_of_mismatch, other_agents, silent_steps
from nbddp.errors import CellInterruptedError
from nbddp.wire.message_types import KillRequest, LostAgent
from nbddp.wire.rank_set import NO_RANKS, RankSet

_MAX_NAMES = 8


@dataclass(frozen=True)
class NextStep:
    """An action that the user can take, in parts."""

    command: str = ""  #: ``%ddp restart -r 1``
    text: str = ""  #: behind the command
    aside: str = ""  #: for parentheses
    before: str = ""  #: in front of the command

    def __str__(self) -> str:
        """Return the text of an error."""
        gap = " " if self.text else "   "  # behind a bare command the aside stands apart
        return f"{' '.join(self._parts(self.command))}{self.aside and f'{gap}({self.aside})'}"

    @property
    def markdown(self) -> str:
        """The sentence of a card, with the command as code."""
        command = self.command and f"`{self.command}`"
        return f"{' '.join(self._parts(command))}{self.aside and f' ({self.aside})'}."

    def _parts(self, command: str) -> list[str]:
        return [part for part in (self.before, command, self.text) if part]


@dataclass(frozen=True)
class AfterExits:
    """Facts, as sentences without a period, and the next step."""

    replaced: str = ""  #: the ranks that got fresh processes; empty: none did
    keeps_others: bool = False  #: the other ranks keep their variables
    failure: str = ""  #: why the pool could not be repaired
    step: NextStep = field(default_factory=NextStep)

    @property
    def state(self) -> str:
        """All but the next step, for one sentence."""
        return "; ".join(filter(None, (self.replaced, self.failure)))


def after_exits(outcome: RunOutcome) -> AfterExits:
    """Return the state of the pool after a cell in which ranks exited."""
    # Ranks that had ended the cell may have been lost since.
    kept = RankSet.of([*outcome.ranks("ok", "error", "unfinished"), *outcome.beside]) - outcome.dead
    their = kept.verb("its", "their")
    fresh = outcome.fresh
    others = RankSet.of(outcome.results) - fresh
    replaced = ""
    if fresh:
        was = (
            "was replaced by a fresh process: its"
            if len(fresh) == 1
            else ("were replaced by fresh processes: their")
        )
        keep = f", those of {others.describe()} are kept" if others else ""
        replaced = f"{fresh.describe()} {was} variables are gone{keep}"
    keeps_others = bool(fresh and others)
    if fresh and not outcome.rebuild_failure:
        step = NextStep(text="run the cells that define them again")
        return AfterExits(
            replaced, keeps_others, step=_catch_up_step(outcome, others) if others else step
        )
    if kept and (lost := _lost_nodes(outcome)):
        return AfterExits(step=_lost_node_step(outcome, kept, lost))
    if not outcome.rebuild_failure and not outcome.is_plain and kept:
        keep_theirs = f"{kept.verb('keeps', 'keep')} {their} variables"
        command = f"%ddp restart -r {outcome.ranks('exited')}"
        return AfterExits(step=NextStep(command, aside=f"{kept.describe()} {keep_theirs}"))
    loses = f"{kept.describe()} would lose {their} variables too" if kept else ""
    failure = ""
    if outcome.rebuild_failure:
        failure = f"it could not be repaired: {outcome.rebuild_failure}"
    return AfterExits(replaced, keeps_others, failure, NextStep("%ddp restart", aside=loses))


def still_inside(outcome: RunOutcome, stuck: RankSet, reason: str, *, is_all: bool) -> str:
    """The sentence on ranks that have not left the cell, and are heard.

    Args:
        outcome: the end of the cell.
        stuck: these ranks.
        reason: why they have not; empty: it is not known.
        is_all: no rank has left it.
    """
    why = reason or "in C code, stopped, or in code that ignores interrupts"
    command = "%ddp restart"
    # While a node is silent, no rank can be replaced alone.
    if not (outcome.is_plain or is_all or outcome.silent):
        command += f" -r {stuck} (the others keep their variables)"
    return (
        f"{stuck.describe()} {stuck.verb('is', 'are')} still inside the cell ({why}); "
        f"if {stuck.verb('it does', 'they do')} not come back: {command}"
    )


def beside_silent(outcome: RunOutcome) -> str:
    """The next steps after a cell that has ended without the ranks of silent nodes."""
    others = RankSet.of(outcome.results) - outcome.ranks("unfinished") - outcome.dead
    beside = f" (cells run on {others.describe()} meanwhile with -r {others})" if others else ""
    return silent_steps(waits=f"wait for the silent node{beside}")


def _lost_nodes(outcome: RunOutcome) -> list[int]:
    causes = [result.exited.cause for result in outcome.results.values() if result.exited]
    return sorted({cause.node for cause in causes if isinstance(cause, LostAgent)})


def _lost_node_step(outcome: RunOutcome, kept: RankSet, lost: list[int]) -> NextStep:
    """The next step after ranks were lost with the agents of their nodes."""
    keep_theirs = f"{kept.describe()} {kept.verb('keeps its', 'keep their')} variables"
    places = f"in the {'place' if len(lost) == 1 else 'places'} of " + " and ".join(
        f"node {node}" for node in lost
    )
    if lost[0] == 0 or outcome.is_plain:  # without the store of node 0 no group can be formed
        return NextStep(
            "%ddp restart",
            f"asks for {other_agents(len(lost))} {places}",
            aside=f"{keep_theirs} until then",
            before=f"pull what you need (x = %ddp pull x -r {kept}), then",
        )
    command = f"%ddp restart -r {outcome.ranks('exited')}"
    return NextStep(command, f"asks for {other_agents(len(lost))} {places}", aside=keep_theirs)


def _catch_up_step(outcome: RunOutcome, others: RankSet) -> NextStep:
    """The next step after ranks have ended in a cell, and fresh processes have their places.

    Args:
        outcome: the end of the cell.
        others: ranks that keep their processes.
    """
    fresh = outcome.fresh
    changes = _changes(outcome, fresh)
    if not outcome.knows_cells:
        step = sync_step(fresh, others, knows_cells=False)
        if not changes:
            return replace(step, before=step.before.capitalize())
        return replace(step, before=f"{changes} Then {step.before}")
    process = fresh.verb("its new process", "their new processes")
    what = fresh.verb("the variables that it", "what they")
    if outcome.leaves_loops:
        what = f"most of {what}"
    return NextStep(
        "%ddp catchup",
        f"to give {process} {what} {fresh.verb('lacks', 'lack')}, and run the cell again",
        before=f"{changes} Then run" if changes else "Run",
    )


def sync_step(
    fresh: RankSet, kept: RankSet, *, knows_cells: bool = True, leaves_loops: bool = False
) -> NextStep:
    """The next step after fresh processes have taken the places of some ranks.

    Args:
        fresh: ranks with fresh processes.
        kept: ranks that keep theirs.
        knows_cells: False: other notebooks have run cells before %ddp attach.
        leaves_loops: see `RunOutcome.leaves_loops`.
    """
    its, runs = fresh.verb("its", "their"), fresh.verb("it runs", f"{fresh.describe()} run")
    if not knows_cells:
        return NextStep(
            before=f"define {its} variables in a cell that begins with",
            command=f"%%ddp -r {fresh}",
            text=f"or copy data: x = %ddp pull x -r {kept.ranks[0]}, then %ddp push x -r {fresh}; "
            f"make a DDP model on all ranks, since {fresh.describe()} alone would wait there. "
            "%ddp catchup runs cells since %ddp attach only, and says how to keep the old values",
        )
    return NextStep(
        "%ddp catchup",
        f"makes {'most of ' if leaves_loops else ''}{its} variables again: {runs} the cells that "
        f"define them, and modules and optimizers get the state of rank {kept.ranks[0]}",
    )


def _changes(outcome: RunOutcome, fresh: RankSet) -> str:
    """The sentence on what to change before the cell runs again; empty: nothing is known."""
    raised = _raised_before(outcome, fresh)
    if outcome.injected:
        return f"Fix {raised}." if raised else ""
    removal = _removal(outcome, fresh)
    if not raised:
        return removal
    if not removal:
        return f"Fix {raised}."
    return f"Fix {raised}, and {_continued(removal)}"


def _continued(sentence: str) -> str:
    """A sentence as it goes on after a comma: ``Make ...`` in lower case, not ``DDP ...``."""
    is_word = sentence[1:2].islower()
    return f"{sentence[0].lower()}{sentence[1:]}" if is_word else sentence


def _raised_before(outcome: RunOutcome, fresh: RankSet) -> str:
    """``the ValueError of rank 1 at cell [7], line 3``: errors of the code, raised before exits."""
    errors = {
        rank: error
        for rank in fresh
        if rank in outcome.results
        and outcome.results[rank].left_s is not None
        and (error := own_error(outcome, rank)) is not None
        and error.ename not in ("KeyboardInterrupt", "SystemExit")
    }
    if not errors:
        return ""
    ranks, names = RankSet.of(errors), {error.ename for error in errors.values()}
    which = f"the {names.pop()}" if len(names) == 1 else "the errors"
    return f"{which} of {ranks.describe()}{at_line(errors.values())}"


def _removal(outcome: RunOutcome, fresh: RankSet) -> str:
    """The sentence on what to change, so that ranks do not end again; empty: %ddp restart did."""
    end_by_rank = {rank: outcome.results[rank].exited for rank in fresh if rank in outcome.results}
    ends = end_by_rank.values()
    asked = RankSet.of(
        rank for rank, end in end_by_rank.items() if end and isinstance(end.cause, KillRequest)
    )
    if asked and asked == fresh:
        return ""
    if not ends or not all(end is not None and is_of_mismatch(end) for end in ends):
        return f"Remove what ended {(fresh - asked).describe()}."
    findings = () if outcome.report is None else outcome.report.findings
    for finding in findings:
        if finding.kind == "mismatched-collective" and finding.next_step:
            return finding.next_step
    return "Make the same call, with equally many elements, on all ranks of the group."


def restarted_text(
    fresh: RankSet,
    kept: RankSet,
    inside: RankSet = NO_RANKS,
    *,
    knows_cells: bool = True,
    leaves_loops: bool = False,
) -> str:
    """The message after fresh processes have taken the places of ranks.

    Args:
        fresh: ranks with fresh processes.
        kept: ranks that keep their processes and variables.
        inside: those of them that have not left their cell; until they do, the process groups
            cannot be formed again.
        knows_cells: see `sync_step`.
        leaves_loops: see `sync_step`.
    """
    if not kept:
        return "all ranks are fresh processes: their variables are gone"
    what, whose = ("a fresh process", "its") if len(fresh) == 1 else ("fresh processes", "their")
    are = fresh.verb("is", "are")
    if inside:
        they = inside.verb("it leaves its", "they leave their")
        still = inside.verb("is", "are")
        return (
            f"{fresh.describe()} {are} {what}. {inside.describe().capitalize()} {still} still "
            f"inside a cell: the process groups are formed again when {they} cell. Next: wait, or "
            f"%ddp restart -r {inside}"
        )
    step = sync_step(fresh, kept, knows_cells=knows_cells, leaves_loops=leaves_loops)
    return (
        f"{fresh.describe()} {are} {what}: {whose} variables are gone, those of {kept.describe()} "
        f"are kept. Next: {step}"
    )


def restart_continues_text(ranks: RankSet, kept: RankSet) -> str:
    """The message after the user has interrupted the wait for fresh processes, which still start.

    Args:
        ranks: ranks that get fresh processes.
        kept: ranks that keep their processes and variables.
    """
    many = len(ranks) > 1
    what, their, them = (
        ("fresh processes take their places", "their", "them")
        if many
        else ("a fresh process takes its place", "its", "it")
    )
    return (
        f"the wait for {ranks.describe()} was interrupted, the restart goes on: {what}, {their} "
        f"variables are gone, those of {kept.describe()} are kept. "
        f"Next: run a cell, which waits for {them}"
    )


def interrupted_catch_up(
    error: CellInterruptedError, ranks: RankSet, lacking: Sequence[str], again: str
) -> CellInterruptedError:
    """The error of a catch-up that the user has interrupted, in place of that of its cell.

    Args:
        error: of the cell.
        ranks: those that catch up, which have the variables again that they had before.
        lacking: the names that they lack.
        again: the command that asks for the catch-up again.
    """
    more = " and more" if len(lacking) > _MAX_NAMES else ""
    rest = f"still {ranks.verb('lacks', 'lack')} {', '.join(lacking[:_MAX_NAMES])}{more}"
    if not lacking:
        rest = ranks.verb("has its variables as before", "have their variables as before")
    name = type(error).__name__
    headline = f"%ddp catchup was interrupted: {ranks.describe()} {rest}"
    lines = [
        Line(headline, name=name),
        labelled(
            "where", error.headline.removeprefix(f"{name}: ").partition(" was interrupted")[0]
        ),
        labelled("kept", "every variable that a rank had before"),
        labelled("next", f"run {again} again"),
    ]
    return CellInterruptedError(
        plain_text(lines),
        error.by_rank,
        displayed=displayed_text(lines),
        headline=lines[0].plain,
    )
