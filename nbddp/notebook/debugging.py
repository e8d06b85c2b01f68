"""``%ddp debug``: the debugger of a rank, at the line where it raised its last exception.

Runs in: the notebook's process, thread of the running cell.
"""

import sys

from IPython.core.interactiveshell import InteractiveShell

from nbddp.controller.pool import CellOptions, Pool
from nbddp.errors import BadOptionError, CellError
from nbddp.notebook import commands, session

#: What ranks raise because another one did, or the user stopped them.
_CONSEQUENCES = ("Collective", "KeyboardInterrupt", "Unfinished")


def post_mortem(shell: InteractiveShell, words: list[str], execution_count: int) -> None:
    """Open the debugger on one rank; returns when the user has left it.

    Raises:
        BadOptionError: not one rank, or none is named and the last error was not that of a cell.
        CellError: the rank has raised nothing.
    """
    pool = session.pool()
    text = commands.parse_debug(words)
    rank = _last_failed(pool) if text is None else _one_rank(pool, text)
    options = CellOptions(
        ranks=pool.rank_set(rank), execution_count=execution_count, cell_name="%ddp debug"
    )
    pool.run_cell("%debug", options)


def _one_rank(pool: Pool, text: str) -> int:
    ranks = pool.rank_set(text).ranks
    if len(ranks) != 1:
        raise BadOptionError(f"%ddp debug -r {text}: a debugger is for one rank")
    return ranks[0]


def _last_failed(pool: Pool) -> int:
    """The rank whose error made the last cell fail."""
    error = getattr(sys, "last_value", None)
    failed = error.by_rank if isinstance(error, CellError) else {}
    causes = [rank for rank, (name, _) in failed.items() if not name.startswith(_CONSEQUENCES)]
    for rank in [*causes, *failed]:
        if rank < pool.world_size:
            return rank
    raise BadOptionError(
        "%ddp debug: the last error was not that of a rank. Next: %ddp debug -r RANK"
    )
