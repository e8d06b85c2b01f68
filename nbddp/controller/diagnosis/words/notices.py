"""The words about ranks that others wait for and that may still come.

Runs in: the notebook's process. Pure.
"""

import keyword
import re
from collections.abc import Sequence
from typing import Final

from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.notices import WAITING_CALL, other_end
from nbddp.controller.diagnosis.phrases import subject
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.controller.diagnosis.rank_view import RankView
from nbddp.controller.diagnosis.report import CodeLine
from nbddp.controller.diagnosis.wait_graph import WaitForGraph, acting_threads, can_act
from nbddp.controller.diagnosis.words.shared import Words, in_turn, name
from nbddp.wire.flight_recorder import CALLBACK_THREAD, WAITS_FOR_USER, Operation, ThreadLook
from nbddp.wire.rank_set import NO_RANKS, Rank, RankSet

#: A sentence names this many threads, and counts the others.
_MAX_THREADS: Final = 3

#: Any call, by the name in the source.
_CALL: Final = re.compile(r"([A-Za-z_][\w.]*)\s*\(")


def straggler(cause: Cause, reports: RankReports) -> Words:
    """Ranks wait for ranks that may still come, or for an operation that all have joined."""
    ranks, culprits, operation = cause.direct or cause.waiting, cause.culprits, cause.operation
    if not culprits and operation is not None and operation.peer >= 0:
        return _slow_message(cause, operation, reports)
    if not culprits:
        return Words(
            f"All ranks have come to {name(cause, reports)}, and it is not over yet.",
            "nothing is missing: much data, or a slow or broken connection.",
            "Wait, or interrupt the cell.",
            begins_with_ranks=False,
        )
    others, culprits = _others(cause, reports), _awaited(cause, reports)
    # The call is left out of a sentence that has one line on the screen, and ends with the place.
    call = (
        "an operation"
        if operation is None
        else reports.said(cause.owner, operation, has_call=False, has_members=False)
    )
    they = f"{subject(ranks)} {ranks.verb('waits', 'wait')} in {call}"
    peers = () if operation is None else (operation.peer,)
    if culprits.ranks != peers:  # else "recv from rank 1" has named it
        they += f" for {culprits.describe()}"
    views = [reports.graph.views[rank] for rank in culprits]
    places = {_waits_for_user(view) for view in views}
    if "" not in places:
        return Words(
            f"{they}, {' or '.join(sorted(places))}.",
            f"{culprits.verb('it goes', 'they go')} on when you say so.{others}",
            "Answer, step or continue at the prompt; an interrupt ends the cell and keeps the "
            "variables.",
        )
    return Words(
        f"{they}, {_activity(views, is_outside=cause.kind == 'stuck-outside')}.",
        f"{culprits.verb('it', 'they')} may still come.{others}",
        "Wait; `%ddp stacks` shows where every rank is; an interrupt ends the cell and keeps "
        "the variables.",
    )


def _awaited(cause: Cause, reports: RankReports) -> RankSet:
    """The ranks, of the culprits, that the operation of the sentence misses."""
    missing = None
    if cause.operation is not None:
        missing = reports.graph.absent(cause.owner, cause.operation)
    return RankSet.of(rank for rank in cause.culprits if rank in (missing or ())) or cause.culprits


def _others(cause: Cause, reports: RankReports) -> str:
    """A sentence on the ranks that wait in other operations, with a blank in front."""
    others = cause.waiting - cause.direct
    if not others or not cause.direct:
        return ""
    if any(
        not set(cause.culprits).isdisjoint(reports.graph.absent(rank, operation) or ())
        for rank in others
        for waiting in reports.graph.waits[rank][:1]
        for operation in waiting.operations
    ):
        return f" {subject(others)} {others.verb('waits', 'wait')} in another operation."
    return in_turn(cause)


