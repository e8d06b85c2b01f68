"""Names of operations, ranks and places, as the diagnosis puts them into sentences.

Runs in: the notebook's process. Pure.
"""

import re
from collections.abc import Iterable, Mapping

from nbddp.controller.diagnosis.rank_view import RankView, is_stumble
from nbddp.controller.diagnosis.report import GroupRef, PerRank, place
from nbddp.controller.diagnosis.wait_graph import WaitFor, Waiting
from nbddp.wire.flight_recorder.schema import (
    WAITS_FOR_USER,
    ExceptionLine,
    Operation,
    Signature,
    Site,
)
from nbddp.wire.rank_set import Rank, RankSet

_SECOND = 1_000_000_000
_FIRST_WORD = re.compile(r"^\w+")
_PLURAL = {
    "waits": "wait",
    "is": "are",
    "has": "have",
    "was": "were",
    "does": "do",
    "runs": "run",
    "takes": "take",
}


class Phrases:
    """Speaks about the ranks of one graph.

    Args:
        graph: what is spoken about.
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
        what, site = self._what(view, pg_id)
        since_s = self.since_s(rank) if view.state == "running" else None
        waits = self.graph.waits[rank]
        stack = waits[0].thread.stack if waits else ()
        waits_at = next((line for line in stack if line.cell), None)
        return PerRank(rank, view.state, what, site, since_s, waits_at)

    def _what(self, view: RankView, pg_id: str | None) -> tuple[str, Site | None]:
        match view.state:
            case "running":
                return self._running(view)
            case "finished" | "raised" | "dead":
                return self._ended(view, pg_id)
            case "silent":
                text = "does not answer: it is stopped, or runs C code that holds the GIL"
                text = "is stopped (SIGSTOP)" if view.is_stopped else text
                operation = self.graph.histories[view.rank].newest(run_id=self.run_id)
                return text, operation.site if operation else None
            case "idle":
                return self._beside(view)
            case _:
                return "is starting", None

    def _running(self, view: RankView) -> tuple[str, Site | None]:
        waits = self.graph.waits[view.rank]
        threads = view.look.threads if view.look else ()
        main = next((thread for thread in threads if thread.is_main), None)
        if waits and (waits[0].thread.is_main or main is None):
            return self._waiting(waits[0])
        if main is None:
            return "runs", None
        site = main.stack[0] if main.stack else None
        if main.innermost in WAITS_FOR_USER:
            return f"is {WAITS_FOR_USER[main.innermost]}", site
        is_inside = main.innermost and (site is None or main.innermost != site.function)
        return (f"runs, now in {main.innermost}()" if is_inside else "runs"), site

    def _waiting(self, waiting: Waiting) -> tuple[str, Site | None]:
        operations = [each for each in waiting.operations if each.state == "scheduled"]
        names = ", ".join(self.name(each) for each in operations[:3]) or "an operation"
        if len(operations) > 3:
            names += f" and {len(operations) - 3} more"
        how = "waits in" if len(operations) < 2 else "waits for"
        if not waiting.needs_all:
            how = "waits inside torch for"
        stack = waiting.thread.stack
        site = operations[0].site if operations else None
        if (site is None or not site.line or not waiting.needs_all) and stack:
            site = stack[0]
        return f"{how} {names}", site

    def _ended(self, view: RankView, pg_id: str | None) -> tuple[str, Site | None]:
        """With the last thing that it did in a group, or at all."""
        history = self.graph.histories[view.rank]
        newest = history.newest(pg_id, self.run_id) or history.newest(run_id=self.run_id)
        if view.state == "raised":
            before = f"after {self.name(newest)}" if newest else "before any operation"
            error = view.error
            site = (error and error.site) or (newest.site if newest else None)
            if error is None or not error.name.startswith("Collective"):
                return f"{view.how_it_left}, {before}", site
            return f"raised {error.name}, {before}", site  # what it says stands above
        text = "has finished the cell"
        if view.state == "dead":
            text = exit_phrase(view)
        if newest is None:
            return f"{text} without an operation", None
        if newest.state == "failed" and not is_stumble(newest):
            return f"{text}; its {self.name(newest)} failed", newest.site
        return f"{text}; its last operation was {self.name(newest)}", newest.site

    def _beside(self, view: RankView) -> tuple[str, Site | None]:
        waits = self.graph.waits[view.rank]
        if not waits:
            return "takes no part in this cell", None
        what, site = self._waiting(waits[0])
        return f"takes no part in this cell; a thread of it {what}", site

    def ranks(self, ranks: Iterable[Rank], pg_id: str | None = None) -> dict[Rank, PerRank]:
        """Several of them, in order."""
        known = sorted(set(ranks) & set(self.graph.views))
        return {rank: self.rank(rank, pg_id) for rank in known}


def exit_phrase(view: RankView) -> str:
    """``exited with SIGKILL (signal 9)``, ``exited with code 3``."""
    if not view.exit_text:
        return "exited"
    how = view.exit_text.removeprefix("exit ")
    return f"exited, {how}" if how.startswith("ended") else f"exited with {how}"


def brought(signature: Signature, fields: Iterable[str]) -> str:
    """What a rank brought, as far as it matters: ``broadcast``, ``all_reduce of float32[4]``."""
    wanted = set(fields)
    text = signature.op
    if wanted & {"input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "tensors"}:
        is_output = wanted & {"output_sizes", "output_dtypes"}
        sizes = signature.output_sizes if is_output else signature.input_sizes
        dtypes = signature.output_dtypes if is_output else signature.input_dtypes
        shown = [f"{dtype}{list(size)}" for dtype, size in zip(dtypes[:3], sizes[:3], strict=False)]
        more = f" and {signature.tensors - 3} more" if signature.tensors > 3 else ""
        text += f" of {', '.join(shown) or 'nothing'}{more}"
    if "root" in wanted:
        text += f" with root {signature.root}"
    if "reduce_op" in wanted:
        text += f" with {signature.reduce_op}"
    if wanted & {"input_splits", "output_splits"}:
        text += f" with input_splits={list(signature.input_splits)}"
        text += f", output_splits={list(signature.output_splits)}"
    return text


def verb(ranks: RankSet, singular: str, plural: str) -> str:
    """The form that fits."""
    return singular if len(ranks) == 1 else plural


def came_by(handled_by_rank: Mapping[Rank, ExceptionLine]) -> list[str]:
    """What sent ranks another way: ``rank 1 raised ValueError: boom (cell [3], line 2)``."""
    ranks_by_text: dict[str, list[Rank]] = {}
    for rank, handled in handled_by_rank.items():
        ranks_by_text.setdefault(str(handled), []).append(rank)
    told = []
    for ranks in map(RankSet.of, ranks_by_text.values()):
        handled = handled_by_rank[ranks.ranks[0]]
        if handled.is_interrupt:
            place_text = f" ({handled.place})" if handled.place else ""
            were = f"{verb(ranks, 'was', 'were')} interrupted{place_text}"
        else:
            were = f"raised {handled}"
        told.append(f"{ranks.describe()} {were}")
    return told


def in_plural(what: str) -> str:
    """What one rank does, as said of several: ``waits in ...`` becomes ``wait in ...``."""
    what = _FIRST_WORD.sub(lambda found: _PLURAL.get(found[0], found[0]), what)
    return what.replace("; its ", "; their ")


def start(ranks: RankSet) -> str:
    """``Rank 2`` or ``Ranks 0,2-3``, to begin a sentence."""
    return ranks.describe().capitalize()


def quote(operation: Operation) -> str:
    """Where it was called, with the line."""
    return place(operation.site) or "an unknown line"
