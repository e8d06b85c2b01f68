"""Probes the ranks of a pool: asks them for their state, or their agents to describe them.

Runs in: the hub thread. Pure; a part of `nbddp.controller.recovery.machine`.

    DescribeRank --> a rank's I/O thread --> RankDescribed --.
    DumpStack --> a rank's agent      --> StackDumped --+--> views by rank --> diagnose --> Report
    how the cell has ended on a rank, exits --'
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeAlias

import msgspec

from nbddp.controller.diagnosis import (
    EXITED,
    CompareScope,
    Finding,
    PoolNodes,
    RankStatus,
    RankView,
    Report,
    compare_records,
)
from nbddp.controller.recovery.pending_answers import Answer, Answers, PendingAnswers
from nbddp.controller.recovery.silence import SilentRanks
from nbddp.controller.state import (
    MISMATCH_ERROR,
    ONLY_DELAYS,
    Action,
    CellRun,
    Diagnosed,
    DiagnoseRequested,
    PoolMachine,
    RankInfo,
    RankResult,
    RankState,
    SendToAgent,
    SendToRanks,
    VerdictReached,
    describe_exit,
    exception_line,
    exit_phrase,
    is_given_up,
)
from nbddp.settings import Settings
from nbddp.wire.message_types import LostAgent
from nbddp.wire.messages import DescribeRank, DumpStack, RankDescribed, StackDumped
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet

#: Limit for native frames, which take time and are read only when the user asks.
_PEEK_S = 3.5
#: Counting the memory of a rank takes its agent 6 ms, or more, the first time.
_SURVEY_S = 1.5

Views: TypeAlias = Mapping[Rank, RankView]


class Diagnose(Protocol):
    """`nbddp.controller.diagnosis.diagnose`."""

    def __call__(self, views: Views, /, *, now_ns: int, run_id: str) -> Report:
        """Explain the views."""


class Compare(Protocol):
    """`nbddp.controller.diagnosis.compare_records`."""

    def __call__(
        self,
        views: Views,
        /,
        *,
        now_ns: int,
        run_id: str,
        scope: CompareScope,
        has_failed: bool,
    ) -> tuple[Finding, ...]:
        """Compare the records of a cell that has ended."""


class RankProbes:
    """Probes the ranks of a pool, and knows how the latest cell has ended on each."""

    def __init__(
        self,
        pool: PoolMachine,
        questions: PendingAnswers,
        settings: Settings,
        diagnose: Diagnose,
        compare: Compare = compare_records,
        *,
        silent: SilentRanks,
    ) -> None:
        self._silent_nodes = silent
        self.run_id = ""  #: of the latest cell
        self.results: Mapping[Rank, RankResult] = {}  #: of the latest cell, so far
        self.replaced: set[Rank] = set()  #: ranks that got fresh processes after that cell
        self._pool = pool
        self._questions = questions
        self._settings = settings
        self._diagnose = diagnose
        self._compare = compare

    def begin_cell(self, run_id: str, results: Mapping[Rank, RankResult]) -> None:
        """Note the cell that begins; ``results`` fills as it ends on ranks."""
        self.run_id, self.results = run_id, results
        self.replaced.clear()

    def look(
        self,
        now: float,
        then: Callable[[Views, float], list[Action]],
        ranks: Iterable[Rank] | None = None,
        *,
        last: int = 64,
        memory: bool = False,
        is_brief: bool = False,
        limit_s: float | None = None,
    ) -> tuple[int, list[Action]]:
        """Ask ranks for their state; returns the number of the question, and the actions.

        Args:
            now: monotonic time in seconds.
            then: called with the views when all have answered, or at the limit.
            ranks: the ranks; default: all that live.
            last: number of operations in each answer.
            memory: ask for memory usage as well.
            is_brief: ask only whether they have changed, see `DescribeRank.is_brief`.
            limit_s: for the answers; default: that of a probe.
        """
        alive = self._pool.ranks.in_state(RankState.IDLE, RankState.BUSY)
        asked = alive if ranks is None else RankSet.of(set(alive).intersection(ranks))
        number = self._questions.new_number()

        def looked(answers: Answers, now: float) -> list[Action]:
            return then(self.views(answers, now), now)

        until = now + (self._settings.look_timeout_s if limit_s is None else limit_s)
        self._questions.ask("look", number, asked, until=until, then=looked)
        request = DescribeRank(number=number, last=last, memory=memory, is_brief=is_brief)
        return number, [SendToRanks(asked, request)] if asked else []

    def peek(
        self,
        ranks: RankSet,
        views: Views,
        now: float,
        then: Callable[[Views, Answers, float], list[Action]],
        *,
        limit_s: float | None = None,
        native: bool = False,
        glance: RankSet = NO_RANKS,
        memory: bool = False,
    ) -> tuple[int, list[Action]]:
        """Ask agents to describe ranks from outside, which adds to ``views``.

        Ranks in ``glance`` are not disturbed: the agent reads only the state of their processes.
        """
        number = self._questions.new_number()

        def peeked(answers: Answers, now: float) -> list[Action]:
            return then(with_peeks(views, answers), answers, now)

        until = now + (self._settings.look_timeout_s if limit_s is None else limit_s)
        asked_all = RankSet.of((*ranks, *glance))
        dump = DumpStack(number=number, ranks=(), native=native, memory=memory)
        look = DumpStack(number=number, ranks=(), stack=False, memory=memory)
        self._questions.ask("peek", number, asked_all, until=until, then=peeked)
        return number, [
            SendToAgent(node, msgspec.structs.replace(request, ranks=on_node))
            for request, asked in ((dump, ranks), (look, glance))
            for node, on_node in self._pool.ranks.by_node(asked).items()
        ]

    def views(self, answers: Answers, now: float) -> Views:
        """Return what is known of each rank of the pool."""
        silences = self._silent_nodes.among(self._silent_nodes.ranks, now)
        unheard = {each.node: each.unheard for each in silences}
        return {
            rank: self._view(info, answers.get(rank), unheard.get(info.node, ""))
            for rank, info in self._pool.ranks.items()
        }

    def _view(self, info: RankInfo, answer: Answer | None, unheard: str) -> RankView:
        look = answer.look if isinstance(answer, RankDescribed) else None
        is_fresh = info.rank in self.replaced
        result = None if is_fresh else self.results.get(info.rank)
        exited = info.exited if info.state is RankState.EXITED else None
        if info.state is RankState.STARTING and result is not None:
            exited = result.exited  # the one whose place it takes ended in the cell
        last = None if exited is None else exited.last_operation
        lost = None if exited is None else exited.cause
        has_exited = result is not None and result.exited is not None  # its end says more
        error = None if result is None or has_exited else result.error
        return RankView(
            rank=info.rank,
            state=_status(info, result, answers=look is not None or self._pool.spec.plain),
            look=look,
            error=exception_line(error) if error is not None else None,
            was_freed=result is not None and result.was_freed and not has_exited,
            mismatches=result.mismatches if result is not None else (),
            sanitizer=result.sanitizer if result is not None else None,
            exit_text=describe_exit(exited)[0] if exited is not None else "",
            exit_phrase=EXITED if exited is None else exit_phrase(exited),
            lost_agent=exited is not None and exited.lost_agent,
            was_given_up=isinstance(lost, LostAgent) and is_given_up(lost),
            operations=() if last is None else (last,),
            unheard=unheard if look is None and info.state is not RankState.EXITED else "",
            is_fresh=info.state is RankState.IDLE
            and (is_fresh or (result is not None and result.status == "exited")),
            after=error.handling if error is not None else None,
        )

    def silent(self, views: Views) -> RankSet:
        """Return the ranks that live and did not answer."""
        alive = self._pool.ranks.in_state(RankState.IDLE, RankState.BUSY)
        return RankSet.of(rank for rank in alive if views[rank].look is None)

    def diagnose(self, views: Views, now: float) -> Report:
        """Diagnose the latest cell."""
        report = self._diagnose(views, now_ns=int(now * 1e9), run_id=self.run_id)
        return self._with_facts(report)

    def compare(
        self, views: Views, now: float, *, scope: CompareScope, has_failed: bool = False
    ) -> Report:
        """Compare the operations of the latest cell, which has ended."""
        findings = self._compare(
            views,
            now_ns=int(now * 1e9),
            run_id=self.run_id,
            scope=scope,
            has_failed=has_failed,
        )
        report = Report(run_id=self.run_id, findings=findings)
        return self._with_facts(report)

    def _with_facts(self, report: Report) -> Report:
        """Add the facts that the diagnosis does not know."""
        pool, run = self._pool, self._pool.latest
        if run is not None:
            if self._mismatched_after_interrupt(run):
                report = report.after_interrupt()
            report = report.with_injected(
                run.injected,
                run.left_out,
                run.typed,
                disturbed=run.disturbed,
                only_delays=run.struck_acts <= ONLY_DELAYS,
            )
        if pool.spec.nnodes == 1:
            return report
        by_node = pool.ranks.by_node(range(pool.spec.world_size))
        return report.with_nodes(PoolNodes(by_node, pool.hosts))

    def _mismatched_after_interrupt(self, run: CellRun) -> bool:
        """Whether ranks made a call that does not match, and no rank had raised before.

        Their code may have caught the interrupt long before. A mismatch is raised at its call.
        """
        errors = (each.error for each in self.results.values() if each.error is not None)
        return (
            (run.interrupted or run.timed_out)
            and not run.raised_before
            and any(error.ename == MISMATCH_ERROR for error in errors)
        )

    def sanitized(self, now: float) -> list[Action]:
        """Tell what the sanitizers saw in the latest cell, which has failed, beside its error."""
        sanitizers = (each.sanitizer for each in self.results.values())
        if not any(each and (each.findings or each.reads) for each in sanitizers):
            return []
        views = self.views({}, now)
        report = self.compare(views, now, scope="sanitizer", has_failed=True)
        if not report.findings:
            return []
        return [VerdictReached(self.run_id, report, acted=False, views=views)]

    def answer(self, requested: DiagnoseRequested, now: float) -> list[Action]:
        """Probe the ranks because the user asks."""

        def looked(views: Views, now: float) -> list[Action]:
            alive = self._pool.ranks.in_state(RankState.IDLE, RankState.BUSY)
            if requested.survey:
                silent = self.silent(views)
                then = partial(self._surveyed, requested.number)
                others = alive - silent
                return self.peek(
                    silent, views, now, then, limit_s=_SURVEY_S, glance=others, memory=True
                )[1]
            asked = set(self.silent(views)) | (set(requested.peek) & set(alive))
            asked -= set(self._silent_nodes.ranks)  # their agents would not answer
            then = partial(self._diagnosed, requested.number)
            if not asked:
                return then(views, {}, now)
            native = bool(requested.peek)  # only for %ddp stacks, because py-spy takes a second
            return self.peek(RankSet.of(asked), views, now, then, limit_s=_PEEK_S, native=native)[1]

        ranks = NO_RANKS if self._pool.spec.plain else None  # plain ranks do not answer
        return self.look(now, looked, ranks, last=requested.last, memory=requested.survey)[1]

    def _surveyed(self, number: int, views: Views, answers: Answers, now: float) -> list[Action]:
        return self._answered(number, Report(self.run_id), views, answers)

    def _diagnosed(self, number: int, views: Views, answers: Answers, now: float) -> list[Action]:
        views = self._with_unheard(views, answers)
        return self._answered(number, self.diagnose(views, now), views, answers)

    def _with_unheard(self, views: Views, answers: Answers) -> Views:
        """Return ``views`` with the ranks whose agents, which were asked, do not answer either."""
        return dict(views) | {
            rank: replace(views[rank], unheard=f"the agent of node {node} does not answer either")
            for node, ranks in self._pool.ranks.by_node(self.silent(views)).items()
            for rank in ranks
            if rank not in answers and not views[rank].unheard
        }

    def _answered(
        self, number: int, report: Report, views: Views, answers: Answers
    ) -> list[Action]:
        peeks = {
            rank: answer for rank, answer in answers.items() if isinstance(answer, StackDumped)
        }
        return [
            Diagnosed(
                number=number,
                report=report,
                looks={rank: view.look for rank, view in views.items() if view.look is not None},
                peeks=peeks,
                silent=self.silent(views) - RankSet.of(peeks),
                views=views,
            )
        ]


def _status(info: RankInfo, result: RankResult | None, *, answers: bool) -> RankStatus:
    match info.state:
        case RankState.EXITED:
            return "dead"
        case RankState.STARTING | RankState.ABSENT:
            return "starting"
        case RankState.BUSY:
            return "running" if answers else "silent"
        case RankState.IDLE:
            if not answers:
                return "silent"
            if result is None or result.status not in ("ok", "error"):
                return "idle"
            return "finished" if result.error is None else "raised"


def with_peeks(views: Views, answers: Answers) -> Views:
    """Return ``views`` with the descriptions of agents."""
    described = dict(views)
    for rank, answer in answers.items():
        if isinstance(answer, StackDumped):
            text = answer.native or answer.stack
            described[rank] = replace(
                views[rank],
                operations=answer.operations,
                stack_text=text,
                unheard="",
                is_stopped=answer.process_state == "T",
            )
    return described