def _slow_message(cause: Cause, operation: Operation, reports: RankReports) -> Words:
    """A message to which both ends have come, and that is not over yet."""
    peer, other = operation.peer, other_end(reports.graph, cause.owner, operation)
    waits = f"{subject(cause.waiting)} waits in {name(cause, reports)}"
    if other is None or other.state == "scheduled":
        return Words(
            f"{waits}: both ends have come, and it is not over yet.",
            "nothing is missing: much data, or a slow or broken connection.",
            "Wait, or interrupt the cell.",
        )
    line = f"line {other.site.line}" if other.site.line else "the call"
    call = f"i{other.signature.kind}" if other.async_op else other.signature.op
    return Words(
        f"{waits}: was the handle of {call} at {line} of rank {peer} dropped?",
        "Gloo forgets a message whose handle was deleted before the other end had come, and tells "
        "neither of the two.",
        f"Keep what `{call}` returns at {line}, and call its `wait()`.",
        code=(CodeLine(other.site, RankSet.of([peer])),) if other.site.line else (),
    )


def _waits_for_user(view: RankView) -> str:
    """``at a prompt`` or ``at a breakpoint``, if the rank waits for the user; else empty."""
    main = view.look.main if view.look else None
    return "" if main is None else WAITS_FOR_USER.get(main.innermost, "")


def _activity(views: Sequence[RankView], *, is_outside: bool) -> str:
    """A clause on the present activity of ranks that others wait for: ``which still runs``.

    Args:
        views: of these ranks.
        is_outside: whether all of them wait for something outside of torch.distributed.
    """
    one = len(views) == 1
    if all(view.look is not None and view.look.activity == "callback" for view in views):
        return f"still in {CALLBACK_THREAD}"  # the cell begins after that
    looks = [view.look.main if view.look is not None else None for view in views]
    modules = {"" if main is None else main.importing for main in looks}
    if len(modules) == 1 and (module := modules.pop()):
        return f"which {'imports' if one else 'import'} {module}"
    if is_outside:
        clauses = {_waits_outside(view, one=one) for view in views}
        unknown = f"which {'waits' if one else 'wait'} for something else"
        return (clauses.pop() if len(clauses) == 1 else "") or unknown
    return f"which still {'runs' if one else 'run'}"


def describe_running(graph: WaitForGraph, *, without: RankSet = NO_RANKS) -> str:
    """The ranks, threads and processes that still run, so that nothing is proven.

    Args:
        graph: the ranks at one moment.
        without: ranks that are not meant.

    Returns:
        The end of a sentence: ``rank 1, which still runs; thread 'loader' of rank 0``.
    """
    running: list[Rank] = []
    parents: list[Rank] = []
    threads: list[str] = []
    for rank, view in graph.views.items():
        acting = [] if view.look is None else acting_threads(view.look)
        threads += [f"thread {each.name!r} of rank {rank}" for each in acting if not each.is_main]
        if (
            rank not in without
            and can_act(view)
            and (not acting or any(each.is_main for each in acting))
        ):
            running.append(rank)
        if view.look is not None and view.look.has_children:
            parents.append(rank)
    parts = threads[:_MAX_THREADS]
    if len(threads) > len(parts):
        parts[-1] += f" and {len(threads) - len(parts)} more"
    if running:
        ranks = RankSet.of(running)
        parts.insert(0, f"{ranks.describe()}, which still {ranks.verb('runs', 'run')}")
    if parents:
        ranks = RankSet.of(parents)
        parts.append(f"processes that {ranks.describe()} {ranks.verb('has', 'have')} started")
    return "; ".join(parts) or "another process"


def _waits_outside(view: RankView, *, one: bool) -> str:
    """A clause on the place where it waits; empty if that is not known."""
    if view.is_stopped:
        return "whose process is stopped" if one else "whose processes are stopped"
    if view.state == "silent":
        return f"which {'does' if one else 'do'} not answer"
    main = view.look.main if view.look else None
    call = "" if main is None else _waiting_call(main)
    return f"which {'is' if one else 'are'} in {call}()" if call else ""


def _waiting_call(thread: ThreadLook) -> str:
    """``time.sleep``: the only call of its line, or the one that its innermost function shows."""
    source = thread.stack[0].source if thread.stack else ""
    calls = [call for call in _CALL.findall(source) if not keyword.iskeyword(call)]
    if len(calls) > 1:
        is_python = thread.innermost not in ("", thread.stack[0].function)
        waiting = {thread.innermost} if is_python else set(WAITING_CALL.findall(source))
        calls = [call for call in calls if call.rpartition(".")[2] in waiting]
    return calls[0] if len(calls) == 1 else ""
