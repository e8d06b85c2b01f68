"""The place of each rank, or how it ended: facts of the wait-for graph, in the form of a finding.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nbddp.controller.diagnosis.control_flow import Sources, no_sources
from nbddp.controller.diagnosis.history import is_local_failure
from nbddp.controller.diagnosis.phrases import (
    CALLED_NONE,
    CALLED_NONE_IN_IT,
    Forms,
    Predicate,
    RankVerb,
    last_operation,
    waits_for,
)
from nbddp.controller.diagnosis.rank_view import RankView, nothing_known
from nbddp.controller.diagnosis.report import GroupRef, PerRank
from nbddp.controller.diagnosis.wait_graph import WaitForGraph, Waiting
from nbddp.errors import COLLECTIVE_ERRORS
from nbddp.wire.flight_recorder import STORE_QUESTIONS, WAITS_FOR_USER, Operation, Site
from nbddp.wire.flight_recorder.matching import MESSAGES
from nbddp.wire.rank_set import NO_RANKS, Rank

_SECOND = 1_000_000_000


_STOPPED = Predicate(RankVerb.IS, " stopped (SIGSTOP)")
_SILENT = Predicate(
    RankVerb.DOES_NOT_ANSWER,
    aside=(
        ": it is stopped, or runs C code that holds the GIL",
        ": they are stopped, or run C code that holds the GIL",
    ),
)


class RankReports:
    """Describes the ranks of one graph.

    Args:
        graph: the ranks at one moment.
        now_ns: `time.monotonic_ns` of the caller, for ranks that did not tell their own time.
        run_id: names the run of the cell.
        sources: the code of the user.
    """

    def __init__(
        self, graph: WaitForGraph, now_ns: int, run_id: str, sources: Sources = no_sources
    ) -> None:
        self.graph = graph
        self.now_ns = now_ns
        self.run_id = run_id
        self.sources = sources
        self._running_ranks: dict[Rank, PerRank] = {}

    def since_s(self, rank: Rank, polled: Operation | None = None) -> float | None:
        """The time in seconds that its main thread, or else another, has waited; None: no wait.

        Args:
            rank: a rank of the graph.
            polled: a question that a loop of the rank asks again and again: no thread waits in it.
        """
        waits = self.graph.waits[rank]
        since_ns = waits[0].since_ns if waits else None
        if polled is not None and polled.signature.op in STORE_QUESTIONS:
            since_ns = polled.time_created_ns
        return None if since_ns is None else max(0, self.time_ns(rank) - since_ns) / _SECOND

    def timeouts(self, waiting: Waiting) -> list[tuple[Operation, int]]:
        """The open operations of a wait that have a timeout, with the time left in milliseconds."""
        now = self.time_ns(waiting.rank)
        timeouts = []
        for operation in waiting.operations:
            if operation.timeout_ms and operation.state == "scheduled":
                # Gloo counts from the call, and for messages from the wait.
                is_message = operation.signature.kind in MESSAGES
                began = waiting.since_ns if is_message else operation.time_created_ns
                left = operation.timeout_ms - (now - began) // 1_000_000
                timeouts.append((operation, max(0, left)))
        return timeouts

    def time_ns(self, rank: Rank) -> int:
        """The time on the rank's own clock: another machine has another clock."""
        look = self.graph.views[rank].look
        return look.time_ns if look is not None and look.time_ns else self.now_ns

    def name(
        self, operation: Operation, *, with_group: bool = True, has_call: bool = True,
        has_members: bool = True, peer: str = "",
    ) -> str:  # fmt: skip
        """``all_reduce #17 of group 'tp' (ranks 0-1)``.

        Args:
            operation: the operation.
            with_group: whether the name has the group, if that is not the default one.
            has_call: see `Operation.label`.
            has_members: whether the group has its members.
            peer: see `Operation.label`.
        """
        group = self._group(operation, has_members=has_members) if with_group else None
        return in_group(operation.label(has_call=has_call, peer=peer), operation, group)

    def said(
        self, rank: Rank, operation: Operation, *, with_group: bool = True, has_call: bool = True,
        has_members: bool = True,
    ) -> str:  # fmt: skip
        """``the 3rd all_reduce (#17) of group 'tp' (ranks 0-1)``: the name in a sentence.

        Args:
            rank: whose calls are counted.
            operation: the operation.
            with_group: see `name`.
            has_call: see `name`.
            has_members: see `name`.
        """
        group = self._group(operation, has_members=has_members) if with_group else None
        ordinal = self.graph.histories[rank].ordinal(operation)
        return in_group(operation.in_words(ordinal, has_call=has_call), operation, group)

    def _in_few_words(self, operation: Operation) -> str:
        """``gradient averaging of group 'tp' (ranks 0-1)``: a name beside the line of the call."""
        group = self._group(operation, has_members=True)
        return in_group(operation.in_words(0, has_call=False), operation, group)

    def _group(self, operation: Operation, *, has_members: bool) -> GroupRef | None:
        group = self.graph.group(operation)
        if group is None or has_members or operation.signature.kind == "creation":
            return group
        return replace(group, ranks=NO_RANKS)

    # --- one rank ------------------------------------------------------------------------------

    def rank(self, rank: Rank, pg_id: str | None = None) -> PerRank:
        """Describe the place of a rank, or how it ended.

        Args:
            rank: a rank of the graph.
            pg_id: for a rank that has ended, name its last operation in this group if it has one.
        """
        view = self.graph.views[rank]
        if view.state != "running":
            return self._described(view, pg_id)
        if rank not in self._running_ranks:
            self._running_ranks[rank] = self._described(view)
        return self._running_ranks[rank]

    def _described(self, view: RankView, pg_id: str | None = None) -> PerRank:
        rank = view.rank
        predicate, site = (
            (Predicate(RankVerb.MAKES_GROUPS), None)
            if view.is_reforming
            else self._predicate(view, pg_id)
        )
        since_s = self.since_s(rank) if view.state == "running" else None
        waits = self.graph.waits[rank]
        stack = waits[0].thread.stack if waits else ()
        waits_at = next((line for line in stack if line.cell), None)
        limit_s = self._limit_s(waits[0], since_s) if waits and since_s is not None else None
        return PerRank(rank, view.state, predicate, site, since_s, waits_at, limit_s=limit_s)

    def _limit_s(self, waiting: Waiting, since_s: float) -> float | None:
        """The longest that a wait for one operation can take; None: it is not known."""
        timeouts = self.timeouts(waiting)
        if len(waiting.operations) != 1 or not timeouts:
            return None
        return since_s + timeouts[0][1] / 1e3

    def _predicate(self, view: RankView, pg_id: str | None) -> tuple[Predicate, Site | None]:
        match view.state:
            case "running":
                return self._running(view)
            case "finished" | "raised" | "dead":
                return self._ended(view, pg_id)
            case "silent":
                newest = self.graph.histories[view.rank].newest(run_id=self.run_id)
                return _silent(view), newest.site if newest is not None else None
            case "idle":
                return self._beside(view)
            case _ if view.exit_text:  # its place is being taken by a fresh process
                return self._ended(view, pg_id)
            case _:
                return Predicate(RankVerb.IS, " starting"), None

    def _running(self, view: RankView) -> tuple[Predicate, Site | None]:
        waits = self.graph.waits[view.rank]
        main = view.look.main if view.look else None
        if waits and (waits[0].thread.is_main or main is None):
            return self._waiting(waits[0])
        if main is None:
            return Predicate(RankVerb.RUNS), None
        site = main.stack[0] if main.stack else None
        if main.innermost in WAITS_FOR_USER:
            return Predicate(RankVerb.IS, f" {WAITS_FOR_USER[main.innermost]}"), site
        if main.importing:  # the user's line, not one of the library
            site = next((line for line in main.stack if line.cell), site)
            return Predicate(RankVerb.IMPORTS, f" {main.importing}"), site
        is_inside = main.innermost and (site is None or main.innermost != site.function)
        return Predicate(RankVerb.RUNS, f", now in {main.innermost}()" if is_inside else ""), site

    def _waiting(self, waiting: Waiting) -> tuple[Predicate, Site | None]:
        """``waits in all_reduce #17``, and the line of the operation."""

        def name(operation: Operation, peer: str) -> str:
            return self.name(operation, has_call=False, peer=peer)

        spoken = self._in_few_words
        needs_all = waiting.needs_all
        predicate = waits_for(waiting.operations, name, needs_all=needs_all, spoken=spoken)
        first = next((each for each in waiting.operations if each.state == "scheduled"), None)
        stack = waiting.thread.stack
        site = first.site if first is not None else None
        if (site is None or not site.line or not waiting.needs_all) and stack:
            site = stack[0]
        if first is not None and site is first.site:
            predicate = replace(predicate, aside=_wait_line(first, stack))
        return predicate, site

    def _ended(self, view: RankView, pg_id: str | None) -> tuple[Predicate, Site | None]:
        """The end of a rank, with its last operation in a group, or else in any."""
        history = self.graph.histories[view.rank]
        last = history.newest(run_id=self.run_id)
        newest = history.newest(pg_id, self.run_id)
        group = None if newest is None else self.graph.group(newest)
        newest = last if newest is None or group is None else newest
        if view.state == "raised":
            before = (
                f", after {self.name(newest, has_call=False)}"
                if newest
                else ", before any collective of this cell"
            )
            error = view.error
            site = (error and error.site) or (newest.site if newest else None)
            if view.has_left_debugger:
                return Predicate(RankVerb.LEFT_DEBUGGER, before), site
            error_text = "an error" if error is None else error.summary
            if error is not None and error.name in COLLECTIVE_ERRORS:
                error_text = error.name  # its message repeats the headline
            return Predicate(RankVerb.RAISED, f" {error_text}{before}"), site
        ended = Predicate(RankVerb.HAS_FINISHED)
        if view.state == "dead" or view.exit_text:
            ended = Predicate.of_end(view.exit_phrase)
        if newest is None and view.lost_agent:  # its records are not known
            return ended, None
        if newest is None:
            names_cell = ended.verb is RankVerb.HAS_FINISHED
            none = CALLED_NONE_IN_IT if names_cell else CALLED_NONE
            return replace(ended, rest=f"{ended.rest}{none}"), None
        name = self.name(newest, has_call=False)
        aside = last_operation(name)
        if newest is not last and group is not None:
            name_in = self.name(newest, with_group=False, has_call=False)
            aside = last_operation(name_in, group.label)
        if newest.state == "failed" and not is_local_failure(newest):
            aside = f"; its {name} failed", f"; their {name} failed"
        return replace(ended, aside=aside), newest.site

    def _beside(self, view: RankView) -> tuple[Predicate, Site | None]:
        waits = self.graph.waits[view.rank]
        if view.is_fresh:
            return Predicate(RankVerb.IS_FRESH), None
        if not waits:
            return Predicate(RankVerb.TAKES_NO_PART), None
        wait, site = self._waiting(waits[0])
        aside = f"; a thread of it waits{wait.rest}", f"; threads of them wait{wait.rest}"
        return Predicate(RankVerb.TAKES_NO_PART, aside=aside), site

    def ranks(self, ranks: Iterable[Rank], pg_id: str | None = None) -> dict[Rank, PerRank]:
        """Describe several ranks, in order, as `rank` does; ranks without a view are left out."""
        known = sorted(set(ranks) & set(self.graph.views))
        return {rank: self.rank(rank, pg_id) for rank in known}


def _silent(view: RankView) -> Predicate:
    if view.unheard:
        return Predicate(RankVerb.DOES_NOT_ANSWER, aside=nothing_known(view))
    return _STOPPED if view.is_stopped else _SILENT


def _wait_line(operation: Operation, stack: Sequence[Site]) -> Forms:
    """`` (wait() in line 6)``, of an operation that another line of a cell has begun; or empty."""
    at = next((line for line in stack if line.cell), None)
    if at is None or at.position == operation.site.position:
        return "", ""
    if not operation.async_op or ".wait(" not in at.source:
        return "", ""
    where = "" if at.cell == operation.site.cell else f" of cell [{at.cell}]"
    text = f" (wait() in line {at.line}{where})"
    return text, text


def in_group(name: str, operation: Operation, group: GroupRef | None) -> str:
    """``all_reduce #17 of group 'tp' (ranks 0-1)``: the name of an operation, with its group.

    Args:
        name: of the operation.
        operation: the operation.
        group: its group; None: it is not named.
    """
    if operation.signature.kind == "creation":
        return f"{name} for {group.ranks.describe()}" if group and group.ranks else name
    if group is None or group.is_default:
        return name
    return f"{name} of {group.label}"
