"""Puts causes into words: a headline, the reason, and the next step.

Runs in: the notebook's process. Pure.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from nbddp.controller.diagnosis import group_numbers
from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.divergence import (
    differing_branches,
    is_of_ranks,
    missing_calls,
    skipped_iterations,
)
from nbddp.controller.diagnosis.divergence_phrases import (
    differing_excerpt,
    differing_lines,
    excerpt,
    skipped_step,
)
from nbddp.controller.diagnosis.divergence_phrases import next_step as divergence_step
from nbddp.controller.diagnosis.notices import describe_activity, describe_running, waits_for_user
from nbddp.controller.diagnosis.padded_tensors import advice, padded
from nbddp.controller.diagnosis.phrases import Predicate, RankVerb, describe_call, subject
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.report import ChangedLine, CodeChange, CodeLine, Finding, PerRank
from nbddp.controller.diagnosis.shifted_loops import ShiftedLoop
from nbddp.controller.diagnosis.suggested_change import in_two_orders, moved_out
from nbddp.controller.diagnosis.suspicions import AFTER_INTERRUPT, suspicions, was_interrupted
from nbddp.controller.diagnosis.uneven_loops import even_loop
from nbddp.controller.diagnosis.wait_graph import Disagreement
from nbddp.wire.flight_recorder import Operation, Site, group_name_of
from nbddp.wire.rank_set import Rank, RankSet

#: The words in which Gloo, the store and ``monitored_barrier`` report an expired timeout.
_TIMED_OUT = re.compile(r"time[d -]*out", re.IGNORECASE)
#: Sets of ranks in different iterations in a sentence.
_MAX_CLUSTERS = 3
#: Ranks of a circle in a sentence.
_MAX_CIRCLE = 8


def write_finding(cause: Cause, reports: RankReports) -> Finding:
    """Return the finding that reports a cause."""
    operation = cause.operation
    group = reports.group(operation) if operation else None
    writer = _FindingWriter(cause, reports)
    headline, reason, next_step = writer.write()
    members = group.ranks if group and cause.kind != "dead-rank" else RankSet()
    concerned = {*cause.culprits, *cause.waiting, *members}
    if cause.disagreement is not None:
        concerned.update(cause.disagreement.operation_by_rank)
    waits = [reports.since_s(rank) for rank in cause.waiting]
    has_errors = cause.disagreement is not None and bool(cause.disagreement.differences.hard)
    return Finding(
        kind=cause.kind,
        proven=cause.proven,
        culprits=cause.culprits,
        waiting=cause.waiting,
        headline=headline,
        reason=reason,
        next_step=next_step,
        group=group,
        op=operation.signature.op if operation else "",
        collective_seq_id=operation.collective_seq_id if operation else 0,
        fields=cause.disagreement.differences.all if cause.disagreement else (),
        suspicions=suspicions(cause, reports, writer.places),
        ranks=reports.ranks(concerned, operation.pg_id if operation else None)
        | (_calls(cause.disagreement, reports) if cause.disagreement is not None else {})
        | (_iterations(cause.shifted, reports) if cause.shifted is not None else {}),
        since_s=max((wait for wait in waits if wait is not None), default=None),
        is_error=cause.kind == "silent-mismatch" and cause.proven and has_errors,
        code=tuple(writer.code()),
        change=writer.change(),
    )


def _calls(disagreement: Disagreement, reports: RankReports) -> dict[Rank, PerRank]:
    """The calls that do not match: whether a rank waits in its call, or has raised, is luck."""
    fields = disagreement.differences.reported
    return {
        rank: replace(
            reports.rank(rank),
            predicate=Predicate(RankVerb.CALLED, f" {describe_call(operation.signature, fields)}"),
            site=operation.site,
            since_s=None,
        )
        for rank, operation in disagreement.operation_by_rank.items()
        if rank in reports.graph.views
    }


def _iterations(loop: ShiftedLoop, reports: RankReports) -> dict[Rank, PerRank]:
    """The iterations in which ranks made the call."""
    return {
        rank: replace(
            reports.rank(rank),
            predicate=Predicate(
                RankVerb.CALLED, f" {operation.label()} at {_iteration(operation, loop.names)}"
            ),
            site=operation.site,
            since_s=None,
        )
        for rank, operation in loop.operation_by_rank.items()
        if rank in reports.graph.views
    }


def _iteration(operation: Operation, names: Iterable[str]) -> str:
    """``epoch 0, step 3`` or ``i = 3``: of the variables that differ."""
    return ", ".join(str(each) for each in operation.iteration if each.name in names)


def _change(site: Site, lines: tuple[ChangedLine, ...]) -> CodeChange | None:
    return CodeChange(site.cell, site.file, lines) if lines else None


class _FindingWriter:
    """Writes the sentences about one cause."""

    def __init__(self, cause: Cause, reports: RankReports) -> None:
        self.cause = cause
        self.reports = reports
        self.culprits = cause.culprits
        self.waiting = cause.waiting
        self.pg_id = cause.operation.pg_id if cause.operation else None
        by_interrupt = was_interrupted(cause, reports)
        is_missing = cause.kind == "missing-rank" and cause.proven and not by_interrupt
        #: Why culprits have not come to the lines where ranks wait.
        self.places = missing_calls(cause, reports.graph, reports.sources) if is_missing else []
        #: Ranks that made different calls at different lines, and why.
        self.branches = (
            differing_branches(cause.disagreement, reports.sources)
            if cause.disagreement is not None and not by_interrupt
            else []
        )

    def write(self) -> tuple[str, str, str]:
        """Return the headline, the reason and the next step."""
        writers = {
            "dead-rank": self._dead,
            "first-error": self._first_error,
            "mismatched-collective": self._mismatched,
            "p2p-cycle": self._cycle,
            "group-cycle": self._cycle,
            "p2p-unmatched": self._unmatched,
            "store-wait": self._store_wait,
            "missing-rank": self._missing,
            "left-debugger": self._left_debugger,
            "straggler": self._notice,
            "stuck-outside": self._notice,
            "silent-mismatch": self._silent,
            "desynchronized-loop": self._shifted,
        }
        return writers[self.cause.kind]()

    def code(self) -> list[CodeLine]:
        """Return the lines of code that explain the finding."""
        operation = self.cause.operation
        if self.places and operation is not None:
            return excerpt(self.places, operation, self.reports.sources)
        return differing_excerpt(self.branches)

    def change(self) -> CodeChange | None:  # noqa: PLR0911 - one for each kind of change
        """Return the change of the code that the next step describes."""
        if self.cause.kind == "p2p-cycle":
            return self._other_order()
        if self.cause.disagreement is not None:
            return self._padded(self.cause.disagreement)
        if len(self.places) != 1:
            return None
        ((_, divergence),) = self.places
        branches, site = divergence.branches, divergence.site
        if not branches:
            return even_loop(divergence, self.reports.sources, len(self.reports.graph.views))
        if divergence.exits or divergence.is_extra or len(branches) != 1:
            return None
        if branches[0].kind != "condition" or not is_of_ranks(branches[0]):
            return None
        return _change(site, moved_out(divergence.code, site.line))

    def _padded(self, disagreement: Disagreement) -> CodeChange | None:
        site = self._some(disagreement).site
        code = self.reports.sources(site) if self.cause.kind == "mismatched-collective" else None
        return None if code is None else _change(site, padded(disagreement, code))

    def _other_order(self) -> CodeChange | None:
        """Let every second rank of a circle send first, where all receive first."""
        circle = self.cause.circle
        sites = {operation.site for _, operation, _ in circle}
        site = next(iter(sites))
        code = self.reports.sources(site)
        if len(sites) > 1 or code is None or self._has_other_ends():
            return None
        is_even = all((rank + operation.peer) % 2 for rank, operation, _ in circle) and all(
            sum(ranks) % 2 for ranks in self.cause.alike if len(ranks) == 2
        )
        is_predefined = site.cell and site.function == "<module>"
        name = "rank" if is_predefined else "dist.get_rank()"
        if is_even:
            condition = f"{name} % 2 == 0"
        elif not self.cause.alike:
            condition = f"{name} == {min(rank for rank, *_ in circle)}"
        else:
            return None
        return _change(site, in_two_orders(code, site.line, condition))

    def _name(self) -> str:
        return self.reports.name(self.cause.operation) if self.cause.operation else "an operation"

    def _they_wait(self) -> str:
        """``ranks 0-1 wait in all_reduce #17``."""
        ranks = self.cause.direct or self.waiting
        if not ranks:
            return ""
        waits, them = ranks.verb("waits", "wait"), self.culprits.verb("it", "them")
        return f"{ranks.describe()} {waits} for {them} in {self._name()}"

    def _in_turn(self) -> str:
        """A sentence on the ranks that wait for the waiting ranks."""
        others = self.waiting - self.cause.direct - self.culprits
        if not others or not self.cause.direct:
            return ""
        waits = others.verb("waits", "wait")
        return f" {subject(others)} {waits} for {self.cause.direct.describe()} in turn."

    # --- ranks that are gone -------------------------------------------------------------------

    def _dead(self) -> tuple[str, str, str]:
        exits = [
            f"rank {rank}: {text}"
            for rank in self.culprits
            if (text := self.reports.graph.views[rank].exit_text)
        ]
        exit_phrase = f"exited ({'; '.join(exits)})" if exits else "exited"
        if len(self.culprits) == 1:
            exit_phrase = self.reports.graph.views[self.culprits.ranks[0]].exit_phrase
        they_wait = self._they_wait()
        headline = f"{subject(self.culprits)} {exit_phrase}"
        if they_wait:
            headline += f"; {they_wait}"
        return (
            f"{headline}.",
            f"{self.culprits.verb('its process has', 'their processes have')} ended."
            f"{self._in_turn()}",
            "Look for the reason in its last output; the others keep their variables.",
        )

    def _first_error(self) -> tuple[str, str, str]:
        first = self.culprits.ranks[0]
        view = self.reports.graph.views[first]
        others = "" if len(self.culprits) == 1 else f" (and {len(self.culprits) - 1} more raised)"
        step = f"Fix the error on {self.culprits.describe()}; the others only waited for it."
        if view.error is not None and _TIMED_OUT.search(view.error.summary):
            step = (
                f"Look for what {self.culprits.describe()} waited for: "
                f"{self.culprits.verb('its', 'their')} timeout expired first."
            )
        return (
            f"Rank {first} {view.raise_phrase}{others}; {self._they_wait()}.",
            f"{self.culprits.describe()} {self.culprits.verb('has', 'have')} left the cell and "
            f"can no longer take part.{self._in_turn()}",
            step,
        )

    def _left_debugger(self) -> tuple[str, str, str]:
        return (
            f"{subject(self.culprits)} left the debugger; {self._they_wait()}.",
            f"{self.culprits.verb('it has', 'they have')} left the cell and can no longer take "
            f"part.{self._in_turn()}",
            "",
        )

    # --- disagreements -------------------------------------------------------------------------

    def _mismatched(self) -> tuple[str, str, str]:
        disagreement = self._disagreement()
        headline = f"{self._variants(disagreement)}, as {self._number(disagreement)}."
        reason = "these calls belong together and do not match, so they can never complete."
        if not disagreement.differences.blocking:
            reason = (
                "these calls belong together and do not match, so their results would be wrong; "
                "nothing was sent."
            )
        behind = self.waiting - RankSet.of(disagreement.operation_by_rank)
        if behind:
            reason += f" {subject(behind)} {behind.verb('is', 'are')} blocked because of it."
        if was_interrupted(self.cause, self.reports):
            return headline, reason, AFTER_INTERRUPT
        step = f"{_agree(disagreement)} {differing_lines(self.branches)}"
        return headline, reason, step.rstrip()

    def _silent(self) -> tuple[str, str, str]:
        disagreement = self.cause.disagreement
        if disagreement is None:
            return self._dangling()
        headline = (
            f"{self._variants(disagreement)}, as {self._number(disagreement)}; "
            "that does not hang, but the results are not what was meant."
        )
        return (
            headline,
            "the records of the ranks differ.",
            f"{_agree(disagreement)} Do not trust what came out.",
        )

    def _shifted(self) -> tuple[str, str, str]:
        """Ranks that called a collective in different iterations of a loop."""
        loop = self.cause.shifted
        assert loop is not None  # noqa: S101 - each cause of this kind has one
        by_size = list(loop.clusters)
        if loop.has_majority:
            by_size = [*by_size[1:], by_size[0]]
        parts = [
            f"{ranks.describe()} {'was' if len(ranks) == 1 else 'were'} at "
            f"{_iteration(loop.operation_by_rank[ranks.ranks[0]], loop.names)}"
            for ranks in by_size[:_MAX_CLUSTERS]
        ]
        if len(by_size) > _MAX_CLUSTERS:
            parts[-1] = "others at other iterations"
        elif len(by_size) == 2 and len(by_size[1]) > 1:
            iteration = _iteration(loop.operation, loop.names)
            parts[1] = f"the others at {iteration}"
        since = "Since" if loop.lasts and loop.is_first else "In"
        since = since if loop.is_first or not loop.lasts else "At the latest since"
        mixed = "the results since then are mixed" if loop.lasts else "its result is mixed"
        ahead, size = loop.ahead, len(self.reports.graph.views)
        skipped = skipped_iterations(loop.operation.site, ahead, size, self.reports.sources)
        return (
            f"{since} {self._name()}, {', '.join(parts)}: {mixed}.",
            "the ranks called it at the same line, in different iterations of the loop.",
            skipped_step(skipped, ahead),
        )

    def _disagreement(self) -> Disagreement:
        assert self.cause.disagreement is not None  # noqa: S101 - each mismatch has one
        return self.cause.disagreement

    def _number(self, disagreement: Disagreement) -> str:
        """``collective #17 of the default group``."""
        operation = self._some(disagreement)
        group = self.reports.group(operation)
        of_group = f" of {group.label}" if group else ""
        if operation.signature.kind == "collective":
            return f"collective #{operation.collective_seq_id}{of_group}"
        return f"the two ends of message #{operation.p2p_seq_id}{of_group}"

    def _some(self, disagreement: Disagreement) -> Operation:
        return next(iter(disagreement.operation_by_rank.values()))

    def _variants(self, disagreement: Disagreement) -> str:
        """``Rank 2 called broadcast, ranks 0-1 called all_reduce``, the culprits first."""
        fields = disagreement.differences.reported
        ranks_by_text: dict[str, list[int]] = {}
        for rank, operation in disagreement.operation_by_rank.items():
            text = describe_call(operation.signature, fields)
            ranks_by_text.setdefault(text, []).append(rank)
        variants = sorted(
            ((RankSet.of(ranks), text) for text, ranks in ranks_by_text.items()),
            key=lambda pair: (not set(pair[0]) <= set(self.culprits), pair[0].ranks),
        )
        parts = [f"{ranks.describe()} called {text}" for ranks, text in variants[:4]]
        if len(variants) > 4:
            parts.append("others something else")
        sentence = ", ".join(parts)
        return sentence[0].upper() + sentence[1:]

    def _dangling(self) -> tuple[str, str, str]:
        """An operation that was left open."""
        return (
            f"{self._name()[0].upper()}{self._name()[1:]} was called by "
            f"{self.waiting.describe()}, and never by {self.culprits.describe()}.",
            "all ranks have ended their cells, and this was left open.",
            "Call it on all ranks, and wait for asynchronous operations: the next operation of "
            "this group would match the wrong one.",
        )

    # --- cycles --------------------------------------------------------------------------------

    def _cycle(self) -> tuple[str, str, str]:
        circle = self.cause.circle
        if self.cause.kind == "p2p-cycle":
            problem, step = self._message_cycle()
        else:
            problem = "each is in a collective of another group"
            step = "Call the groups in the same order on all ranks that are members of several."
        parts = [
            f"rank {rank} {self._waits_for(each, ranks)}"
            for rank, each, ranks in circle[:_MAX_CIRCLE]
        ]
        if len(circle) > _MAX_CIRCLE:
            parts.append(f"and {len(circle) - _MAX_CIRCLE} more")
        reason = ", ".join(parts)
        if self.cause.alike:
            others = ", ".join(" and ".join(map(str, ranks)) for ranks in self.cause.alike)
            reason += f"; so do ranks {others}"
        where = "" if len(circle) == 2 else " in a circle"
        if self.cause.alike:
            count = 1 + len(self.cause.alike)
            where = f" in {count} {'pairs' if len(circle) == 2 else 'circles'}"
        headline = f"{subject(self.culprits)} wait for each other{where}: {problem}."
        return headline, f"{reason}.{self._behind_circle()}", step

    def _message_cycle(self) -> tuple[str, str]:
        """The problem of messages in a circle, and the next step."""
        operations = [operation for _, operation, _ in self.cause.circle]
        kinds = {operation.signature.kind for operation in operations}
        if self._has_other_ends():
            return (
                "each has sends and receives, and they do not match each other",
                "Give each send its recv: same two ranks, same group, same tag, same order.",
            )
        problem = "each would do its part for another one only afterwards"
        if len(kinds) == 1:
            does, other = ("send", "receives") if "send" in kinds else ("receive", "sends")
            all_of_them = "all" if len(operations) > 2 or self.cause.alike else "both"
            problem = f"{all_of_them} {does} first, and nobody {other}"
        sources = [operation.site.source for operation in operations]
        if any("isend" in source or "irecv" in source for source in sources):
            return problem, "Issue every isend and irecv of a step before the first wait()."
        first = "send" if kinds == {"recv"} else "receive"
        return problem, (
            f"Let one side {first} first, for example the even ranks, or use isend/irecv and wait "
            "afterwards (batch_isend_irecv issues both at once)."
        )

    def _has_other_ends(self) -> bool:
        """Whether each rank of the circle has open sends and receives, which do not match."""
        for rank, waited, _ in self.cause.circle:
            wanted = "recv" if waited.signature.kind == "send" else "send"
            operations = self.reports.graph.histories[rank].operations.values()
            if not any(o.signature.kind == wanted and o.state == "scheduled" for o in operations):
                return False
        return True

    def _waits_for(self, operation: Operation, ranks: RankSet) -> str:
        whom = f" for {ranks.describe()}" if operation.signature.kind == "collective" else ""
        return f"waits in {self.reports.name(operation)}{whom}"

    def _behind_circle(self) -> str:
        others = self.waiting - self.culprits
        if not others:
            return ""
        return f" {subject(others)} {others.verb('waits', 'wait')} for these in turn."

    # --- ranks and messages that never come ----------------------------------------------------

    def _unmatched(self) -> tuple[str, str, str]:
        operation = self.cause.operation
        is_send = operation is not None and operation.signature.kind == "send"
        partners = self.culprits - RankSet.of([self.cause.owner]) or self.culprits
        does = partners.verb("receives", "receive") if is_send else partners.verb("sends", "send")
        headline = (
            f"Rank {self.cause.owner} waits in {self._name()}, and {partners.describe()} never "
            f"{does} it"
        )
        if len(partners) == 1:
            now = self.reports.rank(partners.ranks[0]).predicate.main_clause()
            headline += f": rank {partners} {now}"
        return (
            f"{headline}.",
            "no rank has called the other end of this message, and none can call it now."
            f"{self._in_turn()}",
            "Give each send its recv: same two ranks, same group, same tag, same order.",
        )

    def _different_groups(self, operation: Operation) -> tuple[str, str, str]:
        """Ranks that make groups, and most of them do not make the same one."""
        ranks_by_name: dict[str, list[int]] = {}
        for rank, waited, _ in self.cause.circle:
            name = self.reports.name(waited)
            if waited.signature.kind == "creation":
                # Torch counts the groups of each rank: the numbers show which rank has made more.
                name += f" as group {group_name_of(waited.pg_id)!r}"
            ranks_by_name.setdefault(name, []).append(rank)
        parts = [f"{RankSet.of(ranks).describe()} in {n}" for n, ranks in ranks_by_name.items()]
        action = "make different groups" if len(ranks_by_name) > 1 else "make a group"
        return (
            f"{subject(self.culprits)} {action} and wait for each other: {', '.join(parts)}.",
            "a group is made by all of its members, and these can no longer take part."
            f"{self._in_turn()}",
            f"Call {operation.signature.op} on all ranks, in the same order, with the same ranks; "
            "also on ranks that are no members.",
        )

    def _store_wait(self) -> tuple[str, str, str]:
        operation = self.cause.operation
        ranks = self.cause.direct or self.waiting
        waits = f"{subject(ranks)} {ranks.verb('waits', 'wait')}"
        if operation is not None and operation.signature.kind == "creation":
            return self._creation_wait(operation, waits)
        if self.cause.proven and operation is not None and operation.is_rendezvous:
            missing = operation.signature.keys[0]
            return (
                f"{waits} in init_process_group for {missing}, which can no longer join.",
                f"every rank of the pool is blocked, or has ended the cell.{self._in_turn()}",
                "Call init_process_group on all ranks, with the number of ranks as world_size and "
                "each rank once.",
            )
        if self.cause.proven:
            return (
                f"{waits} in {self._name()}, and no rank is left that could set it.",
                "every rank of the pool is blocked, or has ended the cell; only a process outside "
                f"of the pool could still set it.{self._in_turn()}",
                "Set the key on some rank before another one waits for it.",
            )
        return (
            f"{waits} in {self._name()}; nobody has set it yet.",
            f"it may still be set by {describe_running(self.reports.graph)}.",
            "Wait, or interrupt the cell.",
        )

    def _creation_wait(self, operation: Operation, waits: str) -> tuple[str, str, str]:
        """Ranks that make a group, and not all of its members do."""
        ranks = self.cause.direct or self.waiting
        if set(self.cause.direct) & set(self.culprits):
            return self._different_groups(operation)
        if not self.culprits:
            return (
                f"{waits} in {self._name()} for other members, and no rank is left that could "
                "be one.",
                "every rank of the pool is blocked, or has ended the cell; only a process "
                f"outside of the pool could still come.{self._in_turn()}",
                f"Call {operation.signature.op} on as many ranks as world_size says.",
            )
        if sentences := group_numbers.sentences(self.cause, operation, self.reports):
            headline, reason, step = sentences
            return headline, f"{reason}{self._in_turn()}", step
        return (
            f"{self._name()} was never called by {self.culprits.describe()}; "
            f"{ranks.describe()} {ranks.verb('waits', 'wait')} for that.",
            "a group is made by all of its members, and these can no longer take part."
            f"{self._in_turn()}",
            f"Call {operation.signature.op} on all ranks, in the same order.",
        )

    def _missing(self) -> tuple[str, str, str]:
        group = self.reports.group(self.cause.operation) if self.cause.operation else None
        ranks = self.cause.direct
        headline = (
            f"{subject(self.culprits)} never called {self._name()}; {ranks.describe()} "
            f"{ranks.verb('waits', 'wait')} for {self.culprits.verb('it', 'them')}."
        )
        every = f"every member of {group.label}" if group else "every member"
        step = (
            "Call it on all ranks of the group: look for an `if`, a `break`, or a loop with "
            "a different number of iterations around it."
        )
        if self.places and self.cause.operation is not None:
            step = divergence_step(self.places, self.cause.operation, self.culprits)
        elif all(self.reports.graph.views[rank].state == "idle" for rank in self.culprits):
            where = f"No cell runs on {self.culprits.describe()}"
            step = f"{where}: call it in a cell of all ranks of the group, one without -r."
        return (
            headline,
            f"a collective needs {every}, and {self.culprits.describe()} can no longer call it."
            f"{self._in_turn()}",
            step,
        )

    # --- notices -------------------------------------------------------------------------------

    def _notice(self) -> tuple[str, str, str]:
        if not self.culprits:
            return (
                f"All ranks have come to {self._name()}, and it is not over yet.",
                "nothing is missing: much data, or a slow or broken connection.",
                "Wait, or interrupt the cell.",
            )
        they = f"{subject(self.waiting)} {self.waiting.verb('waits', 'wait')} in {self._name()}"
        operation = self.cause.operation
        peers = () if operation is None else (operation.peer,)
        if self.culprits.ranks != peers:  # else "recv from rank 1" has named it
            they += f" for {self.culprits.describe()}"
        places = {waits_for_user(self.reports.graph.views[rank]) for rank in self.culprits}
        if "" not in places:
            return (
                f"{they}, {' or '.join(sorted(places))}.",
                f"{self.culprits.verb('it goes', 'they go')} on when you say so.",
                "Answer, or continue in the debugger; an interrupt ends the cell and keeps the "
                "variables.",
            )
        views = [self.reports.graph.views[rank] for rank in self.culprits]
        state = describe_activity(views, is_outside=self.cause.kind == "stuck-outside")
        can = "it may still come" if len(self.culprits) == 1 else "they may still come"
        return (
            f"{they}, {state}.",
            f"{can}.",
            "Wait; `%ddp stacks` shows where every rank is; an interrupt ends the cell and keeps "
            "the variables.",
        )


_HUMAN_FIELDS: Mapping[str, str] = {
    "input_dtypes": "dtype",
    "input_sizes": "shape",
    "input_splits": "split sizes",
    "output_dtypes": "dtype",
    "output_sizes": "shape",
    "output_splits": "split sizes",
    "reduce_op": "ReduceOp",
    "root": "root",
    "tensors": "number of tensors",
}


def _agree(disagreement: Disagreement) -> str:
    """The next step after a mismatch."""
    fields = disagreement.differences.reported
    if "op" in fields:
        return "Call the same operations in the same order on all ranks of the group."
    names = list(dict.fromkeys(_HUMAN_FIELDS.get(name, name) for name in fields))
    if "split sizes" in names:
        return "A rank must expect from each other rank what that one sends: compare the splits."
    step = f"Use the same {' and '.join(names)} on all ranks of the group"
    sites = (each.site for each in disagreement.operation_by_rank.values())
    lines = {site.position for site in sites if site.line}
    if len(lines) > 1:
        return f"{step}, or, if each line is right, call them in the same order."
    return f"{step}. {advice(disagreement)}".rstrip()
