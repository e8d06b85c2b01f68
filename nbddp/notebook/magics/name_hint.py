"""A line below a NameError, on the ranks or in the notebook.

Runs in: the notebook's process, thread of the running cell, after the cell.
"""

import re
import types

from IPython.core.getipython import get_ipython
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

from nbddp.controller.pool import Pool
from nbddp.errors import CellError
from nbddp.line_breaks import with_line_breaks
from nbddp.notebook import let_go_pools, session
from nbddp.notebook.magics import completion
from nbddp.settings import PREDEFINED_NAMES
from nbddp.wire.flight_recorder import cell_name
from nbddp.wire.rank_set import RankSet

#: The text of Python's NameError.
_UNDEFINED = re.compile(r"name '(?P<name>\w+)' is not defined")
#: These are modules: they may as well be imported in the notebook.
_MODULES = {"torch": "import torch", "dist": "import torch.distributed as dist"}


def install(shell: InteractiveShell) -> None:
    """Print the line after each cell that needs it."""
    uninstall(shell)
    shell.events.register("post_run_cell", _print_hint)


def uninstall(shell: InteractiveShell) -> None:
    """Take `install` back."""
    if _print_hint in shell.events.callbacks["post_run_cell"]:
        shell.events.unregister("post_run_cell", _print_hint)


def _print_hint(result: ExecutionResult) -> None:
    error = result.error_in_exec
    hint = ""
    if type(error) is NameError and error.name:
        hint = _of_ranks(error.name)
    elif isinstance(error, CellError):
        hint = _of_notebook(error)
    if hint:
        print(with_line_breaks(hint))


def _of_notebook(error: CellError) -> str:
    """A sentence about a name that the ranks lack; empty if nothing is known of it."""
    shell = get_ipython()
    for exception, text in error.by_rank.values():
        match = _UNDEFINED.match(text) if exception == "NameError" else None
        if match is None or shell is None:
            continue
        if match["name"] not in shell.user_ns:
            if hint := _of_let_go_pool(match["name"]):
                return hint
            continue
        name = match["name"]
        if isinstance(shell.user_ns[name], types.ModuleType):
            return f"{name} is imported in the notebook only. Next: import it in a %%ddp cell, too"
        lacking = RankSet.of(
            rank for rank, own in error.by_rank.items() if own == (exception, text)
        )
        pool = session.current_pool()
        if pool is not None and _is_of_cell(pool, name, lacking):
            return ""  # the error says how to get the value that the other ranks have
        is_some = pool is not None and len(lacking) < pool.world_size
        to = (
            f" -r {lacking} gives it to {lacking.describe()}"
            if is_some
            else " gives it to the ranks"
        )
        return f"{name} is a variable of the notebook. Next: %ddp push {name}{to}"
    return ""


def _of_let_go_pool(name: str) -> str:
    """A sentence about a name of a pool that was let go; empty: no such pool has it."""
    owner = let_go_pools.owner(name)
    if owner is None:
        return ""
    cell, pool_id = owner
    return (
        f"{cell_name(cell)}, which defines {name}, ran on pool {pool_id}, which goes on without a "
        f"kernel. Next: %ddp stop, then %ddp attach {pool_id} takes it back; or run the cell again "
        "on this pool"
    )


def _is_of_cell(pool: Pool, name: str, lacking: RankSet) -> bool:
    """Whether ranks lack a name since their processes are fresh, and a cell of ranks defines it."""
    are_fresh = all(pool.snapshot.ranks[rank].is_replacement for rank in lacking)
    return are_fresh and pool.history.missed(name, lacking) is not None


def _of_ranks(name: str) -> str:
    """A sentence about a name that the notebook lacks; empty if the ranks lack it, too."""
    if name in _MODULES:
        return (
            f"{name} is imported on the ranks: begin the cell with %%ddp to run it there, or "
            f"{_MODULES[name]} here"
        )
    if name in PREDEFINED_NAMES:
        return f"{name} is a variable of the ranks: begin the cell with %%ddp to run it there"
    code = f"%%ddp\n{name}"
    inspection = completion.inspect(code, len(code))  # it has a time limit
    if inspection is None or not inspection.found:
        return ""
    return (
        f"{name} is a variable of the ranks: begin the cell with %%ddp to run it there, or fetch "
        f"its values: {name} = %ddp pull {name}"
    )
