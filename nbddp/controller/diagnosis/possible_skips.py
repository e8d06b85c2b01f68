"""Finds what may leave out a call between a loop and the call: in the loop, and in functions.

Runs in: the notebook's process. Pure. A loop is told as shorter only if there is nothing of it.
"""

import ast
from collections.abc import Iterator, Sequence

import msgspec

from nbddp.controller.diagnosis.callers import lines_that_call
from nbddp.controller.diagnosis.code_places import called, find_place
from nbddp.controller.diagnosis.control_flow import Branch, Code, Sources
from nbddp.controller.diagnosis.definitions import function_at
from nbddp.controller.diagnosis.divergence import PossibleSkip, is_met
from nbddp.wire.flight_recorder import Operation, Site
from nbddp.wire.rank_set import Rank, RankSet

#: Decorators that call their function each time.
_PLAIN = (
    *("no_grad", "enable_grad", "inference_mode", "set_grad_enabled", "compile", "record"),
    *("staticmethod", "classmethod", "property", "wraps", "override", "autocast", "contextmanager"),
)


def possible_skips(
    operation: Operation, around: Sequence[Site], ranks: RankSet, other: Rank,
    *, size: int, sources: Sources,
) -> list[PossibleSkip]:  # fmt: skip
    """Return what may have kept ranks from a call that they have made before, in a loop.

    Args:
        operation: the call.
        around: its line and those of the functions around it, innermost first.
        ranks: the ranks that have made it fewer times.
        other: a rank that waits in it.
        size: the number of ranks of the pool.
        sources: the code.
    """
    codes = [sources(site) if site.line else None for site in around]
    looped = [
        number
        for number, (site, code) in enumerate(zip(around, codes, strict=True))
        if code is not None and any(each.kind == "loop" for each in code.branches(site.line))
    ]
    outermost = looped[-1] if looped else 0
    skips: list[PossibleSkip] = []
    for number, (site, code) in enumerate(zip(around, codes, strict=True)):
        if code is None:
            continue
        if number > outermost:
            skips += _of_handlers(site, code)
            continue
        is_last = number == outermost
        function = "" if number == 0 else around[number - 1].function
        name = operation.signature.op if number == 0 else function
        skips += _of_statements(site, code, ranks, other, size, is_last=is_last)
        inner = codes[number - 1] if number else None
        is_plain = inner is not None and not _decorators(around[number - 1], inner)
        skips += _of_line(site, code, name, is_direct=is_plain)
        if operation.is_by_library and number == 0:
            skips += _of_no_sync(site, code)
        if not is_last:
            skips += _of_decorators(site, code)
        skips += _of_callers(site, code, [each for each in codes if each is not None])
    return list(dict.fromkeys(skips))


def _of_statements(
    site: Site, code: Code, ranks: RankSet, other: Rank, size: int, *, is_last: bool
) -> Iterator[PossibleSkip]:
    """Conditions, ``try`` and exits; of the function with the outermost loop only those in it."""
    branches = code.branches(site.line)
    loops = [each for each in branches if each.kind == "loop"]
    outer = loops[-1] if is_last and loops else None

    def is_inside(line: int) -> bool:
        return outer is None or (line in outer and line > outer.line)

    def keeps_away(branch: Branch) -> bool:
        is_theirs = is_met(branch, other, size) is not False
        return is_theirs and any(is_met(branch, rank, size) is not True for rank in ranks)

    for branch in branches:
        is_there = branch.kind == "try" or is_inside(branch.line)  # an error ends a loop, too
        if branch.kind != "loop" and is_there and keeps_away(branch):
            yield PossibleSkip("branch", _at(site, code, branch.line), branch=branch)
    for leaving in code.exits(site.line):
        met = {is_met(leaving.condition, rank, size) for rank in ranks}
        if is_inside(leaving.line) and met != {False}:
            yield PossibleSkip("exit", _at(site, code, leaving.line), leaving=leaving)


def _of_handlers(site: Site, code: Code) -> Iterator[PossibleSkip]:
    """Each ``try`` around a caller of the loop, where an exception that ended it may have gone."""
    for branch in code.branches(site.line):
        if branch.kind == "try":
            yield PossibleSkip("branch", _at(site, code, branch.line), branch=branch)


def _of_line(site: Site, code: Code, name: str, *, is_direct: bool) -> Iterator[PossibleSkip]:
    """An expression with a condition around a call; or a call that does not name its function."""
    place = find_place(code, site.line)
    if place is None:
        return
    nodes = list(ast.walk(place.statement))
    calls = [node for node in nodes if called(node) == name]
    if is_direct and not calls and name != "forward" and name[:1] not in "_<":
        yield PossibleSkip("way", site, name=name)
    for node in nodes:
        match node:
            case ast.BoolOp(values=[_, *parts]):
                inside: list[ast.AST] = list(parts)
            case ast.IfExp(body=body, orelse=orelse):
                inside = [body, orelse]
            case ast.ListComp(elt=elt, generators=generators) if any(g.ifs for g in generators):
                inside = [elt]
            case _:
                continue
        if any(call in ast.walk(part) for part in inside for call in calls):
            yield PossibleSkip("expression", site)
            return


def _of_no_sync(site: Site, code: Code) -> Iterator[PossibleSkip]:
    """A ``no_sync()`` in the function of a backward, above it."""
    function = function_at(code.statements, site.line)
    body = code.statements if function is None else function.body
    for node in ast.walk(ast.Module(body, [])):
        if isinstance(node, ast.Attribute) and node.attr == "no_sync" and node.lineno <= site.line:
            yield PossibleSkip("no_sync", _at(site, code, node.lineno))


def _of_decorators(site: Site, code: Code) -> Iterator[PossibleSkip]:
    for node in _decorators(site, code):
        yield PossibleSkip("decorator", _at(site, code, node.lineno))


def _decorators(site: Site, code: Code) -> list[ast.expr]:
    """The decorators of the function of a line that may not call it each time."""
    function = function_at(code.statements, site.line)
    decorators = [] if function is None else function.decorator_list
    targets = [each.func if isinstance(each, ast.Call) else each for each in decorators]
    return [
        each
        for each, target in zip(decorators, targets, strict=True)
        if ast.unparse(target).rpartition(".")[2] not in _PLAIN
    ]


def _of_callers(site: Site, code: Code, codes: Sequence[Code]) -> Iterator[PossibleSkip]:
    """Several lines that call the function of a line: ranks may have come by some of them."""
    distinct = {id(each): each for each in (code, *codes)}.values()
    lines = [
        (each is code, line)
        for each in distinct
        for line in sorted(set(lines_that_call(each, site.function)))
        # The statements of a cell outside of functions belong to its own run.
        if each is codes[-1] or function_at(each.statements, line) is not None
    ]
    if len(lines) > 1:
        here = tuple(line for is_here, line in lines if is_here)
        yield PossibleSkip("callers", site, name=site.function, lines=here * (len(here) > 1))


def _at(site: Site, code: Code, line: int) -> Site:
    return msgspec.structs.replace(site, line=line, source=code.source(line).strip())
