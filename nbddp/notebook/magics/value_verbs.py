"""The verbs of ``%ddp`` about values: ``push``, ``pull``, ``vars``, ``diff``.

Runs in: the notebook's process, thread of the running cell.
"""

from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from nbddp.controller.hub.transfer import interrupt_as_error
from nbddp.errors import TransferError
from nbddp.notebook import session
from nbddp.notebook.render import diff_report, variables_table


def push(shell: InteractiveShell, *, names: list[str], ranks: str | None) -> None:
    """Copy variables of the notebook to ranks. Raises `TransferError`, and as `Pool.push`."""
    missing = [name for name in names if name not in shell.user_ns]
    if missing:
        raise TransferError(
            f"the notebook has no variable {', '.join(map(repr, missing))}; no variable was "
            "changed. Next: define it in a cell of the notebook itself; %ddp push takes names, "
            "no expressions"
        )
    session.pool().push({name: shell.user_ns[name] for name in names}, ranks=ranks)


def pull(shell: InteractiveShell, *, expression: str, ranks: str | None) -> Any:
    """The value on each rank, as a list; of one rank that is named, its value.

    Raises as `Pool.pull`.
    """
    pool = session.pool()
    chosen = pool.rank_set(ranks)
    is_one = ranks is not None and len(chosen) == 1
    return pool.pull(expression, ranks=chosen.ranks[0] if is_one else chosen.ranks)


def list_variables(shell: InteractiveShell, *, names: list[str], ranks: str | None) -> None:
    """Show what each rank has of these variables, or of all. Raises as `Pool.vars`."""
    with interrupt_as_error("%ddp vars"):
        pool = session.pool()
        told = pool.told_variables(names, ranks=ranks)
        display(variables_table.bundle(told, tuple(names), pool.world_size), raw=True)


def diff(shell: InteractiveShell, *, expressions: list[str], ranks: str | None) -> None:
    """Show whether each value is equal on ranks. Raises as `Pool.diff`."""
    with interrupt_as_error("%ddp diff"):
        for expression in expressions:
            display(diff_report.bundle(session.pool().diff(expression, ranks=ranks)), raw=True)
