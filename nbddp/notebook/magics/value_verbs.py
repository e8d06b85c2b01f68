"""The verbs of ``%ddp`` about values: ``push``, ``pull``, ``vars``, ``diff``.

Runs in: the notebook's process, thread of the running cell.
"""

from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from nbddp.controller.hub import interrupt_as_error
from nbddp.errors import TransferError
from nbddp.notebook import session
from nbddp.notebook.render import diff_report, variables_table


def push(shell: InteractiveShell, *, names: list[str], ranks: str | None) -> None:
    """Copy variables of the notebook to ranks.

    Args:
        shell: holds the variables.
        names: their names.
        ranks: the ranks that get them; None: all.

    Raises:
        BadOptionError: a name is ``rank`` or ``local_rank``, or a rank does not exist.
        TransferError: a variable is missing or cannot be pickled; no variable was changed.
        TransferInterruptedError: the user interrupted the push; no variable was changed.
        PoolBusyError: a cell is running.
        NoPoolError: no pool is running.
    """
    missing = [name for name in names if name not in shell.user_ns]
    if missing:
        raise TransferError(
            f"the notebook has no variable {', '.join(map(repr, missing))}; no variable was "
            "changed. Next: define it in a cell of the notebook itself; %ddp push takes names, "
            "not expressions"
        )
    session.pool().push({name: shell.user_ns[name] for name in names}, ranks=ranks)


def pull(shell: InteractiveShell, *, expression: str, ranks: str | None) -> Any:
    """Get the value of an expression on ranks.

    Args:
        shell: not used.
        expression: Python code that each rank evaluates.
        ranks: the ranks that are asked; None: all.

    Returns:
        The value on each rank, as a list; the value itself if ``ranks`` names one rank.

    Raises:
        BadOptionError: a rank does not exist.
        TransferError: the expression raised, or its value cannot be pickled.
        TransferInterruptedError: the user interrupted the pull.
        PoolBusyError: a cell is running.
        NoPoolError: no pool is running.
    """
    pool = session.pool()
    chosen = pool.rank_set(ranks)
    is_one = ranks is not None and len(chosen) == 1
    return pool.pull(expression, ranks=chosen.ranks[0] if is_one else chosen.ranks)


def list_variables(shell: InteractiveShell, *, names: list[str], ranks: str | None) -> None:
    """Show variables of ranks.

    Args:
        shell: not used.
        names: the names of the variables; empty: all.
        ranks: the ranks that are asked; None: all.

    Raises:
        BadOptionError: a name is not an identifier, or no rank has it.
        TransferInterruptedError: the user interrupted the verb.
        PoolBusyError: a cell is running.
        NoPoolError: no pool is running.
    """
    with interrupt_as_error("%ddp vars"):
        pool = session.pool()
        variables = pool.told_variables(names, ranks=ranks)
        display(variables_table.bundle(variables, tuple(names), pool.world_size), raw=True)


def diff(shell: InteractiveShell, *, expressions: list[str], ranks: str | None) -> None:
    """Show for each expression whether its value is equal on ranks.

    Args:
        shell: not used.
        expressions: Python code that each rank evaluates.
        ranks: the ranks that are compared; None: all.

    Raises:
        BadOptionError: an expression has a value on no rank, or a rank does not exist.
        TransferInterruptedError: the user interrupted the verb.
        PoolBusyError: a cell is running.
        NoPoolError: no pool is running.
    """
    with interrupt_as_error("%ddp diff"):
        for expression in expressions:
            display(diff_report.bundle(session.pool().diff(expression, ranks=ranks)), raw=True)
