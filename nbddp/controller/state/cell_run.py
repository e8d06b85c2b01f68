"""One execution of a cell, as the state machine sees it.

Runs in: the hub thread. Pure; `nbddp.controller.state.pool_machine` owns it.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from msgspec.structs import replace

from nbddp.controller.state.code_lines import why_not_at_line
from nbddp.controller.state.outcome import RankResult, RunOutcome, exited_result
from nbddp.controller.state.stimuli import ChangedAtPrompt
from nbddp.wire.fault_types import Fault
from nbddp.wire.messages import Execute, FaultStruck, ImportChanged, RankExited, RunsFinished
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet

#: Such a rank gets an end of input for an answer, see `nbddp.controller.state.input_requests`.
_AT_PROMPT = "last seen at a prompt, which now ends"

#: The error of a rank whose connection to another one was lost.
LOST_CONNECTION = "CollectiveFailedError"
#: Faults that change when a rank runs a line, or end it.
_ONLY_TIME = ("kill", "stop", "delay", "link", "store")
#: Faults that end the process of a rank, or may; empty: one of `nbddp.faults.inject`.
_MAY_KILL = ("kill", "random", "")
#: Faults after which a rank goes on as if nothing had been: they cause no error that is proven.


def results_of(ended: RunsFinished) -> dict[Rank, RankResult]:
    """The ends of a cell on the ranks of a message."""
    finished = ended.finished
    result = RankResult(
        rank=finished.rank,
        status="ok" if finished.error is None else "error",
        error=finished.error,
        was_freed=finished.was_freed,
        mismatches=finished.mismatches,
        marks=finished.marks,
        torn=finished.torn,
        group_count=finished.group_count,
        made_groups=finished.made_groups,
        sanitizer=finished.sanitizer,
    )
    return {
        rank: replace(result, rank=rank, elapsed_s=elapsed_s, failed_at_ns=failed_at_ns)
        for rank, elapsed_s, failed_at_ns in zip(
            ended.ranks, ended.elapsed_s, ended.failed_at_ns, strict=True
        )
    }


@dataclass
class CellRun:
    """Collects how a cell ends on each of its ranks."""

    run_id: str
    ranks: RankSet
    began: float
    results: dict[Rank, RankResult] = field(default_factory=dict)
    give_up_at: float | None = None  #: when it ends, also if ranks are still inside
    times_out_at: float | None = None
    paused_at: float | None = None  #: since then the user is in a debugger, which is no timeout
    timeout_s: float | None = None
    interrupted: bool = False
    timed_out: bool = False
    is_plain: bool = False
    was_left: bool = False  #: it began before this hub, and may have ended before it, too
    lost_before: RankSet = NO_RANKS  #: ranks whose nodes were lost before this hub came
    replacements: RankSet = NO_RANKS  #: see `RunOutcome`
    raised_before: RankSet | None = None  #: see `RunOutcome`
    asks_at_deadlock: bool = False  #: a break point of the cell is ``--on deadlock``
    execute: Execute | None = None  #: the request; None: it is not known
    injected: list[str] = field(default_factory=list)  #: see `RunOutcome`
    left_out: list[str] = field(default_factory=list)  #: see `RunOutcome`
    typed: list[str] = field(default_factory=list)  #: see `RunOutcome`
    importing: dict[Rank, str] = field(default_factory=dict)  #: modules; empty text: none
    struck_acts: set[str] = field(default_factory=set)  #: of faults; empty text: not known
    struck: set[tuple[int, Rank]] = field(default_factory=set)  #: number of the fault, and rank
    struck_dead: set[Rank] = field(default_factory=set)  #: see `RunOutcome`
    #: Ranks that, by a fault, may have run other lines, or have other values.
    disturbed: set[Rank] = field(default_factory=set)

    def interrupt(self, *, timed_out: bool = False) -> None:
        """Note that the user has interrupted it, or that its timeout has expired."""
        if self.raised_before is None:
            self.raised_before = RankSet.of(
                rank for rank, result in self.results.items() if result.error is not None
            )
        self.timed_out = self.timed_out or timed_out
        self.interrupted = self.interrupted or not timed_out

    @property
    def is_ending(self) -> bool:
        """Whether the user or its timeout has interrupted it, or it has failed on some rank."""
        ends = self.results.values()
        return self.interrupted or self.timed_out or any(end.status != "ok" for end in ends)

    @property
    def has_lost_connection(self) -> bool:
        """Whether some rank has raised that its connection to another one was lost."""
        names = (result.error.ename for result in self.results.values() if result.error is not None)
        return LOST_CONNECTION in names

    @property
    def unfinished(self) -> RankSet:
        """Ranks that are still inside."""
        return NO_RANKS if self.is_complete else self.ranks - RankSet.of(self.results)

    @property
    def is_complete(self) -> bool:
        """Whether no rank is still inside."""
        return len(self.results) == len(self.ranks)

    def next_deadline(self) -> float | None:
        """The time at which it ends or is interrupted; None: it has no limit."""
        times_out_at = self.times_out_at if self.paused_at is None else None
        deadlines = [at for at in (self.give_up_at, times_out_at) if at is not None]
        return min(deadlines, default=None)

    def finish(self, ended: RunsFinished, ranks: AbstractSet[Rank]) -> None:
        """Note that it has ended on these ranks, which are some of ``ended``."""
        self.results |= {rank: end for rank, end in results_of(ended).items() if rank in ranks}

    def note(self, event: FaultStruck | ChangedAtPrompt | ImportChanged) -> None:
        """Note a fault on purpose, a command at the prompt, or an import."""
        if isinstance(event, ImportChanged):
            self.importing[event.rank] = event.module
            return
        if isinstance(event, ChangedAtPrompt):
            texts = self.left_out if event.is_skip else self.typed
            if event.is_skip or event.text not in texts:
                texts.append(event.text)
            return
        self.injected.append(event.text)
        self.struck.add((event.number, event.rank))
        act = self.faults[event.number].act if 0 <= event.number < len(self.faults) else ""
        self.struck_acts.add(act)
        if act in _MAY_KILL:
            self.struck_dead.add(event.rank)
        if act == "raise":
            self.disturbed.add(event.rank)
        elif act not in _ONLY_TIME:  # other ranks get its values, or lack its operation
            self.disturbed.update(self.ranks)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults on purpose."""
        return () if self.execute is None else self.execute.faults

    def _missed(self) -> tuple[str, ...]:
        """The faults that did not strike; random ones need not."""
        missed = []
        for number, fault in enumerate(self.faults):
            armed = RankSet.of(rank for rank in fault.ranks if rank in self.ranks)
            left = RankSet.of(rank for rank in armed if (number, rank) not in self.struck)
            if fault.act in ("link", "store", "random") and left != armed:
                continue  # a receiver is not delayed, and a rank may not use the store
            if fault.act != "random" and (left or not armed):
                some = f" (on {left.describe()})" if left and left != armed else ""
                missed.append(f"{fault}{some}{self._why_missed(fault)}")
        return tuple(missed)

    def _why_missed(self, fault: Fault) -> str:
        """`` (line 1 is the line of %%ddp; ...)``; empty: its moment may have come."""
        execute = self.execute
        if fault.moment.when != "line" or execute is None or not execute.code:
            return ""
        why = why_not_at_line(fault.moment.number, execute.code, execute.first_line)
        return f" ({why})" if why else ""

    def exit(self, exited: RankExited, now: float) -> None:
        """Note that a rank has exited in it."""
        self.results[exited.rank] = exited_result(
            self.results.get(exited.rank),
            exited,
            max(0.0, now - exited.age_s - self.began),
            is_time_known=exited.rank not in self.lost_before,
        )

    def _last_import(self, rank: Rank) -> str:
        module = self.importing.get(rank, "")
        return f"last seen importing {module}, which an interrupt waits for" if module else ""

    def _elapsed_s(self, now: float) -> float:
        """The time until the last rank ended; a hub that came later does not see that moment."""
        if self.was_left and self.is_complete:
            known = [each.elapsed_s for each in self.results.values() if each.is_time_known]
            return max(known, default=now - self.began)
        return now - self.began

    def outcome(
        self, now: float, ended_by: str = "", *, at_prompt: RankSet = NO_RANKS
    ) -> RunOutcome:
        """The outcome if it ends now; ranks that are still inside are ``unfinished``."""
        results = dict(self.results)
        for rank in self.unfinished:
            stuck = _AT_PROMPT if rank in at_prompt else self._last_import(rank)
            results[rank] = RankResult(rank, "unfinished", now - self.began, stuck=stuck)
        return RunOutcome(
            run_id=self.run_id,
            results={rank: results[rank] for rank in self.ranks},
            elapsed_s=self._elapsed_s(now),
            interrupted=self.interrupted,
            timed_out=self.timed_out,
            timeout_s=self.timeout_s,
            ended_by=ended_by,
            raised_before=self.raised_before or NO_RANKS,
            is_plain=self.is_plain,
            replacements=self.replacements,
            injected=tuple(self.injected),
            struck_dead=RankSet.of(self.struck_dead),
            struck_acts=frozenset(self.struck_acts),
            left_out=tuple(self.left_out),
            typed=tuple(self.typed),
            missed_faults=self._missed(),
        )
