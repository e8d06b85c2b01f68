"""Finds the lines around a call: those of the functions that called its function.

Runs in: the notebook's process. Pure. A rank that waits has told its stack. Of a rank that has left
its call, the source shows the caller, if one statement alone calls the function.
"""

import ast
from collections.abc import Iterable, Iterator

import msgspec

from nbddp.controller.diagnosis.control_flow import Code, Sources
from nbddp.controller.diagnosis.definitions import function_at
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import Operation, Site
from nbddp.wire.rank_set import Rank

_MODULE = "<module>"
#: Callers of callers that are looked for.
_MAX_FRAMES = 16


def frames(graph: WaitForGraph, rank: Rank, operation: Operation) -> tuple[Site, ...]:
    """Return the line of a call, and those of the functions around it, innermost first.

    Args:
        graph: the ranks.
        rank: a rank that made the call.
        operation: the call. If the rank no longer waits in it, its own line is all that is known.
    """
    for waiting in graph.waits[rank]:
        stack = waiting.thread.stack
        has_line = any(site.position == operation.site.position for site in stack)
        if has_line and operation in waiting.operations:
            return stack
    return (operation.site,)


def frames_or_source(
    graph: WaitForGraph, rank: Rank, operation: Operation, sources: Sources
) -> tuple[Site, ...]:
    """Return `frames`, and for a rank that no longer waits `frames_in_source`."""
    stack = frames(graph, rank, operation)
    if len(stack) > 1:
        return stack
    return frames_in_source(operation.site, graph.places(operation.run_id), sources)


def frames_in_source(site: Site, others: Iterable[Site], sources: Sources) -> tuple[Site, ...]:
    """Return a line and those of the functions that call its function, as the source shows them.

    Args:
        site: the line.
        others: lines of the same run: their cells and files may call the function, too.
        sources: the code.

    Returns:
        The lines, innermost first. They end at a function that several statements call, or none.
    """
    if site.function == _MODULE:
        return (site,)
    stack = [site]
    places = {each.position[:2]: each for each in (site, *others) if each.line}
    codes = [(each, code) for each in places.values() if (code := sources(each)) is not None]
    while stack[-1].function != _MODULE and len(stack) < _MAX_FRAMES:
        calls = [
            msgspec.structs.replace(
                each, line=line, function=_function(code, line), source=code.source(line).strip()
            )
            for each, code in codes
            for line in lines_that_call(code, stack[-1].function)
        ]
        if len(calls) != 1 or calls[0] in stack:
            break
        stack += calls
    return tuple(stack)


def lines_that_call(code: Code, function: str) -> Iterator[int]:
    """The line of each call of a function, by its name: ``save(1)``, and not ``torch.save(x)``."""
    for statement in code.statements:
        for node in ast.walk(statement):
            match node:
                case ast.Call(func=ast.Name(id=name)) if name == function:
                    yield node.lineno
                case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
                    if name == function:
                        yield node.lineno
                case _:
                    pass


def _function(code: Code, line: int) -> str:
    function = function_at(code.statements, line)
    return _MODULE if function is None else function.name
