"""Finds the call in a cell by which a rank ended its own process: ``os.kill``, ``os._exit``.

Runs in: the notebook's process. Pure.
"""

import ast
from collections.abc import Iterator

from nbddp.controller.diagnosis import Code, describe_branch, is_met
from nbddp.controller.state import RunOutcome
from nbddp.wire.flight_recorder import shortened
from nbddp.wire.messages import RankExited
from nbddp.wire.rank_set import Rank

#: Functions that send a signal, or end the process with a code.
_SIGNALS = ("os.kill", "os.killpg", "signal.raise_signal", "os.abort")
_EXITS = ("os._exit",)
_MAX_SOURCE = 60


def exit_calls(outcome: RunOutcome, code: Code, world_size: int) -> dict[Rank, str]:
    r"""Return the one call in a cell that may have ended a rank, in words.

    Args:
        outcome: the end of the cell.
        code: the cell.
        world_size: the number of ranks of the pool.

    Returns:
        By rank ``line 6: \`os.abort()\```, with the condition around it. Ranks are left
        out for which there is no such call that they may have made, or several.
    """
    ends = {rank: result.exited for rank, result in outcome.results.items()}
    calls: dict[Rank, str] = {}
    for rank, exited in ends.items():
        if exited is not None and exited.cause is None and not exited.out_of_memory:
            places = list(_calls(code, exited, rank, world_size))
            calls |= {rank: places[0]} if len(places) == 1 else {}
    return calls


def _calls(code: Code, exited: RankExited, rank: Rank, world_size: int) -> Iterator[str]:
    """The calls that may have ended a rank, but not those about another process: ``child.pid``."""
    functions = _EXITS if exited.exit_code >= 0 else _SIGNALS
    lines = {
        node.lineno
        for statement in code.statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in functions
        if not any(isinstance(each, ast.Attribute) and each.attr == "pid" for each in node.args)
    }
    for line in sorted(lines):
        yield from _places(code, line, rank, world_size)


def _places(code: Code, line: int, rank: Rank, world_size: int) -> Iterator[str]:
    """The line in words, if the rank may have run it."""
    conditions = [branch for branch in code.branches(line) if branch.kind == "condition"]
    if any(is_met(branch, rank, world_size) is False for branch in conditions):
        return
    is_shown = bool(conditions) and (conditions[0].line != line or conditions[0].other is not None)
    inside = f", inside {describe_branch(conditions[0])}" if is_shown else ""
    yield f"line {line}: `{shortened(code.source(line).strip(), _MAX_SOURCE)}`{inside}"
