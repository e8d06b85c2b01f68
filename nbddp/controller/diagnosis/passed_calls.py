"""Finds calls that ranks have passed for good: their code has no second one.

Runs in: the notebook's process. Pure.
"""

import ast
from collections import Counter

from nbddp.controller.diagnosis.callers import frames, lines_that_call
from nbddp.controller.diagnosis.causes import Cause
from nbddp.controller.diagnosis.code_places import called
from nbddp.controller.diagnosis.control_flow import Code
from nbddp.controller.diagnosis.iterations import loops_around
from nbddp.controller.diagnosis.rank_reports import RankReports
from nbddp.wire.flight_recorder import Site
from nbddp.wire.rank_set import Rank

_MODULE = "<module>"


def is_passed(cause: Cause, reports: RankReports) -> bool:
    """Return whether the culprits are behind the only call of a collective in their code.

    Args:
        cause: the collective, and the ranks that have not made it.
        reports: the ranks.

    Returns:
        False also where a loop is around the call, or where functions have other callers.
    """
    operation, sources = cause.operation, reports.sources
    if operation is None or not operation.site.line or operation.is_by_library:
        return False
    around = frames(reports.graph, cause.owner, operation)
    code, outermost = sources(operation.site), around[-1]
    if code is None or outermost.function != _MODULE or not _is_only_call(code, operation.site):
        return False
    for inner, outer in zip(around, (*around[1:], None), strict=True):
        place = sources(inner)
        if place is None or loops_around(place, inner.line):
            return False
        if outer is not None:
            codes = {each.position[:2]: sources(each) for each in around}
            lines = [
                line
                for each in codes.values()
                if each is not None
                for line in lines_that_call(each, inner.function)
            ]
            if lines != [outer.line]:
                return False
    return all(_is_behind(rank, outermost, reports) for rank in cause.culprits)


def _is_behind(rank: Rank, site: Site, reports: RankReports) -> bool:
    """Whether a rank is at a later line of the cell than a site, or has ended."""
    if reports.graph.views[rank].state == "finished":
        return True
    waits = reports.graph.waits[rank]
    first = next(iter(waits[0].operations), None) if waits else None
    stack = waits[0].thread.stack if waits else ()
    place = stack[-1] if stack else first.site if first is not None else None
    return (
        place is not None
        and place.function == _MODULE
        and place.position[:2] == site.position[:2]
        and place.line > site.line
    )


def _is_only_call(code: Code, site: Site) -> bool:
    """Whether no other line has the same call, or a call in the same group."""
    calls = [
        node
        for statement in code.statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Call)
    ]
    here = [node for node in calls if node.lineno == site.line and _group(node)]
    if len(here) != 1:
        return False
    names, groups = Counter(map(called, calls)), Counter(map(_group, calls))
    return names[called(here[0])] == 1 == groups[_group(here[0])]


def _group(call: ast.Call) -> str:
    """The argument ``group`` of a call, as text; empty: it has none."""
    return next((ast.unparse(each.value) for each in call.keywords if each.arg == "group"), "")
