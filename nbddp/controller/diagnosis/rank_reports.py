"""Where each rank is, or where it ended: facts of the wait-for graph, as a finding tells them.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Iterable
from dataclasses import replace

from nbddp.controller.diagnosis.phrases import Doing, Predicate
from nbddp.controller.diagnosis.rank_view import RankView, is_stumble
from nbddp.controller.diagnosis.report import GroupRef, PerRank
from nbddp.controller.diagnosis.wait_graph import WaitFor, Waiting
from nbddp.errors import COLLECTIVE_ERRORS
from nbddp.wire.flight_recorder.schema import WAITS_FOR_USER, Operation, Site
from nbddp.wire.rank_set import Rank

_SECOND = 1_000_000_000


_STOPPED = Predicate(Doing.IS, " stopped (SIGSTOP)")
_SILENT = Predicate(
    Doing.DOES_NOT_ANSWER,
    aside=(
        ": it is stopped, or runs C code that holds the GIL",
        ": they are stopped, or run C code that holds the GIL",
    ),
)


class RankReports:
    """Tells of the ranks of one graph.

    Args:
        graph: what is told of.
        now_ns: for waits of ranks that did not tell their own time.
        run_id: of the cell.
    """

    def __init__(self, graph: WaitFor, now_ns: int, run_id: str) -> None:
        self.graph = graph
        self.now_ns = now_ns
        self.run_id = run_id

    def since_s(self, rank: Rank) -> float | None:
        """How long its main thread, or else another one, has been waiting."""
        waits = self.graph.waits[rank]
        if not waits:
            return None
        return max(0, self.time_ns(rank) - waits[0].since_ns) / _SECOND

    def time_ns(self, rank: Rank) -> int:
        """The rank's clock: that of another machine is not ours."""
        look = self.graph.views[rank].look
        return look.time_ns if look is not None and look.time_ns else self.now_ns

    def group(self, operation: Operation) -> GroupRef | None:
        """The group of an operation."""
        return self.graph.group(operation)

    def name(self, operation: Operation, *, with_group: bool = True) -> str:
        """``all_reduce #17 of group 'tp' (ranks 0-1)``."""
        text = operation.label()
        group = self.group(operation) if with_group else None
        if operation.signature.kind == "creation":
            return f"{text} for {group.ranks.describe()}" if group and group.ranks else text
        return f"{text} of {group.label}" if group and group.desc != "default_pg" else text

    # --- one rank ------------------------------------------------------------------------------

    def rank(self, rank: Rank, pg_id: str | None = None) -> PerRank:
        """Where a rank is, or where it ended in a group."""
        view = self.graph.views[rank]
        predicate, site = self._predicate(view, pg_id)
        since_s = self.since_s(rank) if view.state == "running" else None
        waits = self.graph.waits[rank]
        stack = waits[0].thread.stack if waits else ()
        waits_at = next((line for line in stack if line.cell), None)
        return PerRank(rank, view.state, predicate, site, since_s, waits_at)

    def _predicate(self, view: RankView, pg_id: str | None) -> tuple[Predicate, Site | None]:
        match view.state:
            case "running":
                return self._running(view)
            case "finished" | "raised" | "dead":
                return self._ended(view, pg_id)
            case "silent":
                operation = self.graph.histories[view.rank].newest(run_id=self.run_id)
                site = operation.site if operation is not None else None
                return _STOPPED if view.is_stopped else _SILENT, site
            case "idle":
                return self._beside(view)
            case _:
                return Predicate(Doing.IS, " starting"), None

    def _running(self, view: RankView) -> tuple[Predicate, Site | None]:
        waits = self.graph.waits[view.rank]
        main = view.look.main if view.look else None
        if waits and (waits[0].thread.is_main or main is None):
            how, site = self._waiting(waits[0])
            return Predicate(Doing.WAITS, f" {how}"), site
        if main is None:
            return Predicate(Doing.RUNS), None
        site = main.stack[0] if main.stack else None
        if main.innermost in WAITS_FOR_USER:
            return Predicate(Doing.IS, f" {WAITS_FOR_USER[main.innermost]}"), site
        is_inside = main.innermost and (site is None or main.innermost != site.function)
        return Predicate(Doing.RUNS, f", now in {main.innermost}()" if is_inside else ""), site

    def _waiting(self, waiting: Waiting) -> tuple[str, Site | None]:
        """``in all_reduce #17``, and the line."""
        operations = [each for each in waiting.operations if each.state == "scheduled"]
        names = ", ".join(self.name(each) for each in operations[:3]) or "an operation"
        if len(operations) > 3:
            names += f" and {len(operations) - 3} more"
        how = "in" if len(operations) < 2 else "for"
        if not waiting.needs_all:
            how = "inside torch for"
        stack = waiting.thread.stack
        site = operations[0].site if operations else None
        if (site is None or not site.line or not waiting.needs_all) and stack:
            site = stack[0]
        return f"{how} {names}", site

    def _ended(self, view: RankView, pg_id: str | None) -> tuple[Predicate, Site | None]:
        """With the last thing that it did in a group, or at all."""
        history = self.graph.histories[view.rank]
        newest = history.newest(pg_id, self.run_id) or history.newest(run_id=self.run_id)
        if view.state == "raised":
            before = f", after {self.name(newest)}" if newest else ", before any operation"
            error = view.error
            site = (error and error.site) or (newest.site if newest else None)
            if view.has_left_debugger:
                return Predicate(Doing.LEFT_DEBUGGER, before), site
            told = "an error" if error is None else error.summary
            if error is not None and error.name in COLLECTIVE_ERRORS:
                told = error.name  # what it says stands above
            return Predicate(Doing.RAISED, f" {told}{before}"), site
        gone = Predicate(Doing.HAS_FINISHED)
        if view.state == "dead":
            gone = Predicate(Doing.NOT_SAID, view.how_it_exited)
        if newest is None:
            return replace(gone, rest=f"{gone.rest} without an operation"), None
        name = self.name(newest)
        aside = f"; its last operation was {name}", f"; their last operation was {name}"
        if newest.state == "failed" and not is_stumble(newest):
            aside = f"; its {name} failed", f"; their {name} failed"
        return replace(gone, aside=aside), newest.site

    def _beside(self, view: RankView) -> tuple[Predicate, Site | None]:
        waits = self.graph.waits[view.rank]
        if not waits:
            return Predicate(Doing.TAKES_NO_PART), None
        how, site = self._waiting(waits[0])
        aside = f"; a thread of it waits {how}", f"; threads of them wait {how}"
        return Predicate(Doing.TAKES_NO_PART, aside=aside), site

    def ranks(self, ranks: Iterable[Rank], pg_id: str | None = None) -> dict[Rank, PerRank]:
        """Several of them, in order."""
        known = sorted(set(ranks) & set(self.graph.views))
        return {rank: self.rank(rank, pg_id) for rank in known}
